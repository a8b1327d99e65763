"""Workflows that are fitted on blocks of rows equal those that Spark fits on frames of the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.types import Config
from etl.build import BuildResult
from etl.fit import version_tables
from etl.fit.fit_frame import MemoryTables
from etl.fit.fit_workflow import fit_workflow
from etl.fit.rounds import RowBatch, TrainingBlocks
from etl.native import mapped_files
from etl.native.distinct_values import Lookup
from etl.operators.categorify import FittedCategorify
from etl.operators.join_groupby import JoinGroupby
from etl.operators.value_count import ValueCount
from etl.ops.base import Operator, Type
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from etl.ops.training_statistics import (
    GroupedNumbers,
    GroupedRows,
    GroupParts,
    concat_groups,
    doubles_of_sums,
)
from etl.raw.files import RawFiles
from etl.raw.splits import DAY
from etl.text.two_passes import TextPasses
from etl.workflow.chains import FittedChain, RowPlace, compute_features
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import FittedWorkflow
from jobs.generate_clicks import run as generate_clicks
from spark.workers import LocalWorkers
from storage.feature_spec import LABEL
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.etl import cases
from tests.etl.block_rows import InThisProcess, blocks_of_rows
from tests.etl.ops.case import GROUPS
from tests.etl.ops.examples import COLUMNS
from tests.etl.ops.on_blocks import features_of_blocks, fit_blocks, read_external, table_of
from tests.etl.ops.on_frames import EXTERNAL as EXTERNAL_OPERATORS
from tests.etl.ops.on_frames import as_table, name_of, new_workflow
from tests.etl.ops.on_frames import learned as learned_without_days
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

ROOT = Path(__file__).parents[2]
# Chains that read several inputs, lists or tables before they need statistics.
FURTHER: list[dict[str, Any]] = [
    {
        "columns": ["K", "C2"],
        "kind": "dense",
        "ops": [
            {"target_encoding": {"joint": True, "smoothing": 0, "target": "I1"}},
            {"rename": {"suffix": "_scaled"}},
            "normalize",
        ],
    },
    {
        "columns": ["C1"],
        "kind": "dense",
        "ops": [
            {"join_groupby": {"statistics": ["var", "min", "max", "sum"], "of": ["X", "I3"]}},
            {"rename": {"prefix": "all_"}},
            "fill",
            "data_stats",
        ],
    },
    {
        "columns": ["I1", "X"],
        "kind": "dense",
        "ops": [{"expression": {"output": "product", "formula": "I1 * X"}}, "fill_median", "winsorize"],
    },
    {
        "columns": ["T"],
        "kind": "multi_hot",
        "ops": [
            {"rename": {"suffix": "_again"}},
            {"split_list": {"separator": "|"}},
            "data_stats",
            {"categorify": {"min_count": 2, "max_size": 4}},
        ],
    },
]
ALL = [*GROUPS, *FURTHER]


def rows_of_days(sizes: Sequence[int], days: Sequence[str] = DAYS, seed: int = 1) -> list[Row]:
    rows = [row for day, size in zip(days, sizes, strict=True) for row in make_rows(day, size, seed)]
    return [{**row, "row_id": place} for place, row in enumerate(rows)]


def tables_of(lake: LakePaths, workflow: FittedWorkflow) -> dict[str, Any]:
    """All tables of a version: their columns, and their rows in order. Vocabularies are sorted."""
    tables: dict[str, Any] = {}
    names = [*workflow.local.names, RARE]
    for name in names:
        if name == RARE and VOCABULARY not in names:
            continue
        table = table_of(lake, workflow.version, name)
        if name in (VOCABULARY, RARE) and len(table):
            table = table.sort_by([("column", "ascending"), ("value", "ascending")])
        schema = [(field.name, field.type) for field in table.schema]
        # `repr` tells -0.0 from 0.0, and shows each bit of a double.
        tables[name] = schema, [repr(row) for row in table.to_pylist()]
    return tables


def learned(workflow: FittedWorkflow) -> list[str]:
    return [json.dumps(chain.to_json(), sort_keys=True) for chain in workflow.chains]


def assert_equal(
    lake: LakePaths, workflow: FittedWorkflow, expected_lake: LakePaths, expected: FittedWorkflow
) -> None:
    assert workflow.version == expected.version
    for chain, of_spark in zip(learned(workflow), learned(expected), strict=True):
        assert chain == of_spark
    assert workflow.spec == expected.spec
    # Of a vocabulary without a value, frames count nothing, and value counts count zeros.
    counted, in_frames = (
        {name: facts for name, facts in one.vocabularies.items() if any(facts.values())}
        for one in (workflow, expected)
    )
    assert counted == in_frames
    tables, of_frames = tables_of(lake, workflow), tables_of(expected_lake, expected)
    assert tables.keys() == of_frames.keys()
    for name, table in tables.items():
        assert table == of_frames[name], name


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return rows_of_days((90, 60, 40))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return make_config(tmp_path_factory.mktemp("frames"), ALL)


@pytest.fixture(scope="module")
def of_spark(spark: SparkSession, config: Config, rows: list[Row]) -> FittedWorkflow:
    return fit_rows(spark, config, by_day(spark, rows))


@pytest.fixture(scope="module")
def of_blocks(
    config: Config, rows: list[Row], tmp_path_factory: pytest.TempPathFactory
) -> tuple[LakePaths, FittedWorkflow]:
    """A workflow that one task fits on one block of each day."""
    return fit_blocks(config, rows, tmp_path_factory.mktemp("blocks"))


def test_every_operator_learns_the_same_from_blocks(
    config: Config, of_spark: FittedWorkflow, of_blocks: tuple[LakePaths, FittedWorkflow]
) -> None:
    assert_equal(*of_blocks, LakePaths(config.lake), of_spark)


@pytest.mark.parametrize(
    "layout", [{"tasks": 3, "batch_rows": 12}, {"tasks": 2, "batch_rows": 20, "coded": True}], ids=str
)
def test_tasks_and_batches_do_not_change_what_operators_learn(
    config: Config,
    rows: list[Row],
    of_blocks: tuple[LakePaths, FittedWorkflow],
    tmp_path: Path,
    layout: dict[str, Any],
) -> None:
    assert_equal(*fit_blocks(config, rows, tmp_path, **layout), *of_blocks)


def test_processes_and_small_ranges_of_keys_give_equal_tables(
    config: Config,
    rows: list[Row],
    of_blocks: tuple[LakePaths, FittedWorkflow],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_session() -> SparkSession:
        raise AssertionError("no JVM is needed")

    monkeypatch.setattr(version_tables, "_RANGE_ROWS", 20)
    workers = LocalWorkers(2, no_session)
    lake, workflow = fit_blocks(config, rows, tmp_path, workers, tasks=3, batch_rows=11, coded=True)
    assert_equal(lake, workflow, *of_blocks)
    name = next(name for name in workflow.local.names if name.startswith("join_groupby_C2"))
    partition = workflow_table(lake, workflow.version, name)
    assert len(data_files(partition, read_manifest(partition))) > 1
    left = [path.name for path in tmp_path.rglob("*.parquet") if "part-" not in path.name]
    assert not left, "counts and parts are deleted"


def test_an_extension_from_blocks_equals_one_from_frames(
    spark: SparkSession, tmp_path: Path, rows: list[Row]
) -> None:
    groups = [group for group in ALL if "max_age_days" not in str(group)]
    config = make_config(tmp_path / "frames", groups)
    old = [row for row in rows if row[DAY] != DAYS[2]]
    first = fit_rows(spark, config, by_day(spark, old))
    expected = fit_rows(spark, config, by_day(spark, rows), first)
    lake = LakePaths(str(tmp_path / "blocks"))
    # The tables of join_external are those of the first fit.
    start = config.model_copy(update={"lake": lake.root})
    _, parent = fit_blocks(start, old, tmp_path / "blocks", tasks=2)
    lake, workflow = fit_blocks(start, rows, tmp_path / "blocks", parent=parent, tasks=2)
    assert_equal(lake, workflow, LakePaths(config.lake), expected)


@pytest.mark.parametrize("coded", [True, False])
def test_features_of_training_rows_and_of_other_rows_equal_those_of_spark(
    spark: SparkSession, rows: list[Row], of_spark: FittedWorkflow, coded: bool
) -> None:
    """Exactly, also for target encodings out of fold; other days have other features."""
    later = [{**row, "row_id": 1000 + place} for place, row in enumerate(make_rows(TEST_DAY, 40, 3))]
    expected = features_of(of_spark, to_spark(spark, [*rows, *later]))
    features = features_of_blocks(of_spark, [*rows, *later], coded=coded)
    assert features.keys() == expected.keys()
    for name, values in features.items():
        assert [repr(value) for value in values] == [repr(value) for value in expected[name]], name


def test_a_row_of_another_split_is_no_training_row(
    of_blocks: tuple[LakePaths, FittedWorkflow], rows: list[Row]
) -> None:
    _, workflow = of_blocks
    (chain,) = [chain for chain in workflow.chains if chain.inputs == ("K", "C2")]
    (batch,) = blocks_of_rows(rows[:90], COLUMNS).read(0, frozenset(COLUMNS))

    def computed(place: RowPlace | None) -> list[float]:
        arrays = [batch.columns[name] for name in chain.inputs]
        return list(chain.compute(arrays, workflow.local, place=place)[chain.outputs[0]].to_pylist())

    others = computed(None)
    assert computed(RowPlace(batch.row_ids, DAYS[0], "test")) == others
    assert computed(RowPlace(batch.row_ids, TEST_DAY)) == others
    assert computed(RowPlace(batch.row_ids, DAYS[0], "train")) == computed(RowPlace(batch.row_ids, DAYS[0]))
    assert computed(RowPlace(batch.row_ids, DAYS[0])) != others


LISTS: list[dict[str, Any]] = [
    {"columns": ["item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2, "share": "items"}}]},
    {
        "columns": ["history"],
        "kind": "multi_hot",
        "ops": [
            "data_stats",
            {"list_slice": {"start": -3, "length": 2}},
            "value_count",
            {"rename": {"suffix": "_few"}},
            {"categorify": {"min_count": 2, "oov_buckets": 3}},
        ],
    },
    {
        "columns": ["history"],
        "kind": "multi_hot",
        "ops": [{"hash_bucket": {"buckets": 7}}, {"rename": {"suffix": "_hash"}}],
    },
]


@pytest.mark.parametrize("coded", [True, False])
def test_raw_lists_give_the_ids_of_spark(spark: SparkSession, tmp_path: Path, coded: bool) -> None:
    types: dict[str, Type] = {**COLUMNS, "history": "strings"}
    items = [row["item"] for row in make_rows(DAYS[0], 60, 7) if row["item"]]
    rows = [
        {**row, "history": None if place % 7 == 0 else items[place % 11 : place % 11 + place % 5]}
        for place, row in enumerate(rows_of_days((50, 30, 20)))
    ]
    sections = {"history": {"days": 2}, "keys": {"user": "C2", "item": "item"}}
    config = make_config(tmp_path / "frames", LISTS, **sections)
    frames = {day: to_spark(spark, [row for row in rows if row[DAY] == day], types).persist() for day in DAYS}
    expected = fit_rows(spark, config, frames)
    lake, workflow = fit_blocks(config, rows, tmp_path / "blocks", types=types, tasks=2, coded=coded)
    assert_equal(lake, workflow, LakePaths(config.lake), expected)
    keys = {"user_key": F.col("C2"), "item_key": F.col("item")}
    of_frames = features_of(expected, to_spark(spark, rows, types).withColumns(keys))
    assert features_of_blocks(workflow, rows, types, coded) == of_frames


def test_lists_with_codes_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only distinct values become texts and are looked up."""
    looked_up: list[int] = []
    find = Lookup.find

    def counted(self: Lookup, wanted: pa.StringArray) -> np.ndarray:
        looked_up.append(len(wanted))
        return find(self, wanted)

    monkeypatch.setattr(Lookup, "find", counted)
    values = pa.array([f"value {number}" for number in range(100)])
    entries = pa.table({"value": values, "id": pa.array(np.arange(100, dtype=np.int32) + 3)})
    tables = MemoryTables(vocabularies={"a": entries})
    codes = np.arange(50_000, dtype=np.int32) % 100
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(1001, dtype=np.int32) * 50),
        pa.DictionaryArray.from_arrays(pa.array(codes), values),
    )
    step = FittedCategorify(("a",), ("a",), "a", 103, lists=True)
    chain = FittedChain(("a",), ("strings",), (step,), ("a",))
    ids = chain.compute([lists], tables, {"a": "list<int32>"})["a"]
    assert ids.type == pa.list_(pa.int32())
    assert (ids.values.to_numpy() == codes + 3).all()
    assert looked_up == [100]


