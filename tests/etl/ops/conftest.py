"""A workflow with every operator, fitted once for all tests that look at it."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from etl.split import DAY
from tests.etl.ops.case import GROUPS, Case
from tests.etl.ops.rows import DAYS, TEST_DAY, by_day, fit_rows, make_config, make_rows, to_spark


@pytest.fixture(scope="session", params=[1, 2], ids=lambda seed: f"seed{seed}")
def case(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    config = make_config(tmp_path_factory.mktemp("engines"), GROUPS)
    # Days of different sizes; the second seed has hardly a row.
    sizes = (90, 60, 40, 60) if request.param == 1 else (7, 1, 3, 9)
    days = zip((*DAYS, TEST_DAY), sizes, strict=True)
    rows = [row for day, size in days for row in make_rows(day, size, request.param)]
    workflow = fit_rows(spark, config, by_day(spark, [row for row in rows if row[DAY] != TEST_DAY]))
    return Case(config, workflow, rows, to_spark(spark, rows).persist())
