"""No operator makes an infinite feature, or NaN, of any value that a row may hold, in either engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from etl.operators.normalize import FittedNormalize
from etl.operators.normalize_min_max import FittedNormalizeMinMax
from etl.ops import frame_operator_from_config, operator_from_config
from etl.ops.base import Fitted
from etl.ops.tables import LocalTables, Tables
from etl.ops.training_statistics import Moments, Statistics
from etl.workflow.chains import FittedChain
from storage.feature_spec import FLOAT32_MAX
from storage.manifest import FileEntry
from storage.paths import Partition
from storage.publish import FINITE, Rules, VerifiedFile, verify

EXTREME = [0.0, -0.0, 1.0, -1.0, 5e-324, -5e-324, 1e-38, 1e18, -1e18, FLOAT32_MAX, -FLOAT32_MAX, 3e38, -3e38]
NUMBER = st.none() | st.sampled_from(EXTREME) | st.floats(-FLOAT32_MAX, FLOAT32_MAX)
FORMULAS = ["a ** 30", "a * b", "a / b", "a - b", "exp(a)", "-a ** 3 + b", "log(a) / b", "sqrt(a) * 1e38"]


def _bound(entry: Any, statistics: Statistics, *names: str) -> list[Fitted]:
    operator = operator_from_config(entry)
    return [operator.fit(step, statistics) for step in operator.bind(dict.fromkeys(names, "float"))]


def _chains(mean: float, std: float, least: float, span: float) -> list[FittedChain]:
    """One chain an operator that calculates with numbers, its outputs named apart."""
    moments = Statistics(moments=Moments(9, mean, std), quantiles={0.5: least})
    bound = [
        [FittedNormalize(("a",), ("a",), mean, std)],
        [FittedNormalizeMinMax(("a",), ("a",), least, span)],
        [FittedNormalize(("a",), ("a",), mean, std)] * 3,
        [
            *_bound("fill_median", moments, "a"),
            *_bound("log1p", moments, "a"),
            *_bound("normalize", moments, "a"),
        ],
        _bound({"clip": {"max": 3e38}}, moments, "a"),
        _bound({"fill": {"value": -3e38}}, moments, "a"),
        *(
            _bound({"expression": {"output": "a", "formula": formula}}, moments, "a", "b")
            for formula in FORMULAS
        ),
    ]
    inputs = [("a", "b") if "b" in steps[0].inputs else ("a",) for steps in bound]
    return [
        FittedChain(names, ("float",) * len(names), tuple(steps), ("a",))
        for names, steps in zip(inputs, bound, strict=True)
    ]


def _computed(chain: FittedChain, columns: dict[str, list[float | None]]) -> list[float | None]:
    arrays = [pa.array(columns[name], pa.float64()) for name in chain.inputs]
    return list(chain.compute(arrays, LocalTables({}), {"a": "float32"})["a"].to_pylist())


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    rows=st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=10),
    mean=st.floats(-(2.0**69), 2.0**69),
    std=st.sampled_from([1e-14, 2.0**-24, 1.0]) | st.floats(1e-14, 1e20),
    least=st.floats(-FLOAT32_MAX, FLOAT32_MAX),
    span=st.sampled_from([5e-324, 1e-300, 1.0]) | st.floats(5e-324, FLOAT32_MAX, exclude_min=False),
)
def test_features_are_finite(
    rows: list[tuple[float | None, float | None]], mean: float, std: float, least: float, span: float
) -> None:
    columns = {"a": [a for a, _ in rows], "b": [b for _, b in rows]}
    for chain in _chains(mean, std, least, span):
        values = _computed(chain, columns)
        assert all(value is None or math.isfinite(value) for value in values), chain
        if chain.steps[0].name != "expression":
            nulls = [value is None for value in values]
            assert not any(
                null for null, a in zip(nulls, columns["a"], strict=True) if a is not None and a > -1
            )


def test_both_engines_give_the_same_finite_features(spark: SparkSession) -> None:
    values = [None, *EXTREME]
    pairs = [(a, b) for a in values for b in values]
    rows = spark.createDataFrame(pairs, "a double, b double").coalesce(1)
    columns = {"a": [a for a, _ in pairs], "b": [b for _, b in pairs]}
    chains = [*_chains(1e18, 1e-14, -1.0, 5e-324), *_chains(-FLOAT32_MAX, 0.5, FLOAT32_MAX, 2.0)]
    tables = Tables({}, {}, 0, LocalTables({}))
    expressions = [chain.apply(rows, tables, "t")[1]["a"].cast("float") for chain in chains]
    collected = rows.select(*(value.alias(f"f{place}") for place, value in enumerate(expressions))).collect()
    for place, chain in enumerate(chains):
        mine = [row[f"f{place}"] for row in collected]
        theirs = _computed(chain, columns)
        assert [value is None for value in mine] == [value is None for value in theirs]
        known = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None]
        np.testing.assert_allclose([a for a, _ in known], [b for _, b in known], rtol=1e-6)
        assert all(math.isfinite(a) for a, _ in known)


def test_differences_are_finite(spark: SparkSession) -> None:
    lag = frame_operator_from_config({"difference_lag": {"by": ["k"], "columns": ["x"]}})
    values = [FLOAT32_MAX, -FLOAT32_MAX, FLOAT32_MAX, 1.0, None, 2.0]
    rows = spark.createDataFrame(
        [("k", place, x) for place, x in enumerate(values)], "k string, row_id long, x double"
    )
    differences = (
        lag.apply(rows).orderBy("row_id").select(F.col("x_difference_lag_1").cast("float")).collect()
    )
    limit = float(np.float32(FLOAT32_MAX))
    assert [row[0] for row in differences] == [None, -limit, limit, -limit, None, None]


@pytest.mark.parametrize("low, high", [(-math.inf, 1.0), (0.0, math.inf)])
def test_an_infinite_feature_is_not_published(low: float, high: float) -> None:
    written = VerifiedFile(FileEntry("a.parquet", 2, 1, (2,)), {"x": (0, low, high)})
    with pytest.raises(DataError, match="x is infinite in some rows"):
        verify(Partition("t", "d", "/t"), [written], (("x", "float"),), 2, Rules(["x"], {"x": FINITE}))


@pytest.mark.parametrize(
    "entry", [{"fill": {"value": 1e39}}, {"clip": {"min": -1e300}}, {"clip": {"max": 3.5e38}}]
)
def test_constants_beyond_float32_are_refused(entry: Any) -> None:
    with pytest.raises(ConfigError, match="outside the range of float32"):
        operator_from_config(entry)
