"""Decides from which model a training run starts, and on which days it trains.

A warm-started training starts from the weights of an earlier model, its parent. The parent and the parent's
ancestors are the ancestors of the new model. If embeddings were trained on the same rows twice, they would
overfit, and the model would get worse with every run. A warm-started training therefore uses only days of its
train split on which no ancestor was trained. No ancestor may have been trained on a validation or test day,
because the model would then be measured on rows that it has already learned.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, assert_never

from conf.errors import DataError
from conf.types import Config, ModelConfig, Scope
from storage.dataset import Dataset
from storage.paths import LakePaths
from training.registry import versions
from training.registry.champion_history import dates_of
from training.registry.model_json import is_described, read_description

log = logging.getLogger("nightrank.training")


@dataclass(frozen=True)
class Parent:
    """A model from whose weights a training run starts.

    Attributes:
        version: the version of this model.
        trained_days: the days on which this model or one of its ancestors was trained.
    """

    version: str
    trained_days: frozenset[str]


def find_parent(
    config: Config, lake: LakePaths, dataset: Dataset, scopes: Mapping[str, Scope] | None = None
) -> Parent | None:
    """Returns the champion before the run date if this training run can start from it, else None.

    If this function returns None, it logs the reason.

    Args:
        config: the configuration.
        lake: the lake.
        dataset: the dataset on which the model is trained.
        scopes: the scope of each feature, if the model computes with scopes. The weights of a champion whose
            features had other scopes would have another meaning. None if the model ignores scopes.

    Raises:
        DataError: `train.retrain.start` is `warm`, but the training cannot start from the champion.
    """
    champion = versions.champion_as_of(lake, config.name, dataset.run_date, before=True)
    if champion is None:
        log.info("training starts from fresh weights: there is no champion before %s", dataset.run_date)
        return None
    description = read_description(versions.model_path(lake, config.name, champion))
    parent = Parent(champion, frozenset(description["trained_days"]))
    reason = fresh_start(config, lake, dataset.run_date) or _misfit(
        config, dataset, scopes or {}, description, parent
    )
    if reason and config.train.retrain.start == "warm":
        # build_features would extend the champion's workflow. This helps only if the dataset was encoded by
        # another workflow.
        helps = config.log.by_day and not _has_workflow_of(description, dataset)
        again = "run build_features with workflow.mode=retrain, or " if helps else ""
        raise DataError(
            f"train.retrain.start is warm, but a training run on the dataset of {dataset.run_date} cannot "
            f"start from champion {champion}: {reason}",
            f"{again}set train.retrain.start=auto",
        )
    if reason:
        log.info("training starts from fresh weights, not from champion %s: %s", champion, reason)
        return None
    log.info("starting from champion %s", champion)
    for day in skipped_days(config, parent, train_days(dataset)):
        log.warning(
            "%s lies between the last day that champion %s learned from and this training's window, so no "
            "model is trained on this day; set split.train_days to at least the number of days between two "
            "training runs",
            day,
            champion,
        )
    return parent


def fresh_start(config: Config, lake: LakePaths, run_date: str) -> str | None:
    """Returns why a retraining must be fresh, with newly fitted vocabularies; None if it can be warm.

    There are three possible reasons. The settings `train.retrain` may require a fresh start. If the path of
    the log has no date, each run reads the whole log, which contains rows on which earlier models were
    trained. The champion may have been trained on validation or test days of this run, so its statistics
    would contain the labels of these days.

    A fresh training run starts from random weights. The result of this function depends only on the
    configuration and on runs before the run date. So build_features and train_model get the same result, even
    in a rerun.

    The period `train.retrain.fresh_every_days` starts at the last fresh training run, even if its model was
    not promoted. If it was not promoted, later training runs start from the champion until the period ends.
    """
    retrain = config.train.retrain
    if retrain.start == "fresh":
        return "train.retrain.start is fresh"
    if not config.log.by_day:
        return (
            f"log.path={config.log.path!r} has no {{date}}, so the log contains the rows on which earlier "
            "models were trained"
        )
    if retrain.start == "warm":
        return None
    if retrain.start != "auto":
        assert_never(retrain.start)
    champion = versions.champion_as_of(lake, config.name, run_date, before=True)
    if champion and config.split.by == "day":
        trained_days = read_description(versions.model_path(lake, config.name, champion))["trained_days"]
        if known := sorted({*_days_that_measure(config, run_date)}.intersection(trained_days)):
            return _learned(known)
    if retrain.fresh_every_days is None:
        return None
    earliest = (date.fromisoformat(run_date) - timedelta(days=retrain.fresh_every_days)).isoformat()
    for day in reversed(dates_of(lake, config.name, versions.RUNS)):
        if earliest < day < run_date and _was_fresh(lake, config.name, day):
            return None
    days = retrain.fresh_every_days
    return f"the last fresh training was train.retrain.fresh_every_days={days} or more days ago"


def _days_that_measure(config: Config, run_date: str) -> list[str]:
    """Returns the validation and test days of a run, the last one first."""
    last = date.fromisoformat(run_date)
    length = config.split.validation_days + config.split.test_days
    return [(last - timedelta(days=back)).isoformat() for back in range(length)]


def _learned(days: list[str]) -> str:
    return f"the champion was trained on days that now measure models, in validation or test: {days}"


def _was_fresh(lake: LakePaths, name: str, run_date: str) -> bool:
    """Returns whether a run date's model was trained from scratch, without a parent model."""
    path = versions.model_path(lake, name, versions.challenger_of(lake, name, run_date))
    return is_described(path) and read_description(path)["parent"] is None


