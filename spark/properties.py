"""Reads files of Spark properties."""

from __future__ import annotations

from pathlib import Path


def read_properties(path: Path) -> dict[str, str]:
    """Returns the settings in a properties file, which is parsed as spark-submit parses it."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    return {key: value.strip() for key, value in pairs}
