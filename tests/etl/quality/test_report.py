"""Data reports compared with pandas on the log of tests/etl/cases: figures, reuse, limits."""

from __future__ import annotations

import json
import logging
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from conf.errors import DataError
from conf.load import load_config
from conf.types import SPLITS, Config
from etl.passes import passes_of, raw_days
from etl.quality.checks import ColumnReport, DayComparison
from etl.quality.column_summary import TOP, ColumnSummary, CountedColumn, Values, feature_columns
from etl.quality.report import DataReport, SplitOfDay, profiles_of, report_quality
from etl.raw.files import RawFiles
from etl.synthetic.generate import generate_days, generate_settings
from etl.workflow.feature_plan import plan_of
from spark.choose_workers import SparkWorkers
from spark.workers import Workers
from storage import file_io
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths
from tests.etl import cases, oracle, raw_oracle
from tests.etl.prepare.small_shop import no_session
from tests.etl.tasks_here import TasksHere

ROOT = Path(__file__).parents[3]
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05"]
RUN_DATE, NEXT = DAYS[3], DAYS[4]


class Counted:
    """The value counts of days. `days_read` lists the days whose counts were summarised for a profile."""

    def __init__(self, config: Config, workers: Workers | None = None) -> None:
        workers = workers or TasksHere(2, no_session)
        self.passes = passes_of(workers, plan_of(config), LakePaths(config.lake))
        self.days_read: list[str] = []

    def figures_of(
        self,
        days: Sequence[SplitOfDay],
        train: Sequence[SplitOfDay],
        day: SplitOfDay,
        columns: Sequence[CountedColumn],
    ) -> tuple[list[dict[str, ColumnSummary]], dict[str, Values]]:
        self.days_read += [piece.raw.dt for piece in days]
        return self.passes.figures_of(days, train, day, columns)

    def table_inputs(self, raw: RawFiles) -> Mapping[str, str]:
        return self.passes.table_inputs(raw)


def report(config: Config, run_date: str, counted: Counted | None = None) -> DataReport:
    splits = raw_days(plan_of(config), run_date)
    counted = counted or Counted(config)
    counted.passes.scan_days(list({raw.dt: raw for days in splits.values() for raw in days}.values()))
    return report_quality(plan_of(config), LakePaths(config.lake), run_date, splits, counted)


class Tasks(TasksHere):
    """Workers that count their tasks."""

    count = 0

    def _map(self, tasks: int, function: Callable[[int], str]) -> list[str]:
        self.count += tasks
        return super()._map(tasks, function)


@pytest.fixture(scope="module")
def hard_log_report(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Config, dict[str, pd.DataFrame], DataReport]:
    """The hard log, the oracle's good rows of each day, and the report of RUN_DATE."""
    folder = tmp_path_factory.mktemp("quality")
    config = cases.write_config(folder)
    good = {}
    for seed, day in enumerate(DAYS):
        paths = cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 150, seed))
        good[day] = raw_oracle.parse_log(config, paths)[0]
    return config, good, report(config, RUN_DATE)


def test_spark_has_the_same_report(
    spark: SparkSession, hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport], tmp_path: Path
) -> None:
    config, _, known = hard_log_report
    config = cases.write_config(tmp_path).model_copy(update={"data": config.data})
    of_spark = report(config, RUN_DATE, Counted(config, SparkWorkers(spark)))
    assert of_spark.compared.columns == known.compared.columns
    assert of_spark.compared.pieces == known.compared.pieces


def _cells(rows: pd.DataFrame, column: CountedColumn) -> Counter[Any]:
    """Value → cells of a column; text for names, numbers for numbers."""
    values = [value for value in rows[column.name] if not pd.isna(value)]
    kinds: dict[str, Any] = {"string": str, "int": int, "float": float}
    return Counter(kinds[column.kind](value) for value in values)


