"""Statistics that operators define themselves, and quantiles: equal from rows and value counts, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.names import days_since_epoch
from conf.plugins import OPERATOR, Kind
from etl.fit.fit_workflow import fit_workflow
from etl.operators.winsorize import Winsorize
from etl.ops import operator_in
from etl.ops.base import Fitted
from etl.raw.files import RawFiles
from etl.raw.splits import DAY
from etl.statistics.moments import MeasuredStatistic, measure_mergeable, measure_quantiles, quantile_position
from etl.statistics.value_counts import Counts, write_counts
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import FittedWorkflow
from spark.choose_workers import SparkWorkers
from storage.file_digests import split_name
from storage.paths import LakePaths
from tests.etl.ops import subtract_mean
from tests.etl.ops.case import assert_same
from tests.etl.ops.rows import (
    DAYS,
    TEST_DAY,
    Row,
    by_day,
    features_of,
    fit_rows,
    make_config,
    make_rows,
    to_spark,
)
from tests.etl.ops.subtract_mean import FittedSubtractMean, SubtractMean, SumOfIntegers

GROUPS = [
    {
        "columns": ["I1", "I3", "I4", "I5"],
        "kind": "dense",
        "ops": ["subtract_mean", {"rename": {"suffix": "_m"}}],
    },
    {"columns": ["I2", "I1"], "kind": "dense", "ops": [{"winsorize": {"lower": 0.2, "upper": 0.7}}]},
]
ROWS = [row for day in DAYS for row in make_rows(day, 40, seed=7)]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator `subtract_mean`, found in its file as those of etl/operators are."""
    built_in = Kind.built_in

    def with_ours(kind: Kind) -> dict[str, str]:
        return built_in(kind) | ({"subtract_mean": subtract_mean.__name__} if kind == OPERATOR else {})

    monkeypatch.setattr(Kind, "built_in", with_ours)


def _counts(folder: Path, rows: Sequence[Row]) -> Counts:
    """The value counts of one day, in two files whose rows alternate."""
    files, different = [], Counter[str]()
    for part in (0, 1):
        columns = {}
        for name in ("I1", "I2", "I3", "I4", "I5"):
            counted = Counter(row[name] for row in rows[part::2])
            values = sorted((value for value in counted if value is not None), key=str)
            values += [None] * (None in counted)
            texts = pa.array([None if value is None else str(value) for value in values], pa.string())
            columns[name] = texts, np.array([counted[value] for value in values], np.int64)
        file, sizes = write_counts(str(folder / f"{rows[0][DAY]}_{part}.parquet"), columns, 1)
        files.append((split_name(file)[0], days_since_epoch(rows[0][DAY])))
        different.update(sizes)
    return Counts(tuple(files), files[0][1], dict(different))


def _of_day(day: str) -> list[Row]:
    return [row for row in ROWS if row[DAY] == day]


def _fit_counts(spark: SparkSession, folder: Path) -> FittedWorkflow:
    def unneeded(*_: Any) -> Any:
        raise AssertionError("rows or tables are read, although value counts are enough")

    config = make_config(folder, GROUPS)
    days = [RawFiles(day, (), 1, f"digest of {day}") for day in DAYS]
    counts = {day: _counts(folder, _of_day(day)) for day in DAYS}
    return fit_workflow(
        SparkWorkers(spark),
        plan_of(config),
        LakePaths(config.lake),
        days,
        None,
        counts_of=lambda raw: counts[raw.dt],
        read_table=unneeded,
        rows_of=unneeded,
    )


def _steps(workflow: FittedWorkflow) -> list[Fitted]:
    return [step for chain in workflow.chains for step in chain.steps if step.name != "rename"]


