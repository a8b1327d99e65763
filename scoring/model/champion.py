"""Finds a run date's serving model and blend, and checks that both match the tables of the date.

The champion serves, or its refit if one exists: the same model, trained again on the rows of all splits
(training/registry/refits.py). A blend is a set of weights that combine the model's scores with those of the
sources of candidates.
"""

from __future__ import annotations

import logging
from typing import assert_never

from conf.errors import DataError
from conf.types import Split
from scoring.model.model_info import ModelInfo, read_model_info
from scoring.requests import SOURCE_SCORES, BlendRequest
from storage.dataset import Dataset, read_dataset, read_spec
from storage.manifest import Manifest
from storage.run_context import RunContext
from training.registry.blends import BlendKey, BlendRecord, blend_as_of
from training.registry.refits import ServingModel, require_recorded_weights, serving_model
from training.registry.versions import champion_as_of, model_path
from training.registry.warm_or_fresh import day_name

log = logging.getLogger("nightrank.scoring")


def serving_model_and_dataset(
    context: RunContext, *, scored: Split | None = None
) -> tuple[ModelInfo, Dataset]:
    """Returns the model that serves and the dataset of the run date.

    Both must have the same workflow version.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        scored: the split whose rows will be scored, if any. If the refit was trained on a day of this split,
            the champion is returned instead. The reason is that a model fits the labels of its own training
            rows too well.

    Raises:
        DataError: there is no champion or no dataset, their workflow versions differ, or the weights of the
            model have changed since it began to serve.
    """
    lake, name = context.lake, context.config.name
    serving = _serving(context)
    model = _read_model(context, serving.folder(lake, name))
    dataset = read_dataset(lake, context.run_date)
    if scored and serving.refit and _trained_on(model, dataset, scored, by_day=context.config.log.by_day):
        log.info(
            "refit %s was trained on rows of the split %s, so the champion that it refits scores these rows",
            model.version,
            scored,
        )
        model = _read_model(context, model_path(lake, name, serving.champion))
    _require_same_workflow(context, serving.champion, model, dataset)
    return model, dataset


def champion_and_dataset(context: RunContext) -> tuple[ModelInfo, Dataset]:
    """Returns the champion, even if its refit serves, and the dataset of the run date.

    Raises:
        DataError: for the same reasons as in `serving_model_and_dataset`.
    """
    lake, name = context.lake, context.config.name
    version = _serving(context).champion
    model = _read_model(context, model_path(lake, name, version))
    dataset = read_dataset(lake, context.run_date)
    _require_same_workflow(context, version, model, dataset)
    return model, dataset


def _serving(context: RunContext) -> ServingModel:
    """Returns which model serves on the run date. Raises DataError if there is no champion."""
    lake, name = context.lake, context.config.name
    serving = serving_model(context.config, lake, context.run_date)
    if serving is None:
        raise DataError(
            f"{lake.models(name)} has no champion on {context.run_date}",
            "run build_features, train_model and evaluate_model for this date or an earlier one",
        )
    return serving


def _read_model(context: RunContext, path: str) -> ModelInfo:
    """Reads a model. Raises DataError if its weights differ from those recorded when it began to serve."""
    model = read_model_info(path, context.lake.recorder)
    name, until = context.config.name, context.run_date
    require_recorded_weights(context.lake, name, until, path, model.description)
    return model


def _require_same_workflow(context: RunContext, champion: str, model: ModelInfo, dataset: Dataset) -> None:
    """Raises DataError if the model and the dataset have different workflow versions."""
    if model.spec.workflow_version != dataset.workflow_version:
        raise DataError(
            f"champion {champion} needs features of workflow {model.spec.workflow_version}, but "
            f"the dataset of {context.run_date} was made with workflow {dataset.workflow_version}",
            f"run build_features --run-date {context.run_date} --set workflow.mode=apply, "
            "then build_candidates",
        )
    model.require_spec(read_spec(context.lake, dataset.workflow_version))


def _trained_on(refit: ModelInfo, dataset: Dataset, split: Split, *, by_day: bool) -> bool:
    """Returns whether a refit was trained on a day of a dataset's split.

    If the log is not stored by day, the result is true, because each run reads the whole log, and a refit is
    trained on all of its splits.
    """
    if not by_day:
        return True
    days = {day_name(member.dt, member.label) for member in dataset.splits.get(split, ())}
    return not days.isdisjoint(refit.description["trained_days"])


# The code below finds the blend that ranks the lists of a run date, and checks that it matches the
# candidates.


def served_blend(context: RunContext, candidates: Manifest) -> BlendRecord | None:
    """Returns the blend of the champion and the sources of candidates; None without score.blend=auto.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        candidates: the manifest of the candidates of the run date.

    Raises:
        DataError: no blend of this champion and these sources was learned up to the run date.
    """
    config, lake, inputs = context.config, context.lake, candidates.inputs
    if config.score.blend == "none":
        return None
    if config.score.blend != "auto":
        assert_never(config.score.blend)
    champion = champion_as_of(lake, config.name, context.run_date) or ""
    retriever = inputs.get("retriever") if config.candidates.retriever else None
    key = BlendKey(champion, inputs["config"], retriever)
    blend = blend_as_of(lake, config.name, context.run_date, key)
    if blend is None:
        raise DataError(
            f"score.blend=auto: no blend of champion {champion} and of the sources of {candidates.table} "
            f"dt={context.run_date} was learned up to this date",
            f"run learn_blend for {context.run_date}, or set score.blend=none",
        )
    return blend


def blend_request(blend: BlendRecord, candidates: Manifest) -> BlendRequest | None:
    """Returns the blend's weights, which workers use to rank; None if the model alone ranks.

    Raises:
        DataError: the candidates were built without the scores of the sources.
    """
    if blend.weights is None:
        return None
    if SOURCE_SCORES not in dict(candidates.schema):
        raise DataError(
            f"{candidates.table} dt={candidates.partition} has no scores of the sources "
            f"{list(blend.sources)}",
            "run build_candidates again, with score.blend=auto",
        )
    weights, absent = (tuple(blend.weights[name]) for name in ("weights", "absent"))
    return BlendRequest(blend.weights["intercept"], blend.weights["logit"], weights, absent)
