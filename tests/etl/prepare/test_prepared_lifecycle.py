"""Prepared rows from their first day to their deletion: new, late, erased and deleted days, and odd logs."""

from __future__ import annotations

import csv
import gzip
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError, InfrastructureError
from conf.types import SPLITS, Config
from etl import passes
from etl.build import BuildResult, encoded_days
from etl.erasure.lake_tables import all_partitions
from etl.prepare import prepared_passes
from etl.prepare.task_passes import TaskPasses
from etl.quality.day_counts import DayCounts
from etl.raw import file_splits
from etl.raw.erased_users import ERASED
from etl.raw.files import require_raw
from etl.readers import text
from etl.workflow.feature_plan import plan_of
from jobs import check_quality, erase_user, prune
from spark.workers import LocalWorkers
from storage import file_io
from storage.manifest import MANIFEST_NAME, data_files, is_published, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.prepare.small_shop import no_session
from tests.etl.prepare.test_prepared_passes import (
    CASES,
    DAYS,
    FIRST,
    ONE_TABLE,
    SECOND,
    SHOP,
    _config,
    _tables,
    _write,
)
from tests.etl.tasks_here import TasksHere

HISTORY_CASE = "history, negatives and tables"
BY_SPLIT = ["leave last out", "fraction of times"]
ROW_TABLES = ("prepared", "value_counts", "last_clicks")
PER_POSITIVE = {HISTORY_CASE: 3, "leave last out": 2, "fraction of times": 2}


def build(config: Config, run_date: str, parent: str | None = None) -> BuildResult:
    """Builds the features of a run date with two processes and without a session."""
    workers = TasksHere(2, no_session)
    try:
        return cases.run_build(workers, config, run_date, parent)
    finally:
        assert [path.name for path in workers.folder.glob("nightrank-rows-*")] == []


FirstBuild = Callable[[str, Path], tuple[Config, BuildResult]]


@pytest.fixture(scope="module")
def first_build(tmp_path_factory: pytest.TempPathFactory) -> FirstBuild:
    """Returns a function that copies the log and the lake of a build of FIRST into a folder. Each case is built once."""
    known: dict[str, tuple[Path, Config, BuildResult]] = {}

    def copied(name: str, folder: Path) -> tuple[Config, BuildResult]:
        if name not in known:
            original = tmp_path_factory.mktemp("first")
            config = _config(original, name)
            known[name] = original, config, build(config, FIRST)
        original, config, built = known[name]
        for part in ("lake", "raw"):
            shutil.copytree(original / part, folder / part)
        paths = {"lake": str(folder / "lake"), "data": str(folder / "raw")}
        return config.model_copy(update=paths), built

    return copied


def with_mode(config: Config, mode: str) -> Config:
    return config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": mode})})


def files_of(config: Config) -> dict[tuple[str, str], list[tuple[str, int, bytes]]]:
    """Maps (table, day) to the names, times and bytes of the manifest and of the files of each partition."""
    found = {}
    for one in all_partitions(LakePaths(config.lake)):
        if one.kind in ROW_TABLES:
            paths = [one.partition.file("_MANIFEST.json"), *data_files(one.partition, one.manifest)]
            stats = [(path, Path(path).stat().st_mtime_ns, Path(path).read_bytes()) for path in paths]
            found[one.kind, one.partition.dt] = stats
    return found


def changed(
    before: Mapping[tuple[str, str], Any], after: Mapping[tuple[str, str], Any]
) -> dict[str, list[str]]:
    """Maps each table to the days that are new, written again, or gone."""
    days: dict[str, list[str]] = {table: [] for table in ROW_TABLES}
    for table, dt in sorted({*before, *after}):
        if before.get((table, dt)) != after.get((table, dt)):
            days[table].append(dt)
    return days


def prepared(config: Config, dt: str) -> Partition:
    return LakePaths(config.lake).prepared(config.name).partition(dt)


def rows_of(partition: Partition, split: str | None = None) -> list[dict[str, Any]]:
    paths = data_files(partition, read_manifest(partition), split)
    rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: row["row_id"])


