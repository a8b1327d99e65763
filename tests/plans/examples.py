"""One example of every operator, for the checks of its plans.

An operator without an entry here gets one from its first example in tests/etl/ops/examples.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from conf.types import FeatureGroup
from etl.workflow.chains import bind_group
from etl.workflow.fitted_workflow import FittedWorkflow
from tests.etl.ops import examples as operator_examples


@dataclass(frozen=True)
class Example:
    """A chain that has the operator in it.

    Attributes:
        inputs: types of its raw columns, which are named <operator>_1, <operator>_2 and so on.
        kind: of the features it makes.
        ops: the chain, as a configuration has it.
        features: names of the features it makes; none for those of its columns.
    """

    inputs: Sequence[str]
    kind: str
    ops: Sequence[Any]
    features: Sequence[str] = ()

    def columns(self, operator: str) -> dict[str, str]:
        return {f"{operator}_{place}": kind for place, kind in enumerate(self.inputs, start=1)}


EXTERNAL = "{data}/external.parquet"  # where join_external's example finds its table
_WRITTEN: Mapping[str, Example] = {
    "fill": Example(["int"], "dense", [{"fill": {"value": 0}}]),
    "clip": Example(["float"], "dense", [{"clip": {"min": 0, "max": 10}}, {"fill": {"value": 0}}]),
    "log1p": Example(["int"], "dense", [{"fill": {"value": 0}}, {"clip": {"min": 0}}, "log1p"]),
    "normalize": Example(["float"], "dense", ["normalize", {"fill": {"value": 0}}]),
    "categorify": Example(["string"], "categorical", [{"categorify": {"min_count": 2, "oov_buckets": 3}}]),
    "fill_median": Example(["int"], "dense", ["fill_median"]),
    "normalize_min_max": Example(["float"], "dense", ["normalize_min_max", "fill"]),
    "bucketize": Example(["float"], "categorical", [{"bucketize": {"boundaries": [0, 1, 2]}}]),
    "hash_bucket": Example(["string"], "categorical", [{"hash_bucket": {"buckets": 9}}]),
    "hashed_cross": Example(
        ["string", "int"], "categorical", [{"hashed_cross": {"buckets": 9, "output": "crossed"}}], ["crossed"]
    ),
    "target_encoding": Example(
        ["string"], "dense", [{"target_encoding": {"folds": 2}}], ["target_encoding_1_te"]
    ),
    "join_groupby": Example(
        ["string"],
        "dense",
        [{"join_groupby": {"statistics": ["count", "mean", "std"], "of": ["fill_1"]}}, "fill"],
        ["join_groupby_1_count", "join_groupby_1_fill_1_mean", "join_groupby_1_fill_1_std"],
    ),
    "join_external": Example(
        ["string"],
        "dense",
        [{"join_external": {"path": EXTERNAL, "key": "key", "columns": {"price": "float"}}}, "fill"],
        ["price"],
    ),
    "split_list": Example(
        ["string"], "multi_hot", [{"split_list": {"separator": " "}}, {"hash_bucket": {"buckets": 9}}]
    ),
    "list_slice": Example(
        ["string"],
        "categorical",
        ["split_list", {"hash_bucket": {"buckets": 9}}, {"list_slice": {"length": 2, "columns": True}}],
        ["list_slice_1_0", "list_slice_1_1"],
    ),
    "list_similarity": Example(
        ["string", "string"],
        "dense",
        ["split_list", {"list_similarity": {"output": "alike"}}, "fill"],
        ["alike"],
    ),
    "value_count": Example(["string"], "multi_hot", ["split_list", "categorify", "value_count"]),
    "expression": Example(
        ["int", "float"],
        "dense",
        [{"expression": {"output": "ratio", "formula": "log1p(expression_1) / (expression_2 + 1)"}}, "fill"],
        ["ratio"],
    ),
    "rename": Example(
        ["string"], "categorical", [{"rename": {"suffix": "_id"}}, "categorify"], ["rename_1_id"]
    ),
    "data_stats": Example(["int"], "dense", ["data_stats", "fill"]),
    "drop_low_cardinality": Example(["int"], "dense", ["drop_low_cardinality", "fill"]),
}


def derived(operator: str, example: operator_examples.Example) -> Example:
    """The first example of an operator, over columns of its own, and without nulls in dense features."""
    kinds = [operator_examples.COLUMNS[name] for name in example.columns]
    columns = {f"{operator}_{place}": kind for place, kind in enumerate(kinds, start=1)}
    renamed = dict(zip(example.columns, columns, strict=True))
    ops = [_renamed(entry, renamed) for entry in example.ops]
    ops += ["fill"] if example.kind == "dense" else []
    group = FeatureGroup.model_validate({"columns": list(columns), "kind": example.kind, "ops": ops})
    return Example(kinds, example.kind, ops, list(bind_group(group, columns).outputs))


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """An entry of `ops` in which the columns have other names, also inside formulas."""
    if isinstance(value, dict):
        return {_renamed(key, names): _renamed(part, names) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(part, names) for part in value]
    return (
        re.sub(r"\w+", lambda word: names.get(word[0], word[0]), value) if isinstance(value, str) else value
    )


EXAMPLES: Mapping[str, Example] = {
    **_WRITTEN,
    **{
        name: derived(name, examples[0])
        for name, examples in operator_examples.EXAMPLES.items()
        if name not in _WRITTEN
    },
}

# Raw values in turn, so that every chain can be fitted: some occur often, some once, some are missing.
VALUES: Mapping[str, Sequence[Any]] = {
    "int": [1, 2, None, 2, 5, 1],
    "float": [0.5, 1.5, None, 1.5, 4.0, 0.5],
    "string": ["a", "b", None, "a", "c", "b"],
}
ARROW = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


def features_of(operator: str) -> list[str]:
    example = EXAMPLES[operator]
    return list(example.features) or list(example.columns(operator))


def encoded(workflow: FittedWorkflow, rows: DataFrame, operator: str) -> DataFrame:
    """The raw rows through the chain of one operator alone."""
    features = features_of(operator)
    return workflow.encode(rows, features, [])


def log_section() -> dict[str, Any]:
    """What a configuration says of a log with the columns of all examples."""
    typed = {"label": "int", "user": "string", "item": "string", **_all_columns()}
    return {
        "log": {
            "path": "{data}/dt={date}/*",
            "format": "tsv",
            "columns": [{"name": name, "type": kind} for name, kind in typed.items()],
            "label": {"column": "label"},
        },
        "features": [
            {"columns": list(example.columns(name)), "kind": example.kind, "ops": list(example.ops)}
            for name, example in EXAMPLES.items()
        ],
        "scopes": {},
    }


def write_log(path: Path, rows: int = 24) -> None:
    """A day's log as text."""
    lines = []
    for row in range(rows):
        fields = [str(row % 2), f"user {row % 3}", f"item {row % 4}"]
        fields += [str(values[row] if values[row] is not None else "") for values in _values(rows).values()]
        lines.append("\t".join(fields))
    path.parent.mkdir(parents=True, exist_ok=True)
    prices = pa.table({"key": ["a", "b"], "price": [1.5, None]})
    pq.write_table(prices, path.parent.parent / EXTERNAL.rsplit("/", 1)[1])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_typed(path: Path, rows: int = 24) -> None:
    """The same rows as they are after parsing, so that a plan over them has nothing but operators in it."""
    arrays = {name: pa.array(values, ARROW[_all_columns()[name]]) for name, values in _values(rows).items()}
    keys = {"row_id": pa.array(range(rows), pa.int64()), "label": pa.array([0.0, 1.0] * (rows // 2))}
    users = {"user": pa.array([f"user {row % 3}" for row in range(rows)])}
    items = {"item": pa.array([f"item {row % 4}" for row in range(rows)])}
    pq.write_table(pa.table({**keys, **users, **items, **arrays}), path)


def _all_columns() -> dict[str, str]:
    return {
        column: kind for name, example in EXAMPLES.items() for column, kind in example.columns(name).items()
    }


def _values(rows: int) -> dict[str, list[Any]]:
    return {
        name: [VALUES[kind][(row + place) % len(VALUES[kind])] for row in range(rows)]
        for place, (name, kind) in enumerate(_all_columns().items())
    }
