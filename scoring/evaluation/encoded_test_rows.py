"""Encodes the test rows of a run date by the workflow of each model that the gate compares."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from etl.build import encode_split
from etl.workflow.fitted_workflow import load_workflow
from scoring.inputs.feature_rows import read_split
from storage.dataset import Dataset
from storage.run_context import RunContext


def encoded_test_rows(
    spark: SparkSession, context: RunContext, dataset: Dataset, workflow_version: str
) -> DataFrame:
    """Returns the test split of the run date, encoded by the workflow with this version.

    If the dataset was made with this workflow, its published features are read. Otherwise the raw rows are
    encoded again (etl.build.encode_split).
    """
    if workflow_version == dataset.workflow_version:
        return read_split(spark, context.lake, dataset, ["test"])
    config = context.config
    workflow = load_workflow(
        context.lake, workflow_version, config.output.broadcast_max_rows, config.workflow.engine
    )
    return encode_split(spark, config, context.lake, workflow, context.run_date, "test")
