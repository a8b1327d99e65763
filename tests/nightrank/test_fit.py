"""Workflows that are fitted on frames learn what build_features learns from the same rows."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import nightrank
from etl.operators.categorify import Categorify
from etl.ops import FRAME_OPERATORS, OPERATORS
from etl.ops.training_statistics import GroupedNumbers
from etl.raw.splits import DAY
from tests.etl.ops import oracle
from tests.etl.ops.case import assert_same, table
from tests.etl.ops.examples import EXAMPLES, FRAME_EXAMPLES
from tests.etl.ops.on_frames import EXTERNAL, GROUPS, as_table, name_of, new_workflow, rows_of_day, values_of
from tests.etl.ops.rows import DAYS, TEST_DAY
from tests.processes import ROOT


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(12, 70), parts=st.integers(1, 3))
def test_every_operator_equals_its_oracle(seed: int, size: int, parts: int) -> None:
    """For rows that the workflow was fitted on, and for others; frames may have several chunks."""
    train, others = rows_of_day(DAYS[0], size, seed), rows_of_day(TEST_DAY, 9, seed)
    days = frozenset([DAYS[0]])
    rows = as_table(train)
    step = -(-size // parts)
    workflow = new_workflow()
    chunks = pa.concat_tables([rows.slice(start, step) for start in range(0, size, step)])
    features = [values_of(workflow.fit_transform(chunks)), values_of(workflow.transform(as_table(others)))]
    expected: dict[str, list[Any]] = {}
    for group in GROUPS:
        expected |= oracle.run(group, table(train, days), table([*train, *others], days))
    names = [feature.name for feature in workflow.spec.features]
    both = {name: features[0][name] + features[1][name] for name in names}
    assert_same(both, {name: expected[name] for name in names})


def test_every_operator_is_fitted_or_refused_by_name() -> None:
    """Operators that read more than the rows, or that change rows."""
    covered = {name for group in GROUPS for entry in group["ops"] for name in [name_of(entry)]}
    for name in OPERATORS:
        if name not in covered:
            with pytest.raises(nightrank.ConfigError, match=name):
                nightrank.Workflow([example.group() for example in EXAMPLES[name]])
    assert set(OPERATORS) - covered == EXTERNAL
    for name in FRAME_OPERATORS:
        entry = FRAME_EXAMPLES[name][0]
        with pytest.raises(nightrank.ConfigError, match=f"unknown operator '{name}'"):
            nightrank.Workflow([{"columns": ["I1"], "kind": "dense", "ops": [entry]}])
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    for name in [*EXTERNAL, "prepare"]:
        assert f"`{name}`" in page.split("## Fit a workflow on a frame")[1].split("\n## ")[0]


def test_an_operator_without_an_arrow_form_of_its_statistics_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator, _ = OPERATORS["normalize_min_max"]
    monkeypatch.delattr(operator, "aggregate_values")
    workflow = nightrank.Workflow([{"columns": ["I1"], "kind": "dense", "ops": ["normalize_min_max"]}])
    with pytest.raises(nightrank.ConfigError, match="normalize_min_max computes statistics only in Spark"):
        workflow.fit(pd.DataFrame({"I1": [1, 2]}))


def test_the_order_of_rows_matters_only_for_folds() -> None:
    groups = [group for group in GROUPS if "target_encoding" not in map(name_of, group["ops"])]
    rows = as_table(rows_of_day(DAYS[0], 60, 3))
    shuffled = rows.take(pa.array(np.random.default_rng(0).permutation(60)))
    workflow, other = new_workflow(groups).fit(rows), new_workflow(groups).fit(shuffled)
    assert workflow.version == other.version
    assert new_workflow(groups).fit(rows.slice(1)).version != workflow.version
    assert values_of(workflow.transform(rows)) == values_of(other.transform(rows))
    assert other.fit(rows.slice(1)).version == new_workflow(groups).fit(rows.slice(1)).version


def test_a_row_is_not_in_its_own_target_encoding() -> None:
    """Changing a label changes no feature of the row itself, and the features of others."""
    group = {"columns": ["C1"], "kind": "dense", "ops": [{"target_encoding": {"smoothing": 1}}]}
    rows = pd.DataFrame({"C1": ["a"] * 20 + ["b"] * 20, "label": [0, 1] * 20})
    before = nightrank.Workflow([group]).fit_transform(rows)["C1_te"]
    for place in (0, 7, 33):
        changed = rows.copy()
        changed.loc[place, "label"] = 1 - changed.loc[place, "label"]
        after = nightrank.Workflow([group]).fit_transform(changed)["C1_te"]
        assert after[place] == before[place]
        assert (after != before).any()


PLAIN: list[dict[str, Any]] = [
    {"columns": ["user"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
    {"columns": ["tags"], "kind": "multi_hot", "ops": ["categorify"]},
]
RAW = pd.DataFrame(
    {
        "user": pd.array([7, 7, 2**60 + 1, None, 2**60 + 1], dtype="Int64"),
        "price": [1.5, None, 3.0, -2.0, 0.0],
        "tags": [["a", "b"], [], None, ["b"], ["é"]],
        "when": pd.to_datetime(["2026-01-01"] * 5),
    },
    index=[30, 10, 10, 2, 0],
)
EXPECTED = {"user": [4, 4, 3, 1, 3], "tags": [[4, 3], [], None, [3], [5]]}


def expected_prices() -> list[float]:
    filled = np.array([1.5, 0.0, 3.0, -2.0, 0.0])
    return ((filled - filled.mean()) / filled.std()).tolist()


def check(frame: pa.Table) -> None:
    values = values_of(frame)
    assert values["user"] == EXPECTED["user"]
    assert values["tags"] == EXPECTED["tags"]
    np.testing.assert_allclose(values["price"], expected_prices(), rtol=1e-6)


def test_each_kind_of_frame_is_returned_in_its_order(spark: SparkSession) -> None:
    arrow = pa.Table.from_pandas(RAW, preserve_index=False)
    workflow = nightrank.Workflow(PLAIN)
    features = workflow.fit(RAW).transform(RAW, keep=["when"])
    assert isinstance(features, pd.DataFrame)
    assert features.index.equals(RAW.index)
    assert features["when"].equals(RAW["when"])
    check(pa.Table.from_pandas(features, preserve_index=False))
    version = workflow.version
    for rows, kind in ((arrow, pa.Table), (pl.from_arrow(arrow), pl.DataFrame)):
        again = nightrank.Workflow(PLAIN)
        fitted = again.fit_transform(rows, keep=["when"])
        assert again.version == version
        assert isinstance(fitted, kind)
        table_of = fitted if isinstance(fitted, pa.Table) else fitted.to_arrow()
        assert table_of.column_names[0] == "when"
        check(table_of)
        without: Any = again.fit_transform(rows)
        assert isinstance(without, kind)
        check(without if isinstance(without, pa.Table) else without.to_arrow())
    batch = arrow.to_batches()[0]
    check(nightrank.Workflow(PLAIN).fit(batch).transform(batch, keep=["when"]))
    frame = spark_rows(spark)
    of_spark = nightrank.Workflow(PLAIN)
    result = of_spark.fit(frame).transform(frame, keep=["place"])
    assert of_spark.version == version
    assert result.columns == ["place", "user", "price", "tags"]
    collected = result.orderBy("place").collect()
    check(pa.table({name: [row[name] for row in collected] for name in ("user", "price", "tags")}))
    check_types = {field.name: field.dataType.simpleString() for field in result.schema.fields}
    assert check_types == {"place": "bigint", "user": "int", "price": "float", "tags": "array<int>"}


def spark_rows(spark: SparkSession) -> Any:
    """RAW in two Spark partitions, with the position of each row."""
    users = [7, 7, 2**60 + 1, None, 2**60 + 1]
    prices = [1.5, None, 3.0, -2.0, 0.0]
    rows = list(zip(range(5), users, prices, RAW["tags"], strict=True))
    schema = "place long, user long, price double, tags array<string>"
    return spark.createDataFrame(rows, schema).repartitionByRange(2, "place")


def test_frames_of_spark_have_errors_before_tasks_start(spark: SparkSession) -> None:
    frame = spark_rows(spark)
    workflow = nightrank.Workflow(PLAIN).fit(frame)
    with pytest.raises(nightrank.DataError, match=r"the rows lack the columns \['tags'\]"):
        workflow.transform(frame.drop("tags"))
    with pytest.raises(nightrank.DataError, match="column price has the type string"):
        workflow.transform(frame.selectExpr("user", "'x' as price", "tags"))
    with pytest.raises(
        nightrank.ConfigError, match=r"`keep` contains \['user'\], but features have these names"
    ):
        workflow.transform(frame, keep=["user"])
    with pytest.raises(nightrank.DataError, match="no rows"):
        nightrank.Workflow(PLAIN).fit(frame.where("place < 0"))
    encoding = {"columns": ["user"], "kind": "dense", "ops": [{"target_encoding": {"target": "price"}}]}
    with pytest.raises(nightrank.ConfigError, match="target_encoding needs the positions"):
        nightrank.Workflow([encoding]).fit_transform(frame)
    rows = nightrank.Workflow(PLAIN).fit_transform(frame, keep=["place"]).collect()
    assert sorted(row["place"] for row in rows) == [0, 1, 2, 3, 4]


def test_features_are_written_as_in_a_configuration() -> None:
    text = """
    features:
      - columns: ["I{1..2}"]
        kind: dense
        ops: [{fill: {value: 1}}, log1p]
    """
    rows = pd.DataFrame({"I1": [1, 2], "I2": [3, 4]})
    group = {"columns": ["I1", "I2"], "kind": "dense", "ops": [{"fill": {"value": 1}}, "log1p"]}
    pipeline = (["a"] >> Categorify(min_count=2)).feature("categorical")
    assert nightrank.Workflow(text).fit(rows).version == nightrank.Workflow([group]).fit(rows).version
    encoded = nightrank.Workflow([pipeline]).fit(pd.DataFrame({"a": ["x", "x", "y"]}))
    assert encoded.transform(pd.DataFrame({"a": ["y", "x"]}))["a"].tolist() == [2, 3]


def group_of(ops: Any = ("categorify",), column: str = "a", kind: str = "categorical") -> dict[str, Any]:
    return {"columns": [column], "kind": kind, "ops": list(ops)}


@pytest.mark.parametrize(
    "features, more, message",
    [
        ([], {}, "features is"),
        ("columns: [", {}, "features is not YAML"),
        ({"columns": ["a"]}, {}, "must be a list of groups"),
        (["categorify"], {}, "a group must be a mapping"),
        ([{**group_of(), "op": []}], {}, r"features\[0\]: unknown key op"),
        ([group_of(["categorise"])], {}, "unknown operator 'categorise'"),
        ([group_of([{"categorify": {"min_count": 0}}])], {}, "min_count"),
        ([group_of()], {"types": {"b": "int"}}, r"`types` contains \['b'\]"),
        ([group_of()], {"types": {"a": "integer"}}, "unknown types"),
        ([group_of()], {"types": ["a"]}, "types is .* must be a mapping"),
    ],
)
def test_wrong_features_are_refused_at_once(features: Any, more: Any, message: str) -> None:
    with pytest.raises(nightrank.ConfigError, match=message):
        nightrank.Workflow(features, **more)


@pytest.mark.parametrize(
    "group, rows, error, message",
    [
        (group_of(), {"b": [1]}, "DataError", r"the rows lack the columns \['a'\]"),
        (group_of(), {"a": [None, None]}, "DataError", "column a has only nulls, so its type is not known"),
        (group_of(), {"a": [timedelta(hours=1)]}, "DataError", "column a has the type duration"),
        (group_of(), {"a": [1.0, None]}, "ConfigError", "categorify takes .* but a is float"),
        (group_of(), {"a": [1, "x"]}, "DataError", "column a has values of different types"),
        (group_of(), {"a": [2**70]}, "DataError", "column a .dtype object. cannot be converted to Arrow"),
        (group_of(), {"a": ["\ud800"]}, "DataError", "column a .dtype object. cannot be converted to Arrow"),
        (group_of(), {"a": [1j]}, "DataError", "column a .dtype complex128. cannot be converted to Arrow"),
        (group_of(), {"a": []}, "DataError", "the frame has no rows"),
        (group_of(column="label"), {"label": [1]}, "ConfigError", "which is the label"),
        (group_of(["normalize"], kind="dense"), {"a": ["x"]}, "ConfigError", "normalize takes columns of type"),
        (group_of(["winsorize"], kind="dense"), {"a": [np.nan]}, "DataError", "null in all training rows"),
        (group_of(["normalize"], kind="dense"), {"a": [2.0**69]}, "DataError", "the mean of a"),
        (group_of(["target_encoding"], kind="dense"), {"a": ["x"]}, "DataError", r"lack the columns \['label'\]"),
        (group_of([{"target_encoding": {"target": "t"}}], kind="dense"), {"a": ["x"], "t": ["y"]}, "ConfigError", "target_encoding needs columns of type int or float"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_named(group: Any, rows: Any, error: str, message: str) -> None:
    workflow = nightrank.Workflow([group])
    with pytest.raises(getattr(nightrank, error), match=message):
        workflow.fit(pd.DataFrame(rows))
    with pytest.raises(nightrank.ConfigError, match="the workflow is not fitted"):
        workflow.transform(pd.DataFrame(rows))


def test_declared_types_make_integers_of_floats_and_texts_of_numbers() -> None:
    rows = pd.DataFrame({"a": [1.0, None, 1.0]})
    workflow = nightrank.Workflow([group_of()], types={"a": "int"})
    assert workflow.fit(rows).transform(rows)["a"].tolist() == [3, 1, 3]
    assert dict(workflow.raw_columns) == {"a": "int"}
    with pytest.raises(nightrank.DataError, match=r"column a, row 0: 1\.5 is not a whole number"):
        workflow.fit(pd.DataFrame({"a": [1.5]}))
    assert dict(workflow.raw_columns) == {"a": "int"}  # a failed fit changes nothing
    halves = pd.DataFrame({"a": np.array([1, np.nan], np.float16)})
    assert workflow.transform(halves)["a"].tolist() == [3, 1]
    assert workflow.transform(pa.Table.from_pandas(halves)).column("a").to_pylist() == [3, 1]
    with pytest.raises(nightrank.DataError, match=r"column a .dtype Int128. cannot be converted to Arrow"):
        workflow.transform(pl.DataFrame({"a": pl.Series([1], dtype=pl.Int128)}))
    numbers = pd.DataFrame({"a": [17, 18]})
    texts = nightrank.Workflow([group_of()], types={"a": "string"}).fit(numbers)
    assert texts.transform(pd.DataFrame({"a": ["18"]}))["a"].tolist() == [4]


def test_a_text_is_no_list_of_names() -> None:
    """Its characters would be taken for names."""
    rows = pd.DataFrame({"a": ["x"]})
    workflow = nightrank.Workflow([group_of()]).fit(rows)
    with pytest.raises(nightrank.ConfigError, match="features is the text 'a', not a list"):
        workflow.encode(rows, "a")
    with pytest.raises(nightrank.ConfigError, match="keep is the text 'a', not a list"):
        workflow.transform(rows, keep="a")


def test_files_that_cannot_be_written_or_read_are_named(tmp_path: Path) -> None:
    workflow = nightrank.Workflow([group_of()]).fit(pd.DataFrame({"a": ["x"]}))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(nightrank.InfrastructureError, match=r"cannot write .*/file/"):
        workflow.save(file)
    workflow.save(tmp_path / "saved")
    with pytest.raises(nightrank.DataError, match="has no workflow other") as caught:
        nightrank.Workflow.load(tmp_path / "saved", "other")
    assert caught.value.remedy == f"choose from ['{workflow.version}']"
    (vocabulary,) = (tmp_path / "saved/_data").rglob("*.parquet")
    loaded = nightrank.Workflow.load(tmp_path / "saved")
    vocabulary.write_bytes(vocabulary.read_bytes()[:-9])
    with pytest.raises(nightrank.DataError, match="is damaged: it has"):
        loaded.transform(pd.DataFrame({"a": ["x"]}))
    vocabulary.unlink()
    with pytest.raises(nightrank.DataError, match="does not exist although a manifest names it"):
        loaded.transform(pd.DataFrame({"a": ["x"]}))


def test_unfitted_workflows_say_so(tmp_path: Path) -> None:
    workflow = nightrank.Workflow(PLAIN)
    assert repr(workflow) == "Workflow(not fitted, 3 groups of features)"
    for use in (
        lambda: workflow.version,
        lambda: workflow.spec,
        lambda: workflow.raw_columns,
        lambda: workflow.encode(RAW),
        lambda: workflow.transform(RAW),
        lambda: workflow.save(tmp_path),
    ):
        with pytest.raises(nightrank.ConfigError, match="the workflow is not fitted"):
            use()
    with pytest.raises(nightrank.ConfigError, match=r"builtins\.list is not a frame"):
        workflow.fit([1])  # type: ignore[arg-type]
    with pytest.raises(nightrank.ConfigError, match=r"`keep` contains \['none'\]"):
        workflow.fit(RAW).transform(RAW, keep=["none"])


def test_saved_workflows_are_read_and_saved_again(tmp_path: Path) -> None:
    train, others = (as_table(rows_of_day(day, 70, 2)) for day in (DAYS[0], TEST_DAY))
    workflow = new_workflow().fit(train)
    workflow.save(tmp_path / "a")
    workflow.save(tmp_path / "a")
    loaded = nightrank.Workflow.load(tmp_path / "a")
    loaded.save(tmp_path / "b")
    again = nightrank.Workflow.load(str(tmp_path / "b"), workflow.version)
    for other in (loaded, again):
        assert other.version == workflow.version
        assert other.spec == workflow.spec
        assert values_of(other.transform(others)) == values_of(workflow.transform(others))
    ids = {"C2": range(3, 9)}
    assert loaded._require_fitted().decode_ids(ids) == workflow._require_fitted().decode_ids(ids)
    assert len(workflow._require_fitted().decode_ids(ids)["C2"]) > 2
    with pytest.raises(nightrank.ConfigError, match="was loaded, so it cannot be fitted"):
        loaded.fit(train)
    nightrank.Workflow(PLAIN).fit(RAW).save(tmp_path / "a")
    with pytest.raises(nightrank.ConfigError, match="has several workflows"):
        nightrank.Workflow.load(tmp_path / "a")
    with pytest.raises(nightrank.DataError, match="has no workflow"):
        nightrank.Workflow.load(tmp_path / "nothing")
    with pytest.raises(nightrank.DataError, match="has no workflow none"):
        nightrank.Workflow.load(tmp_path / "a", "none")
    (tmp_path / "lake/datasets/dt=2026-01-01").mkdir(parents=True)
    with pytest.raises(nightrank.ConfigError, match="is a lake, to which only jobs write"):
        workflow.save(tmp_path / "lake")


def test_tables_without_rows_are_saved(tmp_path: Path) -> None:
    groups = [
        {"columns": ["a"], "kind": "dense", "ops": ["join_groupby"]},
        {"columns": ["b"], "kind": "categorical", "ops": ["categorify"]},
    ]
    rows = pd.DataFrame(
        {"a": pd.Series([None, None], dtype="string"), "b": pd.Series([None, ""], dtype="string")}
    )
    workflow = nightrank.Workflow(groups, types={"a": "string", "b": "string"}).fit(rows)
    other = pd.DataFrame({"a": ["x"], "b": ["y"]})
    workflow.save(tmp_path / "a")
    nightrank.Workflow.load(tmp_path / "a").save(tmp_path / "b")
    for folder in "ab":
        features = nightrank.Workflow.load(tmp_path / folder).transform(other)
        assert features.to_dict("list") == {"a_count": [0.0], "b": [2]}


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(
        st.integers(-(2**40), 2**40) | st.floats(-1e25, 1e25) | st.sampled_from([4e30, 5.9e30, 6e30, -0.0]),
        min_size=1,
        max_size=30,
    ),
    size=st.integers(1, 4),
)
def test_sums_of_groups_are_exact(values: list[float], size: int) -> None:
    """As sums of Python's integers, in any order. The exact limit of large numbers is a power of ten."""
    numbers = np.array(values, np.float64)
    groups = np.arange(len(numbers)) % size
    sums = GroupedNumbers(numbers, groups, size).exact_sums().to_pylist()
    backwards = GroupedNumbers(numbers[::-1], groups[::-1], size).exact_sums().to_pylist()
    assert sums == backwards
    for group in range(size):
        units = [int(Decimal(repr(float(np.rint(value * 2.0**24))))) for value in numbers[groups == group]]
        fits = all(abs(unit) < 10**38 for unit in [*units, sum(units)])
        assert sums[group] == (float(sum(units)) / 2**24 if fits else None)


