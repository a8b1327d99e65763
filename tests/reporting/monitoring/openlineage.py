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
    problems = [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(SCHEMA).iter_errors(dict(event))
    ]
    assert not problems, "\n".join(problems)