def _psi(train: Mapping[Any, int], day: Mapping[Any, int]) -> float:
    """Plain Python, from the definition: half a cell more in each bin that is not empty in both."""
    bins = [label for label in {*train, *day} if train.get(label, 0) or day.get(label, 0)]
    e = {label: (train.get(label, 0) + 0.5) / (sum(train.values()) + len(bins) / 2) for label in bins}
    a = {label: (day.get(label, 0) + 0.5) / (sum(day.values()) + len(bins) / 2) for label in bins}
    return math.fsum((a[label] - e[label]) * math.log(a[label] / e[label]) for label in bins)


def _named_bins(train: Counter[str], cells: Counter[str], nulls: int) -> dict[Any, int]:
    top = [v for v, _ in sorted(train.items(), key=lambda entry: (-entry[1], entry[0].encode()))[:TOP]]
    bins: dict[Any, int] = {("value", value): cells[value] for value in top}
    return bins | {"null": nulls, "other": cells.total() - sum(cells[value] for value in top)}


def _step(value: float) -> float:
    """The end next to zero of the number's histogram bin: its power of two, cut into sixteen."""
    if value == 0:
        return 0.0
    width = 2.0 ** math.floor(math.log2(abs(value))) / 16
    return math.copysign(math.floor(abs(value) / width) * width, value)


def _number_bins(train: Counter[Any], cells: Counter[Any], nulls: int) -> dict[Any, int]:
    """Tenths of the window by the cells before a step, below and above its range, and null."""
    steps = Counter[float]()
    for value, count in train.items():
        steps[_step(float(value))] += count
    tenth, before = {}, 0
    for step in sorted(steps):
        tenth[step] = before * 10 // steps.total()
        before += steps[step]
    bins: dict[Any, int] = Counter({"null": nulls})
    for value, count in cells.items():
        step = _step(float(value))
        nearest = max((start for start in tenth if start <= step), default=None)
        following = min((start for start in tenth if start >= step), default=None)
        if nearest is None or following is None:
            bins["below" if nearest is None else "above"] += count
        else:
            # Between two steps of the window a number belongs to the bin that ends behind it.
            bins[tenth[following]] += count
    return bins


def _expected(column: CountedColumn, train: pd.DataFrame, day: pd.DataFrame) -> dict[str, Any]:
    before, now = _cells(train, column), _cells(day, column)
    train_nulls, nulls = len(train) - before.total(), len(day) - now.total()
    binned = _number_bins if column.numeric else _named_bins
    key = (lambda v: v) if column.numeric else (lambda v: v.encode())
    new = Counter({value: count for value, count in now.items() if value not in before})
    names = not column.numeric
    return {
        "name": column.name,
        "kind": column.kind,
        "nulls": nulls,
        "cells": now.total(),
        "train_nulls": train_nulls,
        "train_cells": before.total(),
        "distinct": len(now),
        "train_distinct": len(before) if names else None,
        "new_cells": new.total() if names else None,
        "psi": pytest.approx(
            _psi(binned(before, before, train_nulls), binned(before, now, nulls)), rel=1e-9, abs=1e-12
        ),
        "top": sorted(now.items(), key=lambda entry: (-entry[1], key(entry[0])))[:TOP],
        "new_top": sorted(new.items(), key=lambda entry: (-entry[1], entry[0].encode()))[:5] if names else [],
        "low": min(now, default=None) if column.numeric else None,
        "high": max(now, default=None) if column.numeric else None,
        "mean": pytest.approx(sum(v * c for v, c in now.items()) / now.total())
        if column.numeric and now
        else None,
    }


def _assert_is_expected(column: ColumnReport, expected: dict[str, Any]) -> None:
    actual = asdict(column)
    for name, value in expected.items():
        if name == "top":
            assert [(shown, count) for shown, count, _ in actual["top"]] == value, column.name
        elif name == "new_top":
            assert list(actual["new_top"]) == value, column.name
        else:
            assert actual[name] == value, (column.name, name)


