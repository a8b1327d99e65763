"""Workflows with the examples of operators, fitted once for all tests that look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from etl.ops import OPERATORS
from etl.split.time_split import DAY
from tests.etl.ops.case import GROUPS, Case
from tests.etl.ops.examples import EXAMPLES
from tests.etl.ops.rows import DAYS, TEST_DAY, by_day, fit_rows, make_config, make_rows, to_spark


@pytest.fixture(scope="session")
def case(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Every example."""
    return _fitted(spark, tmp_path_factory.mktemp("case"), GROUPS, seed=1, sizes=(90, 60, 40, 60))


@pytest.fixture(scope="session", params=[1, 2], ids=lambda seed: f"seed{seed}")
def any_case(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    """The same, and one of hardly a row, without the tables of statistics a key, which take longest."""
    if request.param == 1:
        return request.getfixturevalue("case")
    plain = [
        name for name, (operator, _) in OPERATORS.items() if operator.needs not in ("groups", "external")
    ]
    groups = [example.group() for name in plain for example in EXAMPLES[name]]
    return _fitted(spark, tmp_path_factory.mktemp("case"), groups, request.param, sizes=(7, 1, 3, 9))


def _fitted(
    spark: SparkSession, folder: Path, groups: Sequence[Mapping[str, Any]], seed: int, sizes: Sequence[int]
) -> Case:
    config = make_config(folder, groups)
    days = zip((*DAYS, TEST_DAY), sizes, strict=True)
    rows = [row for day, size in days for row in make_rows(day, size, seed)]
    workflow = fit_rows(spark, config, by_day(spark, [row for row in rows if row[DAY] != TEST_DAY]))
    return Case(groups, config, workflow, rows, to_spark(spark, rows).persist())
