"""Feature operators, one a file. These tables are the only place that lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from conf.errors import ConfigError
from etl.ops.base import Fitted, Moments, Operator, Pipeline, RowWise, Statistics, Step, Type
from etl.ops.bucketize import Bucketize, FittedBucketize
from etl.ops.categorify import Categorify, FittedCategorify
from etl.ops.clip import Clip, FittedClip
from etl.ops.data_stats import DataStats, FittedDataStats
from etl.ops.difference_lag import DifferenceLag
from etl.ops.drop_low_cardinality import DropLowCardinality, FittedDropLowCardinality
from etl.ops.dropna import Dropna
from etl.ops.expression import Expression, FittedExpression
from etl.ops.fill import Fill, FittedFill
from etl.ops.fill_median import FillMedian, FittedFillMedian
from etl.ops.filter import Filter
from etl.ops.frames import FrameOperator, RowChanger, RowFilter
from etl.ops.groupby import Groupby
from etl.ops.hash_bucket import FittedHashBucket, HashBucket
from etl.ops.hashed_cross import FittedHashedCross, HashedCross
from etl.ops.join_external import FittedJoinExternal, JoinExternal
from etl.ops.join_groupby import FittedJoinGroupby, JoinGroupby
from etl.ops.list_similarity import FittedListSimilarity, ListSimilarity
from etl.ops.list_slice import FittedListSlice, ListSlice
from etl.ops.log1p import FittedLog1p, Log1p
from etl.ops.normalize import FittedNormalize, Normalize
from etl.ops.normalize_min_max import FittedNormalizeMinMax, NormalizeMinMax
from etl.ops.rename import FittedRename, Rename
from etl.ops.split_list import FittedSplitList, SplitList
from etl.ops.target_encoding import FittedTargetEncoding, TargetEncoding
from etl.ops.value_count import FittedValueCount, ValueCount

# Of the section `features`: values of columns → values of columns.
OPERATORS: Mapping[str, tuple[type[Operator], type[Fitted]]] = {
    operator.name: (operator, fitted)
    for operator, fitted in (
        (Fill, FittedFill),
        (FillMedian, FittedFillMedian),
        (Clip, FittedClip),
        (Log1p, FittedLog1p),
        (Normalize, FittedNormalize),
        (NormalizeMinMax, FittedNormalizeMinMax),
        (Bucketize, FittedBucketize),
        (Categorify, FittedCategorify),
        (HashBucket, FittedHashBucket),
        (HashedCross, FittedHashedCross),
        (TargetEncoding, FittedTargetEncoding),
        (JoinGroupby, FittedJoinGroupby),
        (JoinExternal, FittedJoinExternal),
        (SplitList, FittedSplitList),
        (ListSlice, FittedListSlice),
        (ListSimilarity, FittedListSimilarity),
        (Expression, FittedExpression),
        (Rename, FittedRename),
        (DataStats, FittedDataStats),
        (ValueCount, FittedValueCount),
        (DropLowCardinality, FittedDropLowCardinality),
    )
}

# Of the section `prepare`: rows → rows.
FRAME_OPERATORS: Mapping[str, type[FrameOperator]] = {
    operator.name: operator for operator in (Filter, Dropna, DifferenceLag, Groupby)
}

__all__ = [
    "FRAME_OPERATORS",
    "OPERATORS",
    "Bucketize",
    "Categorify",
    "Clip",
    "DataStats",
    "DifferenceLag",
    "DropLowCardinality",
    "Dropna",
    "Expression",
    "Fill",
    "FillMedian",
    "Filter",
    "Fitted",
    "FrameOperator",
    "Groupby",
    "HashBucket",
    "HashedCross",
    "JoinExternal",
    "JoinGroupby",
    "ListSlice",
    "Log1p",
    "Moments",
    "Normalize",
    "NormalizeMinMax",
    "Operator",
    "Pipeline",
    "Rename",
    "RowChanger",
    "RowFilter",
    "RowWise",
    "SplitList",
    "Statistics",
    "Step",
    "TargetEncoding",
    "Type",
    "ValueCount",
    "frame_operator_from_config",
    "operator_from_config",
]

Entry = str | Mapping[str, Mapping[str, Any] | None]
Made = TypeVar("Made", Operator, FrameOperator)
_SCALARS = (str, int, float)


def operator_from_config(entry: Entry) -> Operator:
    """The operator an entry of `features.ops` names: `log1p` or `{clip: {min: 0}}`.

    Raises:
        ConfigError: no such operator, no such parameter, or a value its constructor rejects.
    """
    return _made(entry, {name: operator for name, (operator, _) in OPERATORS.items()}, "features.ops")


def frame_operator_from_config(entry: Entry) -> FrameOperator:
    """The operator an entry of `prepare` names.

    Raises:
        ConfigError: as for operator_from_config.
    """
    return _made(entry, FRAME_OPERATORS, "prepare")


def _made(entry: Entry, known: Mapping[str, type[Made]], where: str) -> Made:
    name, parameters = (entry, None) if isinstance(entry, str) else _only_item(entry, where)
    if name not in known:
        raise ConfigError(f"{where} names an unknown operator {name!r}", f"use one of {sorted(known)}")
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in (parameters or {}).items()}
    for field in fields(known[name]):
        if field.name in given and not _fits(given[field.name], str(field.type)):
            raise ConfigError(
                f"{where}: {name} {field.name}={(parameters or {})[field.name]!r} must be {_said(str(field.type))}",
                "correct it",
            )
    try:
        return known[name](**given)
    except TypeError as error:
        raise ConfigError(
            f"{where}: {name} does not take {parameters}: {error}", "see its docstring"
        ) from error


def _fits(value: Any, annotation: str) -> bool:
    """Whether a value from a YAML file is of an operator's annotated type; the constructor checks the rest."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    checks = {
        "None": value is None,
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and number and abs(value) < 2**31,
        "float": number and abs(value) < float("inf"),
        "str": isinstance(value, str),
        "tuple[float, ...]": isinstance(value, tuple) and all(_fits(each, "float") for each in value),
        "tuple[str, ...]": isinstance(value, tuple) and all(isinstance(each, _SCALARS) for each in value),
    }
    return any(
        _fits_mapping(value, each) if each.startswith("Mapping") else checks.get(each, True)
        for each in annotation.split(" | ")
    )


def _fits_mapping(value: Any, annotation: str) -> bool:
    """Whether a value is a mapping of texts to what the annotation says; a Type is a text, which the constructor checks."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    kind = annotation.removeprefix("Mapping[str, ").removesuffix("]")
    if kind.startswith("Sequence"):
        return all(
            isinstance(many, list | tuple) and all(isinstance(each, str) for each in many)
            for many in value.values()
        )
    return all(_fits(each, "str" if kind == "Type" else kind) for each in value.values())


def _said(annotation: str) -> str:
    words = {
        "None": "null",
        "int": "an integer",
        "float": "a finite number",
        "str": "a text",
        "bool": "true or false",
    }
    lists = {"tuple[float, ...]": "a list of numbers", "tuple[str, ...]": "a list"}
    return " or ".join({**words, **lists}.get(each, "a mapping") for each in annotation.split(" | "))


def _only_item(
    entry: Mapping[str, Mapping[str, Any] | None], where: str
) -> tuple[str, Mapping[str, Any] | None]:
    if len(entry) != 1:
        raise ConfigError(
            f"{where} entry {dict(entry)} names {len(entry)} operators", "write one operator an entry"
        )
    return next(iter(entry.items()))