@pytest.mark.usefixtures("added")
def test_an_operator_in_one_file_learns_its_own_statistic(spark: SparkSession, tmp_path: Path) -> None:
    config = make_config(tmp_path / "rows", GROUPS)
    shuffled = {day: frame.repartition(2) for day, frame in by_day(spark, ROWS).items()}
    fitted = fit_rows(spark, config, shuffled)
    assert _steps(fitted) == _steps(_fit_counts(spark, tmp_path / "counts"))
    means, expected = {}, {}
    everything = [*ROWS, *make_rows(TEST_DAY, 20, seed=8)]
    ordered = sorted(everything, key=lambda row: row["row_id"])
    for name in ("I1", "I3", "I4", "I5"):
        present = [row[name] for row in ROWS if row[name] is not None]
        means[name] = float(sum(present) // max(len(present), 1))
        expected[f"{name}_m"] = [None if row[name] is None else row[name] - means[name] for row in ordered]
    assert {
        step.inputs[0]: step.mean for step in _steps(fitted) if isinstance(step, FittedSubtractMean)
    } == means
    for name in ("I2", "I1"):
        numbers = np.array([row[name] for row in ROWS if row[name] is not None], float)
        low, high = np.quantile(numbers, [0.2, 0.7], method="inverted_cdf")
        expected[name] = [
            None if row[name] is None else float(np.clip(row[name], low, high)) for row in ordered
        ]
    assert_same(features_of(fitted, to_spark(spark, everything)), expected)
    later = by_day(spark, [*ROWS, *make_rows(TEST_DAY, 20, seed=8)])
    assert _steps(fit_rows(spark, config, later, fitted)) == _steps(fitted), "numbers stay in an extension"


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(batches=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4), max_size=5), data=st.data())
def test_states_do_not_depend_on_batches_and_their_order(
    batches: list[list[int]], data: st.DataObject
) -> None:
    measured = MeasuredStatistic("x", SumOfIntegers(), "int")
    states = [
        measured.measure(pa.array(batch, pa.int64()), np.ones(len(batch), np.int64)) for batch in batches
    ]
    counted = Counter(value for batch in batches for value in batch)
    once = measured.measure(pa.array(list(counted), pa.int64()), np.array([*counted.values()], np.int64))
    assert measured.merge(data.draw(st.permutations(states))) == once
    assert measured.result(once) == [sum(counted.values()), sum(value * n for value, n in counted.items())]


def test_lists_count_by_their_elements_and_empty_frames_have_a_result(spark: SparkSession) -> None:
    rows = spark.createDataFrame([([1, None, 2],), (None,), ([],), ([5],)], "a array<long>").repartition(2)
    measured = MeasuredStatistic("a", SumOfIntegers(), "ints")
    for frame, expected in ((rows, [3, 8]), (rows.limit(0), [0, 0])):
        assert measure_mergeable(frame, {"sum": (F.col("a"), measured)}) == {"sum": expected}


class _Unbounded(SumOfIntegers):
    def measure(self, values: pa.Array, counts: np.ndarray) -> bytes:
        return values.to_numpy().tobytes()


def test_a_state_without_a_bound_is_refused() -> None:
    measured = MeasuredStatistic("clicks", _Unbounded(), "int")
    with pytest.raises(DataError, match=r"_Unbounded of clicks has a state of 800 bytes.*at most 100"):
        measured.measure(pa.array(range(100), pa.int64()), np.ones(100, np.int64))


def test_quantiles_are_those_of_numpy_for_any_partitions(spark: SparkSession) -> None:
    draw = np.random.default_rng(3)
    columns = {
        "a": draw.integers(-9, 9, 300).astype(float),
        "b": draw.normal(size=300),
        "c": np.full(300, -0.0),
    }
    shares = (0.0, 0.07, 0.29, 0.5, 0.99, 1.0)
    rows = spark.createDataFrame(
        [tuple(map(float, row)) for row in zip(*columns.values(), strict=True)], list(columns)
    )
    wanted = {name: (F.col(name), shares) for name in columns} | {"none": (F.lit(None), shares)}
    measured = measure_quantiles(rows.repartition(7), wanted)
    assert measured.pop("none") == {}
    for name, values in columns.items():
        ordered = np.sort(values)
        assert measured[name] == {share: ordered[quantile_position(share, 300) - 1] for share in shares}
        exact = [share for share in shares if share not in (0.07, 0.29)]  # NumPy's products are rounded
        assert [measured[name][share] for share in exact] == np.quantile(
            values, exact, method="inverted_cdf"
        ).tolist()
    assert [quantile_position(0.07, 100), quantile_position(0.29, 100), quantile_position(0, 9)] == [7, 29, 1]


def test_files_that_are_not_one_operator_are_refused() -> None:
    module = ModuleType("etl.ops.two")
    with pytest.raises(ConfigError, match=r"etl\.ops\.two defines 0 operators"):
        operator_in(module)
    mine = type("Mine", (Winsorize,), {"name": "mine", "__module__": "etl.ops.two"})
    vars(module)["Mine"] = mine
    with pytest.raises(ConfigError, match=r"the operator mine, but not exactly one fitted step .* are \[\]"):
        operator_in(module)
    vars(module)["Other"] = type("Other", (SubtractMean,), {"name": "other", "__module__": "etl.ops.two"})
    with pytest.raises(ConfigError, match="defines 2 operators"):
        operator_in(module)