def test_every_figure_of_every_column_is_the_oracles(
    hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport],
) -> None:
    config, good, data_report = hard_log_report
    train, day = pd.concat([good[DAYS[0]], good[DAYS[1]]]), good[RUN_DATE]
    by_name = {column.name: column for column in data_report.compared.columns}
    assert list(by_name) == list(plan_of(config).features)
    for column in feature_columns(plan_of(config)):
        _assert_is_expected(by_name[column.name], _expected(column, train, day))
    assert [(p.dt, p.split, p.rows, p.clicks) for p in data_report.compared.pieces] == [
        (dt, split, len(good[dt]), int(good[dt]["label"].sum()))
        for dt, split in zip(DAYS, ["train", "train", "validation", "test"], strict=False)
    ]


def test_the_oracle_notices_a_wrong_figure(
    hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport],
) -> None:
    _, good, data_report = hard_log_report
    column = next(column for column in data_report.compared.columns if column.name == "C1")
    expected = _expected(
        CountedColumn("C1", "string"), pd.concat([good[DAYS[0]], good[DAYS[1]]]), good[RUN_DATE]
    )
    for name in ("psi", "new_cells", "distinct", "nulls"):
        wrong = ColumnReport(**{**asdict(column), name: (getattr(column, name) or 0) + 1})
        with pytest.raises(AssertionError):
            _assert_is_expected(wrong, expected)


def test_the_log_has_what_is_hard(
    hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport],
) -> None:
    columns = {column.name: column for column in hard_log_report[2].compared.columns}
    assert columns["I5"].cells == columns["C3"].cells == 0
    assert columns["C3"].psi == columns["I5"].psi == 0.0
    assert (columns["I4"].distinct, columns["I4"].mean) == (1, 7.0)
    assert columns["I3"].high == 2**63 - 1
    assert columns["C1"].new_cells
    assert any(value.startswith("only ") for value, _ in columns["C1"].new_top)


def test_the_published_report_is_the_one_returned(
    hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport],
) -> None:
    config, _, data_report = hard_log_report
    facts = read_manifest(LakePaths(config.lake).quality(config.name).partition(RUN_DATE)).facts
    assert DayComparison.from_facts(facts) == data_report.compared
    assert facts["findings"] == [finding.to_facts() for finding in data_report.findings]
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_an_unchanged_run_date_runs_no_task_and_the_next_reads_one_day(
    hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport],
) -> None:
    config, good, data_report = hard_log_report
    tasks = Tasks(2, no_session)
    counted = Counted(config, tasks)
    assert report(config, RUN_DATE, counted) == data_report
    assert (counted.days_read, tasks.count) == ([], 0)
    after = report(config, NEXT, counted)
    assert counted.days_read == [NEXT]
    assert tasks.count
    columns = {column.name: column for column in after.compared.columns}
    train = pd.concat([good[DAYS[1]], good[DAYS[2]]])
    for column in feature_columns(plan_of(config)):
        _assert_is_expected(columns[column.name], _expected(column, train, good[NEXT]))


def test_other_limits_are_judged_without_reading_again(
    hard_log_report: tuple[Config, dict[str, pd.DataFrame], DataReport],
) -> None:
    config, _, data_report = hard_log_report
    strict = config.model_copy(update={"quality": config.quality.model_copy(update={"psi_warn": 0.0})})
    tasks = Tasks(2, no_session)
    counted = Counted(strict, tasks)
    judged = report(strict, RUN_DATE, counted)
    assert (counted.days_read, tasks.count) == ([], 0)
    assert judged.compared == data_report.compared
    facts = read_manifest(LakePaths(config.lake).quality(config.name).partition(RUN_DATE)).facts
    assert facts["findings"] == [finding.to_facts() for finding in judged.findings]