def require_equal(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares the tables of two lakes one by one, so that the error names the table."""
    assert actual.keys() == expected.keys()
    for name, rows in expected.items():
        assert _in_order(actual[name]) == _in_order(rows), name


def _in_order(table: Any) -> Any:
    """Sorts the columns of a data report: profiles that were read from the lake have them by name."""
    if isinstance(table, dict) and isinstance(table.get("columns"), list):
        return {**table, "columns": sorted(table["columns"], key=lambda column: column["name"])}
    return table


# New days and late days


@pytest.mark.parametrize("mode", ["fit", "apply", "extend"])
def test_the_next_run_prepares_only_the_new_day(first_build: FirstBuild, tmp_path: Path, mode: str) -> None:
    config, first = first_build(HISTORY_CASE, tmp_path)
    before = files_of(config)
    if mode != "fit":
        shutil.copytree(config.lake, tmp_path / "fresh")
    second = build(with_mode(config, mode), SECOND, first.workflow.version)
    assert changed(before, files_of(config)) == {
        "prepared": [SECOND],
        "value_counts": [SECOND],
        "last_clicks": [SECOND],  # for the histories of users after this day
    }
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    if mode == "fit":
        expected = build(with_mode(fresh, mode), SECOND)
    else:  # in one go, but after the same first run
        shutil.rmtree(tmp_path / "fresh/prepared")
        shutil.rmtree(tmp_path / "fresh/value_counts")
        shutil.rmtree(tmp_path / "fresh/last_clicks")
        expected = build(with_mode(fresh, mode), SECOND, first.workflow.version)
    assert second.workflow.version == expected.workflow.version
    require_equal(_tables(config, second, SECOND), _tables(fresh, expected, SECOND))


def test_a_run_with_nothing_new_writes_no_file(first_build: FirstBuild, tmp_path: Path) -> None:
    config, first = first_build(HISTORY_CASE, tmp_path)
    before = files_of(config)
    build(with_mode(config, "apply"), FIRST, first.workflow.version)
    build(config, FIRST)
    assert files_of(config) == before


def test_a_late_log_rebuilds_its_day_and_the_days_with_its_clicks(
    first_build: FirstBuild, tmp_path: Path
) -> None:
    config, _ = first_build(HISTORY_CASE, tmp_path)
    second = build(config, SECOND)
    before = files_of(config)
    with (tmp_path / f"raw/{DAYS[2]}.csv").open("a", encoding="utf-8") as log:
        log.write("1;5;item 3;1;40;a;1772510000\n")
    again = build(with_mode(config, "fit"), SECOND)
    assert (
        changed(before, files_of(config))
        == {
            "prepared": DAYS[2:5],  # the history of a row has the clicks of two days
            "value_counts": DAYS[2:5],
            "last_clicks": [DAYS[2]],
        }
    )
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    expected = build(fresh, SECOND)
    assert again.workflow.version == expected.workflow.version != second.workflow.version
    require_equal(_tables(config, again, SECOND), _tables(fresh, expected, SECOND))


def test_a_late_log_without_histories_rebuilds_only_its_day(first_build: FirstBuild, tmp_path: Path) -> None:
    config, first = first_build("differences", tmp_path)
    before = files_of(config)
    with (tmp_path / f"raw/{DAYS[2]}.csv").open("a", encoding="utf-8") as log:
        log.write("1;5;item 3;1;40;a;1772510000\n")
    second = build(with_mode(config, "apply"), FIRST, first.workflow.version)
    assert changed(before, files_of(config)) == {
        "prepared": [DAYS[2]],
        "value_counts": [DAYS[2]],
        "last_clicks": [],
    }
    assert second.dataset.changed_days == (DAYS[2],)


def test_a_replaced_table_of_users_is_joined_with_all_days_of_a_new_workflow(
    first_build: FirstBuild, tmp_path: Path
) -> None:
    config, first = first_build("differences", tmp_path)
    _replace_table(config, "Oslo", "Rome")
    again = build(config, FIRST)
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    expected = _tables(fresh, build(fresh, FIRST), FIRST)
    require_equal(_tables(config, again, FIRST), expected)
    assert again.workflow.version != first.workflow.version
    cities = {row["value"] for row in expected["vocabulary"] if row["column"] == "city"}
    assert cities == {"Köln", "Rome"}


def _replace_table(config: Config, old: str, new: str) -> None:
    path = Path(config.data) / "users.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def test_a_daily_run_keeps_the_days_whose_features_are_published(
    first_build: FirstBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of users is replaced every day. Only the new day, which has no features, reads it."""
    config, first = first_build(HISTORY_CASE, tmp_path)
    before, features = files_of(config), _tables(config, first, FIRST)
    _replace_table(config, "Oslo", "Rome")
    apply = with_mode(config, "auto")
    second = build(apply, SECOND, first.workflow.version)
    new = {"prepared": [SECOND], "value_counts": [SECOND], "last_clicks": [SECOND]}
    assert changed(before, files_of(config)) == new
    profiles = LakePaths(config.lake).profiles(config.name)
    for dt in DAYS[1:5]:
        assert read_manifest(profiles.partition(dt)).facts == features[f"profile {dt} None"]
    [today] = [
        column for column in second.quality.compared.columns if column.name == "city"
    ]  # the report compares the new day with the train days as their features are
    assert {value for value, _ in today.new_top} == {"Rome"}
    with monkeypatch.context() as patch:  # tables are replaced, and nothing is read again
        _replace_table(config, "Rome", "Bern")
        patch.setattr(prepared_passes, "scan_splits", _must_not_run)
        build(apply, SECOND, first.workflow.version)
    # A fit joins all rows with the present table.
    fitted = build(with_mode(config, "fit"), SECOND)
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    expected = build(fresh, SECOND)
    assert fitted.workflow.version == expected.workflow.version
    require_equal(_tables(config, fitted, SECOND), _tables(fresh, expected, SECOND))


def test_the_next_attempt_of_a_stopped_daily_run_reads_the_corrected_table(
    first_build: FirstBuild, tmp_path: Path
) -> None:
    config, first = first_build("differences", tmp_path)
    shutil.copytree(config.lake, tmp_path / "fresh")
    stop = config.quality.model_copy(update={"users_without_row_stop": 0.2})
    daily = with_mode(config, "apply").model_copy(update={"quality": stop})
    users = tmp_path / "raw/users.csv"
    whole = users.read_text(encoding="utf-8")
    users.write_text("".join(whole.splitlines(keepends=True)[:3]), encoding="utf-8")
    with pytest.raises(DataError, match="users_without_row_stop"):
        build(daily, SECOND, first.workflow.version)
    users.write_text(whole, encoding="utf-8")
    again = build(daily, SECOND, first.workflow.version)
    fresh = daily.model_copy(update={"lake": str(tmp_path / "fresh")})
    expected = build(fresh, SECOND, first.workflow.version)
    require_equal(_tables(daily, again, SECOND), _tables(fresh, expected, SECOND))


def test_features_are_computed_again_if_negatives_are_drawn_otherwise(
    first_build: FirstBuild, tmp_path: Path
) -> None:
    """Also if the workflow is only applied; those of an older release, which do not say it, stay."""
    config, first = first_build(HISTORY_CASE, tmp_path)
    apply = with_mode(config, "apply")
    assert config.negatives is not None
    changes = {"negatives": config.negatives.model_copy(update={"per_positive": 2})}
    fewer = build(apply.model_copy(update=changes), FIRST, first.workflow.version)
    rows = {dt: (first.features[dt].rows, fewer.features[dt].rows) for dt in first.features}
    assert all(mine > others for mine, others in rows.values())
    again = build(apply, FIRST, first.workflow.version)
    for manifest in again.features.values():
        path = (
            LakePaths(config.lake)
            .features(first.workflow.version)
            .partition(manifest.partition)
            .file(MANIFEST_NAME)
        )
        values = file_io.read_json(path)
        del values["inputs"]["drawn"]
        file_io.replace_json(path, values)
    older = build(apply, FIRST, first.workflow.version)
    assert {dt: one.created_at for dt, one in older.features.items()} == {
        dt: one.created_at for dt, one in again.features.items()
    }


def test_a_day_without_features_gets_the_present_tables_in_a_daily_run(
    first_build: FirstBuild, tmp_path: Path
) -> None:
    config, first = first_build("differences", tmp_path)
    _replace_table(config, "Oslo", "Rome")
    features = LakePaths(config.lake).features(first.workflow.version)
    Path(features.partition(DAYS[3]).file("_MANIFEST.json")).unlink()
    before = files_of(config)
    build(with_mode(config, "apply"), FIRST, first.workflow.version)
    days = {"prepared": [DAYS[3]], "value_counts": [DAYS[3]], "last_clicks": []}
    assert changed(before, files_of(config)) == days
    cities = [{row["city"] for row in rows_of(prepared(config, dt))} & {"Oslo", "Rome"} for dt in DAYS[2:5]]
    assert cities == [{"Oslo"}, {"Rome"}, {"Oslo"}]


def test_a_later_job_encodes_rows_with_the_tables_of_build_features(
    first_build: FirstBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """evaluate_model computes the champion's features of the test day, after the tables were replaced."""
    config, built = first_build("differences", tmp_path)
    features = LakePaths(config.lake).features(built.workflow.version).partition(FIRST)
    expected = rows_of(features)
    Path(features.file("_MANIFEST.json")).unlink()
    _replace_table(config, "Oslo", "Rome")
    monkeypatch.setattr(prepared_passes, "scan_splits", _must_not_run)
    days = [require_raw(config, config.log, FIRST)]
    encoded = encoded_days(
        TasksHere(2, no_session), plan_of(config), LakePaths(config.lake), built.workflow, days
    )
    assert encoded is not None
    assert encoded[FIRST].digest == built.features[FIRST].digest
    assert rows_of(features) == expected


def test_check_quality_keeps_the_days_that_the_daily_run_keeps(
    first_build: FirstBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, first = first_build("differences", tmp_path)
    _replace_table(config, "Oslo", "Rome")
    before = files_of(config)
    champions = [(first.workflow.version, None), (None, None)]
    monkeypatch.setattr(check_quality, "workflows_of_run", lambda _: champions.pop(0))
    summary = check_quality.run(RunContext("check_quality", config, FIRST))
    assert summary.facts["days"] == DAYS[:5]
    assert files_of(config) == before
    check_quality.run(RunContext("check_quality", config, FIRST))  # without a champion, the next run fits
    assert changed(before, files_of(config))["value_counts"] == DAYS[:5]


# Conservation of rows


def good_lines(path: Path, first_line: int = 0) -> dict[int, list[str]]:
    """Maps the row_id of each good row to its fields. The header of a file counts as a line."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file, delimiter=";"))
    return {
        first_line + line: fields
        for line, fields in enumerate(lines)
        if line and fields[1] and fields[4] != "x"
    }


@pytest.mark.parametrize("name", [HISTORY_CASE, "groups", "without times", *BY_SPLIT])
def test_every_good_row_is_once_in_prepared_rows_and_features(
    first_build: FirstBuild, tmp_path: Path, name: str
) -> None:
    config, built = first_build(name, tmp_path)
    divided = config.split.by != "day"
    lines = {day: sum(1 for _ in (tmp_path / f"raw/{day}.csv").open()) for day in DAYS}
    for dt in built.features:
        expected: dict[int, list[str]] = {}
        first_line = 0
        for day in DAYS if divided else [dt]:
            expected |= good_lines(tmp_path / f"raw/{day}.csv", first_line)
            first_line += lines[day]
        features = LakePaths(config.lake).features(built.workflow.version).partition(dt)
        per_row = PER_POSITIVE.get(name, 0) + 1
        for partition in (prepared(config, dt), features):
            rows = rows_of(partition)
            logged = [row for row in rows if row["row_id"] % per_row == 0]
            assert [row["row_id"] // per_row for row in logged] == sorted(expected)
            if divided:
                of_splits = [row["row_id"] for split in SPLITS for row in rows_of(partition, split)]
                assert sorted(of_splits) == [row["row_id"] for row in rows]
            assert len({row["row_id"] for row in rows}) == len(rows)
            for row in logged:
                fields = expected[row["row_id"] // per_row]
                assert (row["user_key"], row["item_key"], row["label"]) == (*fields[1:3], float(fields[0]))
        manifest = read_manifest(features)
        assert built.counts[dt].rows_in == manifest.rows_in == first_line - (len(DAYS) if divided else 1)
        assert manifest.rows_in == len(expected) + sum(manifest.dropped.values())
        quarantined = read_manifest(LakePaths(config.lake).quarantine.partition(dt))
        assert quarantined.rows == sum(manifest.dropped.values()) > 0


# Odd logs: the tables do not depend on how a log is read or divided


def _ways(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "many file splits":
        monkeypatch.setattr(text, "FILE_SPLIT_BYTES", 1000)
    elif way == "many buckets":  # many more than the 30 users
        monkeypatch.setattr(TaskPasses, "_buckets", lambda *_: 128)


@pytest.mark.parametrize("name", [HISTORY_CASE, "differences", "groupby", *BY_SPLIT])
@pytest.mark.parametrize("way", ["many file splits", "many buckets"])
def test_tables_do_not_depend_on_file_splits_and_buckets(
    first_build: FirstBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, way: str
) -> None:
    config, built = first_build(name, tmp_path)
    expected = _tables(config, built, FIRST)
    _ways(monkeypatch, way)
    other = config.model_copy(update={"lake": str(tmp_path / "other")})
    require_equal(_tables(other, build(other, FIRST), FIRST), expected)


COMPRESSED = {"log": {**SHOP["log"], "path": "{data}/{date}.csv*"}}


def test_a_gzip_file_of_many_blocks_is_prepared_like_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cases.write_config(tmp_path, SHOP, CASES[HISTORY_CASE], COMPRESSED)
    _write(tmp_path / "raw")
    expected = _tables(config, build(config, FIRST), FIRST)
    (tmp_path / "compressed").mkdir()
    for path in (tmp_path / "raw").iterdir():
        if path.name.startswith("2026"):
            (tmp_path / f"compressed/{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        else:
            shutil.copy(path, tmp_path / "compressed")
    other = config.model_copy(update={"lake": str(tmp_path / "other"), "data": str(tmp_path / "compressed")})
    blocks: list[int] = []

    def small_blocks(file_split: file_splits.FileSplit, block_bytes: int | None = None, **more: Any) -> Any:
        for block in real(file_split, block_bytes or 700, **more):
            blocks.append(len(block))
            yield block

    real = file_splits.read_blocks
    monkeypatch.setattr(text, "read_blocks", small_blocks)
    monkeypatch.setattr(LocalWorkers, "_map", _in_this_process)
    actual = _tables(other, build(other, FIRST), FIRST)
    assert len(blocks) > 5 * 5
    for tables in (actual, expected):
        for name in tables:
            if name.startswith("quarantine"):
                tables[name] = [{**row, "source_file": ""} for row in tables[name]]
    require_equal(actual, expected)


def _in_this_process(workers: LocalWorkers, tasks: int, function: Any) -> list[str]:
    """Stands for LocalWorkers._map, so that the tasks see what a test has replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(workers.folder))
        return [function(index) for index in range(tasks)]


def _rewrite(path: Path, change: Any) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter=";")
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";").writerows([header, *change(rows)])


