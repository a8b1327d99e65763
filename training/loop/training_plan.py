"""The plan of a training. The driver creates it before any rank starts."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, assert_never

from conf.errors import DataError
from conf.load import config_digest
from conf.types import SPLITS, Config, ModelConfig, Split, Train
from storage import file_io
from storage.dataset import Dataset, id_features_of, read_spec, require_labels, split_partitions
from storage.feature_spec import FeatureSpec
from storage.id_counts import IdCounts, find_id_counts
from storage.paths import Lake
from training.data.sharding import DataFile, plan_shards, row_groups
from training.registry import versions
from training.registry.warm_or_fresh import day_name, find_parent, train_days
from training.settings import check_loss, training_digests, with_item
from training.settings.negatives import require_no_pair_features
from training.settings.unknown_share import require_oov_ids


@dataclass(frozen=True)
class TrainPlan:
    """The plan of one training.

    Attributes:
        description: the entries of model.json that do not depend on the training's results.
        model: the configured model.
        train: the section `train` of the configuration.
        spec: the features of the model.
        splits: for each split, its files in manifest order. A split that the plan does not name is not
            measured.
        train_files: the files of the train split on which the model trains. Baselines train on all files of
            the split.
        model_path: folder of the model.
        checkpoint_path: folder of this training's checkpoints.
        parent_path: folder of the parent, the model from whose weights the training starts; None for new
            random weights.
        last_step: the step after which the training ends; None if it does all steps of its epochs.
        id_counts: where the counts of the features' ids are. Empty if the training does not need them.
        saves_bad_rows: whether the rows of a step with a bad loss are saved in `checkpoint_path`.
        items: the features whose values are ids of the row's item, for baselines.
    """

    description: Mapping[str, Any]
    model: ModelConfig
    train: Train
    spec: FeatureSpec
    splits: Mapping[Split, tuple[DataFile, ...]]
    train_files: tuple[DataFile, ...]
    model_path: str
    checkpoint_path: str
    parent_path: str | None
    last_step: int | None = None
    id_counts: IdCounts = field(default_factory=IdCounts)
    saves_bad_rows: bool = True
    items: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows of all splits."""
        return sum(file.rows for files in self.splits.values() for file in files)

    @property
    def steps_per_epoch(self) -> int:
        """Number of global batches in an epoch of the training."""
        rows = [group.rows for group in row_groups(self.train_files)]
        return plan_shards(rows, self.train.num_shards, self.train.global_batch_size).steps


def make_plan(config: Config, lake: Lake, dataset: Dataset) -> TrainPlan:
    """Creates the plan of a run date's training from its dataset and the previous champion.

    This function imports the architecture, and so torch, to report wrong settings before any rank starts.

    Raises:
        ConfigError: the architecture does not have the configured settings, or the loss cannot train a model;
            or negatives are to be drawn although a feature depends on user and item; or `unknown_share` names
            a feature without ids.
        DataError: a partition is missing or was replaced; or the train split has no rows, or all its rows
            have the same label.
    """
    from training.models import complete

    spec = read_spec(lake, dataset.workflow_version)
    items = id_features_of(lake, spec, config.keys.item) if config.keys else []
    config = config.model_copy(update={"model": complete(with_item(config.model, items))})
    if config.train.negatives:
        require_no_pair_features([feature.name for feature in spec.scoped("pair")])
    if config.train.unknown_share:
        require_oov_ids(config.train.unknown_share, [feature.name for feature in spec.embedded])
    for model in (config.model, *(ModelConfig(architecture=name) for name in config.train.baselines)):
        check_loss(config.train, model)
    parent = find_parent(config, lake, dataset)
    seen = parent.trained_days if parent else frozenset()
    parent_version = parent.version if parent else None
    extensions = training_digests(config.train, [config.model.architecture, *config.train.baselines])
    version = versions.model_version(config, dataset.digest, parent_version, extensions)
    splits = {split: _find_files(lake, dataset, split) for split in SPLITS}
    train_files = _find_files(lake, dataset, "train", without=seen)
    if not train_files:
        raise DataError(
            f"the train split of dataset {dataset.run_date} has no rows",
            "run build_features for days that have rows",
        )
    _require_labels(lake, dataset, seen, only_clicks=config.train.only_positive_rows)
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
        "code_version": versions.code_version(),
        "parent": parent_version,
        "trained_days": sorted(seen | set(train_days(dataset))),
        "scores": config.score_kind,
    }
    return TrainPlan(
        description,
        config.model,
        config.train,
        spec,
        splits,
        train_files,
        model_path=resolved(versions.model_path(lake, config.name, version)),
        checkpoint_path=resolved(lake.checkpoints(version)),
        parent_path=resolved(versions.model_path(lake, config.name, parent_version))
        if parent_version
        else None,
        id_counts=_id_counts(config.train, lake, dataset.workflow_version),
        items=tuple(items),
    )


def _id_counts(train: Train, lake: Lake, workflow_version: str) -> IdCounts:
    """Returns where the counts of the features' ids are, if table rows may be in two memories."""
    if train.embedding_memory == "device":
        return IdCounts()
    if train.embedding_memory != "auto":
        assert_never(train.embedding_memory)
    counts = find_id_counts(lake, workflow_version)
    return IdCounts(tuple(resolved(path) for path in counts.files), counts.vocabularies)


def _require_labels(lake: Lake, dataset: Dataset, seen: Set[str], *, only_clicks: bool) -> None:
    """Raises DataError if a model cannot learn from the labels of the new train days (`require_labels`).

    The new train days are those that are not in `seen`, the days of the parent's training. If the dataset
    does not say how many clicks its days have, nothing is checked.
    """
    days = []
    members = dataset.splits.get("train", ())
    for member, (partition, manifest, label) in zip(
        members, split_partitions(lake, dataset, "train"), strict=True
    ):
        if day_name(partition.dt, label) not in seen:
            if member.clicks is None:
                return
            rows = sum(entry.rows for entry in manifest.split_files(label))
            days.append((partition.dt, rows, member.clicks))
    require_labels(days, only_clicks=only_clicks)


def resolved(path: str) -> str:
    """Returns the absolute path of a local path or file URI; other URIs are unchanged.

    Paths must be absolute, because ranks run in other working directories.
    """
    return file_io.filesystem(path)[1] if file_io.is_local(path) else path


def _find_files(
    lake: Lake, dataset: Dataset, split: Split, without: Set[str] = frozenset()
) -> tuple[DataFile, ...]:
    """Returns the files of a split that have rows, from the manifests, except for the days in `without`."""
    return tuple(
        DataFile(
            resolved(partition.file(entry.path)),
            entry.rows,
            entry.row_groups,
            entry.bytes,
            dt=partition.dt,
        )
        for partition, manifest, label in split_partitions(lake, dataset, split)
        for entry in manifest.split_files(label)
        if entry.rows and day_name(partition.dt, label) not in without
    )
