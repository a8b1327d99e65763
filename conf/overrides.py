"""Applies one `--set a.b=value`. The value is read as text if the key's type is text, otherwise as YAML."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml

from conf.errors import ConfigError
from conf.raw_types import Strict
from conf.yaml_files import NOT_YAML, yaml_problem

_QUOTES = ("'", '"')


def set_override(values: dict[str, Any], override: str, kind: type[Strict]) -> None:
    """Sets the key that an override names in the values of a section. Creates missing subsections.

    If the type of the key is text, the value is used unchanged: `log.path={data}/*.gz` needs no quotes. If
    the value begins with a quote, it is read as YAML, which removes the quotes. If the key may be null, the
    value `null` means null and not the text "null".

    Args:
        values: the section, which is changed.
        override: a text `a.b=value`.
        kind: the type of the section.

    Raises:
        ConfigError: the override is not of the form a.b=value, the value is not YAML, or a key before the
            last one is not a section.
    """
    key, separator, text = override.partition("=")
    if not separator or not all(key.split(".")):
        raise ConfigError(f"--set {override!r} is not of the form a.b=value", "write --set section.key=value")
    value = _value(override, text, types_of(kind, key.split(".")))
    set_key(values, key.split("."), value, f"--set {override!r}")


def set_key(values: dict[str, Any], keys: list[str], value: Any, what: str) -> None:
    """Sets a key of nested sections. Creates missing sections.

    Args:
        values: the section that contains the first of the keys; it is changed.
        keys: the parts of the key's path, such as `["train", "epochs"]`.
        value: the new value.
        what: the beginning of the error message.

    Raises:
        ConfigError: a key before the last one is not a section.
    """
    target = values
    for parent in keys[:-1]:
        if target.get(parent) is None:
            target[parent] = {}
        target = target[parent]
        if not isinstance(target, dict):
            raise ConfigError(
                f"{what}: {parent} is {target!r}, not a section",
                f"remove the keys after {parent}, or write a key of a section",
            )
    target[keys[-1]] = value


def _value(override: str, text: str, types: tuple[Any, ...]) -> Any:
    if str in types and set(types) <= {str, type(None)} and not text.startswith(_QUOTES):
        return None if text == "null" and type(None) in types else text
    try:
        return yaml.safe_load(text)
    except NOT_YAML as error:
        raise ConfigError(
            f"--set {override!r}: the value is not YAML: {yaml_problem(error)}",
            "write the value as in a YAML file; text with special characters needs quotes",
        ) from error


def types_of(kind: Any, keys: list[str]) -> tuple[Any, ...]:
    """Returns the types that the value of a key may have; empty if the key is unknown.

    Args:
        kind: the type of the section that contains the first of the keys.
        keys: the parts of the key's path, such as `["train", "epochs"]`.
    """
    types = _members(kind)
    for key in keys:
        below: list[Any] = []
        for member in types:
            if get_origin(member) is dict:
                below += _members(get_args(member)[1])
            elif isinstance(member, type) and issubclass(member, Strict):
                annotation = member.annotation_of(key)
                below += () if annotation is None else _members(annotation)
        types = tuple(below)
    return types


def _members(annotation: Any) -> tuple[Any, ...]:
    """Returns the member types of a union, or the type itself if it is not a union.

    The metadata of Annotated is removed.
    """
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for part in get_args(annotation) for member in _members(part))
    return (annotation,)