def _no_rows(rows: list[list[str]]) -> list[list[str]]:
    return []


def _all_rejected(rows: list[list[str]]) -> list[list[str]]:
    return [[*row[:4], "x", *row[5:]] for row in rows]


@pytest.mark.parametrize("name", [HISTORY_CASE, "differences", "groupby"])
def test_a_train_day_with_only_a_header_is_left_out(tmp_path: Path, name: str) -> None:
    config = _config(tmp_path, name)
    _rewrite(tmp_path / f"raw/{DAYS[1]}.csv", _no_rows)
    built = build(config, FIRST)
    assert built.empty_days == [DAYS[1]]
    assert [member.dt for member in built.dataset.splits["train"]] == [DAYS[0], DAYS[2]]
    assert DAYS[1] not in built.features
    assert read_manifest(prepared(config, DAYS[1])).rows == 0
    before = files_of(config)
    again = build(config, FIRST)
    assert again.empty_days == [DAYS[1]]
    assert files_of(config) == before


@pytest.mark.parametrize(
    "name, day, change",
    [
        (HISTORY_CASE, DAYS[4], _no_rows),
        (HISTORY_CASE, DAYS[2], _all_rejected),
        ("differences", DAYS[2], _all_rejected),
        ("fraction of times", None, _all_rejected),
        ("leave last out", None, _all_rejected),
        ("fraction of times", None, _no_rows),
        ("fraction of positions", None, _no_rows),
        ("fraction of positions", None, _all_rejected),
        ("leave last out", None, _no_rows),
    ],
)
def test_a_day_without_good_rows_ends_like_frames(
    spark: SparkSession, tmp_path: Path, name: str, day: str | None, change: Any
) -> None:
    config = _config(tmp_path, name)
    for one in DAYS if day is None else [day]:
        _rewrite(tmp_path / f"raw/{one}.csv", change)
    frames = config.model_copy(update={"lake": str(tmp_path / "frames")})
    with pytest.raises(DataError) as expected:
        cases.run_build(spark, frames, FIRST)
    with pytest.raises(DataError) as actual:
        build(config, FIRST)
    assert str(actual.value).replace("/lake/", "/frames/") == str(expected.value)


