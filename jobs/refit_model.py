"""Refits the model that was promoted on the run date: trains it again on the rows of all three splits."""

from __future__ import annotations

import logging

from conf.errors import ConfigError
from etl.workflow.fitted_workflow import load_local
from jobs.checks import check_training
from jobs.model_training import execute
from jobs.runner import run_job
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.run_context import RunContext
from training.loop.training_plan import make_refit_plan
from training.registry import mlflow_mirror
from training.registry.refits import Refit, promoted_on, record_refit, refit_name
from training.registry.training_leftovers import delete_training_leftovers
from training.registry.versions import set_aliases

DESCRIPTION = (
    "Takes the model that the gate promoted on the run date, and trains it again on the rows of the train, "
    "validation and test splits (train.refit). The resulting model, the refit, makes the lists in place of "
    "the promoted model. If no model was promoted on the run date, the job does nothing."
)

log = logging.getLogger("nightrank.refit_model")


def run(context: RunContext) -> JobSummary:
    """Trains the refit if it does not exist yet. Then writes its record, which makes the refit serve.

    Raises:
        ConfigError: `train.refit` is false, so no job would use the refit.
    """
    lake, config, run_date = context.lake, context.config, context.run_date
    if not config.train.refit:
        raise ConfigError("train.refit is false, so no refit is used", "pass --set train.refit=true")
    champion = promoted_on(lake, config.name, run_date)
    if champion is None:
        log.info("no model was promoted on %s, so there is nothing to refit", run_date)
        return JobSummary(None, facts={"version": None, "refit_of": None})
    mlflow_mirror.prepare(lake)
    with context.phase("plan"):
        check_training(config)
        plan = make_refit_plan(config, lake, read_dataset(lake, run_date), champion)
    description = execute(context, plan)
    record_refit(lake, config.name, Refit(run_date, champion, description["version"]))
    delete_training_leftovers(lake, refit_name(config.name), config.output.grace_hours)
    with context.phase("track"):
        mlflow_mirror.track_training(
            lake,
            description,
            config.model_dump(include={"model", "train"}),
            lambda: load_local(lake, description["workflow_version"]).raw_types(),
        )
        set_aliases(lake, config.name)
    return JobSummary(
        output=plan.model_path,
        rows_in=plan.rows,
        facts={
            **{name: description[name] for name in ("version", "refit_of", "parent", "train_rows", "steps")},
            "train_s": description["seconds"],
        },
    )


if __name__ == "__main__":
    run_job("refit_model", DESCRIPTION, run)