SOME = ["2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04"]
PASSES: dict[str, Any] = {
    "features": [
        {"columns": ["C1", "item"], "kind": "dense", "ops": [{"target_encoding": {"folds": 3}}]},
        {"columns": ["user"], "kind": "dense", "ops": ["join_groupby", "log1p"]},
        {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
    ],
    "scopes": {},
}


def _build_features(
    spark: SparkSession, folder: Path, engine: str, limit: int
) -> tuple[dict[str, pa.Table], BuildResult]:
    folder.mkdir()
    output = {"row_group_rows": 64, "broadcast_max_rows": limit}
    config = cases.write_config(folder, PASSES, {"workflow": {"engine": engine}, "output": output})
    for seed, day in enumerate(SOME):
        cases.write_day(folder / f"raw/dt={day}", cases.make_lines(day, 150, seed))
    built = cases.run_build(spark, config, SOME[3])
    table = LakePaths(config.lake).features(built.workflow.version)
    features = {}
    for dt in built.features:
        files = data_files(table.partition(dt), read_manifest(table.partition(dt)))
        parts = pa.concat_tables(pq.read_table(path, partitioning=None) for path in files)
        features[dt] = parts.sort_by("row_id").to_pylist()
    return features, built


def test_the_encode_pass_encodes_out_of_fold_with_tables_above_the_limit(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark expressions and joins compute the same features, to the bit."""
    encoded_days: list[str] = []
    encode_days = TextPasses.encode_days

    def counted(self: TextPasses, workflow: Any, days: Any, rules: Any) -> Any:
        encoded_days.extend(days)
        return encode_days(self, workflow, days, rules)

    monkeypatch.setattr(TextPasses, "encode_days", counted)
    of_passes, built = _build_features(spark, tmp_path / "passes", "auto", 10)
    assert built.workflow.engine == "arrow"
    assert encoded_days == SOME
    of_frames, _ = _build_features(spark, tmp_path / "frames", "sql", 2_000_000)
    assert encoded_days == SOME
    assert {dt: repr(rows) for dt, rows in of_passes.items()} == {
        dt: repr(rows) for dt, rows in of_frames.items()
    }


def test_a_vocabulary_of_three_million_values_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 3_000_000
    group = {"columns": ["C1"], "kind": "categorical", "ops": ["categorify"]}
    keys = {"columns": ["C1"], "kind": "dense", "ops": ["join_groupby"]}
    config = make_config(tmp_path / "config", [group, keys])
    lake = LakePaths(str(tmp_path / "lake"))
    raw = [RawFiles(DAYS[0], (), 1, "digest")]
    workflow = fit_workflow(
        InThisProcess(),
        plan_of(config),
        lake,
        raw,
        None,
        counts_of=None,
        read_table=read_external,
        blocks_of=lambda days: TrainingBlocks(3, partial(_numbered, size)),
    )
    assert workflow.engine == "arrow"
    assert workflow.vocabularies["C1"]["entries"] == size
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    mapped_files.open_keyed.cache_clear()
    wanted = pa.array(["0000000", "0000001", f"{size - 1:07d}", "unknown", None])
    features = compute_features(
        workflow.chains, {"C1": wanted}, {"C1": "int32", "C1_count": "float32"}, workflow.local
    )
    # Values with equal counts are sorted; the first half occurs twice.
    assert features["C1"].to_pylist() == [3, 4, size + 2, 2, 1]
    assert features["C1_count"].to_pylist() == [2.0, 2.0, 1.0, 0.0, 0.0]
    files = {path.name.split("-")[1] for path in tmp_path.glob("nightrank-*")}
    assert files == {"vocabulary", "keyed"}
    _, table = workflow.local.keyed(next(iter(set(workflow.local.names) - {VOCABULARY})))
    before = pa.total_allocated_bytes()
    assert table["count"].num_chunks == 1
    assert pa.total_allocated_bytes() - before < size, "columns are mapped, not copied"


def _numbered(size: int, task: int, wanted: frozenset[str]) -> Iterator[RowBatch]:
    """A third of the rows: each number once, and those of the first half once more."""
    for numbers in (np.arange(task, size, 3), np.arange(task, size // 2, 3)):
        texts = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 7, "0")
        yield RowBatch(numbers, DAYS[0], {"C1": texts, LABEL: pa.array(np.zeros(len(numbers), np.float32))})


def test_errors_of_a_task_name_the_column(tmp_path: Path) -> None:
    group = {"columns": ["X"], "kind": "dense", "ops": [{"rename": {"suffix": "_large"}}, "normalize"]}
    config = make_config(tmp_path / "config", [group])
    rows = [{**row, "X": 1e30} for row in rows_of_days((5, 5, 5))]
    with pytest.raises(DataError, match=r"the mean of X_large .* cannot be computed: 5 values"):
        fit_blocks(config, rows, tmp_path / "lake")


def test_operators_that_measure_only_in_spark_are_refused(
    tmp_path: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ValueCount, "merge_aggregates", Operator.merge_aggregates)
    ops = [{"split_list": {"separator": "|"}}, "value_count", "categorify"]
    config = make_config(tmp_path / "config", [{"columns": ["T"], "kind": "multi_hot", "ops": ops}])
    with pytest.raises(ConfigError, match="value_count computes statistics only in Spark"):
        fit_blocks(config, rows, tmp_path / "lake", tasks=2)


def test_one_day_of_blocks_equals_a_frame_in_memory(tmp_path: Path) -> None:
    """A workflow that is fitted on a frame learns the same. Neither needs Spark."""
    groups = [group for group in ALL if not EXTERNAL_OPERATORS & set(map(name_of, group["ops"]))]
    groups = [group for group in groups if "max_age_days" not in str(group)]
    rows = rows_of_days((150,), DAYS[:1])
    config = make_config(tmp_path / "config", groups)
    lake, workflow = fit_blocks(config, rows, tmp_path / "lake", tasks=3, batch_rows=20, coded=True)
    of_frame: Any = new_workflow(groups).fit(as_table(rows))._require_fitted()
    assert list(map(learned_without_days, workflow.chains)) == list(
        map(learned_without_days, of_frame.chains)
    )
    stored = table_of(lake, workflow.version, VOCABULARY)
    for name, entries in of_frame.local.vocabularies.items():
        mine = stored.filter(pc.equal(stored["column"], name)).sort_by("id")
        assert mine.drop_columns("last_seen").equals(
            entries.drop_columns("last_seen").cast(mine.schema.remove(4))
        )
        assert workflow.vocabularies[name] == of_frame.vocabularies[name]
    for name in set(of_frame.local.names) - {VOCABULARY}:
        mine, expected = table_of(lake, workflow.version, name), of_frame.local.keyed(name)[1]
        assert not len(expected) or mine.column_names == expected.column_names
        assert repr(mine.to_pylist()) == repr(expected.to_pylist()), name


OUTBRAIN = [
    "generate.days=4",
    "generate.rows_per_day=1500",
    "generate.users=200",
    "generate.items=120",
    "split.train_days=2",
    "split.min_train_days=2",
]


def test_the_outbrain_log_has_equal_features_by_frames(spark: SparkSession, tmp_path: Path) -> None:
    """Its click rates are out of fold. Only Spark frames store prepared rows."""
    features: dict[str, dict[str, str]] = {}
    for engine in ("auto", "sql"):
        changes = [f"lake={tmp_path}/{engine}", f"workflow.engine={engine}", *OUTBRAIN]
        config = load_config(str(ROOT / "conf/datasets/outbrain.yaml"), changes)
        generate_clicks(RunContext("generate_clicks", config, "2026-01-01", _spark=spark))
        built = cases.run_build(spark, config, "2026-01-04")
        table = LakePaths(config.lake).features(built.workflow.version)
        features[engine] = {}
        for dt in built.features:
            files = data_files(table.partition(dt), read_manifest(table.partition(dt)))
            parts = pa.concat_tables(pq.read_table(path, partitioning=None) for path in files)
            features[engine][dt] = repr(parts.sort_by("row_id").to_pylist())
        prepared = LakePaths(config.lake).prepared(config.name).partition(dt)
        assert is_published(prepared) == (engine == "sql")
    assert len(features["auto"]) == 4
    assert features["auto"] == features["sql"]


def _exact_sums(values: np.ndarray, groups: np.ndarray, size: int) -> list[float | None]:
    """The sums by group in Python integers, as a Spark decimal of 38 digits adds them."""
    totals: list[int | None] = [0] * size
    for unit, group in zip(np.rint(values * 2.0**24).tolist(), groups.tolist(), strict=True):
        total = totals[group]
        if total is None or not abs(unit) < 1e38:
            totals[group] = None
        else:
            totals[group] = total + int(unit if abs(unit) < 2**53 else Decimal(repr(unit)))
    return [None if total is None or abs(total) >= 10**38 else float(total) / 2.0**24 for total in totals]


@pytest.mark.parametrize("largest", [1e-3, 1.0, 1e9, 1.7e12, 1e20, 5e30])
def test_sums_of_parts_equal_the_sums_of_all_rows(largest: float) -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        values = draw.normal(size=300) * largest * draw.choice([1, 1e-6], 300)
        values[draw.integers(0, 300, 2)] = draw.choice([np.inf, np.nan, 0.0, -0.0], 2)
        groups = draw.integers(0, 12, 300)
        expected = _exact_sums(values, groups, 12)
        assert GroupedNumbers(values, groups, 12).exact_sums().to_pylist() == expected
        parts = [
            GroupParts(12, {"sum": GroupedNumbers(values[start::3], groups[start::3], 12).sums()})
            for start in range(3)
        ]
        merged = concat_groups(parts).regrouped(np.tile(np.arange(12), 3), 12)
        assert doubles_of_sums(merged.sums["sum"]).to_pylist() == expected


def test_extremes_of_zeros_have_no_sign_on_frames_and_blocks(spark: SparkSession) -> None:
    operator = JoinGroupby(statistics=("min", "max"), of=("X",))
    zeros = [[-0.0], [0.0, -0.0], [-0.0, 0.0]]
    keyed = [(group, value) for group, values in enumerate(zeros) for value in values]
    groups, values = np.array([group for group, _ in keyed]), np.array([value for _, value in keyed])
    rows = GroupedRows(lambda _: (values, np.isnan(values)), np.arange(5), np.arange(5), groups, len(zeros))
    statistics = operator.group_statistics(operator.group_parts(rows))
    frame = spark.createDataFrame([("t", *row) for row in keyed], "_table string, _key int, X double")
    of_spark = operator.groups(frame.coalesce(1)).drop("_table", "_key").collect()
    for name in ("X_min", "X_max"):
        assert repr(statistics[name].to_pylist()) == repr([row[name] for row in of_spark]) == repr([0.0] * 3)


def test_a_second_worker_maps_a_keyed_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    path = str(tmp_path / "table.parquet")
    table = pa.table({"key": ["a", "é", ""], "number": [1.5, None, 3.0], "text": ["x", None, "é"]})
    pq.write_table(table, path)
    mapped_files.open_keyed.cache_clear()
    first, rows = mapped_files.open_keyed((path,))
    mapped_files.open_keyed.cache_clear()  # as in another worker
    monkeypatch.setattr(mapped_files, "_read_keyed", lambda _: pytest.fail("read again"))
    second, mapped = mapped_files.open_keyed((path,))
    assert mapped.equals(rows)
    assert mapped.equals(table)
    wanted = pa.array(["é", "unknown", None, "", "a"])
    assert second.find(wanted).tolist() == first.find(wanted).tolist() == [1, -1, -1, 2, 0]
    mapped_files.open_keyed.cache_clear()


def test_without_room_a_keyed_table_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    path = str(tmp_path / "table.parquet")
    pq.write_table(pa.table({"key": ["a", "b"], "number": [1.5, 2.5]}), path)
    lookup, rows = mapped_files.open_keyed((path,))
    assert rows["number"].to_pylist() == [1.5, 2.5]
    assert lookup.find(pa.array(["b"])).tolist() == [1]
