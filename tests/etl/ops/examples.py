"""Example configurations of every operator, over one small log, for all tests that hold for every operator.

A new operator needs one entry here. The tests of engines, order of rows, JSON, parameters, plans and pages find
it; `pytest tests/etl/ops --op NAME` runs those of one operator. All groups fit into one configuration: each
gives its features names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from etl.ops.base import Type

# The raw columns; tests.etl.ops.rows says what is in them.
COLUMNS: Mapping[str, Type] = {
    "I1": "int",  # small, negative ones too, with nulls and ties
    "I2": "int",  # as many ties as can be
    "I3": "int",  # of any size, up to 64 bits
    "I4": "int",  # always the same
    "I5": "int",  # always null
    "X": "float",
    "K": "int",  # a key
    "C1": "string",  # few values, not ASCII alone
    "C2": "string",  # many values, some of one day alone
    "C3": "string",  # always null
    "T": "string",  # lists, separated by |
    "item": "string",  # a key of the table below
}

# The table from outside, as the rows of a CSV file; the last items occur in no log.
EXTERNAL_PATH = "{data}/items.csv"
EXTERNAL_COLUMNS = ("item", "price", "stock", "brand", "origin")
EXTERNAL: tuple[tuple[str, float | None, int | None, str | None, str | None], ...] = (
    ("i0", 1.5, 2**53 + 1, "né", "a"),
    ("i1", None, -7, "b", "né"),
    ("i2", -3e38, None, None, "b"),
    ("i3", 0.0, 0, "b", None),
    ("never", 9.0, 9, "never", "b"),
)


# (parameters, values of a column in the training rows without null) -> the function that the operator applies
# to each value that is not null.
Learn = Callable[[Mapping[str, Any], Sequence[Any]], Callable[[Any], Any]]


@dataclass(frozen=True)
class Example:
    """One group of the section `features` that the operator takes part in.

    Attributes:
        learn: computes in plain Python or NumPy what the operator must give, if it maps each value of a column
            by itself, and null to null. The first example of an operator has it, or tests.etl.ops.oracle has
            an entry for the operator.
    """

    columns: tuple[str, ...]
    kind: str
    ops: tuple[Any, ...]
    learn: Learn | None = None

    def group(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "kind": self.kind, "ops": list(self.ops)}


def _dense(columns: str, *ops: Any) -> Example:
    return Example(tuple(columns.split()), "dense", ops)


def _ids(columns: str, *ops: Any) -> Example:
    return Example(tuple(columns.split()), "categorical", ops)


def _lists(columns: str, *ops: Any) -> Example:
    return Example(tuple(columns.split()), "multi_hot", ops)


def _as(suffix: str) -> dict[str, Any]:
    return {"rename": {"suffix": f"_{suffix}"}}


def _winsorize(parameters: Mapping[str, Any], present: Sequence[Any]) -> Callable[[Any], float]:
    shares = [parameters.get("lower", 0.01), parameters.get("upper", 0.99)]
    low, high = np.quantile(np.asarray(present, np.float64), shares, method="inverted_cdf").tolist()
    return lambda value: float(min(max(float(value), low), high))


_EXTERNAL = {"path": EXTERNAL_PATH, "format": "csv"}
_ALL_STATISTICS = ["count", "sum", "mean", "var", "std", "min", "max"]

# Operator of `features` → examples.
EXAMPLES: Mapping[str, tuple[Example, ...]] = {
    "fill": (
        _dense("I1 X I3 I5", {"fill": {"value": -1.5, "indicator": True}}, _as("fill")),
        _ids("C1 C3", {"fill": {"value": "né"}}, {"hash_bucket": {"buckets": 50}}, _as("fill")),
        _dense("I2", "fill", _as("fill")),
    ),
    "fill_median": (_dense("I1 I2 I3 I4 X", "fill_median", _as("median")),),
    "winsorize": (
        replace(
            _dense("I1 I2 I3 I4 X", {"winsorize": {"lower": 0.1, "upper": 0.75}}, _as("winsorized")),
            learn=_winsorize,
        ),
        _dense("I1", {"expression": {"output": "half", "formula": "I1 / 2"}}, "winsorize"),
    ),
    "clip": (
        _dense("I1 I3 X I5", {"clip": {"min": -10, "max": 10.5}}, _as("clip")),
        _dense("I1 I3", {"clip": {"min": 0}}, _as("clip0")),
        _dense("I3 X", {"clip": {"max": -1}}, _as("clip1")),
    ),
    "log1p": (_dense("I1 I3 X I5", "log1p", _as("log")),),
    "normalize": (
        _dense("I1 I2 I4", "normalize", _as("norm")),
        _dense("I3 X", {"clip": {"min": -1e6, "max": 1e6}}, "fill_median", "normalize", _as("norm")),
    ),
    "normalize_min_max": (_dense("I1 I3 I4 X", "normalize_min_max", _as("minmax")),),
    "bucketize": (_ids("I1 I3 I5 X", {"bucketize": {"boundaries": [-5, 0, 0.5, 10]}}, _as("bucket")),),
    "categorify": (
        _ids("C1 C2 C3 K I3", "categorify"),
        _ids("C1 C2", _as("share"), {"categorify": {"share": "both", "min_count": 2}}),
        _ids("C1 C2", _as("few"), {"categorify": {"max_size": 3}}),
        _ids("C2", _as("oov"), {"categorify": {"min_count": 5, "oov_buckets": 4}}),
        _ids("C1", _as("given"), {"categorify": {"values": ["né", "absent", "b"], "oov_buckets": 3}}),
        _ids("K C2", _as("map"), {"categorify": {"min_count": {"K_map": 9, "C2_map": 4}}}),
        _ids("C2", _as("aged"), {"categorify": {"max_age_days": 1}}),
        _lists("T", {"split_list": {"separator": "|"}}, _as("cat"), {"categorify": {"min_count": 3}}),
        _lists("T", "split_list", _as("oov"), {"categorify": {"min_count": 20, "oov_buckets": 3}}),
    ),
    "hash_bucket": (
        _ids("C1 C2 C3 K I3", {"hash_bucket": {"buckets": 97}}, _as("hash")),
        _lists("T", {"split_list": {"separator": "|"}}, {"hash_bucket": {"buckets": 7}}, _as("hash")),
    ),
    "hashed_cross": (
        _ids("C1 K C3", {"hashed_cross": {"buckets": 1000}}),
        _ids("C3 I5", {"hashed_cross": {"buckets": 10, "output": "nothing"}}),
    ),
    "target_encoding": (
        _dense("C1 C3", {"target_encoding": {"folds": 3, "smoothing": 2}}),
        _dense("C1 K", {"target_encoding": {"joint": True}}),
        _dense("K", {"target_encoding": {"target": "I1", "smoothing": 0, "folds": 2}}),
    ),
    "join_groupby": (
        _dense(
            "C1 C3", {"join_groupby": {"statistics": _ALL_STATISTICS, "of": ["I1", "I3", "I4", "I5", "X"]}}
        ),
        _dense("C2 K", {"join_groupby": {"joint": True, "statistics": ["count", "mean"], "of": ["I2"]}}),
        _ids("C2", "join_groupby", {"bucketize": {"boundaries": [1, 5, 9]}}, _as("bucket")),
    ),
    "join_external": (
        _dense("item", {"join_external": {**_EXTERNAL, "columns": {"price": "float", "stock": "int"}}}),
        _ids(
            "item",
            {"join_external": {**_EXTERNAL, "columns": {"brand": "string", "origin": "string"}}},
            {"categorify": {"min_count": 2}},
        ),
        _ids(
            "C3",
            {"join_external": {**_EXTERNAL, "columns": {"stock": "int"}, "key": "item"}},
            {"hash_bucket": {"buckets": 9}},
            _as("of_nothing"),
        ),
    ),
    "split_list": (
        _lists("T", {"split_list": {"separator": "||"}}, {"hash_bucket": {"buckets": 30}}, _as("split2")),
    ),
    "list_slice": (
        _ids(
            "T",
            "split_list",
            _as("place"),
            {"categorify": {"min_count": 2}},
            {"list_slice": {"length": 2, "columns": True}},
        ),
        _ids(
            "T",
            "split_list",
            {"hash_bucket": {"buckets": 30}},
            {"list_slice": {"length": 3, "start": -2, "columns": True}},
            _as("last"),
        ),
        _lists(
            "T",
            "split_list",
            {"list_slice": {"length": 2, "start": -3}},
            {"hash_bucket": {"buckets": 30}},
            _as("part"),
        ),
        _lists(
            "T",
            "split_list",
            {"hash_bucket": {"buckets": 30}},
            {"list_slice": {"length": 2, "start": 1}},
            _as("ids"),
        ),
    ),
    "list_similarity": (
        _dense("T C1", "split_list", {"list_similarity": {"output": "alike"}}),
        _dense("C1 T", "split_list", {"hash_bucket": {"buckets": 3}}, "list_similarity"),
        _dense("C3 T", "split_list", "list_similarity"),
    ),
    "expression": (
        _dense("I1 I2", {"expression": {"output": "ratio", "formula": "I1 / (I2 - 1)"}}),
        _dense("I1 I3 X", {"expression": {"output": "least", "formula": "min(max(I1, I3), X)"}}),
        _dense(
            "C1 C2",
            {"expression": {"output": "test", "formula": "C1 == 'né' or contains(concat(C1, C2), 'b')"}},
        ),
        _ids(
            "C1 C2",
            {"expression": {"output": "pair", "formula": "concat(C1, C2) if is_null(C1) else C1"}},
            {"categorify": {"min_count": 2}},
        ),
    ),
    "rename": (_dense("I1 I2 X", {"rename": {"names": {"I1": "other"}, "prefix": "new_"}}),),
    "data_stats": (
        _dense("I1 I3 I5 X", "data_stats", _as("stats")),
        _ids("C1 C3", "data_stats", {"hash_bucket": {"buckets": 9}}, _as("stats")),
        _ids("C2", _as("stats"), "categorify", "data_stats"),
        _lists("T", "split_list", "data_stats", {"hash_bucket": {"buckets": 9}}, _as("stats")),
    ),
    "value_count": (
        _lists("T", "split_list", _as("count"), {"categorify": {"min_count": 4}}, "value_count"),
    ),
    "drop_low_cardinality": (
        _dense("I1 I4 I5", "drop_low_cardinality", _as("kept")),
        _ids("C1 C3", _as("kept"), "categorify", {"drop_low_cardinality": {"min_cardinality": 3}}),
    ),
}

# Operator of `prepare` → entries over the same columns.
FRAME_EXAMPLES: Mapping[str, tuple[dict[str, Any], ...]] = {
    "filter": (
        {"filter": {"keep": "I1 >= 0 or C1 == 'né'"}},
        {"filter": {"keep": "not is_null(C2) and X / I2 < 3"}},
    ),
    "dropna": ({"dropna": {"columns": ["I1"]}}, {"dropna": {"columns": ["C1", "X", "K"]}}),
    "difference_lag": (
        {"difference_lag": {"by": ["C1"], "columns": ["I1", "X"]}},
        {"difference_lag": {"by": ["C1", "K"], "columns": ["I3"], "lag": -2}},
    ),
    "groupby": (
        {
            "groupby": {
                "by": ["C1", "K"],
                "aggregates": {
                    "I1": ["sum", "mean", "min", "max", "count", "first", "last", "list"],
                    "X": ["min", "max", "first", "last"],
                    "C2": ["count", "first", "last", "list"],
                    "I5": ["sum", "mean", "min", "count", "list"],
                },
            }
        },
        {"groupby": {"by": ["C2"], "aggregates": {"I3": ["min", "max", "last"], "T": ["list"]}}},
    ),
}
