"""Finds the model that serves on a run date, and checks it against the features of this date.

The champion serves, or its refit if it has one (training/registry/refits.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from conf.errors import ConfigError, DataError
from conf.serving_types import ServingExperiment
from conf.types import Split
from scoring.model.model_info import ModelInfo, read_model_info
from scoring.requests import CONTROL, SOURCE_SCORES, TREATMENT, VARIANT, BlendRequest, require_listable
from spark.rows import Rows, query, quoted, with_hash
from storage.dataset import Dataset, read_dataset, read_spec
from storage.manifest import Manifest, is_published, read_manifest
from storage.run_context import RunContext
from training.registry.blends import BlendKey, BlendRecord, blend_as_of
from training.registry.refits import ServingModel, serving_model
from training.registry.served_experiments import ServedExperiment, served_experiment
from training.registry.versions import champion_as_of, model_path
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
    serving = _serving(context)
    model = read_model_info(serving.folder(lake, name), lake.recorder)
    dataset = read_dataset(lake, context.run_date)
    if scored and serving.refit and _trained_on(model, dataset, scored):
        log.info("refit %s was trained on rows of the split %s: its champion scores", model.version, scored)
        model = read_model_info(model_path(lake, name, serving.champion), lake.recorder)
    _require_same_workflow(context, serving.champion, model, dataset)
    return model, dataset


def champion_and_dataset(context: RunContext) -> tuple[ModelInfo, Dataset]:
    """Returns the champion, even if its refit serves, and the dataset of the run date.

    Raises:
        DataError: as `serving_model_and_dataset`.
    """
    lake, name = context.lake, context.config.name
    version = _serving(context).champion
    model, dataset = (
        read_model_info(model_path(lake, name, version), lake.recorder),
        read_dataset(lake, context.run_date),
    )
    _require_same_workflow(context, version, model, dataset)
    return model, dataset


def _serving(context: RunContext) -> ServingModel:
    """Returns the champion of the run date and its refit. Raises DataError if there is no champion."""
    lake, name = context.lake, context.config.name
    serving = serving_model(context.config, lake, context.run_date)
    if serving is None:
        raise DataError(
            f"{lake.models(name)} has no champion on {context.run_date}",
            "run build_features, train_model and evaluate_model for this date or an earlier one",
        )
    return serving


def _require_same_workflow(context: RunContext, champion: str, model: ModelInfo, dataset: Dataset) -> None:
    """Raises DataError unless the model and the dataset have the same workflow version."""
    if model.spec.workflow_version != dataset.workflow_version:
        raise DataError(
            f"champion {champion} needs features of workflow {model.spec.workflow_version}, but "
            f"the dataset of {context.run_date} was made with workflow {dataset.workflow_version}",
            f"run build_features --run-date {context.run_date} --set workflow.mode=apply, "
            "then build_candidates",
        )
    model.require_spec(read_spec(context.lake, dataset.workflow_version))


def _trained_on(model: ModelInfo, dataset: Dataset, split: Split) -> bool:
    """Returns whether a model was trained on a day of a dataset's split."""
    days = {day_name(member.dt, member.label) for member in dataset.splits.get(split, ())}
    return not days.isdisjoint(model.description["trained_days"])


# Finds the blend that ranks the lists of a run date, and checks it against the candidates.


def served_blend(context: RunContext, candidates: Manifest) -> BlendRecord | None:
    """Returns the blend of the champion and the sources of candidates; None without score.blend=auto.

    Args:
        context: the context of the run.
        candidates: the manifest of the candidates of the run date.

    Raises:
        DataError: no such blend was learned up to the run date.
    """
    config, lake, inputs = context.config, context.lake, candidates.inputs
    if config.score.blend == "none":
        return None
    if config.score.blend != "auto":
        assert_never(config.score.blend)
    champion = champion_as_of(lake, config.name, context.run_date) or ""
    key = BlendKey(champion, inputs["config"], inputs.get("retriever"))
    blend = blend_as_of(lake, config.name, context.run_date, key)
    if blend is None:
        raise DataError(
            f"score.blend=auto: no blend of champion {champion} and of the sources of {candidates.table} "
            f"dt={context.run_date} was learned up to this date",
            f"run learn_blend for {context.run_date}, or set score.blend=none",
        )
    return blend