FIT_WITHOUT_SPARK = """
import sys
sys.modules["pyspark"] = None  # an import of it would fail
import pandas as pd
import nightrank
rows = pd.DataFrame({"a": ["x", "y", "x"], "n": [1.5, None, 2.0], "label": [1, 0, 1]})
groups = [
    {"columns": ["a"], "kind": "categorical", "ops": ["categorify"]},
    {"columns": ["a"], "kind": "dense", "ops": ["target_encoding"]},
    {"columns": ["n"], "kind": "dense", "ops": ["fill_median", "winsorize", "normalize"]},
]
workflow = nightrank.Workflow(groups)
features = workflow.fit_transform(rows)
workflow.save(sys.argv[1])
print(nightrank.Workflow.load(sys.argv[1]).transform(rows)["a"].tolist(), "torch" in sys.modules)
"""


@pytest.mark.processes
def test_spark_is_not_needed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIT_WITHOUT_SPARK, str(tmp_path / "w")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[3, 4, 3] False"


def test_the_row_of_a_day_is_no_column() -> None:
    """The internal columns of feature tables are not read from a frame."""
    rows = as_table(rows_of_day(DAYS[0], 30, 4))
    group = EXAMPLES["target_encoding"][0].group()
    plain = new_workflow([group]).fit_transform(rows)
    noise = rows.append_column("row_id", pa.array(np.zeros(30, np.int64))).append_column(DAY, pa.nulls(30))
    assert new_workflow([group]).fit_transform(noise).equals(plain)


