"""Operators over Arrow tables equal those over Spark frames, for rows in any form and in any order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from conf.errors import ConfigError
from conf.types import Negatives
from etl.ops import RowChanger, Type, frame_operator_from_config
from etl.ops.training_statistics import GroupedNumbers
from etl.prepare.task_passes import apply_row_operators, keep_users_together, require_table_forms
from etl.raw.splits import add_to_log_rows
from tests.etl.ops.examples import COLUMNS, FRAME_EXAMPLES
from tests.etl.ops.rows import DAYS, make_rows
from tests.etl.prepare.tables import FORMS, assert_same_rows, by_user, in_form, records, to_frame

WITH_SPARK = settings(max_examples=3, deadline=None, derandomize=True, database=None)
MANY = settings(max_examples=40, deadline=None, derandomize=True, database=None)
ENTRIES = [*FRAME_EXAMPLES["difference_lag"], *FRAME_EXAMPLES["groupby"]]
_ARROW = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


def _examples(size: int, timed: bool, split: bool) -> pa.Table:
    rows = random.Random(5).sample(make_rows(DAYS[0], size, seed=3), size)
    columns = {name: pa.array([row[name] for row in rows], _ARROW[kind]) for name, kind in COLUMNS.items()}
    columns |= {
        "row_id": pa.array([row["row_id"] for row in rows], pa.int64()),
        "label": pa.array([row["label"] for row in rows], pa.float32()),
        "_day": pa.array([DAYS[0]] * size),
    }
    if timed:
        columns["event_time"] = pa.array([row["row_id"] // 20 for row in rows], pa.int64())
    if split:
        columns["split"] = pa.array([("train", "validation", "test")[row["row_id"] % 3] for row in rows])
    return pa.table(columns)


def _changer(entry: Any) -> RowChanger:
    operator = frame_operator_from_config(entry)
    assert isinstance(operator, RowChanger)
    return operator


@pytest.mark.parametrize("timed, split", [(True, False), (False, True)])
def test_examples_are_changed_as_in_spark(spark: SparkSession, timed: bool, split: bool) -> None:
    table = _examples(150, timed, split)
    frame = to_frame(spark, table)
    for entry in ENTRIES:
        changer = _changer(entry)
        expected = changer.apply(frame)
        for form in FORMS:
            rows = in_form(table, form)
            changed = apply_row_operators(rows, [changer])
            assert changed.column_names == expected.columns
            assert_same_rows([changed], expected)
            assert rows.equals(in_form(table, form))


def test_a_chain_of_operators_is_applied_in_order(spark: SparkSession) -> None:
    changers = [
        _changer({"difference_lag": {"by": ["C1"], "columns": ["I1"], "lag": 2}}),
        _changer({"groupby": {"by": ["C1"], "aggregates": {"I1_difference_lag_2": ["sum", "max", "last"]}}}),
        _changer({"difference_lag": {"by": ["C1"], "columns": ["I1_difference_lag_2_sum"], "lag": -1}}),
        _changer({"groupby": {"by": ["C1"], "aggregates": {"C1": ["count", "list"]}}}),
    ]
    table = _examples(120, timed=True, split=True)
    frame = to_frame(spark, table)
    for changer in changers:
        frame = changer.apply(frame)
    assert_same_rows([apply_row_operators(in_form(table, "dictionary"), changers)], frame)


@pytest.mark.parametrize("lag, expected", [(1, [None, 30.0, 5.0]), (-1, [-30.0, -5.0, None])])
def test_drawn_negatives_have_the_differences_of_their_positive_rows(
    spark: SparkSession, lag: int, expected: list[float | None]
) -> None:
    """Each row of a user is followed by the row that was drawn for it, with the same values."""
    changer = _changer({"difference_lag": {"by": ["user"], "columns": ["ts"], "lag": lag}})
    rows = [
        (user, time, 2 * row + draw, 1.0 - draw)
        for user, row, time in (("a", 0, 10), ("b", 1, 11), ("a", 2, 40), ("a", 5, 45))
        for draw in (0, 1)
    ]
    random.Random(3).shuffle(rows)
    names = ("user", "ts", "row_id", "label")
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    changed = apply_row_operators(table, [changer], Negatives(per_positive=1))
    assert changed["row_id"].equals(table["row_id"])
    found = {row["row_id"]: row[f"ts_difference_lag_{lag}"] for row in changed.to_pylist()}
    assert [found[row_id] for row_id in (0, 4, 10)] == [found[row_id] for row_id in (1, 5, 11)] == expected
    assert found[2] is None
    assert found[3] is None
    assert_same_rows(
        [changed], add_to_log_rows(to_frame(spark, table), 2, changer.apply).select(changed.column_names)
    )
    empty = apply_row_operators(table[:0], [changer], Negatives(per_positive=1))
    assert empty.schema == changed.schema


FLOATS = st.one_of(
    st.none(),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0),
    st.sampled_from([0.1, -0.1, 1e-9, 3e38, -3e38, 2.0**30, 1 / 3]),
)
INTEGERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
KEYED = st.tuples(
    st.sampled_from(["u", "v", "w", "é"]),
    st.sampled_from([None, 0, 1]),
    st.integers(0, 4),
    FLOATS,
    INTEGERS,
    st.sampled_from([None, "", "a", "日本"]),
)


def _keyed(rows: list[tuple]) -> pa.Table:
    users, keys, times, floats, integers, texts = zip(*rows, strict=True)
    return pa.table(
        {
            "row_id": pa.array([3 * place for place in range(len(rows))], pa.int64()),
            "user_key": pa.array(users, pa.string()),
            "event_time": pa.array(times, pa.int64()),
            "label": pa.array([float(place % 4 == 0) for place in range(len(rows))], pa.float32()),
            "user": pa.array(users, pa.string()),
            "k": pa.array(keys, pa.int64()),
            "x": pa.array(floats, pa.float64()),
            "i": pa.array(integers, pa.int64()),
            "t": pa.array(texts, pa.string()),
            "_day": pa.array([DAYS[0]] * len(rows)),
        }
    )


ALL = ["sum", "mean", "min", "max", "count", "first", "last"]
OF_USERS = [
    {"difference_lag": {"by": ["user", "k"], "columns": ["x", "i"]}},
    {
        "groupby": {
            "by": ["k", "user"],
            "aggregates": {
                "x": ALL,
                "i": [*ALL, "list"],
                "t": ["count", "first", "last", "list"],
                "x_difference_lag_1": ["sum", "max"],
            },
        }
    },
]


@WITH_SPARK
@given(rows=st.lists(KEYED, min_size=30, max_size=80))
def test_keyed_rows_are_changed_as_in_spark(spark: SparkSession, rows: list[tuple]) -> None:
    table = _keyed(rows)
    changers = [_changer(entry) for entry in OF_USERS]
    frame = to_frame(spark, table)
    for changer in changers:
        frame = changer.apply(frame)
    assert_same_rows([apply_row_operators(part, changers) for part in by_user(table)], frame)


@MANY
@given(rows=st.lists(KEYED, min_size=1, max_size=50), form=st.sampled_from(FORMS), tasks=st.integers(1, 4))
def test_users_in_several_tasks_give_the_rows_of_one_task(rows: list[tuple], form: str, tasks: int) -> None:
    table = _keyed(rows)
    changers = [_changer(entry) for entry in OF_USERS]
    assert keep_users_together(changers, "user")
    parts = [apply_row_operators(in_form(part, form), changers) for part in by_user(table, tasks)]
    assert records(parts) == records([apply_row_operators(table, changers)])


def test_operators_over_other_keys_need_all_rows_of_a_day() -> None:
    of_user, of_text = (
        _changer({"difference_lag": {"by": by, "columns": ["x"]}}) for by in (["user"], ["t"])
    )
    assert keep_users_together([of_user], "user")
    assert not keep_users_together([of_user, of_text], "user")
    assert not keep_users_together([of_user], None)
    assert keep_users_together([], None)


class OnlyFrames(RowChanger):
    """The operator of a package that was written for frames."""

    name: ClassVar[str] = "only_frames"

    def bind(self, columns: Mapping[str, Type]) -> Mapping[str, Type]:
        return columns

    def apply(self, rows: Any) -> Any:
        return rows


class Wrong(OnlyFrames):
    name: ClassVar[str] = "wrong"

    def apply_table(self, rows: pa.Table) -> Any:
        return rows.drop(["label"]) if len(rows) > 1 else None


class Doubled(OnlyFrames):
    name: ClassVar[str] = "doubled"

    def apply_table(self, rows: pa.Table) -> pa.Table:
        return rows.set_column(0, "row_id", pa.array(rows.column("row_id").to_numpy() * 2))


def test_an_operator_without_a_form_for_tables_is_named() -> None:
    table = _keyed([("u", 1, 1, 0.5, 3, "a")])
    of_user = _changer(OF_USERS[0])
    for check in (require_table_forms, lambda changers: apply_row_operators(table, changers)):
        with pytest.raises(ConfigError, match="only_frames changes rows only in Spark") as error:
            check([of_user, OnlyFrames()])
        assert "define the method `apply_table` of only_frames" in str(error.value)
    require_table_forms([of_user, Doubled()])
    assert not keep_users_together([OnlyFrames()], "user")
    doubled = apply_row_operators(_keyed([("u", 1, 1, 0.5, 3, "a")] * 3), [Doubled()])
    assert doubled.column("row_id").to_pylist() == [0, 6, 12]


@pytest.mark.parametrize("rows", [1, 2])
def test_an_operator_that_breaks_the_contract_is_named(rows: int) -> None:
    with pytest.raises(ConfigError, match="`apply_table` of the operator wrong did not return"):
        apply_row_operators(_keyed([("u", 1, 1, 0.5, 3, "a")] * rows), [Wrong()])


def test_tables_without_rows_stay_empty() -> None:
    table = _keyed([("u", 1, 1, 0.5, 3, "a")])
    changers = [_changer(entry) for entry in OF_USERS]
    for form in FORMS:
        changed = apply_row_operators(in_form(table[:0], form), changers)
        assert len(changed) == 0
        assert changed.column_names == apply_row_operators(table, changers).column_names


def test_sums_that_fit_in_64_bits_and_larger_sums_agree() -> None:
    """A single larger number makes all groups take the way of large numbers."""
    draw = np.random.default_rng(2)
    values = draw.normal(0, 1e6, 5000)
    groups = draw.integers(0, 40, 5000)
    small = GroupedNumbers(values, groups, 41).exact_sums()
    large = GroupedNumbers(np.append(values, 1e25), np.append(groups, 40), 41).exact_sums()
    assert small[:40].equals(large[:40])
    assert (small[40].as_py(), large[40].as_py()) == (0.0, 1e25)
