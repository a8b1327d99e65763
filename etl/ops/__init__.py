"""The operators of the sections `features` and `prepare`. Each has one file, which discovery.py finds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, cast

from pydantic import Discriminator, Tag, TypeAdapter, create_model

from conf.errors import ConfigError
from conf.raw_types import Strict
from etl.ops.base import Fitted, Operator, Pipeline, RowWise, Step, Type
from etl.ops.discovery import find_operators
from etl.ops.frames import FrameOperator, RowChanger, RowFilter
from etl.ops.parameters import Parameters
from etl.ops.training_statistics import MergeableStatistic, Moments, Statistics

_FOUND = find_operators()
# Operators for the section `features`, which transform columns.
OPERATORS: Mapping[str, tuple[type[Operator], type[Fitted]]] = _FOUND.of_columns
# Operators for the section `prepare`, which transform rows.
FRAME_OPERATORS: Mapping[str, type[FrameOperator]] = _FOUND.of_rows

__all__ = [
    "FRAME_OPERATORS",
    "OPERATORS",
    "Fitted",
    "FrameOperator",
    "MergeableStatistic",
    "Moments",
    "Operator",
    "Pipeline",
    "RowChanger",
    "RowFilter",
    "RowWise",
    "Statistics",
    "Step",
    "Type",
    "frame_operator_from_config",
    "operator_from_config",
]

Entry = str | Mapping[str, Mapping[str, Any] | None]


def entries_of(operators: Iterable[type[Parameters]]) -> TypeAdapter[Any]:
    """Returns a pydantic validator of configuration entries `{operator: parameters}`.

    The type of an entry is a union with one pydantic model per operator.
    """
    members: list[Any] = [
        Annotated[
            create_model(f"{operator.__name__}Entry", __base__=Strict, **{operator.name: (operator, ...)}),  # type: ignore[call-overload]
            Tag(operator.name),
        ]
        for operator in operators
    ]
    union: Any = Annotated[reduce(or_, members), Discriminator(lambda entry: next(iter(entry)))]
    return TypeAdapter(union)


FEATURE_ENTRIES = entries_of(operator for operator, _ in OPERATORS.values())
PREPARE_ENTRIES = entries_of(FRAME_OPERATORS.values())


def operator_from_config(entry: Entry) -> Operator:
    """Creates the operator for an entry of `features.ops`, such as `log1p` or `{clip: {min: 0}}`.

    Raises:
        ConfigError: the operator is unknown, or a parameter is unknown, missing or not allowed.
    """
    name, parameters = _name_and_parameters(entry, "features.ops", OPERATORS)
    return cast(Operator, _validated(FEATURE_ENTRIES, name, parameters, "features.ops"))


def frame_operator_from_config(entry: Entry) -> FrameOperator:
    """Creates the operator for an entry of `prepare`.

    Raises:
        ConfigError: the operator is unknown, or a parameter is unknown, missing or not allowed.
    """
    name, parameters = _name_and_parameters(entry, "prepare", FRAME_OPERATORS)
    return cast(FrameOperator, _validated(PREPARE_ENTRIES, name, parameters, "prepare"))


def _validated(entries: TypeAdapter[Any], name: str, parameters: Mapping[str, Any], where: str) -> Parameters:
    try:
        operator: Parameters = getattr(entries.validate_python({name: parameters}), name)
    except ConfigError as error:  # Parameters raises it, and pydantic does not catch it
        raise ConfigError(f"{where}: {error.problem}", error.remedy) from error
    return operator


def _name_and_parameters(entry: Entry, where: str, known: Collection[str]) -> tuple[str, Mapping[str, Any]]:
    """Returns the operator's name and its parameters. An entry is `name` or `{name: parameters}`."""
    if isinstance(entry, Mapping) and len(entry) != 1:
        raise ConfigError(
            f"{where}: the entry {dict(entry)} has {len(entry)} operators", "write one operator per entry"
        )
    name, parameters = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
    if name not in known:
        raise ConfigError(f"{where} contains an unknown operator {name!r}", f"use one of {sorted(known)}")
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, Mapping) or not all(isinstance(key, str) for key in parameters):
        raise ConfigError(
            f"{where}: {name} has the parameters {parameters!r}, but parameters must be a mapping of names "
            "to values",
            f"write {name}: {{parameter: value}}; docs/operators describes the parameters",
        )
    return name, parameters