def _misfit(
    config: Config,
    dataset: Dataset,
    scopes: Mapping[str, Scope],
    description: Mapping[str, Any],
    parent: Parent,
) -> str | None:
    """Returns why a training run cannot start from this champion; None if it can."""
    configured = config.model.model_dump(mode="json")
    # Settings that did not exist when the champion was trained get their defaults.
    champions = ModelConfig(**description["model"]).model_dump(mode="json")
    if champions != configured:
        keys = sorted(key for key in {*champions, *configured} if champions.get(key) != configured.get(key))
        theirs, ours = (
            ", ".join(f"{key}={values.get(key)!r}" for key in keys) for values in (champions, configured)
        )
        return f"the champion has the section model with {theirs}, but the configuration has {ours}"
    if not _has_workflow_of(description, dataset):
        theirs, ours = description["workflow_version"], dataset.workflow_version
        return (
            f"the champion was trained on ids of workflow {theirs}, which stand for other values in "
            f"workflow {ours}"
        )
    if scopes and (moved := _moved_features(scopes, description)):
        return (
            f"architecture {config.model.architecture} computes with the scopes of features, and the "
            f"champion was trained with other `scopes`: {moved}"
        )
    if parent.trained_days >= set(train_days(dataset)):
        return "the champion has already been trained on all train days of the dataset"
    held_out = [member for split in ("validation", "test") for member in dataset.splits.get(split, ())]
    known = sorted({day_name(day.dt, day.label) for day in held_out} & parent.trained_days)
    if known:
        return _learned(known)
    return None


def _moved_features(scopes: Mapping[str, Scope], description: Mapping[str, Any]) -> list[str]:
    """Returns a phrase for each feature that had another scope when a model was trained."""
    earlier = {feature["name"]: feature["scope"] for feature in description["feature_spec"]["features"]}
    return [
        f"{name} had scope {earlier[name]} and now has scope {scope}"
        for name, scope in scopes.items()
        if earlier.get(name, scope) != scope
    ]


def _has_workflow_of(description: Mapping[str, Any], dataset: Dataset) -> bool:
    """Returns whether a dataset was encoded by the workflow of a model, or by one that extends it."""
    return description["workflow_version"] in (dataset.workflow_version, dataset.parent_workflow)


def skipped_days(config: Config, parent: Parent, days: list[str]) -> list[str]:
    """Returns the days between the parent's last train day and the first new train day, `days[0]`.

    There are such days if the time between two training runs is longer than the train split.
    """
    if config.split.by != "day" or not parent.trained_days or not days:
        return []
    last, first = date.fromisoformat(max(parent.trained_days)), date.fromisoformat(min(days))
    return [(last + timedelta(days=offset)).isoformat() for offset in range(1, (first - last).days)]


def train_days(dataset: Dataset) -> list[str]:
    """Returns the names of a dataset's train days; see `day_name`."""
    return [day_name(member.dt, member.label) for member in dataset.splits.get("train", ())]


def day_name(dt: str, label: str | None) -> str:
    """Returns a partition's date, and the split's label if the partition is divided into splits."""
    return dt if label is None else f"{dt}/{label}"
