"""Feature operators, one a file. This table is the only place that lists them."""

from __future__ import annotations

from typing import Any

from conf.errors import ConfigError
from etl.ops.base import Fitted, Moments, Operator, RowWise
from etl.ops.categorify import Categorify, FittedCategorify
from etl.ops.clip import Clip, FittedClip
from etl.ops.fill import Fill, FittedFill
from etl.ops.log1p import FittedLog1p, Log1p
from etl.ops.normalize import FittedNormalize, Normalize

OPERATORS: dict[str, tuple[type[Operator], type[Fitted]]] = {
    "fill": (Fill, FittedFill),
    "clip": (Clip, FittedClip),
    "log1p": (Log1p, FittedLog1p),
    "normalize": (Normalize, FittedNormalize),
    "categorify": (Categorify, FittedCategorify),
}

__all__ = ["OPERATORS", "Fitted", "Moments", "Operator", "RowWise", "operator_from_config"]


def operator_from_config(entry: str | dict[str, dict[str, Any] | None]) -> Operator:
    """The operator a YAML entry names: `log1p` or `{clip: {min: 0}}`.

    Raises:
        ConfigError: no such operator, no such parameter, or a value its constructor rejects.
    """
    name, parameters = (entry, {}) if isinstance(entry, str) else _only_item(entry)
    if name not in OPERATORS:
        raise ConfigError(
            f"features.ops names an unknown operator {name!r}", f"use one of {sorted(OPERATORS)}"
        )
    try:
        return OPERATORS[name][0](**(parameters or {}))
    except TypeError as error:
        raise ConfigError(
            f"features.ops: {name} does not take {parameters}: {error}", "see its docstring"
        ) from error


def _only_item(entry: dict[str, dict[str, Any] | None]) -> tuple[str, dict[str, Any] | None]:
    if len(entry) != 1:
        raise ConfigError(
            f"features.ops entry {entry} names {len(entry)} operators", "write one operator an entry"
        )
    return next(iter(entry.items()))
