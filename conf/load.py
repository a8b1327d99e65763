"""Reads a configuration file, the files that it names, and `--set` overrides. Errors name the wrong key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from conf.dates import iso_date
from conf.errors import ConfigError
from conf.overrides import set_override
from conf.plugins import Plugin
from conf.types import Config, Strict
from conf.yaml_files import read_config_file, read_models

Section = TypeVar("Section", bound=Strict)


def load_config(path: str, overrides: list[str] | None = None) -> Config:
    """Reads the configuration in a YAML file.

    If the file has the key `extends`, the file that this key names is read first, and the mappings of both
    files are merged key by key. If a key `model` names a file, the mapping in that file replaces the name.
    This applies to `model` itself and to the sources of `candidates`. Paths are relative to the file that
    names them. Then each override `a.b=value` is set; conf/overrides.py describes how its value is read. An
    override of `model` is set before the model file is read, and an override of `model.a` after that.

    Raises:
        ConfigError: a file is missing or is not YAML, a key is unknown, or a value breaks its rule.
    """
    values = read_config_file(Path(path))
    for override in overrides or []:
        if override.startswith("model."):
            read_models(values, Path(path))
        set_override(values, override, Config)
    read_models(values, Path(path))
    return read_section(Config, values, f"{path}: ", "correct these keys in this file or in --set")


def parse_date(text: str, *, future: bool = False) -> str:
    """Returns the value of --run-date unchanged.

    Args:
        text: the value.
        future: whether the date may be later than tomorrow (--future). "Tomorrow" is the day after the
            present day in UTC, so that it includes the present day of every time zone.

    Raises:
        ConfigError: the value is not an ISO date, or is later than tomorrow without `future`.
    """
    try:
        day = iso_date(text)
    except ValueError as error:
        raise ConfigError(f"--run-date {text!r} is not a date: {error}", "write it as YYYY-MM-DD") from error
    latest = (datetime.now(UTC).date() + timedelta(days=1)).isoformat()
    if not future and day > latest:
        raise ConfigError(
            f"--run-date {day!r} is later than tomorrow ({latest} in UTC). Lists of a later date would "
            "be served until that day, and sinks would refuse the lists of all days before it",
            "correct the date, or add --future if the log has such dates on purpose",
        )
    return day


def read_section(
    kind: type[Section], values: dict[str, Any], intro: str, fix: str, path: tuple[str, ...] = ()
) -> Section:
    """Checks the values of a section and returns them as an object of its type.

    Args:
        intro, fix: the beginning of the error message, and the remedy.
        path: the keys above the section. In the error, these keys precede the name of a key of the section.

    Raises:
        ConfigError: a key is unknown or missing, or a value breaks its rule. The error names all such keys.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            _describe({**detail, "loc": (*path, *detail["loc"])}) for detail in error.errors()
        )
        raise ConfigError(f"{intro}{problems}", fix) from error


def read_package_settings(
    extension: Plugin, values: dict[str, Any], path: tuple[str, ...], other_keys: Iterable[str] = ()
) -> Strict:
    """Checks the settings of an extension, and returns them as an object of the class Settings of its module.

    Args:
        extension: the extension.
        values: the keys of its section that are settings of the extension.
        path: the keys above these keys, for errors.
        other_keys: keys of the same section that every extension of this kind has, for errors.

    Raises:
        ConfigError: the module cannot be imported or has no such class, a key is not one of the settings, or
            a value breaks its rule.
    """
    kind: type[Strict] = extension.settings(Strict)
    return read_section(
        kind,
        values,
        f"{extension.kind.word} {extension.name}: ",
        f"its settings are {sorted({*other_keys, *kind.model_fields})}; correct these keys in the "
        "configuration file or in --set",
        path,
    )


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
    """Returns a hex digest of the named sections, or of all sections if none is named.

    The digest depends only on the values of the keys. It does not matter in which file or override a value
    was written.
    """
    values = config.model_dump(mode="json")
    chosen = {name: values[name] for name in sections} if sections else values
    return sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]
