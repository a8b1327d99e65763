"""Holds an event against what OpenLineage requires (openlineage.json, which names the version)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parent / "openlineage.json").read_text(encoding="utf-8"))


def assert_valid(event: Mapping[str, Any]) -> None:
    """Fails with every place where the event breaks the schema."""
    found = [
        f"{each.json_path}: {each.message}" for each in Draft202012Validator(SCHEMA).iter_errors(dict(event))
    ]
    assert not found, "\n".join(found)
