"""Which model a training starts from, and what is left for it to learn.

A champion that already trained on a day does not train on it again: rows seen a second time teach embeddings to
remember them, and the model gets worse night by night although it sees more. So a warm-started training runs over the
days of its train split that none of its ancestors had.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from conf.dataset import Dataset
from conf.lake import Lake
from conf.types import Config, ModelConfig
from training import registry
from training.description import read_description

log = logging.getLogger("nightrank.training")


@dataclass(frozen=True)
class Parent:
    """A model to start from. `trained_days` are the train days of it and of all its ancestors."""

    version: str
    trained_days: frozenset[str]


def find_parent(config: Config, lake: Lake, dataset: Dataset) -> Parent | None:
    """The champion before the run date, if a training on this dataset can start from it; if not, the log says why."""
    champion = registry.champion_as_of(lake, config.name, dataset.run_date, before=True)
    if champion is None:
        log.info("training afresh: there is no champion before %s", dataset.run_date)
        return None
    description = read_description(registry.model_path(lake, config.name, champion))
    parent = Parent(champion, frozenset(description["trained_days"]))
    mine = config.model.model_dump(mode="json")
    reason = None
    if not config.train.warm_start:
        reason = "train.warm_start is false"
    elif (theirs := ModelConfig(**description["model"]).model_dump(mode="json")) != mine:
        reason = f"its architecture is {theirs}, the configuration's {mine}"
    elif description["workflow_version"] not in (dataset.workflow_version, dataset.parent_workflow):
        reason = f"ids of its workflow {description['workflow_version']} mean other values in {dataset.workflow_version}"
    elif parent.trained_days >= set(train_days(dataset)):
        reason = "it has trained on all these days already"
    if reason:
        log.info("training afresh and not from champion %s: %s", champion, reason)
        return None
    log.info("starting from champion %s", champion)
    return parent


def train_days(dataset: Dataset) -> list[str]:
    """Names of a dataset's train days: the date, and the label where one partition is cut into splits."""
    return [day_name(member.dt, member.label) for member in dataset.splits.get("train", ())]


def day_name(dt: str, label: str | None) -> str:
    return dt if label is None else f"{dt}/{label}"
