"""Clicks that are read piece by piece from published files give what clicks in memory give."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from conf.types import Candidates
from scoring.candidates.build import make_candidates
from scoring.candidates.clicks import clicked_items, observed_items, within
from scoring.candidates.exclusions import exclude
from scoring.candidates.popular import popularity
from scoring.candidates.source_tables import SourceTables
from spark.rows import StoredRows, query, with_value
from storage.paths import LakePaths
from storage.publish import publish_rows

DAYS = [f"2026-01-0{day}" for day in range(1, 6)]
DAY_US = 86_400_000_000
FIRST_US = 20_454 * DAY_US  # 2026-01-01
ITEMS = pa.table({"item_index": pa.array(range(6), pa.int32()), "item_key": [f"i{n}" for n in range(6)]})
USERS = pa.table({"user_key": [f"u{n}" for n in range(9)]})


def stored_clicks(folder: Path, *, timed: bool) -> StoredRows:
    """Rows of five days. Some items are not among ITEMS, and some users are not among USERS."""
    draw = np.random.default_rng(4)
    parts = []
    for number, day in enumerate(DAYS):
        columns = {
            "user_key": [f"u{n}" for n in draw.integers(0, 11, 40)],
            "item_key": [f"i{n}" for n in draw.integers(0, 8, 40)],
            "label": pa.array(draw.integers(0, 2, 40), pa.float32()),
        }
        if timed:
            columns["event_time"] = pa.array(FIRST_US + number * DAY_US + draw.integers(0, DAY_US, 40))
        partition = LakePaths(str(folder)).features("v").partition(day)
        manifest = publish_rows(pa.table(columns), partition, inputs={}, row_group_rows=15)
        parts.append(StoredRows.of(partition, manifest).with_value("features_dt", day))
    return StoredRows(parts[0].schema, tuple(some for part in parts for some in part.files))


def pairs(rows: pa.Table) -> list[tuple[str, int]]:
    return sorted(zip(*(rows.column(name).to_pylist() for name in ("user_key", "item_index")), strict=True))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("days", [None, 1, 3, 9])
def test_rows_of_the_last_days(tmp_path: Path, days: int | None, timed: bool) -> None:
    stored = stored_clicks(tmp_path, timed=timed)
    kept = within(stored, days, DAYS[3], "UTC")
    expected = within(stored.read(), days, DAYS[3], "UTC")
    assert kept.to_pylist() == expected.to_pylist()
    assert len(kept) == {None: 200, 1: 40, 3: 120, 9: 160}[days]


@pytest.mark.parametrize(
    "zone, last, days, hours",
    [
        ("UTC", "2026-01-08", 1, 24),
        ("America/Los_Angeles", "2026-01-08", 1, 24),
        ("Asia/Tokyo", "2026-01-08", 2, 48),
        ("Europe/Berlin", "2026-03-29", 1, 23),
        ("Europe/Berlin", "2026-10-25", 1, 25),
        ("Europe/Berlin", "2026-10-26", 2, 49),
    ],
)
def test_days_begin_and_end_at_local_midnight(
    tmp_path: Path, zone: str, last: str, days: int, hours: int
) -> None:
    """Also on days with 23 or 25 hours, because clocks change."""
    after = datetime.fromisoformat(last).replace(tzinfo=ZoneInfo(zone)) + timedelta(days=1)
    end = int(after.timestamp()) * 1_000_000
    first = end - hours * 3_600_000_000
    times = pa.table({"event_time": pa.array([first - 1, first, end - 1, end])})
    partition = LakePaths(str(tmp_path)).features("v").partition(last)
    manifest = publish_rows(times, partition, inputs={}, row_group_rows=9)
    for rows in (times, StoredRows.of(partition, manifest)):
        kept = within(rows, days, last, zone)
        assert isinstance(kept, pa.Table)
        assert kept.column("event_time").to_pylist() == [first, end - 1]


def test_items_of_some_users_by_a_condition(tmp_path: Path) -> None:
    stored = stored_clicks(tmp_path, timed=False)
    rows = stored.read().to_pylist()
    few = USERS.slice(0, 2)
    for users, names in ((None, {row["user_key"] for row in rows}), (few, {"u0", "u1"})):
        seen = {
            (row["user_key"], int(row["item_key"][1:]), row["label"])
            for row in rows
            if row["user_key"] in names and int(row["item_key"][1:]) < 6
        }
        assert pairs(observed_items(stored, ITEMS, users)) == sorted({pair[:2] for pair in seen})
        clicked = sorted(pair[:2] for pair in seen if pair[2] == 1)
        assert pairs(clicked_items(stored, ITEMS, users)) == clicked
        assert pairs(observed_items(stored, ITEMS, users, "label = 0")) == sorted(
            pair[:2] for pair in seen if pair[2] == 0
        )
        assert len(clicked) > 3


@pytest.mark.parametrize("window_days", [None, 2])
def test_clicks_on_each_item(tmp_path: Path, window_days: int | None) -> None:
    stored = stored_clicks(tmp_path, timed=True)
    counted = popularity(within(stored, window_days, DAYS[-1], "UTC"), ITEMS)
    of_table = popularity(within(stored.read(), window_days, DAYS[-1], "UTC"), ITEMS)
    assert sorted(map(str, counted.to_pylist())) == sorted(map(str, of_table.to_pylist()))
    if window_days is None:
        assert sorted(popularity(stored, ITEMS).to_pylist(), key=str) == sorted(of_table.to_pylist(), key=str)
    assert sum(counted.column("clicks").to_pylist()) > 20


def test_all_items_need_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are not even read."""
    stored = stored_clicks(tmp_path, timed=False)
    exclusions = exclude(USERS, ITEMS, clicked_items(stored, ITEMS), [])
    monkeypatch.setattr(StoredRows, "read", None)
    monkeypatch.setattr(StoredRows, "sql", None)
    config = Candidates.model_validate({"sources": [{"source": "all_items"}]})
    candidates = make_candidates(config, SourceTables(exclusions, ITEMS, stored, DAYS[-1]))
    assert len(candidates) == 9
    assert candidates.column("candidates").null_count == 9


def test_a_value_of_all_rows_can_be_queried(tmp_path: Path) -> None:
    stored = with_value(stored_clicks(tmp_path, timed=False), "kind", "it's")
    counted = query("SELECT kind, count(1) AS n FROM {rows} GROUP BY kind", rows=stored)
    assert counted.to_pylist() == [{"kind": "it's", "n": 200}]
