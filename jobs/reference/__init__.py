"""Generates the reference files: pages and JSON schemas."""

from __future__ import annotations

import json

from conf.reference import Schema
from jobs.reference.configuration import config_schema, configuration_page, model_schema, models_page


def generated_files() -> dict[str, str]:
    """Returns the texts of all generated files by path. Paths are relative to the root of the checkout."""
    from jobs.reference.roads import roads_page  # this module imports Spark, which schemas do not need

    return {
        "conf/schema.json": _json(config_schema()),
        "conf/model_schema.json": _json(model_schema()),
        "docs/configuration.md": configuration_page(),
        "docs/models.md": models_page(),
        "docs/roads.md": roads_page(),
    }


def _json(schema: Schema) -> str:
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
