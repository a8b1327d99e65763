"""build_features on a Parquet log: processes of this machine publish what Spark frames publish, without a JVM."""

from __future__ import annotations

import decimal
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from conf.errors import EXIT_OK, DataError
from conf.types import Config
from etl import build as build_module
from etl import passes
from etl.build import BuildResult
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.passes import read_clicks
from etl.quality.column_summary import LABEL_CELLS
from etl.raw.erased_users import add_erased, list_or_new
from etl.raw.files import require_raw
from etl.readers.parquet import ParquetReader
from etl.spark.frame_passes import FramePasses
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from spark.workers import LocalWorkers, Workers
from storage import file_io
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths, Partition
from tests.etl import cases
from tests.etl.log_rows import good_rows, read_log
from tests.etl.tasks_here import TasksHere
from tests.etl.text.test_without_a_jvm import build as build_without_java

DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
DAY_US = 86_400_000_000
FIRST_US = 1_767_225_600_000_000  # 2026-01-01
LOG: dict[str, Any] = {
    "log": {
        "path": "{data}/dt={date}/*",
        "format": "parquet",
        "columns": [
            {"name": "label", "type": "int"},
            {"name": "at", "type": "int", "source": "when.it.was"},
            {"name": "I1", "type": "int"},
            {"name": "X", "type": "float"},
            {"name": "user", "type": "string"},
            {"name": "item", "type": "string"},
            {"name": "C1", "type": "string"},
            {"name": "C2", "type": "string", "optional": True},
            {"name": "unused", "type": "float"},
        ],
        "label": {"column": "label"},
        "event_time": {"column": "at", "unit": "s"},
    },
    "prepare": [{"filter": {"keep": "I1 != 13"}}, {"dropna": {"columns": ["C1"]}}],
    "features": [
        {"columns": ["I1", "X"], "kind": "dense", "ops": ["fill_median", "normalize"]},
        {"columns": ["C1", "C2"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": ["categorify"]},
    ],
    "scopes": {"user": ["user"], "item": ["item"]},
    "quality": {"max_bad_share": 0.9, "max_misdated_share": 0.9},
    "output": {"row_group_rows": 50},
}


def _day(day: int, rows: int, seed: int) -> dict[str, list[Any]]:
    """Rows with nulls, bad labels, missing keys, and times of the day before."""
    draw = random.Random(seed)
    return {
        "label": [draw.choice([0, 0, 0, 1, 1, 2, None]) for _ in range(rows)],
        "when.it.was": [FIRST_US + day * DAY_US + draw.randrange(-(10**9), DAY_US) for _ in range(rows)],
        "I1": [draw.choice([1, 2, 3, 13, None]) for _ in range(rows)],
        "X": [draw.choice([0.5, 2.25, -1.0, None]) for _ in range(rows)],
        "user": [draw.choice([1, 2, 3, 40, 41, None]) for _ in range(rows)],
        "item": [f"item {draw.randrange(9)}" for _ in range(rows)],
        "C1": [draw.choice(["a", "é\t", "", None, "x"]) for _ in range(rows)],
        "unused": [draw.choice([0.5, 1.0]) for _ in range(rows)],
        "unlisted": [[index] for index in range(rows)],
    }


def _write_days(folder: Path) -> None:
    """Three files a day, which store the same columns with other types; one more file is empty."""
    for number, day in enumerate(DAYS):
        target = folder / f"raw/dt={day}"
        target.mkdir(parents=True)
        for part in range(3):
            rows = _day(number, 70 + part, 10 * number + part)
            columns: dict[str, Any] = dict(rows)
            at = pa.array(rows["when.it.was"])
            if part == 0:
                columns["when.it.was"] = at.cast(pa.timestamp("us"))
                columns["I1"] = [
                    None if value is None else value + 0.5 * (value == 3) for value in rows["I1"]
                ]
                columns["C2"] = [f"r{index % 4}" for index in range(len(at))]
            elif part == 1:
                columns["when.it.was"] = pa.array(
                    [value * 1000 + 7 for value in rows["when.it.was"]], pa.timestamp("ns", "UTC")
                )
                columns["user"] = [None if user is None else str(user) for user in rows["user"]]
                columns["X"] = [None if x is None else ("1e39" if x == -1.0 else str(x)) for x in rows["X"]]
                columns["unused"] = pa.array([1e300 if x == 1.0 else x for x in rows["unused"]])
            else:
                columns["when.it.was"] = [value // 1_000_000 for value in rows["when.it.was"]]
                columns["label"] = [None if label is None else float(label) for label in rows["label"]]
                columns["X"] = [None if x is None else decimal.Decimal(str(x)) for x in rows["X"]]
                columns["C1"] = pa.array(rows["C1"]).dictionary_encode()
            pq.write_table(pa.table(columns), target / f"{part}.parquet", row_group_size=20)
        (target / "3.parquet").touch()


def _no_session() -> SparkSession:
    raise AssertionError("the build needs no Spark session")


def _build(workers: Workers, folder: Path) -> tuple[Config, BuildResult, BuildResult]:
    """A fit on the first days, and its extension. The users 2 and 41 are erased."""
    config = cases.write_config(folder, LOG)
    _write_days(folder)
    lake = LakePaths(config.lake)
    add_erased(lake, list_or_new(lake), ["2", "41"], DAYS[1])
    first = cases.run_build(workers, config, DAYS[2])
    again = config.model_copy(update={"workflow": config.workflow.model_copy(update={"mode": "retrain"})})
    return config, first, cases.run_build(workers, again, DAYS[3], first.workflow.version)


def _rows(partition: Partition, *order: str) -> list[dict[str, Any]]:
    tables = [
        pq.read_table(path, partitioning=None) for path in data_files(partition, read_manifest(partition))
    ]
    if not tables:
        return []
    rows = pa.concat_tables(tables).sort_by([(name, "ascending") for name in order]).to_pylist()
    folder = "/raw/"  # the folders of the logs differ
    return [
        {**row, **({"source_file": row["source_file"].split(folder)[1]} if "source_file" in row else {})}
        for row in rows
    ]


def _tables(config: Config, first: BuildResult, second: BuildResult) -> dict[str, Any]:
    lake = LakePaths(config.lake)
    tables: dict[str, Any] = {"counts": [built.counts for built in (first, second)]}
    for name, built in (("first", first), ("second", second)):
        version = built.workflow.version
        for table in (VOCABULARY, RARE):
            tables[f"{name} {table}"] = _rows(workflow_table(lake, version, table), "column", "value")
        stored = file_io.read_json(f"{lake.workflow(version)}/workflow.json")
        tables[f"{name} chains"] = [chain["steps"] for chain in stored["chains"]]
        for dt in built.features:
            tables[f"{name} features {dt}"] = _rows(lake.features(version).partition(dt), "row_id")
    for dt in DAYS:
        tables[f"quarantine {dt}"] = _rows(lake.quarantine.partition(dt), "row_id")
    for name, side in (("users", lake.users(version)), ("items", lake.items(version))):
        partition = side.partition(DAYS[3])
        tables[name] = _rows(
            partition, pq.read_schema(data_files(partition, read_manifest(partition))[0]).names[0]
        )
    [quality] = file_io.list_files(f"{config.lake}/quality/hard/dt={DAYS[3]}")
    tables["quality"] = {
        name: value for name, value in file_io.read_json(quality.path)["facts"].items() if name != "made_at"
    }
    return tables


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, dict[str, Any]]:
    """What is published from rows that Spark has prepared."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (build_module, passes):
            patch.setattr(module, "passes_of", FramePasses)
        config, *built = _build(SparkWorkers(spark), tmp_path_factory.mktemp("frames"))
    assert (Path(config.lake) / "prepared").exists()
    return config, _tables(config, *built)


@pytest.mark.parametrize("split_bytes", [None, 1])
def test_processes_of_this_machine_publish_what_frames_publish(
    frames: tuple[Config, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split_bytes: int | None,
) -> None:
    """With small splits, each row group is read in several blocks by a task of its own."""
    original = ParquetReader.splits
    monkeypatch.setattr(ParquetReader, "splits", lambda self: original(self, split_bytes))
    config, *built = _build(LocalWorkers(2, _no_session), tmp_path)
    tables, expected = _tables(config, *built), frames[1]
    assert tables.keys() == expected.keys()
    for name, table in tables.items():
        assert table == expected[name], name
    quarantined = [row for dt in DAYS for row in tables[f"quarantine {dt}"]]
    reasons = {"integer:I1", "number:X", "number:unused", "label:label", "missing_key:user"}
    assert {row["reason"] for row in quarantined} == reasons


def test_python_workers_of_spark_publish_the_same(
    spark: SparkSession, frames: tuple[Config, dict[str, Any]], tmp_path: Path
) -> None:
    config, *built = _build(SparkWorkers(spark), tmp_path)
    assert (tmp_path / "lake/value_counts").exists()
    tables = _tables(config, *built)
    assert {name for name, table in tables.items() if table != frames[1][name]} == set()


def test_value_counts_are_those_of_the_good_rows(
    spark: SparkSession, frames: tuple[Config, dict[str, Any]], tmp_path: Path
) -> None:
    config, *_ = _build(TasksHere(2, _no_session), tmp_path)
    good = good_rows(read_log(spark, config, require_raw(config, config.log, DAYS[0]))).collect()
    expected: Counter[tuple[str, str | None]] = Counter()
    for row in good:
        for name in ("I1", "X", "user", "item", "C1", "C2"):
            value = row[name]
            expected[name, None if value is None else str(value).removesuffix(".0")] += 1
        expected[LABEL_CELLS, str(int(row["label"]))] += 1
    actual: Counter[tuple[str, str | None]] = Counter()
    for counted in _rows(LakePaths(config.lake).value_counts.partition(DAYS[0]), "column"):
        value = counted["value"]
        actual[counted["column"], None if value is None else value.removesuffix(".0")] += counted["count"]
    assert actual == expected


@pytest.mark.processes
def test_the_job_ends_well_where_a_jvm_cannot_start(tmp_path: Path) -> None:
    cases.write_config(tmp_path, LOG)
    _write_days(tmp_path)
    run = build_without_java(tmp_path)
    assert run.returncode == EXIT_OK, run.stderr[-2000:]
    summary = json.loads(run.stdout)
    assert summary["rows_in"] == 3 * (70 + 71 + 72)
    assert summary["rows_in"] == summary["rows_out"] + sum(summary["dropped"].values())


def test_clicks_of_a_day_are_read_without_a_session(spark: SparkSession, tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, LOG)
    _write_days(tmp_path)
    raw = require_raw(config, config.log, DAYS[0])
    clicks = read_clicks(TasksHere(2, _no_session), plan_of(config), raw)
    assert isinstance(clicks, pa.Table)
    expected = good_rows(read_log(spark, config, raw)).select(*clicks.column_names).collect()
    assert Counter(tuple(row.values()) for row in clicks.to_pylist()) == Counter(
        tuple(row) for row in expected
    )


def test_a_day_without_rows_is_left_out_and_too_many_bad_rows_are_explained(tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, LOG)
    _write_days(tmp_path)
    for path in (tmp_path / f"raw/dt={DAYS[0]}").glob("[012].parquet"):
        pq.write_table(pq.read_table(path).slice(0, 0), path)
    workers = TasksHere(2, _no_session)
    assert list(cases.run_build(workers, config, DAYS[3]).empty_days) == [DAYS[0]]
    strict = cases.write_config(tmp_path, LOG, {"quality": {"max_bad_share": 0.01}})
    with pytest.raises(DataError) as caught:
        cases.run_build(TasksHere(2, _no_session), strict, DAYS[3])
    assert "parquet: row " in caught.value.problem
    assert "rows of 2026-01-" in caught.value.problem
