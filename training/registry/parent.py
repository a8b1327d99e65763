"""Which model a training starts from, and on which days it trains.

Embeddings overfit rows that they see a second time, and the model would get worse with every run. A
warm-started training therefore runs only over the days of its train split that none of its ancestors trained
on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from conf.errors import DataError
from conf.types import Config, ModelConfig
from storage.dataset import Dataset
from storage.paths import Lake
from training.registry import versions
from training.registry.champion_history import dates_of
from training.registry.model_json import is_described, read_description

log = logging.getLogger("nightrank.training")


@dataclass(frozen=True)
class Parent:
    """A model to start from. `trained_days` are its train days and those of all its ancestors."""

    version: str
    trained_days: frozenset[str]


def find_parent(config: Config, lake: Lake, dataset: Dataset) -> Parent | None:
    """The champion before the run date, if this training starts from it; if not, the log says why.

    Raises:
        DataError: `train.retrain.start` is `warm`, and the training cannot start from the champion.
    """
    champion = versions.champion_as_of(lake, config.name, dataset.run_date, before=True)
    if champion is None:
        log.info("training afresh: there is no champion before %s", dataset.run_date)
        return None
    description = read_description(versions.model_path(lake, config.name, champion))
    parent = Parent(champion, frozenset(description["trained_days"]))
    reason = fresh_start(config, lake, dataset.run_date) or _misfit(config, dataset, description, parent)
    if reason and config.train.retrain.start == "warm":
        raise DataError(
            f"train.retrain.start is warm, and a training on the dataset of {dataset.run_date} cannot start "
            f"from champion {champion}: {reason}",
            "run build_features with workflow.mode=retrain, or set train.retrain.start=auto",
        )
    if reason:
        log.info("training afresh and not from champion %s: %s", champion, reason)
        return None
    log.info("starting from champion %s", champion)
    for day in skipped_days(config, parent, train_days(dataset)):
        log.warning(
            "%s lies between the last day that champion %s learned from and this training's window: no model "
            "learns from it; give split.train_days as many days as lie between two trainings",
            day,
            champion,
        )
    return parent


def fresh_start(config: Config, lake: Lake, run_date: str) -> str | None:
    """Why `train.retrain` demands a fresh training on newly fitted vocabularies; None if it does not.

    A pure function of the configuration and of runs before the run date, so build_features and train_model
    agree, also in a rerun. The period begins with the last fresh training, promoted or not. If it was not
    promoted, the next fresh training follows after the next period, and runs in between start from the
    champion.
    """
    retrain = config.train.retrain
    if retrain.start == "fresh":
        return "train.retrain.start is fresh"
    if retrain.fresh_every_days is None:
        return None
    earliest = (date.fromisoformat(run_date) - timedelta(days=retrain.fresh_every_days)).isoformat()
    for day in reversed(dates_of(lake, config.name, versions.RUNS)):
        if earliest < day < run_date and _was_fresh(lake, config.name, day):
            return None
    days = retrain.fresh_every_days
    return f"the last fresh training is train.retrain.fresh_every_days={days} or more days back"


def _was_fresh(lake: Lake, name: str, run_date: str) -> bool:
    """Whether the training of a run date had no parent."""
    path = versions.model_path(lake, name, versions.challenger_of(lake, name, run_date))
    return is_described(path) and read_description(path)["parent"] is None


def _misfit(config: Config, dataset: Dataset, description: Mapping[str, Any], parent: Parent) -> str | None:
    """Why a training cannot start from this champion; None if it can."""
    configured = config.model.model_dump(mode="json")
    # Settings that did not exist when the champion was trained have their defaults.
    champions = ModelConfig(**description["model"]).model_dump(mode="json")
    if champions != configured:
        return f"its architecture is {champions}, the configuration's {configured}"
    if description["workflow_version"] not in (dataset.workflow_version, dataset.parent_workflow):
        theirs, ours = description["workflow_version"], dataset.workflow_version
        return f"ids of its workflow {theirs} mean other values in {ours}"
    if parent.trained_days >= set(train_days(dataset)):
        return "it has trained on all these days already"
    return None


def skipped_days(config: Config, parent: Parent, days: list[str]) -> list[str]:
    """Days between the parent's last train day and the first of `days`, the train days of this training.

    There are such days if the window moved by more days than it holds.
    """
    if config.split.by != "day" or not parent.trained_days or not days:
        return []
    last, first = date.fromisoformat(max(parent.trained_days)), date.fromisoformat(min(days))
    return [(last + timedelta(days=offset)).isoformat() for offset in range(1, (first - last).days)]


def train_days(dataset: Dataset) -> list[str]:
    """Names of a dataset's train days: see `day_name`."""
    return [day_name(member.dt, member.label) for member in dataset.splits.get("train", ())]


def day_name(dt: str, label: str | None) -> str:
    """The date of a partition, with the split's label if one partition is divided into splits."""
    return dt if label is None else f"{dt}/{label}"