def test_ids_are_decoded_to_their_values() -> None:
    rows = pd.DataFrame(
        {
            "city": ["a", "b", "a", None, "b", "a", "c"],
            "tags": [["x", "y"], None, [], ["x"], ["z"], ["x"], ["y"]],
        },
        index=range(10, 17),
    )
    groups = [
        {"columns": ["city"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
        {"columns": ["tags"], "kind": "multi_hot", "ops": [{"categorify": {"min_count": 1}}]},
    ]
    workflow = nightrank.Workflow(groups).fit(rows)
    features: Any = workflow.encode(rows)
    expected = pd.Series(["a", "b", "a", None, "b", "a", None], rows.index, name="city")  # c is rare
    pd.testing.assert_series_equal(workflow.decode("city", features["city"]), expected)
    assert workflow.decode("city", features["city"].to_numpy()) == expected.to_list()
    assert workflow.decode("city", [3, 4]) == ["a", "b"]
    assert workflow.decode("city", []) == []
    polars: Any = workflow.encode(pl.from_pandas(rows))
    assert workflow.decode("city", polars["city"]).equals(pl.Series("city", expected.to_list()))
    arrow: Any = workflow.encode(pa.Table.from_pandas(rows))
    assert workflow.decode("city", arrow["city"]).to_pylist() == expected.to_list()
    assert workflow.decode("city", pa.chunked_array([], pa.int32())).to_pylist() == []
    assert [value or [] for value in workflow.decode("tags", arrow["tags"]).to_pylist()] == [
        value or [] for value in rows["tags"]
    ]


@pytest.mark.parametrize(
    "feature, ids, message",
    [
        ("town", [3], "the workflow has no feature 'town'"),
        ("n", [3], "n has no vocabulary"),
        ("city", [5], "city: the id 5 is not from 0 to 4"),
        ("city", [-1], "city: the id -1 is not from 0 to 4"),
        ("city", [3, None], "city: there are missing ids"),
        ("city", ["a"], "city: there are values of the type string"),
        ("city", [3, "a"], "have different types"),
    ],
)
def test_ids_that_do_not_exist_are_refused(feature: str, ids: list[Any], message: str) -> None:
    rows = pd.DataFrame({"city": ["a", "b"], "n": [1.0, 2.0]})
    groups = [
        {"columns": ["city"], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]},
        {"columns": ["n"], "kind": "dense", "ops": ["normalize"]},
    ]
    workflow = nightrank.Workflow(groups).fit(rows)
    with pytest.raises((nightrank.ConfigError, nightrank.DataError), match=message):
        workflow.decode(feature, ids)