def test_a_log_without_train_rows_names_the_split(tmp_path: Path) -> None:
    """Each user has one positive row, which is a test row."""
    config = _config(tmp_path, "leave last out")
    for number, day in enumerate(DAYS):
        row = ["1", str(number), f"item {number}", "1", "2", "a", str(1772323200 + number * 86400)]
        _rewrite(tmp_path / f"raw/{day}.csv", lambda _, row=row: [row])
    with pytest.raises(DataError, match=r"the train split \(split.by=leave_last_out\) of .* has no rows"):
        build(config, FIRST)


def test_a_log_without_keys_is_divided_by_the_fraction_of_times(spark: SparkSession, tmp_path: Path) -> None:
    settings = {
        **ONE_TABLE,
        "keys": None,
        "users": None,
        "items": None,
        "scopes": {},
        "features": [
            {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
            {"columns": ["who", "place"], "kind": "categorical", "ops": ["categorify"]},
        ],
        "split": {"by": "fraction", "train": 0.6, "validation": 0.2},
    }
    config = cases.write_config(tmp_path, SHOP, settings)
    _write(tmp_path / "raw")
    lines, expected = 0, []
    for day in DAYS:
        path = tmp_path / f"raw/{day}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter=";"))
        expected += [(int(row[6]), lines + line) for line, row in enumerate(rows) if line and row[4] != "x"]
        lines += len(rows)
    built = build(config, FIRST)
    version = built.workflow.version
    for partition in (prepared(config, FIRST), LakePaths(config.lake).features(version).partition(FIRST)):
        of_split = {split: [row["row_id"] for row in rows_of(partition, split)] for split in SPLITS}
        assert sorted(row for rows in of_split.values() for row in rows) == [row for _, row in expected]
        times = {row: time for time, row in expected}
        last = max(times[row] for row in of_split["train"])
        assert last < min(times[row] for row in of_split["validation"])
        assert abs(len(of_split["train"]) / len(expected) - 0.6) < 0.01
        assert abs(len(of_split["test"]) / len(expected) - 0.2) < 0.01


# Erased users


def erase(config: Config, user: str, run_date: str) -> dict[str, Any]:
    context = RunContext("erase_user", config, run_date)
    _, summary = erase_user.run(context, [user], dry_run=False)
    return dict(summary.facts)


WITHOUT_USER_FEATURE: dict[str, Any] = {
    "features": [
        {**SHOP["features"][0]},
        {"columns": ["city", "kind", "place"], "kind": "categorical", "ops": ["categorify"]},
        *SHOP["features"][2:],
    ],
    "scopes": {"user": ["age", "city"], "item": ["what", "kind"]},
}


@pytest.mark.parametrize("name", [HISTORY_CASE, "differences", "groupby", *BY_SPLIT])
def test_an_erased_user_is_in_no_prepared_file_and_stays_out(
    first_build: FirstBuild, tmp_path: Path, name: str
) -> None:
    config, built = first_build(name, tmp_path)
    user = "7"
    days = [
        dt for dt in built.features if any(row["user_key"] == user for row in rows_of(prepared(config, dt)))
    ]
    assert days
    erase(config, user, FIRST)
    _require_without(config, user)
    again = build(with_mode(config, "apply"), FIRST, built.workflow.version)
    _require_without(config, user)
    assert again.features.keys() == built.features.keys()
    fresh = build(with_other_features(config), FIRST)
    _require_without(config, user)
    assert fresh.workflow.version != built.workflow.version
    for dt in built.features:
        for version in (built.workflow.version, fresh.workflow.version):
            features = LakePaths(config.lake).features(version).partition(dt)
            assert user not in {row["user_key"] for row in rows_of(features)}
        assert len(rows_of(features)) == len(rows_of(prepared(config, dt))) > 0
        assert read_manifest(features).dropped[ERASED] > 0


@pytest.mark.parametrize("name", [HISTORY_CASE, *BY_SPLIT])
def test_an_erasure_counts_rows_of_the_log_and_no_drawn_negatives(
    first_build: FirstBuild, tmp_path: Path, name: str
) -> None:
    """The counts are those of a lake that has read the log without the user's rows from the beginning."""
    config, built = first_build(name, tmp_path)
    user = "7"
    lost = {
        dt: sum(
            row["user_key"] == user and row["row_id"] % (PER_POSITIVE[name] + 1) == 0
            for row in rows_of(prepared(config, dt))
        )
        for dt in built.features
    }
    erase(config, user, FIRST)
    fresh = config.model_copy(update={"lake": str(tmp_path / "fresh")})
    shutil.copytree(f"{config.lake}/erasures", tmp_path / "fresh/erasures")
    expected = build(fresh, FIRST)
    for dt, count in lost.items():
        actual = DayCounts.from_manifest(read_manifest(LakePaths(config.lake).quarantine.partition(dt)))
        assert actual.good == built.counts[dt].good - count
        for of_manifest in ("rows_in", "good", "bad", "dropped"):
            assert getattr(actual, of_manifest) == getattr(expected.counts[dt], of_manifest)
        features = LakePaths(config.lake).features(built.workflow.version).partition(dt)
        assert read_manifest(features).dropped == expected.features[dt].dropped
    assert sum(lost.values()) > 0


def with_other_features(config: Config) -> Config:
    """The configuration with other operators in its first group, so that a new workflow is fitted."""
    first = config.features[0].model_copy(update={"ops": ["fill_median", {"clip": {"min": 1}}]})
    return config.model_copy(update={"features": [first, *config.features[1:]]})


def _require_without(config: Config, user: str) -> None:
    """Reads every file below the lake's folders of rows, published or not."""
    read = 0
    for table in ("prepared", "last_clicks", "features"):
        for path in Path(config.lake).glob(f"_data/{table}/**/*.parquet"):
            read += 1
            assert user not in set(pq.read_table(path, partitioning=None)["user_key"].to_pylist()), path
    assert read


def test_a_fit_after_an_erasure_equals_one_of_a_lake_that_never_had_the_user(tmp_path: Path) -> None:
    """Also if the user is no feature: then the value counts name no user, but count the user's rows."""
    config = cases.write_config(
        tmp_path, SHOP, {"prepare": CASES["differences"]["prepare"]}, WITHOUT_USER_FEATURE
    )
    _write(tmp_path / "raw")
    built = build(config, FIRST)
    erase(config, "7", FIRST)
    other = with_other_features(config)
    again = build(other, FIRST)
    fresh = other.model_copy(update={"lake": str(tmp_path / "fresh")})
    shutil.copytree(f"{config.lake}/erasures", tmp_path / "fresh/erasures")
    expected = build(fresh, FIRST)
    assert again.workflow.version == expected.workflow.version
    tables, of_fresh = _tables(other, again, FIRST), _tables(fresh, expected, FIRST)
    for dt in built.features:
        # The counts differ: an erasure leaves the user's rows that a filter had left out under the filter.
        (rows_in, dropped), (other_rows_in, other_dropped) = (
            one.pop(f"rows in {dt}") for one in (tables, of_fresh)
        )
        assert (rows_in, sum(dropped.values())) == (other_rows_in, sum(other_dropped.values()))
    require_equal(tables, of_fresh)


# Deleted days and files


def test_prune_deletes_old_dates_of_prepared_rows(tmp_path: Path) -> None:
    config = _config(tmp_path, "differences")
    config = config.model_copy(update={"output": config.output.model_copy(update={"grace_hours": 0.0})})
    for day in (FIRST, SECOND):
        build(config, day)
    kept = config.split.train_days + config.split.validation_days + config.split.test_days
    assert kept == 5
    assert not Path(
        prepared(config, DAYS[0]).path
    ).exists()  # the run has deleted it: runs begin with the next
    later = "2026-03-09"
    prune.run(RunContext("prune", config, later), kept, dry_run=False)
    left = sorted(path.name for path in (Path(config.lake) / f"prepared/{config.name}").iterdir())
    assert left == [f"dt={day}" for day in DAYS[4:]]
    data = Path(config.lake) / f"_data/prepared/{config.name}"
    assert sorted(path.parts[-3] for path in data.glob("*/*/*.parquet")) == left


def test_days_before_the_window_of_histories_are_deleted(tmp_path: Path) -> None:
    config = _config(tmp_path, HISTORY_CASE)
    config = config.model_copy(update={"output": config.output.model_copy(update={"grace_hours": 0.0})})
    build(config, FIRST)
    assert Path(prepared(config, DAYS[0]).path).exists()
    one_day = config.split.model_copy(update={"train_days": 1})
    build(config.model_copy(update={"split": one_day}), SECOND)  # begins with DAYS[3]; histories with DAYS[1]
    left = sorted(path.name for path in (Path(config.lake) / f"prepared/{config.name}").iterdir())
    assert left == [f"dt={day}" for day in DAYS[1:]]


def test_deleted_prepared_rows_are_made_again_only_for_new_features(
    first_build: FirstBuild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, built = first_build(HISTORY_CASE, tmp_path)
    expected = {dt: rows_of(prepared(config, dt)) for dt in built.features}
    for folder in ("prepared", "_data/prepared"):
        shutil.rmtree(Path(config.lake) / folder)
    with monkeypatch.context() as patch:
        patch.setattr(prepared_passes, "scan_splits", _must_not_run)
        build(config, FIRST)
        build(with_mode(config, "apply"), FIRST, built.workflow.version)
    assert not (Path(config.lake) / "prepared").exists()
    again = build(with_other_features(config), FIRST)
    assert again.workflow.version != built.workflow.version
    assert {dt: rows_of(prepared(config, dt)) for dt in built.features} == expected


def _must_not_run(*_: object) -> None:
    raise AssertionError("the log is read again")


def test_without_prepared_rows_and_raw_log_the_error_names_the_day(
    first_build: FirstBuild, tmp_path: Path
) -> None:
    config, _ = first_build(HISTORY_CASE, tmp_path)
    shutil.rmtree(Path(config.lake) / "prepared")
    (tmp_path / f"raw/{FIRST}.csv").unlink()
    with pytest.raises(DataError, match=f"no raw file at .*{FIRST}.csv"):
        build(with_mode(config, "fit"), FIRST)


def _texts_in_lake_of(folder: Path, config: Config) -> Config:
    """Another configuration for the log and the lake of `config`. Its prices are texts."""
    columns = [
        {**column, "type": "string"} if column["name"] == "price" else column
        for column in SHOP["log"]["columns"]
    ]
    (folder / "texts").mkdir()
    changes = {
        "name": "texts",
        "lake": config.lake,
        "data": config.data,
        "log": {**SHOP["log"], "columns": columns},
        "features": SHOP["features"][1:],
        "scopes": {"user": ["who", "city"], "item": ["what", "kind"]},
    }
    return cases.write_config(folder / "texts", SHOP, changes)


def test_two_configurations_prepare_their_rows_in_one_lake(tmp_path: Path) -> None:
    """Their quarantines differ, because other lines do not parse. Each run counts its own."""
    config = _config(tmp_path, "differences")
    texts = _texts_in_lake_of(tmp_path, config)
    first = build(config, FIRST)
    tables = _tables(config, first, FIRST)
    second = build(texts, FIRST)
    again = build(config, FIRST)
    assert again.counts == first.counts
    assert again.workflow.version == first.workflow.version
    require_equal(_tables(config, again, FIRST), tables)
    for dt in first.counts:
        rows = rows_of(LakePaths(config.lake).quarantine.partition(dt))
        assert len(rows) == first.counts[dt].bad > second.counts[dt].bad


@pytest.mark.parametrize("prepare", [True, False])
def test_a_run_does_not_use_counts_that_another_configuration_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: bool
) -> None:
    """Two configurations use one lake at the same time: the second publishes between the first one's passes."""
    plain = {"users": None, "items": None, "features": [SHOP["features"][2]], "scopes": {"item": ["what"]}}
    config = cases.write_config(tmp_path, SHOP, CASES["differences"] if prepare else plain)
    _write(tmp_path / "raw")
    texts = _texts_in_lake_of(tmp_path, config)
    report = passes.report_quality

    def replaced(*arguments: Any) -> Any:
        monkeypatch.setattr(passes, "report_quality", report)
        build(texts, FIRST)
        return report(*arguments)

    monkeypatch.setattr(passes, "report_quality", replaced)
    with pytest.raises(InfrastructureError, match=r"value_counts/dt=.* was replaced while this run used it"):
        build(config, FIRST)
    assert not is_published(LakePaths(config.lake).quality(config.name).partition(FIRST))
    assert build(config, FIRST).counts
