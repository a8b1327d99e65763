"""Histories in Arrow tables equal brute force and those of Spark frames, and use nothing from the future."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from conf.types import History
from etl.prepare import histories
from etl.prepare.histories import add_history, as_history, last_clicks, merge_days, recent_clicks
from etl.spark import frame_passes as frames

MANY = settings(max_examples=60, deadline=None, derandomize=True, database=None)
FEW = settings(max_examples=3, deadline=None, derandomize=True, database=None)
ROW = st.tuples(
    st.sampled_from(["u", "v", "w", "é"]),
    st.sampled_from("abcdefg"),
    st.sampled_from([0.0, 1.0, 1.0]),
    st.integers(0, 6),  # few times, so that many rows have equal times
    st.integers(0, 3),
)
ROWS = st.lists(ROW, max_size=40)
DAYS = st.lists(st.lists(ROW, min_size=1, max_size=15), min_size=1, max_size=4)
NAMES = ["user_key", "item_key", "label", "event_time", "group_key"]
TICK = 1_700_000  # µs; so that ages are not the differences of the small numbers of a log
LISTS = pa.list_(pa.dictionary(pa.int32(), pa.string()))
Log = list[dict[str, Any]]


def log_of(rows: list[tuple], first_row_id: int = 0, first_time: int = 0) -> Log:
    """The rows as dictionaries, with row_ids in their order."""
    log = [
        {**dict(zip(NAMES, row, strict=True)), "row_id": first_row_id + number}
        for number, row in enumerate(rows)
    ]
    return [
        {**row, "event_time": row["event_time"] + first_time, "group_key": f"g{row['group_key']}"}
        for row in log
    ]


def table_of(
    log: Log, *, timed: bool = True, grouped: bool = False, seed: int | None = None, coded: bool = False
) -> pa.Table:
    """The rows as a table. With a seed, they are shuffled, and divided into chunks."""
    types = {"user_key": pa.string(), "item_key": pa.string(), "label": pa.float32(), "row_id": pa.int64()}
    types |= {"event_time": pa.int64()} if timed else {}
    types |= {"group_key": pa.string()} if grouped else {}
    table = pa.Table.from_pylist([{name: row[name] for name in types} for row in log], pa.schema(types))
    if seed is not None:
        table = table.take(pa.array(np.random.default_rng(seed).permutation(len(table))))
        middle = len(table) // 3
        table = pa.concat_tables([table.slice(0, middle), table.slice(middle)])
    if coded:
        for name in ("user_key", "item_key", *(["group_key"] if grouped else [])):
            # Dictionaries of their own, with a key twice and with one that does not occur.
            chunks = [with_repeated_keys(chunk.dictionary_encode()) for chunk in table.column(name).chunks]
            kind = pa.dictionary(pa.int32(), pa.string())
            table = table.set_column(table.column_names.index(name), name, pa.chunked_array(chunks, kind))
    return table


def with_repeated_keys(encoded: pa.DictionaryArray) -> pa.DictionaryArray:
    size = len(encoded.dictionary)
    codes = encoded.indices.to_numpy() + size * (np.arange(len(encoded)) % 2)
    keys = pa.concat_arrays([encoded.dictionary, encoded.dictionary, pa.array(["of nobody"])])
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), keys)


def frame_of(spark: SparkSession, table: pa.Table) -> DataFrame:
    kinds = {"label": "float", "row_id": "bigint", "event_time": "bigint"}
    schema = ", ".join(f"{name} {kinds.get(name, 'string')}" for name in table.column_names)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return spark.createDataFrame(rows, schema).repartition(3)


def earlier_frame(spark: SparkSession, earlier: pa.Table) -> DataFrame:
    """The clicks of users as a frame with structs (etl/spark/frame_passes.py)."""
    rows = [
        (
            row["user_key"],
            list(zip(row.get("times") or [None] * len(row["items"]), row["items"], strict=True)),
        )
        for row in earlier.to_pylist()
    ]
    return spark.createDataFrame(rows, f"user_key string, clicks {frames.ARRAY}")


def position(row: dict[str, Any], timed: bool) -> tuple[int, ...]:
    return (row["event_time"], row["row_id"]) if timed else (row["row_id"],)


def clicks_in_order(log: Log, user: str, timed: bool) -> Log:
    mine = [row for row in log if row["user_key"] == user and row["label"] == 1]
    return sorted(mine, key=lambda row: position(row, timed))


def expected_history(
    log: Log, row: dict[str, Any], length: int, earlier: Log, *, timed: bool, grouped: bool
) -> list[str]:
    """The items of `clicks_of_history`."""
    clicks = clicks_of_history(log, row, length, earlier, timed=timed, grouped=grouped)
    return [click["item_key"] for click in clicks]


def clicks_of_history(
    log: Log, row: dict[str, Any], length: int, earlier: Log, *, timed: bool, grouped: bool
) -> Log:
    """The history of a row by brute force. `earlier` are the clicks of earlier days, oldest first."""
    group = [
        other
        for other in log
        if (other["user_key"], other["group_key"]) == (row["user_key"], row["group_key"])
    ]
    first = min(group, key=lambda other: position(other, timed)) if grouped else row
    today = [
        click
        for click in clicks_in_order(log, row["user_key"], timed)
        if position(click, timed) < position(first, timed)
    ]
    older = [
        click
        for click in earlier
        if click["user_key"] == row["user_key"] and (not timed or click["event_time"] < row["event_time"])
    ]
    return (older + today)[::-1][:length]


def histories_of(table: pa.Table) -> dict[int, list[str]]:
    return dict(zip(table["row_id"].to_pylist(), table["history"].to_pylist(), strict=True))


@MANY
@given(
    rows=ROWS,
    before=st.lists(ROW, max_size=30),
    length=st.integers(1, 5),
    timed=st.booleans(),
    grouped=st.booleans(),
    coded=st.booleans(),
)
def test_histories_are_the_clicks_before_the_row(
    rows: list[tuple], before: list[tuple], length: int, timed: bool, grouped: bool, coded: bool
) -> None:
    """The times of both days overlap, so each earlier click is compared with the time of each row."""
    log, clicks_before = log_of(rows), log_of(before, 1000)
    of_users = [
        click
        for user in {row["user_key"] for row in clicks_before}
        for click in clicks_in_order(clicks_before, user, timed)
    ]
    earlier = last_clicks(table_of(clicks_before, timed=timed, coded=coded), 100)
    rows_table = table_of(log, timed=timed, grouped=grouped, seed=7, coded=coded)
    result = add_history(rows_table, History(length=length), earlier)
    assert result.column_names == [*rows_table.column_names, "history"]
    assert result.column("history").type == LISTS
    assert result.drop_columns(["history"]).equals(rows_table)
    assert histories_of(result) == {
        row["row_id"]: expected_history(log, row, length, of_users, timed=timed, grouped=grouped)
        for row in log
    }


@FEW
@given(
    days=DAYS,
    length=st.integers(1, 4),
    timed=st.booleans(),
    grouped=st.booleans(),
    apart=st.sampled_from([0, 3, 100]),
)
def test_tables_equal_frames_of_spark(
    spark: SparkSession, days: list[list[tuple]], length: int, timed: bool, grouped: bool, apart: int
) -> None:
    """All four functions give the results of etl/spark/frame_passes.py, also if the times of days overlap."""
    history = History(length=length)
    tables = [
        table_of(log_of(rows, 100 * number, apart * number), timed=timed, grouped=grouped, seed=number)
        for number, rows in enumerate(days)
    ]
    of_days = [last_clicks(day, length) for day in tables]
    for day, clicks in zip(tables, of_days, strict=True):
        assert users_of(clicks) == users_of_frame(frames.last_clicks(frame_of(spark, day), length))
    merged = merge_days(of_days, length)
    merged_frame = frames.merge_days([earlier_frame(spark, day) for day in of_days], length)
    assert users_of(merged) == users_of_frame(merged_frame)
    stored = [as_stored(day) for day in of_days]
    assert merge_days([*stored[:1], *of_days[1:]], length).to_pylist() == merged.to_pylist()
    latest = as_history(merged, History(length=max(1, length - 1)))
    expected = frames.as_history(merged_frame, History(length=max(1, length - 1))).collect()
    assert latest.column("history").type == LISTS
    assert {row["user_key"]: row["history"] for row in latest.to_pylist()} == {
        row["user_key"]: list(row["history"]) for row in expected
    }
    of_stored = histories_of(add_history(tables[-1], history, as_stored(merged)))
    assert of_stored == histories_of(add_history(tables[-1], history, merged))
    for earlier in (merged, without_times(merged), None):
        result = add_history(tables[-1], history, earlier)
        frame = frames.add_history(
            frame_of(spark, tables[-1]), history, None if earlier is None else earlier_frame(spark, earlier)
        )
        assert histories_of(result) == {row["row_id"]: list(row["history"]) for row in frame.collect()}


def users_of(clicks: pa.Table) -> dict[str, list[tuple[int | None, str]]]:
    rows = clicks.to_pylist()
    assert len({row["user_key"] for row in rows}) == len(rows)
    return {
        row["user_key"]: list(zip(row.get("times") or [None] * len(row["items"]), row["items"], strict=True))
        for row in rows
    }


def users_of_frame(clicks: DataFrame) -> dict[str, list[tuple[int | None, str]]]:
    return {
        row["user_key"]: [(click["time"], click["item"]) for click in row["clicks"]]
        for row in clicks.collect()
    }


def as_stored(clicks: pa.Table) -> pa.Table:
    """The table with plain strings, as it is in a lake."""
    items = clicks.column("items").cast(pa.list_(pa.string()))
    return clicks.set_column(1, "items", items)


def without_times(clicks: pa.Table) -> pa.Table:
    return clicks.select(["user_key", "items"])


@MANY
@given(
    rows=st.lists(ROW, min_size=1, max_size=30),
    length=st.integers(1, 4),
    parts=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_clicks_of_parts_in_any_order_are_those_of_the_day(
    rows: list[tuple], length: int, parts: int, seed: int
) -> None:
    log = log_of(rows)
    for timed in (True, False):
        shuffled = table_of(log, timed=timed, seed=seed)
        pieces = [shuffled.take(pa.array(np.arange(part, len(log), parts))) for part in range(parts)]
        merged = recent_clicks(pa.concat_tables([recent_clicks(piece, length) for piece in pieces]), length)
        expected = {
            user: [
                (row["event_time"] if timed else None, row["item_key"])
                for row in clicks_in_order(log, user, timed)
            ][-length:]
            for user in {row["user_key"] for row in log if row["label"] == 1}
        }
        assert users_of(histories.lists_of_clicks(merged)) == expected


@MANY
@given(rows=st.lists(ROW, min_size=2, max_size=30), length=st.integers(1, 4), grouped=st.booleans())
def test_nothing_from_the_future_is_in_a_history(rows: list[tuple], length: int, grouped: bool) -> None:
    """If a row, the rows after it, and those of its group have other items and labels, its history stays."""
    log = sorted(log_of(rows), key=lambda row: position(row, True))
    history = History(length=length)
    whole = histories_of(add_history(table_of(log, grouped=grouped), history))
    for index, row in enumerate(log):
        changed = [
            {**other, "item_key": "future", "label": 1.0}
            if number >= index
            or (grouped and (other["user_key"], other["group_key"]) == (row["user_key"], row["group_key"]))
            else other
            for number, other in enumerate(log)
        ]
        after = histories_of(add_history(table_of(changed, grouped=grouped), history))
        assert after[row["row_id"]] == whole[row["row_id"]]
        assert "future" not in after[row["row_id"]]


def test_a_row_has_neither_its_own_click_nor_later_ones_nor_those_of_its_group() -> None:
    log = log_of([("u", "a", 1.0, 1, 0), ("u", "b", 1.0, 2, 1), ("u", "c", 1.0, 3, 1), ("u", "d", 1.0, 4, 2)])
    alone = histories_of(add_history(table_of(log), History(length=9)))
    assert alone == {0: [], 1: ["a"], 2: ["b", "a"], 3: ["c", "b", "a"]}
    in_groups = histories_of(add_history(table_of(log, grouped=True), History(length=9)))
    assert in_groups == {0: [], 1: ["a"], 2: ["a"], 3: ["c", "b", "a"]}


def in_seconds(clicks: Log) -> list[int]:
    """The age of each click, the most recent first."""
    times = [click["event_time"] for click in clicks]
    return [max(times[0] - time, 0) // 1_000_000 for time in times]


def slower(log: Log) -> Log:
    return [{**row, "event_time": TICK * row["event_time"]} for row in log]


@MANY
@given(
    rows=ROWS,
    before=st.lists(ROW, max_size=30),
    length=st.integers(1, 5),
    grouped=st.booleans(),
    apart=st.sampled_from([0, 3, 100]),
)
def test_ages_are_the_seconds_before_the_first_click_of_the_list(
    rows: list[tuple], before: list[tuple], length: int, grouped: bool, apart: int
) -> None:
    """Also if clicks of earlier days have later times than those of the day."""
    log, clicks_before = slower(log_of(rows, first_time=apart)), slower(log_of(before, 1000))
    of_users = [
        click
        for user in {row["user_key"] for row in clicks_before}
        for click in clicks_in_order(clicks_before, user, True)
    ]
    earlier, rows_table = last_clicks(table_of(clicks_before), 100), table_of(log, grouped=grouped, seed=7)
    result = add_history(rows_table, History(length=length, ages="ages"), earlier)
    assert result.column("ages").type == pa.list_(pa.int64())
    plain = add_history(rows_table, History(length=length), earlier)
    assert result.drop_columns(["ages"]).equals(plain)
    assert dict(zip(result["row_id"].to_pylist(), result["ages"].to_pylist(), strict=True)) == {
        row["row_id"]: in_seconds(clicks_of_history(log, row, length, of_users, timed=True, grouped=grouped))
        for row in log
    }


@FEW
@given(days=DAYS, length=st.integers(1, 4), grouped=st.booleans(), apart=st.sampled_from([0, 3, 100]))
def test_ages_equal_those_of_spark(
    spark: SparkSession, days: list[list[tuple]], length: int, grouped: bool, apart: int
) -> None:
    history = History(length=length, ages="ages")
    tables = [
        table_of(slower(log_of(rows, 100 * number, apart * number)), grouped=grouped, seed=number)
        for number, rows in enumerate(days)
    ]
    merged = merge_days([last_clicks(day, length) for day in tables], length)
    latest = frames.as_history(earlier_frame(spark, merged), history).collect()
    assert {
        row["user_key"]: (row["history"], row["ages"]) for row in as_history(merged, history).to_pylist()
    } == {row["user_key"]: (list(row["history"]), list(row["ages"])) for row in latest}
    for earlier in (merged, without_times(merged), None):
        result = add_history(tables[-1], history, earlier)
        frame = frames.add_history(
            frame_of(spark, tables[-1]), history, None if earlier is None else earlier_frame(spark, earlier)
        )
        assert dict(frame.dtypes)["ages"] == "array<bigint>"
        assert {row["row_id"]: (row["history"], row["ages"]) for row in result.to_pylist()} == {
            row["row_id"]: (list(row["history"]), list(row["ages"])) for row in frame.collect()
        }


def test_nothing_from_the_future_is_in_an_age() -> None:
    """Neither the time of the row itself nor a later click changes an age."""
    log = slower(log_of([("u", item, 1.0, time, 0) for time, item in enumerate("abcd")]))
    ages = add_history(table_of(log), History(length=9, ages="ages"))["ages"].to_pylist()
    assert ages == [[], [0], [0, 1], [0, 1, 3]]
    for place in range(4):
        later = [
            {**row, "event_time": row["event_time"] + 10**12 * (number >= place)}
            for number, row in enumerate(log)
        ]
        changed = add_history(table_of(later), History(length=9, ages="ages"))["ages"].to_pylist()
        assert changed[: place + 1] == ages[: place + 1]


def test_ages_without_times_are_an_internal_error() -> None:
    rows = table_of(log_of([("u", "a", 1.0, 0, 0)]), timed=False)
    with pytest.raises(ValueError, match="ages need the times"):
        add_history(rows, History(length=2, ages="ages"))


def test_each_earlier_click_is_compared_with_the_time_of_the_row() -> None:
    """The clicks that are left out may be between others: those of a later day can have earlier times."""
    earlier = pa.table(
        {
            "user_key": ["other", "u"],
            "items": [["x"], ["a", "late", "b", "now"]],
            "times": [[1], [40, 70, 45, 50]],
        }
    )
    log = log_of([("u", "today", 1.0, 50, 0), ("u", "next", 0.0, 60, 0), ("u", "last", 0.0, 99, 0)])
    result = add_history(table_of(log), History(length=3), earlier)
    assert histories_of(result) == {0: ["b", "a"], 1: ["today", "now", "b"], 2: ["today", "now", "b"]}
    assert histories_of(add_history(table_of(log, timed=False), History(length=3), earlier))[0] == [
        "now",
        "b",
        "late",
    ]


def test_extreme_times_are_ordered_exactly() -> None:
    """Their range times the number of users needs more than 64 bits."""
    extremes = [2**63 - 1, -(2**63) + 1, 2**53 + 1, 2**53]
    log = log_of([("u", str(index), 1.0, 0, 0) for index in range(4)] + [("v", "x", 1.0, 0, 0)])
    for row, time in zip(log, extremes, strict=False):
        row["event_time"] = time
    assert histories_of(add_history(table_of(log), History(length=9)))[0] == ["2", "3", "1"]


def test_parquet_returns_dictionary_codes() -> None:
    log = log_of([("u", item, 1.0, time, 0) for time, item in enumerate("abcab")])
    written = io.BytesIO()
    result = add_history(table_of(log), History(length=3))
    pq.write_table(result, written)
    read = pq.ParquetFile(written, read_dictionary=["history.list.element"]).read()
    assert pa.types.is_dictionary(read.column("history").type.value_type)
    assert read.column("history").to_pylist() == result.column("history").to_pylist()
    assert sorted(result.column("history").chunk(0).values.dictionary.to_pylist()) == ["a", "b", "c"]


def test_small_steps_and_several_list_arrays_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(3)
    rows = [
        (f"u{draw.integers(9)}", f"i{draw.integers(20)}", float(draw.integers(2)), int(draw.integers(50)), 0)
        for _ in range(300)
    ]
    log, history = log_of(rows), History(length=4)
    earlier = last_clicks(table_of(log_of(rows[::-1])), 4)
    whole = add_history(table_of(log), history, earlier)
    merged = merge_days([earlier, earlier], 6)
    monkeypatch.setattr(histories, "_STEP_VALUES", 10)
    monkeypatch.setattr(histories, "_LIST_VALUES", 50)
    parts = add_history(table_of(log), history, earlier)
    assert parts.column("history").num_chunks > 10
    assert parts.column("history").to_pylist() == whole.column("history").to_pylist()
    assert merge_days([earlier, earlier], 6).to_pylist() == merged.to_pylist()


def test_a_row_without_a_key_is_an_internal_error() -> None:
    rows = table_of(log_of([("u", "a", 1.0, 0, 0)]))
    for name in ("user_key", "item_key"):
        without = rows.set_column(
            rows.column_names.index(name), name, pa.chunked_array([pa.nulls(1, pa.string())])
        )
        with pytest.raises(ValueError, match="without a key"):
            add_history(without, History(length=2))
    timed, untimed = last_clicks(rows, 2), last_clicks(rows.drop_columns(["event_time"]), 2)
    with pytest.raises(ValueError, match="only some tables"):
        merge_days([timed, untimed], 2)
