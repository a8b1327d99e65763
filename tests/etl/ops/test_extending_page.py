"""The examples of docs/extending.md are operators and a reader that do what the page says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError
from conf.raw_types import EventTime
from etl.ops import operator_in
from etl.ops.base import Operator
from etl.ops.tables import LocalTables
from etl.ops.training_statistics import Statistics
from etl.readers.base import TableReader
from tests.etl.prepare.tables import assert_same_rows, to_frame
from tests.etl.readers.blocks import read_all
from tests.etl.test_parquet_rows import table_of

# tests/extensions tests the section about packages.
PAGE, _, _ = (
    (Path(__file__).parents[3] / "docs/extending.md")
    .read_text(encoding="utf-8")
    .partition("## From your own package")
)
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
NAMES = ["reciprocal", "subtract_maximum", "count_rows", "feather", "small_network", "focal"]


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    assert len(BLOCKS) == len(NAMES)
    examples = {}
    for name, text in zip(NAMES, BLOCKS, strict=True):
        examples[name] = sys.modules[f"page_{name}"] = ModuleType(f"page_{name}")
        exec(compile(text, f"docs/extending.md {name}", "exec"), examples[name].__dict__)
    yield examples
    for name in NAMES:
        del sys.modules[f"page_{name}"]


def computed(module: ModuleType, statistics: Statistics, values: list[int | None]) -> list[float | None]:
    kind, _ = operator_in(module)
    assert issubclass(kind, Operator)
    operator = kind()
    (step,) = operator.bind({"I1": "int"})
    (result,) = operator.fit(step, statistics).compute([pa.array(values, pa.int64())], LocalTables({}, 0))
    return result.to_pylist()


def test_the_operator_computes_what_its_table_says(modules: dict[str, ModuleType]) -> None:
    assert computed(modules["reciprocal"], Statistics(), [4, 0, None]) == [0.25, None, None]


def test_the_statistic_obeys_the_contract(modules: dict[str, ModuleType]) -> None:
    module = modules["subtract_maximum"]
    statistic = module.Largest()
    rng = np.random.default_rng(3)
    values = rng.integers(-(2**62), 2**62, 50)
    parts = [np.array([], np.int64), *np.split(values, [7, 20])]
    states = [statistic.measure(pa.array(part), np.ones(len(part), np.int64)) for part in parts]
    whole = statistic.measure(pa.array(values), np.ones(50, np.int64))
    for order in (states, states[::-1]):
        merged = b""
        for state in order:
            merged = statistic.merge(merged, state)
        assert merged == whole
    assert all(len(state) <= statistic.max_bytes for state in [*states, whole])
    assert statistic.result(whole) == values.max()
    assert computed(module, Statistics(merged=9), [10, None]) == [1.0, None]


def test_both_forms_of_the_row_operator_agree(modules: dict[str, ModuleType], spark: SparkSession) -> None:
    operator = modules["count_rows"].CountRows(by=["user"])
    assert operator.bind({"user": "string"}) == {"user": "string", "rows_with_key": "int"}
    assert operator.key_columns() == ("user",)
    with pytest.raises(ConfigError, match="unknown columns"):
        operator.bind({"I1": "int"})
    rows = pa.table({"row_id": range(5), "user": ["u", "v", "u", None, None], "label": [0.0] * 5})
    changed = operator.apply_table(rows)
    assert changed.column("rows_with_key").to_pylist() == [2, 1, 2, 2, 2]
    assert_same_rows([changed], operator.apply(to_frame(spark, rows)))


def test_the_reader_reads_its_format(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    reader: type[TableReader] = modules["feather"].Reader
    times = pa.array([1_999_999_999, None, 5], pa.timestamp("ns"))
    path = str(tmp_path / "a.feather")
    columns = {"n": [1.0, 0.5, None], "s": ["a", "", "b"], "at": times, "unlisted": [1, 2, 3]}
    feather.write_feather(pa.table(columns), path)
    table = table_of(n="int", s="string", at="int", gone={"type": "int", "optional": True})
    opened = reader.open(table, (path,), EventTime(column="at", unit="s"))
    rows = read_all(opened, ["n", "s", "at", "gone"])
    assert rows.columns == {
        "n": [1, None, None],
        "s": ["a", None, "b"],
        "at": [1, None, 0],
        "gone": [None] * 3,
    }
    assert rows.reasons == [None, "integer:n", None]
    assert rows.exact == [1_999_999, None, 0]
    assert rows.texts[0].startswith('{"n":1.0,"s":"a"')
    with pytest.raises(DataError, match=r"has no columns \['x'\]"):
        reader.open(table_of(x="int"), (path,))
    with pytest.raises(ConfigError, match="'at' has the type timestamp"):
        reader.open(table_of(at="int"), (path,))
    (tmp_path / "b.feather").write_bytes(b"no")
    with pytest.raises(DataError, match="is not an Arrow file"):
        reader.open(table, (str(tmp_path / "b.feather"),))
