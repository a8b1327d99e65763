"""Reads a YAML file into a Config: `extends`, the model's file, `--set` overrides, and errors that name the key; and dates."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from conf.dates import iso_date
from conf.errors import ConfigError
from conf.overrides import set_override
from conf.types import Config, Strict
from conf.yaml_files import read_config_file, read_models

Section = TypeVar("Section", bound=Strict)


def load_config(path: str, overrides: list[str] | None = None) -> Config:
    """The Config of a YAML file.

    `extends: other.yaml` (relative to the file) is read first and merged key by key; `model: file.yaml` (also
    relative) is replaced by that file's mapping, also in a source of `candidates`; then each override `a.b=value` is set
    (conf/overrides.py says how its value is read), one of `model` itself before the file is read and one of `model.a` after.

    Raises:
        ConfigError: a file is missing or not YAML, a key is unknown, a value breaks its rule.
    """
    values = read_config_file(Path(path))
    for override in overrides or []:
        if override.startswith("model."):
            read_models(values, Path(path))
        set_override(values, override, Config)
    read_models(values, Path(path))
    return read_section(Config, values, f"{path}: ", "correct these keys in the file or in --set")


def parse_date(text: str) -> str:
    """An ISO date, returned as given; ConfigError otherwise."""
    try:
        return iso_date(text)
    except ValueError as error:
        raise ConfigError(f"--run-date {text!r} is not a date: {error}", "write it as YYYY-MM-DD") from error


def read_section(
    kind: type[Section], values: dict[str, Any], intro: str, fix: str, path: tuple[str, ...] = ()
) -> Section:
    """The section of these values.

    Args:
        intro, fix: how the error begins, and what it advises.
        path: keys above the section, so that the error names a key as the file does.

    Raises:
        ConfigError: a key is unknown or missing, or a value breaks its rule; names all of them.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_describe({**each, "loc": (*path, *each["loc"])}) for each in error.errors())
        raise ConfigError(f"{intro}{problems}", fix) from error


def _describe(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "config"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"unknown key {where}={error['input']!r}"
    if error["type"] == "missing":
        return f"{where} is missing"
    shown = "" if isinstance(error["input"], dict | list) else f"={error['input']!r}"
    return f"{where}{shown}: {message}"


def config_digest(config: Config, *sections: str) -> str:
    """Hex digest of the named sections (all when none is named), equal for equal values whatever their origin."""
    values = config.model_dump(mode="json")
    chosen = {name: values[name] for name in sections} if sections else values
    return sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
