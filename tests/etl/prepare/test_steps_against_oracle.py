"""Single steps of the preparation equal the oracle: row operators, tables of attributes, joins and draws."""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.types import Negatives
from etl.ops import RowChanger, frame_operator_from_config
from etl.prepare.attributes import join_attributes, read_attribute_table
from etl.prepare.prepared_rows import add_negatives, items_of, merge_items
from etl.prepare.task_passes import apply_row_operators
from etl.readers import text
from tests.etl import cases
from tests.etl.prepare import oracle
from tests.etl.prepare.tables import FORMS, by_user, in_form

MANY = settings(max_examples=40, deadline=None, derandomize=True, database=None)
DAY = "2026-01-01"
FLOATS = st.one_of(
    st.none(),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
    st.sampled_from([0.1, -0.1, 1e-9, 3e38, -3e38, 2.0**30, 1 / 3, 4e30, 6e30]),
)
INTEGERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
ROW = st.tuples(
    st.sampled_from(["u", "v", "w", "é"]),
    st.sampled_from([None, 0, 1]),
    st.integers(0, 4),  # few times, so that many rows have equal times
    FLOATS,
    INTEGERS,
    st.sampled_from([None, "", "a", "日本"]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from(oracle.SPLITS),
)
NUMERIC = ["sum", "mean", "min", "max", "count", "first", "last"]
TEXTUAL = ["count", "first", "last", "list"]
LAG: dict[str, Any] = {"difference_lag": {"by": ["user", "k"], "columns": ["x", "i"]}}
LATER: dict[str, Any] = {"difference_lag": {"by": ["t"], "columns": ["x"], "lag": -2}}
GROUPS: dict[str, Any] = {
    "groupby": {"by": ["k", "user"], "aggregates": {"x": NUMERIC, "i": [*NUMERIC, "list"], "t": TEXTUAL}}
}
OF_LAGS: dict[str, Any] = {
    "groupby": {"by": ["user"], "aggregates": {"x_difference_lag_1": ["sum", "max", "last"]}}
}
OF_GROUPS: dict[str, Any] = {"difference_lag": {"by": ["k"], "columns": ["x_sum", "i_count"]}}


def table_of(rows: Sequence[tuple[Any, ...]], *, timed: bool, divided: bool, weighted: bool) -> pa.Table:
    users, keys, times, floats, integers, texts, labels, splits = zip(*rows, strict=True)
    columns = {
        "row_id": pa.array([3 * place for place in range(len(rows))], pa.int64()),
        "user_key": pa.array(users, pa.string()),
        "event_time": pa.array(times, pa.int64()),
        "label": pa.array(labels, pa.float32()),
        "weight": pa.array([1 / (1 + place % 5) for place in range(len(rows))], pa.float32()),
        "user": pa.array(users, pa.string()),
        "k": pa.array(keys, pa.int64()),
        "x": pa.array(floats, pa.float64()),
        "i": pa.array(integers, pa.int64()),
        "t": pa.array(texts, pa.string()),
        "split": pa.array(splits, pa.string()),
    }
    dropped = {"event_time": not timed, "split": not divided, "weight": not weighted}
    return pa.table({name: column for name, column in columns.items() if not dropped.get(name)})


def exact(rows: Sequence[oracle.Row]) -> list[dict[str, str]]:
    """The rows by row_id, with texts instead of values: 0.0 and -0.0 differ."""
    in_order = sorted(rows, key=lambda row: row["row_id"])
    return [{name: repr(row[name]) for name in sorted(row)} for row in in_order]


def expected_rows(table: pa.Table, operators: Sequence[dict[str, Any]]) -> list[oracle.Row]:
    """The rows after the operators. The split of a table without splits is None."""
    rows = [{"split": None, **row} for row in table.to_pylist()]
    for operator in operators:
        [(name, settings_of_operator)] = operator.items()
        step = {"difference_lag": oracle.with_differences, "groupby": oracle.combined}[name]
        rows = step(rows, settings_of_operator)
    return rows


@MANY
@given(
    rows=st.lists(ROW, min_size=1, max_size=40),
    timed=st.booleans(),
    divided=st.booleans(),
    weighted=st.booleans(),
    form=st.sampled_from(FORMS),
    tasks=st.integers(1, 3),
    operators=st.sampled_from([[LAG], [GROUPS], [LAG, OF_LAGS], [GROUPS, OF_GROUPS], [LATER]]),
)
def test_operators_are_the_oracles(
    rows: list[tuple[Any, ...]],
    timed: bool,
    divided: bool,
    weighted: bool,
    form: str,
    tasks: int,
    operators: list[dict[str, Any]],
) -> None:
    table = table_of(rows, timed=timed, divided=divided, weighted=weighted)
    changers = [frame_operator_from_config(operator) for operator in operators]
    row_changers = [changer for changer in changers if isinstance(changer, RowChanger)]
    assert len(row_changers) == len(operators)
    keys_of_users = operators in ([LAG], [GROUPS], [LAG, OF_LAGS])
    parts = by_user(table, tasks) if keys_of_users else [table]
    changed = [apply_row_operators(in_form(part, form), row_changers) for part in parts]
    found = [{"split": None, **row} for part in changed for row in part.to_pylist()]
    assert exact(found) == exact(expected_rows(table, operators))


# Tables of attributes

COLUMNS = [
    {"name": "user", "type": "string"},
    {"name": "age", "type": "int"},
    {"name": "height", "type": "float"},
    {"name": "town", "type": "string"},
]
TOWNS = ["", "Köln", '"a,b"', "NULL", '"say ""hi"""', "x", "日本", '""', '"NULL"']


@pytest.mark.parametrize("null_values", [[""], ["", "NULL", "x"]])
@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_attributes_are_the_oracles(
    tmp_path: Path, form: str, null_values: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files, one of them compressed, and several splits for each file."""
    monkeypatch.setattr(text, "FILE_SPLIT_BYTES", 300)
    users = {
        "path": "{data}/users/*",
        "format": form,
        "separator": ",",
        "columns": COLUMNS,
        "null_values": null_values,
    }
    config = cases.write_config(tmp_path, {"users": users})
    assert config.users is not None
    folder = tmp_path / "raw/users"
    folder.mkdir(parents=True)
    draw = random.Random(f"{form} {null_values}")
    towns = TOWNS if form == "csv" else [town for town in TOWNS if '"' not in town]
    lines = [
        f"u{number},{draw.choice(['', '7', '007', '+7', str(2**62)])},"
        f"{draw.choice(['', '1', '-0.0', '1e3', '7.'])},{draw.choice(towns)}"
        for number in draw.sample(range(90), 90)
    ]
    header = ["user,age,height,town"] if form == "csv" else []
    for name, part, end in (("a", lines[:50], "\r\n"), ("b", lines[50:60], "\n"), ("c", lines[60:], "\n")):
        (folder / name).write_bytes("".join(line + end for line in [*header, *part]).encode())
    expected = oracle.attributes_of(config, config.users, DAY)
    (folder / "b.gz").write_bytes(gzip.compress((folder / "b").read_bytes()))
    (folder / "b").unlink()
    found = read_attribute_table(config, config.users, "user", "users", DAY, "user").to_pylist()
    assert [{name: repr(value) for name, value in row.items()} for row in found] == [
        {name: repr(value) for name, value in row.items()} for row in expected
    ]
    assert len(found) == 90
    assert 0 < sum(row["town"] is None for row in found) < 90


@MANY
@given(
    keys=st.lists(st.one_of(st.none(), st.integers(0, 12)), max_size=30),
    known=st.lists(st.integers(0, 12), unique=True, max_size=13),
    of_rows=st.sampled_from(["string", "int"]),
    of_table=st.sampled_from(["string", "int"]),
    encoded=st.booleans(),
)
def test_joins_are_those_of_a_loop(
    keys: list[int | None], known: list[int], of_rows: str, of_table: str, encoded: bool
) -> None:
    """Keys of different types are compared as integers. Null has no partner."""
    types = {"string": pa.string(), "int": pa.int64()}

    def column(values: list[Any], kind: str) -> pa.ChunkedArray:
        middle = len(values) // 2
        chunks = [pa.array(part, pa.int64()).cast(types[kind]) for part in (values[:middle], values[middle:])]
        chunks = [chunk.dictionary_encode() for chunk in chunks] if encoded else chunks
        return pa.chunked_array(chunks)

    rows = pa.table({"user": column(keys, of_rows), "n": pa.array(range(len(keys)))})
    attributes = pa.table(
        {
            "age": pa.array([None if value == 4 else value for value in known], pa.int64()),
            "user": column(known, of_table),
            "tags": pa.array(
                [None if value == 2 else [str(value), "x"] for value in known], pa.list_(pa.string())
            ),
        }
    )
    joined = join_attributes(rows, attributes, "user")
    assert joined.column_names == ["user", "n", "age", "tags"]
    assert joined.select(["user", "n"]).equals(rows)
    for key, row in zip(keys, joined.to_pylist(), strict=True):
        has_row = key in known
        assert row["age"] == (key if has_row and key != 4 else None)
        assert row["tags"] == ([str(key), "x"] if has_row and key != 2 else None)


# Draws of negatives


def test_held_out_items_are_drawn_for_train_rows_as_often_as_any_other() -> None:
    """150 users and 50 items, each user with one held-out item: hits are a sum of independent draws."""
    draw, per_positive = random.Random(3), 3
    rows = []
    for user in range(150):
        *train, validation, test = draw.sample(range(50), 12)
        rows += [(f"u{user}", f"i{item:02}", "train") for item in train]
        rows += [(f"u{user}", f"i{validation:02}", "validation"), (f"u{user}", f"i{test:02}", "test")]
    users, items, splits = zip(*rows, strict=True)
    table = pa.table(
        {
            "row_id": pa.array(range(len(rows)), pa.int64()),
            "user_key": pa.array(users),
            "item_key": pa.array(items),
            "item": pa.array(items),
            "label": pa.array([1.0] * len(rows), pa.float32()),
            "split": pa.array(splits),
        }
    )
    config = Negatives(per_positive=per_positive, seed=5)
    found = add_negatives(table, config, "item", merge_items([items_of(table, "item")])).to_pylist()
    drawn = [row for row in found if row["split"] == "train" and row["label"] == 0]
    for held_out in ("validation", "test"):
        wanted = {(user, item) for user, item, split in rows if split == held_out}
        hits = sum((row["user_key"], row["item_key"]) in wanted for row in drawn)
        draws = 150 * 10 * per_positive
        assert abs(hits - draws / 50) < 4 * math.sqrt(draws / 50 * 49 / 50), held_out


@MANY
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["u", "v", "é"]),
            st.integers(5, 16),
            st.sampled_from([0.0, 1.0]),
            st.sampled_from(oracle.SPLITS),
        ),
        min_size=1,
        max_size=40,
    ),
    seed=st.sampled_from([0, 5, 2**31 - 1, 2**31, 2**63 - 1]),
    per_positive=st.integers(1, 4),
    mode=st.sampled_from(["day", "splits", "held out"]),
    form=st.sampled_from(FORMS),
)
def test_draws_are_the_oracles(
    rows: list[tuple[Any, ...]], seed: int, per_positive: int, mode: str, form: str
) -> None:
    """Seeds of 32 and of 64 bits, and items whose order as numbers differs from that of their keys."""
    users, items, labels, splits = zip(*rows, strict=True)
    table = pa.table(
        {
            "row_id": pa.array([7 * place for place in range(len(rows))], pa.int64()),
            "user_key": pa.array(users),
            "item_key": pa.array([str(item) for item in items]),
            "label": pa.array(labels, pa.float32()),
            "weight": pa.array([0.5] * len(rows), pa.float32()),
            "item": pa.array(items, pa.int64()),
            "split": pa.array(splits),
        }
    )
    config = Negatives(per_positive=per_positive, seed=seed, train=mode != "held out")
    expected = [{**row, "split": None} if mode == "day" else row for row in table.to_pylist()]
    parts = [in_form(part, form) for part in by_user(table.drop(["split"]) if mode == "day" else table)]
    day_items = merge_items([items_of(part, "item") for part in parts])
    found = [row for part in parts for row in add_negatives(part, config, "item", day_items).to_pylist()]
    found = [{"split": None, **row} for row in found]
    assert exact(found) == exact(oracle.with_negatives(expected, config, "item"))