def test_a_delivery_that_changed_is_profiled_again(tmp_path: Path) -> None:
    config = cases.write_config(tmp_path)
    for seed, day in enumerate(DAYS[:4]):
        cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 30, seed))
    before = report(config, RUN_DATE)
    lines = cases.make_lines(RUN_DATE, 40, 9)
    (tmp_path / f"raw/dt={RUN_DATE}/a.tsv").write_text("".join(line + "\n" for line in lines))
    counted = Counted(config)
    after = report(config, RUN_DATE, counted)
    assert counted.days_read == [RUN_DATE]
    assert after.compared.today.rows > before.compared.today.rows


def test_a_stop_publishes_the_report_and_nothing_else_and_its_remedy_lets_the_day_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = cases.write_config(
        tmp_path,
        {
            "quality": {
                "max_bad_share": 0.5,
                "new_value_rate_stop": 0.01,
                "new_value_rate_warn": 0.01,
                "psi_warn": None,
            }
        },
    )
    for seed, day in enumerate(DAYS[:4]):
        cases.write_day(tmp_path / f"raw/dt={day}", cases.make_lines(day, 40, seed))
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(DataError, match=r"C1 .*new_value_rate_stop=0\.01") as caught,
    ):
        cases.run_build(TasksHere(2, no_session), config, RUN_DATE)
    assert "data quality, stop (new_value_rate=" in caplog.text
    assert RUN_DATE in caught.value.problem
    lake = LakePaths(config.lake)
    assert {path.name for path in Path(lake.root).iterdir()} == {
        "_data",
        "quarantine",
        "value_counts",
        "profiles",
        "quality",
    }
    facts = read_manifest(lake.quality(config.name).partition(RUN_DATE)).facts
    assert {finding["level"] for finding in facts["findings"]} == {"stop"}
    options = re.findall(r"--set (\S+)", caught.value.remedy)
    accepting = load_config(str(tmp_path / "config.yaml"), options)
    accepted = report(accepting, RUN_DATE)
    assert accepted.warnings
    assert all(finding.level == "warn" for finding in accepted.findings)


@pytest.mark.parametrize("order", [1, 2])
def test_rows_in_any_order_and_files_give_one_profile(tmp_path: Path, order: int) -> None:
    """Exact sums: values of very different sizes, in two orders, in one file or several."""
    columns = [
        {"name": "label", "type": "int"},
        {"name": "I", "type": "int"},
        {"name": "X", "type": "float"},
        {"name": "S", "type": "string"},
    ]
    log = {"path": "{data}/dt={date}/*", "format": "tsv", "columns": columns, "label": {"column": "label"}}
    features = [
        {"columns": ["I", "X"], "kind": "dense", "ops": ["fill"]},
        {"columns": ["S"], "kind": "categorical", "ops": ["categorify"]},
    ]
    config = cases.write_config(tmp_path, {"log": log, "keys": None, "features": features, "scopes": {}})
    lines = [
        f"{int(n % 3 == 0)}\t{n * 7 % 11 - 5}\t{['0.0', '-0.0', '0.1', '-2.5', ''][n % 5]}\t"
        + ["", "é", "e\u0301", "x"][n % 4]
        for n in range(400)
    ]
    random.Random(order).shuffle(lines)
    for day in DAYS[:4]:
        folder = tmp_path / f"raw/dt={day}"
        folder.mkdir(parents=True)
        parts = 1 if day == RUN_DATE else 4
        for part in range(parts):
            (folder / f"{part}.tsv").write_text("".join(f"{line}\n" for line in lines[part::parts]))
    passes = passes_of(TasksHere(2, no_session), plan_of(config), LakePaths(config.lake))
    splits = raw_days(plan_of(config), RUN_DATE)
    passes.scan_days(list({raw.dt: raw for days in splits.values() for raw in days}.values()))
    pieces = [SplitOfDay(raw, split, False) for split in SPLITS for raw in splits[split]]
    profiles, _ = profiles_of(plan_of(config), LakePaths(config.lake), pieces, passes)
    assert all(profile.columns == profiles[0].columns for profile in profiles)
    assert (profiles[0].rows, profiles[0].clicks) == (400, 134)
    assert profiles[0].columns["X"].top == ((0.0, 160), (-2.5, 80), (0.1, 80))
    assert profiles[0].columns["X"].mean == (80 * 0.1 - 80 * 2.5) / 320
    assert [value for value, _ in profiles[0].columns["S"].top] == ["e\u0301", "x", "é"]