def blend_request(blend: BlendRecord, candidates: Manifest) -> BlendRequest | None:
    """Returns the weights of a blend for the workers; None if the model alone ranks.

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


# Finds the model of an experiment's treatment, and checks whether it can make lists on the run date.


@dataclass(frozen=True)
class Treatment:
    """The model of the treatment, and the features of its workflow.

    Attributes:
        model: the model.
        users, items: the manifests of the tables `users` and `items` of the run date and of its workflow.
    """

    model: ModelInfo
    users: Manifest
    items: Manifest


def read_treatment(
    context: RunContext, control: ModelInfo
) -> tuple[ServedExperiment | None, Treatment | None]:
    """Returns the experiment of the run date, and its treatment.

    The experiment is None if the configuration has none for the run date. The treatment is None if the
    control serves all users; a warning then says why.

    Args:
        context: the context of the run.
        control: the model of the control.

    Raises:
        ConfigError: the model does not exist or cannot make lists, or build_features did not compute the
            features of its workflow for the run date.
    """
    lake = context.lake
    experiment = served_experiment(context.config, lake, context.run_date)
    if experiment is None or experiment.folder is None:
        if experiment is not None:
            log.warning(
                "experiment %s: the control serves all users, because %s",
                experiment.settings.name,
                experiment.idle_because,
            )
        return experiment, None
    model = read_model_info(experiment.folder, lake.recorder)
    require_listable(model.spec)
    version = model.spec.workflow_version
    partitions = [table.partition(context.run_date) for table in (lake.users(version), lake.items(version))]
    missing = [partition.path for partition in partitions if not is_published(partition)]
    if missing:
        raise ConfigError(
            f"serving.experiment: model {model.version} needs features of workflow {version}, but {missing} "
            "do not exist",
            f"run build_features for {context.run_date} again with this section `serving`, then the jobs "
            "after it; or choose a model of the champion's workflow",
        )
    if control.refit_of and not model.refit_of:
        log.warning(
            "experiment %s: the control is a refit, which was also trained on validation and test days, but "
            "the treatment is not: the difference contains the effect of these days",
            experiment.settings.name,
        )
    return experiment, Treatment(model, *(read_manifest(partition) for partition in partitions))


# Assigns users to the variants of an experiment, by a salted hash of the user.
#
# The hash is XXH64, of the salt and the key. Spark and this process compute the same hash, so the variant of
# a user depends neither on the engine nor on other users. A user is in the treatment if the hash, as a number
# from 0 to 1, is smaller than the share.

_SALTED, _HASH = "salted", "hashed"


def hash_limit(share: float) -> int:
    """Returns the limit of the hashes of a share: smaller hashes, as int64, are those of the treatment."""
    return min(max(round(share * 2**64), 1), 2**64 - 1) - 2**63


def with_variants(
    rows: Rows, key: str, experiment: ServingExperiment | None, columns: Sequence[str] = ()
) -> Rows:
    """Returns some columns of rows of users, and the column `variant`: `control` or `treatment`.

    Args:
        rows: rows with the column `key`.
        key: the column with the key of the user, a text.
        experiment: the salt and the share. With None, all users are in the control.
        columns: the columns to return; none of them is `variant`. Empty: only the key.
    """
    kept = ", ".join(quoted(name) for name in columns or (key,))
    if experiment is None:
        return query(f"SELECT {kept}, '{CONTROL}' AS {VARIANT} FROM {{rows}}", rows=rows)
    salted = query(
        f"SELECT {kept}, concat('{experiment.salted_prefix}', {quoted(key)}) AS {_SALTED} FROM {{rows}}",
        rows=rows,
    )
    return query(
        f"""
        SELECT {kept}, CASE WHEN {_HASH} < {hash_limit(experiment.share)} THEN '{TREATMENT}'
            ELSE '{CONTROL}' END AS {VARIANT}
        FROM {{hashed}}
        """,
        hashed=with_hash(salted, _SALTED, _HASH),
    )
