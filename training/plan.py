"""Everything a rank needs to know, decided by the driver before any rank starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conf import storage
from conf.dataset import Dataset, read_spec, split_partitions
from conf.errors import ConfigError, DataError
from conf.feature_spec import FeatureSpec
from conf.lake import Lake
from conf.load import config_digest
from conf.types import SPLITS, Config, ModelConfig, Split, Train
from training import registry
from training.description import read_description
from training.sharding import DataFile

log = logging.getLogger("nightrank.training")


@dataclass(frozen=True)
class TrainPlan:
    """One training.

    Attributes:
        description: the part of model.json that is known beforehand.
        model, train: sections of the configuration.
        spec: the features' columns.
        splits: split → its files in manifest order.
        model_path: folder the model is written to.
        checkpoint_path: folder of this training's checkpoints.
        parent_path: folder of the model whose weights it starts from; None starts afresh.
    """

    description: Mapping[str, Any]
    model: ModelConfig
    train: Train
    spec: FeatureSpec
    splits: Mapping[Split, tuple[DataFile, ...]]
    model_path: str
    checkpoint_path: str
    parent_path: str | None

    def rows(self, split: Split) -> int:
        return sum(file.rows for file in self.splits[split])


def make_plan(config: Config, lake: Lake, dataset: Dataset) -> TrainPlan:
    """The plan of a run date's training, decided from its dataset and from what was champion before that date.

    Raises:
        ConfigError: the lake is not local.
        DataError: a partition is missing or was replaced, or the train split holds no rows.
    """
    _require_local(lake)
    spec = read_spec(lake, dataset.workflow_version)
    parent = find_parent(config, lake, dataset)
    version = registry.model_version(config, dataset.digest, parent)
    description = {
        "name": config.name,
        "version": version,
        "run_date": dataset.run_date,
        "architecture": config.model.architecture,
        "model": config.model.model_dump(mode="json"),
        "feature_spec": spec.to_json(),
        "workflow_version": dataset.workflow_version,
        "dataset_digest": dataset.digest,
        "config_digest": config_digest(config),
        "code_version": registry.code_version(),
        "parent": parent,
    }
    return TrainPlan(
        description,
        config.model,
        config.train,
        spec,
        _find_files(lake, dataset),
        model_path=_local(registry.model_path(lake, config.name, version)),
        checkpoint_path=_local(lake.checkpoints(version)),
        parent_path=_local(registry.model_path(lake, config.name, parent)) if parent else None,
    )


def find_parent(config: Config, lake: Lake, dataset: Dataset) -> str | None:
    """The champion before the run date, if its weights can start this training; otherwise None, and the log says why."""
    champion = registry.champion_as_of(lake, config.name, dataset.run_date, before=True)
    if champion is None:
        log.info("training afresh: there is no champion before %s", dataset.run_date)
        return None
    parent = read_description(registry.model_path(lake, config.name, champion))
    reason = None
    if not config.train.warm_start:
        reason = "train.warm_start is false"
    elif parent["model"] != config.model.model_dump(mode="json"):
        reason = f"its architecture is {parent['model']}, the configuration's {config.model.model_dump(mode='json')}"
    elif parent["workflow_version"] not in (dataset.workflow_version, dataset.parent_workflow):
        reason = f"ids of its workflow {parent['workflow_version']} have other meanings in {dataset.workflow_version}"
    if reason:
        log.info("training afresh and not from champion %s: %s", champion, reason)
        return None
    log.info("starting from champion %s", champion)
    return champion


def _require_local(lake: Lake) -> None:
    """ConfigError unless the lake is on a file system every rank sees as a local path."""
    if not storage.is_local(lake.root):
        raise ConfigError(
            f"lake={lake.root!r} is not a local path: Petastorm reads files and the ranks write the model there",
            "train on a lake that every executor mounts under the same path",
        )


def _local(path: str) -> str:
    """The absolute path of a local path or file URI: ranks run in folders of their own."""
    return storage.filesystem(path)[1]


def _find_files(lake: Lake, dataset: Dataset) -> dict[Split, tuple[DataFile, ...]]:
    """The files of each split with their rows, from the manifests."""
    found: dict[Split, tuple[DataFile, ...]] = {}
    for split in SPLITS:
        found[split] = tuple(
            DataFile(_local(partition.file(entry.path)), entry.rows)
            for partition, manifest, label in split_partitions(lake, dataset, split)
            for entry in manifest.split_files(label)
            if entry.rows
        )
    if not found["train"]:
        raise DataError(
            f"the train split of dataset {dataset.run_date} holds no rows",
            "run build_features over days that have rows",
        )
    return found
