"""The operators of the sections `features` and `prepare`, one per file. This module lists all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, cast

from pydantic import Discriminator, Tag, TypeAdapter, create_model

from conf.errors import ConfigError
from conf.raw_types import Strict
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
from etl.ops.parameters import Parameters
from etl.ops.rename import FittedRename, Rename
from etl.ops.split_list import FittedSplitList, SplitList
from etl.ops.target_encoding import FittedTargetEncoding, TargetEncoding
from etl.ops.value_count import FittedValueCount, ValueCount

# Operators for the section `features`, which transform columns.
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

# Operators for the section `prepare`, which transform rows.
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
