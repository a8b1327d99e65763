"""Positions of impressions in the rows of the click log, against a pandas oracle."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.types import Config
from etl.build import feature_inputs
from etl.fit.fit_workflow import workflow_version
from etl.raw.files import require_raw, rows_digest
from etl.spark.frame_passes import join_positions
from etl.workflow.feature_plan import plan_of, preparation
from tests.etl import cases
from tests.etl.log_rows import prepared_rows

DAY = "2026-01-01"
COLUMNS = {"user": "who", "item": "what", "position": "place", "time": "at"}
IMPRESSIONS: dict[str, Any] = {
    "path": "{data}/shown/{date}*.csv",
    "format": "csv",
    "row_column": "shown_position",
    **COLUMNS,
}
SETTINGS: dict[str, Any] = {
    "log": {
        "path": "{data}/{date}.tsv",
        "format": "tsv",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "int"},
            {"name": "time", "type": "int"},
        ],
        "label": {"column": "label"},
        "event_time": {"column": "time", "unit": "ms"},
    },
    "features": [
        {
            "columns": ["item", "shown_position"],
            "kind": "categorical",
            "ops": [{"categorify": {"min_count": 1}}],
        }
    ],
    "scopes": {"item": ["item"], "context": ["shown_position"]},
    "split": {"by": "day", "train_days": 1, "min_train_days": 1},
    "serving": {"impressions": IMPRESSIONS},
    # The times are small numbers, so that they are easy to read.
    "quality": {"misdated_share_warn": None, "max_misdated_share": 1.0},
}
WITHOUT_TIME: dict[str, Any] = {
    "log": {key: value for key, value in SETTINGS["log"].items() if key != "event_time"},
    "serving": {"impressions": {key: value for key, value in IMPRESSIONS.items() if key != "time"}},
}
WITHOUT_COLUMN: dict[str, Any] = {
    "features": [{**SETTINGS["features"][0], "columns": ["item"]}],
    "scopes": {"item": ["item"]},
    "serving": {},
}
NEGATIVES = {"negatives": {"per_positive": 2}}


def write_log(folder: Path, day: str, seed: int) -> pd.DataFrame:
    """Rows of few users, items and times, so that many have the time of an impression of their pair."""
    draw = random.Random(seed)
    rows = [
        (draw.choice("011"), f"u{draw.randrange(4)}", draw.randrange(12), 100 + draw.randrange(12))
        for _ in range(60)
    ]
    log = pd.DataFrame(rows, columns=["label", "user", "item", "time"])
    (folder / "raw").mkdir(exist_ok=True)
    log.to_csv(folder / f"raw/{day}.tsv", sep="\t", header=False, index=False)
    return log


def write_shown(folder: Path, day: str, seed: int, parts: int = 1) -> pd.DataFrame:
    """Impressions of all users at all times; some are repeated, some at the same time, and one is invalid."""
    draw = random.Random(seed)
    rows = [
        (f"u{draw.randrange(6)}", draw.randrange(14), draw.randrange(1, 5), 98 + draw.randrange(14))
        for _ in range(150)
    ]
    shown = pd.DataFrame([*rows, *rows[:20], ("u0", 1, 0, 98)], columns=list(COLUMNS.values()))
    (folder / "raw/shown").mkdir(exist_ok=True, parents=True)
    for part in range(parts):
        shown[part::parts].to_csv(folder / f"raw/shown/{day}-{part}.csv", index=False)
    return shown


def expected_positions(shown: pd.DataFrame, rows: pd.DataFrame, times: Sequence[int | None]) -> pd.Series:
    """The oracle. The times are those of the rows, or None; NaN is null."""
    positions = []
    for user, item, time in zip(rows.user_key, rows.item_key, times, strict=True):
        before = shown[(shown.who == user) & (shown.what.astype(str) == item) & (shown.place > 0)]
        if time is not None:
            before = before[before["at"] <= time]
            before = before[before["at"] == before["at"].max()]
        positions.append(before.place.min())
    return pd.Series(positions, dtype=float, name="shown_position")


def rows_of_day(spark: SparkSession, config: Config, day: str) -> pd.DataFrame:
    raw = require_raw(config, config.log, day)
    rows = prepared_rows(spark, config, raw)
    assert dict(rows.dtypes).get("shown_position") in (None, "bigint")
    return rows.toPandas().sort_values("row_id", ignore_index=True)


@pytest.mark.parametrize("timed", [True, False])
def test_rows_have_the_position_of_the_oracle_and_every_row_occurs_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, timed: bool
) -> None:
    log = write_log(tmp_path, DAY, 1)
    shown = write_shown(tmp_path, DAY, 2, parts=2)
    changes = [SETTINGS, NEGATIVES if timed else WITHOUT_TIME]
    rows = rows_of_day(spark, cases.write_config(tmp_path, *changes), DAY)
    times = rows.time.tolist() if timed else [None] * len(rows)
    expected = expected_positions(shown, rows, times)
    pd.testing.assert_series_equal(rows.shown_position.astype(float), expected)
    assert rows.shown_position.isna().any()
    if timed:  # some rows would get another position from a later impression
        of_day = expected_positions(shown, rows, [10**9] * len(rows))
        assert (rows.shown_position.isna() & of_day.notna()).sum() > 3
        drawn = rows.row_id % 3 != 0  # the rows of the log have multiples of per_positive + 1
        assert (~drawn).sum() == len(log)
        assert rows[drawn].shown_position.nunique() >= 3
        without = rows_of_day(spark, cases.write_config(tmp_path, *changes, WITHOUT_COLUMN), DAY)
        pd.testing.assert_frame_equal(rows.drop(columns="shown_position"), without)
    assert rows.row_id.is_unique
    assert len(rows) == len(log) or timed
    assert "impressions: " not in caplog.text  # the share of invalid impressions is below its limit


def test_no_row_gets_the_position_of_a_later_impression(spark: SparkSession) -> None:
    keys = "user_key string, item_key string, "
    rows = spark.createDataFrame(
        [("u", "i", 9), ("u", "i", 10), ("u", "i", 10), ("u", "i", 19), ("u", "i", 20), ("v", "i", 30)],
        keys + "event_time long",
    )
    impressions = [("u", "i", 10, 3), ("u", "i", 10, 4), ("u", "i", 20, 7), ("u", "j", 5, 1)]
    shown = spark.createDataFrame(impressions, keys + "event_time long, position long")
    joined = join_positions(rows, shown, "place").collect()
    assert sorted((row.user_key, row.event_time, row.place) for row in joined if row.place) == [
        ("u", 10, 3),
        ("u", 10, 3),
        ("u", 19, 3),
        ("u", 20, 7),
    ]
    assert len(joined) == 6


def test_invalid_impressions_are_counted_and_give_no_position(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copyfile(_log_of_one_row(tmp_path), tmp_path / f"raw/{DAY}.tsv")
    path = tmp_path / f"raw/shown/{DAY}.jsonl"
    path.parent.mkdir()
    good: dict[str, Any] = {"who": "u", "what": 1, "place": 5, "at": 90}
    bad: list[dict[str, Any]] = [
        {"who": None},
        {"what": ""},
        {"place": 0},
        {"place": "first"},
        {"at": None},
        {"at": "2026-01-01"},
        {"at": str(2**62)},
    ]
    lines = [good, *({**good, "place": 1, "at": 95, **wrong} for wrong in bad)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    of_log = {
        **IMPRESSIONS,
        "path": "{data}/shown/{date}.jsonl",
        "format": "jsonl",
        "max_unmatched_share": 0.87,
    }
    config = cases.write_config(tmp_path, SETTINGS, {"serving": {"impressions": of_log}})
    assert rows_of_day(spark, config, DAY).shown_position.tolist() == [5]
    assert f"7 of 8 rows of {DAY} have no user, item, position or time" in caplog.text


def _log_of_one_row(folder: Path) -> Path:
    (folder / "raw").mkdir()
    (folder / "log.tsv").write_text("1\tu\t1\t100\n")
    return folder / "log.tsv"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("who,what,place\nu,1,1\n", r"has no columns \['at'\]"),
        ("who,what,place,at\nu,1,1\n", "line 2 has 3 fields"),
    ],
)
def test_a_file_that_cannot_be_read_stops_the_job(
    spark: SparkSession, tmp_path: Path, text: str, problem: str
) -> None:
    shutil.copyfile(_log_of_one_row(tmp_path), tmp_path / f"raw/{DAY}.tsv")
    write_shown(tmp_path, DAY, 2)
    (tmp_path / f"raw/shown/{DAY}-9.csv").write_text(text)
    with pytest.raises(DataError, match=rf"{DAY}-9\.csv.*{problem}") as error:
        rows_of_day(spark, cases.write_config(tmp_path, SETTINGS), DAY)
    assert error.value.exit_code == 3


def test_other_configurations_keep_their_digests(tmp_path: Path, spark: SparkSession) -> None:
    write_log(tmp_path, DAY, 1)
    config = cases.write_config(tmp_path, SETTINGS, WITHOUT_COLUMN)
    raw = require_raw(config, config.log, DAY)
    before = workflow_version(plan_of(config), None, [raw])
    compared = {key: value for key, value in IMPRESSIONS.items() if key not in ("row_column", "time")}
    only_measured = cases.write_config(
        tmp_path, SETTINGS, WITHOUT_COLUMN, {"serving": {"impressions": compared}}
    )
    assert preparation(only_measured) == {}
    assert rows_digest(only_measured, raw) == raw.digest
    assert set(feature_inputs(plan_of(only_measured), raw, "v", {})) == {"raw", "layout", "workflow"}
    assert workflow_version(plan_of(only_measured), None, [raw]) == before
    joined = cases.write_config(tmp_path, SETTINGS)
    assert set(preparation(joined)) == {"shown_positions"}
    assert not plan_of(only_measured).preparations
    assert plan_of(joined).preparations


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        WITHOUT_TIME | {"log": SETTINGS["log"]},
        r"serving\.impressions\.time, because the log has an event time",
    ),
    (WITHOUT_TIME | {"serving": SETTINGS["serving"]}, r"time='at' has no effect"),
    ({"split": {"by": "fraction"}}, r"needs split\.by=day, not split\.by=fraction"),
    ({"keys": None}, r"row_column='shown_position' needs the section `keys`"),
    ({"history": {"column": "shown_position", "days": 2}}, r"is the name of another column"),
    (
        {
            "items": {
                "path": "{data}/items.csv",
                "format": "csv",
                "columns": [{"name": "item", "type": "int"}, {"name": "shown_position", "type": "int"}],
            }
        },
        r"is the name of another column",
    ),
    ({"scopes": {"item": ["item", "shown_position"]}}, r"scopes\.item list \['shown_position'\]"),
    *(
        ({"serving": {"impressions": {**IMPRESSIONS, "row_column": name}}}, problem)
        for name, problem in (
            ("item", r"row_column='item' is the name of another column"),
            ("label", r"is the name of another column"),
            ("user_key", r"is the name of another column"),
            ("shown.position", r"must not contain a dot"),
            (None, r"has an effect only with row_column"),
        )
    ),
]


@pytest.mark.parametrize("change, problem", REFUSED)
def test_what_cannot_work_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        plan_of(cases.write_config(tmp_path, SETTINGS, change))
