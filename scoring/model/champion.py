"""Finds the model that serves on a run date, and checks it against the features of this date.

The champion serves, or its refit if it has one (training/registry/refits.py).
"""

from __future__ import annotations

import logging

from conf.errors import DataError
from conf.types import Split
from scoring.model.model_info import ModelInfo, read_model_info
from storage.dataset import Dataset, read_dataset, read_spec
from storage.run_context import RunContext
from training.registry.refits import serving_model
from training.registry.versions import model_path
from training.registry.warm_or_fresh import day_name

log = logging.getLogger("nightrank.scoring")


def serving_model_and_dataset(
    context: RunContext, *, scored: Split | None = None
) -> tuple[ModelInfo, Dataset]:
    """Returns the model that serves and the dataset of the run date.

    Both must have the same workflow version.

    Args:
        context: the context of the job.
        scored: the split whose rows will be scored, if any. If the refit was trained on one of its days, the
            champion is returned instead, because probabilities of rows that a model was trained on are too
            close to their labels.

    Raises:
        DataError: there is no champion or no dataset. Or the dataset was made with another workflow version
            than the champion.
    """
    lake, name = context.lake, context.config.name
    serving = serving_model(context.config, lake, context.run_date)
    if serving is None:
        raise DataError(
            f"{lake.models(name)} has no champion on {context.run_date}",
            "run build_features, train_model and evaluate_model for this date or an earlier one",
        )
    model = read_model_info(serving.folder(lake, name), lake.recorder)
    dataset = read_dataset(lake, context.run_date)
    if scored and serving.refit and _trained_on(model, dataset, scored):
        log.info("refit %s was trained on rows of the split %s: its champion scores", model.version, scored)
        model = read_model_info(model_path(lake, name, serving.champion), lake.recorder)
    if model.spec.workflow_version != dataset.workflow_version:
        raise DataError(
            f"champion {serving.champion} needs features of workflow {model.spec.workflow_version}, but "
            f"the dataset of {context.run_date} was made with workflow {dataset.workflow_version}",
            f"run build_features --run-date {context.run_date} --set workflow.mode=apply, "
            "then build_candidates",
        )
    model.require_spec(read_spec(lake, dataset.workflow_version))
    return model, dataset


def _trained_on(model: ModelInfo, dataset: Dataset, split: Split) -> bool:
    """Returns whether a model was trained on a day of a dataset's split."""
    days = {day_name(member.dt, member.label) for member in dataset.splits.get(split, ())}
    return not days.isdisjoint(model.description["trained_days"])
