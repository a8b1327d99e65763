"""Workflows of operators that are fitted on frames, and what they have learned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

import nightrank
from tests.etl.ops.examples import COLUMNS, EXAMPLES
from tests.etl.ops.rows import Row, make_rows

# Every example of the operators that can be fitted on a frame.
EXTERNAL = {"join_external"}
GROUPS = [
    example.group() for name, examples in EXAMPLES.items() if name not in EXTERNAL for example in examples
]
_ARROW = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


def rows_of_day(day: str, size: int, seed: int) -> list[Row]:
    """Rows whose row_id is their position, as in the log of a day."""
    return [{**row, "row_id": place} for place, row in enumerate(make_rows(day, size, seed))]


def as_table(rows: Sequence[Row]) -> pa.Table:
    arrays = {name: pa.array([row[name] for row in rows], _ARROW[kind]) for name, kind in COLUMNS.items()}
    return pa.table({"label": pa.array([row["label"] for row in rows]), **arrays})


def values_of(features: pa.Table) -> dict[str, list[Any]]:
    return {name: features.column(name).to_pylist() for name in features.column_names}


def learned(chain: Any) -> str:
    """Everything that a chain has learned. The days of target encodings are left out."""
    stored = chain.to_json()
    for step in stored["steps"]:
        step["state"] = {name: value for name, value in step["state"].items() if name != "days"}
    return json.dumps(stored, sort_keys=True)


def new_workflow(groups: Sequence[Mapping[str, Any]] = GROUPS) -> nightrank.Workflow:
    return nightrank.Workflow(groups, types={name: COLUMNS[name] for name in columns_in(groups)})


def columns_in(groups: Sequence[Mapping[str, Any]]) -> set[str]:
    return {name for group in groups for name in group["columns"]}


def name_of(entry: Any) -> str:
    """Returns the name of the operator of an entry of `ops`."""
    return entry if isinstance(entry, str) else str(next(iter(entry)))
