"""Which model a training starts from, and what is left for it to learn.

A champion that already trained on a day does not train on it again: rows seen a second time teach embeddings to
remember them, and the model gets worse night by night although it sees more. So a warm-started training runs over the
days of its train split that none of its ancestors had.
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
    """A model to start from. `trained_days` are the train days of it and of all its ancestors."""

    version: str
    trained_days: frozenset[str]


def find_parent(config: Config, lake: Lake, dataset: Dataset) -> Parent | None:
    """The champion before the run date, if a training on this dataset can and shall start from it; if not, the log says why.

    Raises:
        DataError: `train.retrain.start` is `warm` and it cannot.
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
            f"train.retrain.start is warm, and a training on the dataset of {dataset.run_date} cannot start from champion "
            f"{champion}: {reason}",
            "run build_features with workflow.mode=retrain, or set train.retrain.start=auto",
        )
    if reason:
        log.info("training afresh and not from champion %s: %s", champion, reason)
        return None
    log.info("starting from champion %s", champion)
    for day in skipped_days(config, parent, train_days(dataset)):
        log.warning(
            "%s lies between the last day that champion %s learned from and this training's window: no model learns from it; "
            "give split.train_days as many days as lie between two trainings",
            day,
            champion,
        )
    return parent


def fresh_start(config: Config, lake: Lake, run_date: str) -> str | None:
    """Why the section `train.retrain` wants a training afresh on vocabularies fitted anew; None if it does not.

    A pure function of configuration and of runs before the run date, so build_features and train_model agree on it, also in
    a rerun. It counts from the last fresh training, whether or not that was promoted: one that was not is tried again after
    the next period, and nights between go on from the champion.
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
    return f"the last fresh training is train.retrain.fresh_every_days={retrain.fresh_every_days} or more days back"


def _was_fresh(lake: Lake, name: str, run_date: str) -> bool:
    path = versions.model_path(lake, name, versions.challenger_of(lake, name, run_date))
    return is_described(path) and read_description(path)["parent"] is None


def _misfit(config: Config, dataset: Dataset, description: Mapping[str, Any], parent: Parent) -> str | None:
    """Why a training cannot start from this champion."""
    mine = config.model.model_dump(mode="json")
    theirs = ModelConfig(**description["model"]).model_dump(
        mode="json"
    )  # with the defaults of settings it does not know
    if theirs != mine:
        return f"its architecture is {theirs}, the configuration's {mine}"
    if description["workflow_version"] not in (dataset.workflow_version, dataset.parent_workflow):
        return f"ids of its workflow {description['workflow_version']} mean other values in {dataset.workflow_version}"
    if parent.trained_days >= set(train_days(dataset)):
        return "it has trained on all these days already"
    return None


def skipped_days(config: Config, parent: Parent, mine: list[str]) -> list[str]:
    """Days behind all that the parent learned from and before the window: it slid further than it is long."""
    if config.split.by != "day" or not parent.trained_days or not mine:
        return []
    day, first = date.fromisoformat(max(parent.trained_days)), date.fromisoformat(min(mine))
    between = (first - day).days
    return [(day + timedelta(days=step)).isoformat() for step in range(1, between)]


def train_days(dataset: Dataset) -> list[str]:
    """Names of a dataset's train days: the date, and the label where one partition is cut into splits."""
    return [day_name(member.dt, member.label) for member in dataset.splits.get("train", ())]


def day_name(dt: str, label: str | None) -> str:
    return dt if label is None else f"{dt}/{label}"
