"""Encodes the test rows of a run date by the workflow of each model that the gate compares."""

from __future__ import annotations

from functools import partial

from etl.build import encode_split
from etl.workflow.feature_plan import plan_of
from etl.workflow.fitted_workflow import load_workflow
from scoring.inputs.feature_rows import read_split
from spark.choose_workers import choose_workers
from spark.rows import ReadableRows, read_in_pieces
from storage.dataset import Dataset
from storage.run_context import RunContext


def encoded_test_rows(context: RunContext, dataset: Dataset, workflow_version: str) -> ReadableRows:
    """Returns the test split of the run date, encoded by the workflow with this version.

    If the dataset was made with this workflow, its published features are read. Otherwise the raw rows are
    encoded again (etl.build.encode_split).
    """
    if workflow_version == dataset.workflow_version:
        return read_split(context, dataset, ["test"])
    config = context.config
    engine = config.workflow.engine
    workers = choose_workers(engine, lambda: context.spark)
    workflow = load_workflow(
        context.lake, workflow_version, config.output.broadcast_max_rows, engine, workers
    )
    read = partial(read_in_pieces, context)
    return encode_split(workers, plan_of(config), context.lake, workflow, context.run_date, "test", read)
