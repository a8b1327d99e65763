"""Trains the model of a run date on its dataset, from the champion before it on where that fits: the new challenger."""

from __future__ import annotations

import logging

from conf import lineage
from conf.dataset import read_dataset
from conf.types import Config
from jobs.checks import check_training
from jobs.runner import Job, Result, run
from jobs.training_bar import TrainingBar
from training import tracking
from training.description import is_complete, read_description
from training.launch import train_on_ranks
from training.leftovers import delete_leftovers
from training.plan import make_plan
from training.registry import record_run

log = logging.getLogger("nightrank.train_model")


def train_model(job: Job) -> Result:
    """Trains the model of the section `model`."""
    return train(job, job.config)


def train(job: Job, config: Config) -> Result:
    """Trains unless the same version is there already, and records it as what was trained for the run date.

    Args:
        config: whose name, model and settings count; the job's, or one made of it.
    """
    tracking.prepare(job.lake)
    with job.phase("plan"):
        plan = make_plan(config, job.lake, read_dataset(job.lake, job.run_date))
        check_training(config)
    if is_complete(plan.model_path, checksums=True):
        log.info(
            "version %s was trained before: same configuration, data, code and parent",
            plan.description["version"],
        )
        description = read_description(plan.model_path)
    else:
        spark = job.spark
        with job.phase("train"), TrainingBar() as bar:
            description = train_on_ranks(spark, plan, bar.show)
    lineage.writes(plan.model_path, description["version"])
    record_run(job.lake, config.name, job.run_date, description["version"])
    delete_leftovers(job.lake, config.name, config.output.grace_hours)
    with job.phase("track"):
        tracking.track_training(job.lake, description, config.model_dump(include={"model", "train"}))
    return Result(
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
            "train_s": description["seconds"],
            "rows_per_s": round(description["train_rows"] * config.train.epochs / description["seconds"]),
        },
    )


if __name__ == "__main__":
    run("train_model", __doc__ or "", train_model)
