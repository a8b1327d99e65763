"""Reads a YAML file into a Config: `extends`, the model's file, `--set` overrides, and errors that name the key; and dates."""

from __future__ import annotations

import json
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from conf.errors import ConfigError
from conf.types import Config, Strict

Section = TypeVar("Section", bound=Strict)


def load_config(path: str, overrides: list[str] | None = None) -> Config:
    """The Config of a YAML file.

    `extends: other.yaml` (relative to the file) is read first and merged key by key; `model: file.yaml` (also
    relative) is replaced by that file's mapping, also in a source of `candidates`; then each override `a.b=value` (value parsed as YAML) is set, one of
    `model` itself before the file is read and one of `model.a` after.

    Raises:
        ConfigError: a file is missing or not YAML, a key is unknown, a value breaks its rule.
    """
    values = _read_mapping(Path(path))
    for override in overrides or []:
        if override.startswith("model."):
            _read_model(values, Path(path))
        _set(values, override)
    _read_model(values, Path(path))
    return read_section(Config, values, f"{path}: ", "correct these keys in the file or in --set")


def parse_date(text: str) -> str:
    """An ISO date, returned as given; ConfigError otherwise."""
    try:
        parsed = date.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--run-date {text!r} is not a date: {error}", "write it as YYYY-MM-DD") from error
    if parsed.isoformat() != text:
        raise ConfigError(f"--run-date {text!r} is not of the form YYYY-MM-DD", f"write {parsed.isoformat()}")
    return text


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


def _read_model(values: dict[str, Any], path: Path) -> None:
    """Replaces a `model` that names a file by what that file holds; likewise those of candidates.sources."""
    for section in _with_models(values):
        if isinstance(section.get("model"), str):
            section["model"] = _read_yaml(path.parent / section["model"])


def _with_models(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The mappings whose key `model` may name a file."""
    candidates = values.get("candidates")
    sources = candidates.get("sources") if isinstance(candidates, dict) else None
    listed = sources if isinstance(sources, list) else []
    return [values, *(each for each in listed if isinstance(each, dict))]


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


def _read_mapping(path: Path) -> dict[str, Any]:
    values = _read_yaml(path)
    parent = values.pop("extends", None)
    if parent is None:
        return values
    base_path = path.parent / parent
    base = _read_mapping(base_path)
    for section in _with_models(base):
        if isinstance(section.get("model"), str):  # relative to the file that says it
            section["model"] = str((base_path.parent / section["model"]).resolve())
    return _merge(base, values)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", "give the path of a YAML file that exists"
        ) from error
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}", "correct the file's syntax") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {type(values).__name__}, not a mapping", "start it with `name: …`")
    return values


class _Loader(yaml.SafeLoader):
    """YAML, where a key that is given twice is an error: otherwise the last one wins in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.YAMLError(f"the key {key!r} stands twice{key_node.start_mark}")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _set(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {override!r} is not of the form a.b=value", "write --set section.key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not YAML: {error}", "quote the value") from error
    *parents, last = key.split(".")
    target = values
    for parent in parents:
        if target.get(parent) is None:
            target[parent] = {}
        target = target[parent]
        if not isinstance(target, dict):
            raise ConfigError(
                f"--set {override!r}: {parent} is {target!r}, not a section",
                "name a key of an existing section",
            )
    target[last] = value