def test_a_day_without_a_good_row_has_a_report(tmp_path: Path) -> None:
    config = cases.write_config(tmp_path, {"quality": {"max_bad_share": 1.0, "row_shortfall_warn": 0.9}})
    for seed, day in enumerate(DAYS[:4]):
        lines = ["no fields"] if day == RUN_DATE else cases.make_lines(day, 20, seed)
        cases.write_day(tmp_path / f"raw/dt={day}", lines)
    data_report = report(config, RUN_DATE)
    assert data_report.compared.today.rows == 0
    for column in data_report.compared.columns:
        assert (column.cells, column.nulls, column.psi, column.new_value_rate) == (0, 0, None, None)
    assert [finding.check for finding in data_report.findings] == ["row_shortfall"]


def test_splits_of_one_partition_are_compared_with_each_other(tmp_path: Path) -> None:
    changes = {
        "log": {**cases.LOG["log"], "path": "{data}/all/*"},
        "split": {"by": "fraction", "train": 0.6, "validation": 0.2},
    }
    config = cases.write_config(tmp_path, changes)
    paths = cases.write_day(tmp_path / "raw/all", cases.make_lines(RUN_DATE, 200, 1))
    good, _ = raw_oracle.parse_log(config, paths)
    split = oracle.split_by_fraction(good, 0.6, 0.2)
    data_report = report(config, RUN_DATE)
    assert [(p.split, p.rows) for p in data_report.compared.pieces] == [
        (name, int((split == name).sum())) for name in SPLITS
    ]
    columns = {column.name: column for column in data_report.compared.columns}
    for column in feature_columns(plan_of(config)):
        expected = _expected(column, good[split == "train"], good[split == "test"])
        _assert_is_expected(columns[column.name], expected)


def test_defaults_are_silent_on_the_generated_log_and_name_what_was_spoiled(tmp_path: Path) -> None:
    overrides = ["rows_per_day=6000", "users=500", "items=100", "files_per_day=1", "compression=none"]
    config = load_config(
        str(ROOT / "conf/datasets/generated.yaml"),
        [f"lake={tmp_path}", "split.train_days=3", *(f"generate.{override}" for override in overrides)],
    )
    generate_days(TasksHere(2, no_session), LakePaths(config.lake), generate_settings(config), DAYS)
    quiet = report(config, NEXT)
    assert quiet.findings == ()
    partition = LakePaths(config.lake).raw.partition(NEXT)
    (path,) = data_files(partition, read_manifest(partition))
    Path(path).write_text("".join(_spoiled(line) for line in Path(path).read_text().splitlines()))
    manifest = partition.file("_MANIFEST.json")
    text = json.dumps(file_io.read_json(manifest))
    file_io.replace_json(manifest, json.loads(re.sub(r'"content": "\w+"', '"content": "spoiled"', text)))
    data_report = report(config, NEXT)
    assert {(finding.check, finding.column) for finding in data_report.findings} == {
        ("psi", "I5"),  # ages in months
        ("null_rate_change", "C8"),  # half of the regions lost
        ("psi", "C8"),
        ("new_value_rate", "C22"),  # devices under new names
        ("psi", "C22"),
    }


def _spoiled(line: str) -> str:
    fields = line.split("\t")
    if len(fields) == 40:
        age, region, device = 5, 13 + 8, 13 + 22
        fields[age] = fields[age] and str(int(fields[age]) * 12) if fields[age].isdigit() else fields[age]
        fields[region] = fields[region] if len(line) % 2 else ""
        fields[device] = fields[device] and f"new {fields[device]}"
    return "\t".join(fields) + "\n"
