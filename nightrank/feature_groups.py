"""Reads the groups of features that a caller passes, and the types of raw columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from conf.errors import ConfigError
from conf.load import read_section
from conf.types import FeatureGroup
from conf.yaml_files import parse_yaml

Group = FeatureGroup | Mapping[str, Any]
ColumnType = Literal["int", "float", "string", "ints", "strings"]


def read_groups(features: Sequence[Group] | str) -> list[FeatureGroup]:
    """Returns the groups of a section `features`, which may be a YAML text with or without its heading.

    Raises:
        ConfigError: it is no list of groups, or a group has a wrong key or value.
    """
    section: Any = parse_yaml(features, "features") if isinstance(features, str) else features
    if isinstance(section, Mapping) and list(section) == ["features"]:
        section = section["features"]
    if isinstance(section, Mapping | str) or not isinstance(section, Sequence) or not section:
        raise ConfigError(
            f"features is {section!r}, but it must be a list of groups",
            "pass a list such as [{'columns': ['C1'], 'kind': 'categorical', 'ops': ['categorify']}]",
        )
    return [
        group
        if isinstance(group, FeatureGroup)
        else read_section(FeatureGroup, _mapping(group), f"features[{index}]: ", "correct these keys")
        for index, group in enumerate(section)
    ]


def _mapping(group: Any) -> dict[str, Any]:
    if not isinstance(group, Mapping):
        raise ConfigError(
            f"features contains {group!r}, but a group is a mapping", "write the keys columns, kind and ops"
        )
    return dict(group)


def checked_types(types: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
    """Returns the declared types of raw columns. Raises ConfigError if there is no such type."""
    if not isinstance(types, Mapping):
        raise ConfigError(f"types is {types!r}, but it must be a mapping", "pass such as {'I1': 'int'}")
    wrong = {name: kind for name, kind in types.items() if kind not in get_args(ColumnType)}
    if wrong:
        raise ConfigError(f"types has unknown types: {wrong}", f"use {list(get_args(ColumnType))}")
    return dict(types)
