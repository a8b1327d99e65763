"""Every operator, by itself, would run on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from etl.ops import OPERATORS
from etl.workflow.fitted_workflow import FittedWorkflow, load_workflow
from storage.dataset import read_dataset
from storage.paths import LakePaths
from tests.plans import examples, runs
from tests.plans.accelerator import Accelerator
from tests.plans.allowed import read_list, refused
from tests.plans.recorder import Frame, Recorded


def test_every_operator_has_an_example() -> None:
    assert set(examples.EXAMPLES) == set(OPERATORS), "add an entry to EXAMPLES in tests/etl/ops/examples.py"


@pytest.fixture(scope="module")
def workflow(recorded: Callable[[str], Recorded], spark: SparkSession) -> FittedWorkflow:
    """The workflow of all examples, fitted by build_features."""
    lake = LakePaths(runs.operators_config(recorded("operators").folder).lake)
    version = read_dataset(lake, runs.DAYS[-1]).workflow_version
    return load_workflow(lake, version, engine="sql")


@pytest.fixture(scope="module")
def raw_rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    path: Path = tmp_path_factory.mktemp("typed") / "rows.parquet"
    examples.write_typed(path)
    return spark.read.parquet(str(path))


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_an_operator_runs_on_the_gpu(
    operator: str, accelerator: Accelerator, workflow: FittedWorkflow, raw_rows: DataFrame
) -> None:
    explained = accelerator.explain(examples.encoded(workflow, raw_rows, operator))
    assert refused([Frame(operator, "", explained)], read_list()) == []
