"""Days of a log without rows, and days with the times of other days: left out, counted, refused."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.types import Config, Quality
from etl.build import BuildResult
from etl.raw.row_rules import Misdated
from reporting.html.page import build as build_page
from spark.workers import Workers
from storage.dataset import read_dataset
from storage.manifest import read_manifest, replace_manifest
from storage.paths import LakePaths
from tests.etl import cases
from tests.etl.tasks_here import TasksHere

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
RUN_DATE = DAYS[-1]
COLUMNS = ["label", "user", "item", "at"]
ROWS = 40
FACTOR = {"s": 1, "ms": 1_000, "us": 1_000_000}
Write = Callable[[Path, pd.DataFrame], None]


def write_csv(folder: Path, rows: pd.DataFrame) -> None:
    rows.to_csv(folder / "part.csv", index=False)


def write_tsv(folder: Path, rows: pd.DataFrame) -> None:
    rows.to_csv(folder / "part.tsv", index=False, header=False, sep="\t")


def write_parquet(folder: Path, rows: pd.DataFrame) -> None:
    rows.to_parquet(folder / "part.parquet", index=False)


def write_nothing(folder: Path, _: pd.DataFrame) -> None:
    (folder / "part.csv").touch()


def write_empty_gzip(folder: Path, _: pd.DataFrame) -> None:
    (folder / "part.csv.gz").write_bytes(gzip.compress(b""))


WRITERS: dict[str, Write] = {"csv": write_csv, "tsv": write_tsv, "parquet": write_parquet}


def log_of(log_format: str, unit: str) -> dict[str, Any]:
    return {
        "path": "{data}/dt={date}/*",
        "format": log_format,
        "separator": {"tsv": "\t", "csv": ","}.get(log_format),
        "columns": [
            {"name": name, "type": "int" if name in ("label", "at") else "string"} for name in COLUMNS
        ],
        "label": {"column": "label"},
        "event_time": {"column": "at", "unit": unit},
    }


def config_of(folder: Path, log_format: str = "csv", unit: str = "s", **sections: Any) -> Config:
    """The configuration of a log by day, with an event_time."""
    features = [{"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {}}]}]
    scopes = {"user": ["user"], "item": ["item"]}
    log = log_of(log_format, unit)
    return cases.write_config(folder, {"log": log, "features": features, "scopes": scopes}, sections)


def rows_of(day: str, unit: str = "s", *, misdated: int = 0, shift_days: int = 400) -> pd.DataFrame:
    """Rows with times of the whole day; the first `misdated` ones have times of another day."""
    draw = random.Random(day)
    midnight = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
    seconds = [0, 86_399, *(draw.randrange(86_400) for _ in range(ROWS - 2))]
    moved = [timedelta(days=shift_days if number < misdated else 0) for number in range(ROWS)]
    times = [
        int((midnight + shift).timestamp() + second) * FACTOR[unit]
        for shift, second in zip(moved, seconds, strict=True)
    ]
    pairs = [(draw.randrange(2), f"u{draw.randrange(5)}", f"i{draw.randrange(6)}") for _ in range(ROWS)]
    rows = [(*pair, time) for pair, time in zip(pairs, times, strict=True)]
    return pd.DataFrame(rows, columns=COLUMNS)


def write_days(folder: Path, write: Write, rows: Callable[[str], pd.DataFrame] = rows_of) -> None:
    for day in DAYS:
        write_one(folder, day, write, rows(day))


def write_one(folder: Path, day: str, write: Write, rows: pd.DataFrame) -> None:
    path = folder / f"raw/dt={day}"
    path.mkdir(parents=True, exist_ok=True)
    for old in path.iterdir():
        old.unlink()
    write(path, rows)


def no_session() -> SparkSession:
    raise AssertionError("this build needs no Spark session")


@pytest.fixture
def local() -> Workers:
    return TasksHere(2, no_session)


NOTHING = rows_of(DAYS[0]).head(0)


@pytest.mark.parametrize("write", [write_csv, write_nothing, write_empty_gzip])
@pytest.mark.parametrize("empty", [DAYS[:1], DAYS[1:2]])
def test_a_train_day_without_rows_is_left_out(
    local: Workers, tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Write, empty: Sequence[str]
) -> None:
    config = config_of(tmp_path)
    write_days(tmp_path, write_csv)
    for day in empty:
        write_one(tmp_path, day, write, NOTHING)
    built = cases.run_build(local, config, RUN_DATE)
    assert list(built.empty_days) == empty
    assert f"the raw logs of the train days {empty} have no rows, so these days are left out" in caplog.text
    dataset = read_dataset(LakePaths(config.lake), RUN_DATE)
    assert [member.dt for member in dataset.splits["train"]] == [d for d in DAYS[:2] if d not in empty]
    assert set(built.counts) == set(built.features) == set(DAYS) - set(empty)
    # Not a feature partition of the empty day, and the same features as without its file.
    for day in empty:
        for file in (tmp_path / f"raw/dt={day}").iterdir():
            file.unlink()
    again = cases.run_build(local, config, RUN_DATE)
    assert again.dataset.digest == built.dataset.digest
    assert list(again.empty_days) == []


def test_frames_leave_out_a_train_day_without_rows(spark: SparkSession, tmp_path: Path) -> None:
    config = config_of(tmp_path, "parquet")
    write_days(tmp_path, write_parquet)
    write_one(tmp_path, DAYS[1], write_parquet, NOTHING)
    built = cases.run_build(spark, config, RUN_DATE)
    assert (list(built.empty_days), set(built.counts)) == ([DAYS[1]], {DAYS[0], *DAYS[2:]})


@pytest.mark.parametrize("write", [write_csv, write_nothing])
def test_too_few_train_days_with_rows_are_refused(local: Workers, tmp_path: Path, write: Write) -> None:
    config = config_of(tmp_path)
    write_days(tmp_path, write_csv)
    for day in DAYS[:2]:
        write_one(tmp_path, day, write, NOTHING)
    with pytest.raises(DataError, match=r"split\.min_train_days=1\n.*lower split\.min_train_days"):
        cases.run_build(local, config, RUN_DATE)


@pytest.mark.parametrize("day", DAYS[2:])
@pytest.mark.parametrize("write", [write_csv, write_nothing])
def test_a_validation_or_test_day_without_rows_is_named(
    local: Workers, tmp_path: Path, day: str, write: Write
) -> None:
    config = config_of(tmp_path)
    write_days(tmp_path, write_csv)
    write_one(tmp_path, day, write, NOTHING)
    with pytest.raises(DataError, match=rf"{day}[\s\S]*deliver the raw"):
        cases.run_build(local, config, RUN_DATE)


def built_with(workers: SparkSession | Workers, folder: Path, config: Config, misdated: int) -> BuildResult:
    def rows(day: str) -> pd.DataFrame:
        return rows_of(day, misdated=misdated if day == DAYS[1] else 0)

    write_days(folder, WRITERS[config.log.format], rows)
    return cases.run_build(workers, config, RUN_DATE)


@pytest.mark.parametrize(
    "form",
    [
        "csv",
        "tsv",
        pytest.param("spark parquet", marks=pytest.mark.spark),
        pytest.param("spark sql", marks=pytest.mark.spark),
    ],
)
def test_rows_with_times_of_other_days_are_counted(
    request: pytest.FixtureRequest,
    local: Workers,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    form: str,
) -> None:
    engine = {"workflow": {"engine": "sql"}} if form == "spark sql" else {}
    log_format = {"spark sql": "csv"}.get(form, form.split()[-1])
    config = config_of(tmp_path, log_format, **engine)
    built = built_with(request.getfixturevalue("spark") if "spark" in form else local, tmp_path, config, 10)
    moved = rows_of(DAYS[1], misdated=10)["at"].head(10) * 1_000_000
    assert built.counts[DAYS[1]].misdated == Misdated(10, moved.min(), moved.max())
    assert {built.counts[day].misdated for day in DAYS if day != DAYS[1]} == {Misdated()}
    assert f"{DAYS[1]}: 10 of {ROWS} rows have an event_time outside of this day" in caplog.text
    assert caplog.text.count("quality.misdated_share_warn=0.05") == 1
    if form == "csv":  # the others publish the same facts
        page = build_page(config, RUN_DATE)[1]
        assert "Times of other days" in page


def test_few_rows_of_other_days_are_no_warning(
    local: Workers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built = built_with(local, tmp_path, config_of(tmp_path), 2)
    assert built.counts[DAYS[1]].misdated is not None
    assert built.counts[DAYS[1]].misdated.rows == 2
    assert "outside of this day" not in caplog.text


@pytest.mark.parametrize(
    "configured, written, read_as",
    [("s", "ms", "5[0-9]{4}-"), ("ms", "s", "1970-01-"), ("us", "s", "1970-01-01"), ("s", "us", "")],
)
def test_a_wrong_unit_is_refused_with_an_example(
    local: Workers, tmp_path: Path, configured: str, written: str, read_as: str
) -> None:
    config = config_of(tmp_path, unit=configured)
    write_days(tmp_path, write_csv, lambda day: rows_of(day, written))
    raw = rows_of(DAYS[0], written)["at"]
    with pytest.raises(DataError) as refused:
        cases.run_build(local, config, RUN_DATE)
    message = str(refused.value)
    if written == "us":  # beyond 64 bits of microseconds: quarantined as before
        assert "time_range:at" in message
        return
    assert (
        f"{DAYS[0]}: {ROWS} of {ROWS} rows have an event_time outside of this day in UTC (100.0%;" in message
    )
    assert f"at={raw.min()} was read as " in message
    assert re.search(f"was read as {read_as}", message)
    assert f"correct log.event_time.unit, which is {configured}" in message
    assert "part.csv" in message
    assert not Path(LakePaths(config.lake).datasets.path).exists()


def test_the_file_of_another_day_is_refused(local: Workers, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    write_days(tmp_path, write_csv)
    write_one(tmp_path, DAYS[2], write_csv, rows_of(DAYS[1]))
    with pytest.raises(DataError, match=rf"{DAYS[2]}: .* was read as {DAYS[1]}"):
        cases.run_build(local, config, RUN_DATE)
    accepted = config.quality.model_copy(update={"max_misdated_share": 1.0})
    built = cases.run_build(local, config.model_copy(update={"quality": accepted}), RUN_DATE)
    assert built.counts[DAYS[2]].misdated is not None
    assert built.counts[DAYS[2]].misdated.rows == ROWS


def test_local_days_of_any_time_zone_are_accepted(local: Workers, tmp_path: Path) -> None:
    """The days of UTC+14 begin 14 hours earlier: 58% of the rows are on the day before in UTC."""

    def rows(day: str) -> pd.DataFrame:
        of_day = rows_of(day)
        return of_day.assign(at=of_day["at"] - 14 * 3600)

    write_days(tmp_path, write_csv, rows)
    assert cases.run_build(local, config_of(tmp_path), RUN_DATE).dataset.days == DAYS


def test_a_lake_that_did_not_count_times_is_read(local: Workers, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    built_with(local, tmp_path, config, 0)
    partition = LakePaths(config.lake).quarantine.partition(DAYS[1])
    manifest = read_manifest(partition)
    assert manifest.facts["misdated"] == {"rows": 0, "earliest": None, "latest": None}
    replace_manifest(partition, type(manifest)(**{**vars(manifest), "facts": {}}))
    built = cases.run_build(local, config, RUN_DATE)
    assert built.counts[DAYS[1]].misdated is None
    assert "Rows by day" in build_page(config, RUN_DATE)[1]


def test_a_log_without_times_counts_none(local: Workers, tmp_path: Path) -> None:
    log = {**log_of("csv", "s"), "event_time": None}
    config = config_of(tmp_path, log=log)
    write_days(tmp_path, write_csv, lambda day: rows_of(DAYS[0]))
    assert {counts.misdated for counts in cases.run_build(local, config, RUN_DATE).counts.values()} == {None}


def test_the_warning_is_not_above_the_limit() -> None:
    with pytest.raises(ValidationError, match=r"misdated_share_warn=0\.95 must not be above"):
        Quality(misdated_share_warn=0.95)
    assert Quality(misdated_share_warn=None, max_misdated_share=0.0).max_misdated_share == 0


def test_sums_of_counts_have_the_widest_range() -> None:
    draw = np.random.default_rng(1)
    parts = [Misdated(2, *sorted(int(time) for time in draw.integers(-9, 9, 2))) for _ in range(5)]
    total = sum(parts, Misdated())
    assert total.rows == 10
    assert total.earliest == min(part.earliest for part in parts if part.earliest is not None)
    assert total.latest == max(part.latest for part in parts if part.latest is not None)
