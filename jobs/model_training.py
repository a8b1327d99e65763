"""Trains a model for a run date. The jobs train_model, train_retriever and refit_model call it."""

from __future__ import annotations

import logging
from typing import Any

from conf.messages import counted
from conf.types import Config
from etl.workflow.fitted_workflow import load_local
from jobs.checks import check_training
from reporting.terminal import TrainingBar
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.launch import train_plan
from training.loop.training_plan import TrainPlan, make_plan
from training.registry import mlflow_mirror
from training.registry.model_json import is_complete, read_description
from training.registry.training_leftovers import delete_training_leftovers
from training.registry.versions import record_run

log = logging.getLogger("nightrank.train_model")


def train(context: RunContext, config: Config) -> JobSummary:
    """Trains a model if its version does not exist yet. Records the version for the run date.

    Args:
        context: the context of the job, with its run date and its lake.
        config: the configuration with the name, the model and the training settings. It is the configuration
            of the job, or a changed copy.
    """
    mlflow_mirror.prepare(context.lake)
    with context.phase("plan"):
        plan = make_plan(config, context.lake, read_dataset(context.lake, context.run_date))
        check_training(config)
    description = execute(context, plan)
    record_run(context.lake, config.name, context.run_date, description["version"])
    delete_training_leftovers(context.lake, config.name, config.output.grace_hours)
    with context.phase("track"):
        mlflow_mirror.track_training(
            context.lake,
            description,
            config.model_dump(include={"model", "train"}),
            lambda: load_local(context.lake, description["workflow_version"]).raw_types(),
        )
    # The number of epochs is not an integer if `train.stop_at` ended training.
    epochs = description["steps"] / plan.steps_per_epoch
    return JobSummary(
        output=plan.model_path,
        rows_in=plan.rows,
        facts={
            "version": description["version"],
            "parent": description["parent"],
            **{
                key: description["metrics"]["validation"][key]
                for key in ("auc", "log_loss", "normalized_entropy")
            },
            "test": description["metrics"]["test"],
            "baselines": description["baselines"],
            "train_rows": description["train_rows"],
            "steps": description["steps"],
            **{f"kept_{key}": value for key, value in description["kept"].items() if key != "best_step"},
            "best_step": description["kept"]["best_step"],
            "train_s": description["seconds"],
            "rows_per_s": round(epochs * description["train_rows"] / description["seconds"]),
        },
    )


def execute(context: RunContext, plan: TrainPlan) -> dict[str, Any]:
    """Trains the model of a plan if it does not exist yet. Returns the content of model.json."""
    if is_complete(plan.model_path, checksums=True):
        log.info(
            "model version %s was trained before: configuration, data, code and start model are the same",
            plan.description["version"],
        )
        description = read_description(plan.model_path)
    else:
        log.info(
            "trains %s: %s, %s of %s in %s",
            plan.model.architecture,
            counted(sum(file.rows for file in plan.train_files), "row"),
            counted(plan.steps_per_epoch * plan.train.epochs, "step"),
            counted(plan.train.global_batch_size, "row"),
            counted(plan.train.epochs, "epoch"),
        )
        with context.phase("train"), TrainingBar() as bar:
            description = train_plan(lambda: context.spark, plan, bar.show)
    context.recorder.record_write(plan.model_path, description["version"])
    return description
