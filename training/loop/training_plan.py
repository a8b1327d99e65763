"""The plan of a training run. The driver creates it before any rank starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, assert_never

import pyarrow as pa

from conf.errors import ConfigError, DataError
from conf.load import config_digest
from conf.types import SPLITS, Config, ModelConfig, Output, Split, Train
from storage import file_io
from storage.dataset import Dataset, id_features_of, read_spec, require_labels, split_partitions
from storage.feature_spec import EVENT_TIME, FeatureSpec
from storage.file_digests import table_digest
from storage.id_counts import IdCounts, find_id_counts
from storage.manifest import digest_of
from storage.paths import LakePaths
from storage.publish import describe
from training.data.sharding import DataFile, plan_shards, row_groups
from training.registry import versions
from training.registry.comparison import experiments_config
from training.registry.model_json import read_description
from training.registry.refits import refit_name
from training.registry.search import PruningRule
from training.registry.versions import model_path
from training.registry.warm_or_fresh import day_name, find_parent, train_days
from training.settings import (
    Features,
    check_loss,
    check_model,
    complete,
    reads_scopes,
    training_digests,
    with_item,
)
from training.settings.check_settings import require_no_pair_features, require_oov_ids


@dataclass(frozen=True)
class TrainPlan:
    """The plan of one training run.

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
        checkpoint_path: folder of this training run's checkpoints.
        parent_path: folder of the parent, the model from whose weights the training starts; None for new
            random weights.
        last_step: the step after which the training ends; None if the training does all steps of its epochs.
        id_counts: where the counts of each feature's ids are stored. Empty if the training needs no counts.
        saves_bad_rows: whether the rows of a step with a bad loss are saved in `checkpoint_path`.
        items: the features whose values are ids of the row's item. A baseline with histories uses one of
            them.
        pruning: the rule by which the training is pruned as a bad trial of a search; None if there is no
            rule.
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
    pruning: PruningRule | None = None

    @property
    def rows(self) -> int:
        """Number of rows of all splits."""
        return sum(file.rows for files in self.splits.values() for file in files)

    @property
    def steps_per_epoch(self) -> int:
        """Number of global batches in an epoch of the training."""
        rows = [group.rows for group in row_groups(self.train_files)]
        return plan_shards(rows, self.train.num_shards, self.train.global_batch_size).steps


def make_plan(config: Config, lake: LakePaths, dataset: Dataset) -> TrainPlan:
    """Creates the plan of a run date's training from its dataset and the previous champion.

    This function imports the architecture, and so torch, to report wrong settings before any rank starts.

    Raises:
        ConfigError: the architecture does not have the configured settings, or the loss cannot train a model.
            Also raised if negatives are to be drawn although a feature depends on user and item, or if
            `unknown_share` names a feature without ids.
        DataError: a partition is missing or was replaced. Also raised if the train split has no rows, or if
            all its rows have the same label.
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
    scopes = {feature.name: feature.scope for feature in spec.features}
    parent = find_parent(config, lake, dataset, scopes if reads_scopes(config.model) else None)
    seen = parent.trained_days if parent else frozenset()
    parent_version = parent.version if parent else None
    extensions = training_digests(config.train, [config.model.architecture, *config.train.baselines])
    version = versions.model_version(config, dataset.digest, parent_version, extensions)
    splits = {split: _find_files(lake, dataset, split) for split in SPLITS}
    train_files = _find_files(lake, dataset, "train", without=seen)
    if not train_files:
        raise DataError(
            f"the train split of dataset {dataset.run_date} has no rows",
            "run build_features for a run date whose train days have rows",
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
        **_trained_rows(config, spec, train_files),
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


def _trained_rows(config: Config, spec: FeatureSpec, files: Sequence[DataFile]) -> dict[str, Any]:
    """Returns the entry `trained_rows` of model.json: which rows of a log without days are train rows.

    Its key `until` is the latest event time (µs) of `files`; None if rows have no event time. The result is
    empty for a log by day, whose train rows follow from `trained_days`.
    """
    if config.log.by_day:
        return {}
    until = None
    if EVENT_TIME in spec.key_columns:
        last = [describe(file.path)[4][EVENT_TIME][2] for file in files]
        until = None if None in last else max(last)
    return {
        "trained_rows": {**config.split.model_dump(include={"by", "train", "validation"}), "until": until}
    }


def _id_counts(train: Train, lake: LakePaths, workflow_version: str) -> IdCounts:
    """Returns where the counts of ids are stored; empty if no table rows may be in host memory."""
    if train.embedding_memory == "device":
        return IdCounts()
    if train.embedding_memory != "auto":
        assert_never(train.embedding_memory)
    counts = find_id_counts(lake, workflow_version)
    return IdCounts(tuple(resolved(path) for path in counts.files), counts.vocabularies)


def _require_labels(lake: LakePaths, dataset: Dataset, seen: Set[str], *, only_clicks: bool) -> None:
    """Raises DataError if a model cannot learn from the labels of the new train days (`require_labels`).

    The new train days are the days that are not in `seen`, the days of the parent's training. If the dataset
    does not contain the numbers of clicks of its days, nothing is checked.
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
    lake: LakePaths, dataset: Dataset, split: Split, without: Set[str] = frozenset()
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


# The code below plans one training run of a comparison.


def make_experiment_plan(config: Config, lake: LakePaths, dataset: Dataset) -> TrainPlan:
    """Creates the plan of one training run of a comparison.

    The registry stores the model under a name for models of experiments. No model with this name is a
    champion. So the training starts from random weights, and the gate, which decides about promotions, never
    considers the model. If `train.evaluate_every_steps` is 0, the model is evaluated at the end of each
    epoch. Evaluations do not change the weights.

    Raises:
        ConfigError, DataError: see `make_plan`.
    """
    config = experiments_config(config)
    plan = make_plan(config, lake, dataset)
    if config.train.evaluate_every_steps:
        return plan
    train = config.train.model_copy(update={"evaluate_every_steps": plan.steps_per_epoch})
    return make_plan(config.model_copy(update={"train": train}), lake, dataset)


# The code below plans a refit: the training of a promoted model, repeated on the rows of all three splits.


def make_refit_plan(config: Config, lake: LakePaths, dataset: Dataset, champion: str) -> TrainPlan:
    """Creates the plan of a champion's refit, on the dataset on which the champion was trained.

    The refit has the settings of the champion's training, and starts from the same weights: the same random
    weights, or those of the same parent. An epoch uses each row of the champion's training, the validation
    split and the test split once. The parent was trained on no day of these two splits (find_parent).
    The champion may have the weights of a step before its last planned step, because its training ended early
    or because an earlier step was better (`train.keep`). The refit then ends after the same share of its own
    steps, rounded up. The refit is not measured, because no rows are left to measure it with.

    Args:
        config: the configuration.
        lake: the lake.
        dataset: the splits that build_features published for the run date.
        champion: the version of the model that was promoted on the run date.

    Raises:
        ConfigError: see `make_plan`.
        DataError: see `make_plan`. Also raised if a training run with this configuration, dataset and release
            would make a model of another version than `champion`.
    """
    plan = make_plan(config, lake, dataset)
    if plan.description["version"] != champion:
        raise DataError(
            f"champion {champion} of {dataset.run_date} was trained with another configuration, dataset or "
            f"release; with the current ones, the training would make model {plan.description['version']}",
            f"run train_model and evaluate_model for {dataset.run_date} again",
        )
    trained = read_description(plan.model_path)
    steps = trained["kept"]["step"] if "kept" in trained else trained["steps"]
    held_out = (*plan.splits["validation"], *plan.splits["test"])
    version = digest_of(["refit", champion, steps])
    days = {day_name(member.dt, member.label) for split in SPLITS for member in dataset.splits.get(split, ())}
    name = refit_name(config.name)
    refit = replace(
        plan,
        description={
            **plan.description,
            "name": name,
            "version": version,
            "refit_of": champion,
            "trained_days": sorted({*plan.description["trained_days"], *days}),
            **_trained_rows(config, plan.spec, (*plan.train_files, *held_out)),
        },
        train=plan.train.model_copy(update={"baselines": [], "evaluate_every_steps": 0, "stop_at": None}),
        splits={"train": (*plan.splits["train"], *held_out)},
        train_files=(*plan.train_files, *held_out),
        model_path=resolved(model_path(lake, name, version)),
        checkpoint_path=resolved(lake.checkpoints(version)),
    )
    return replace(refit, last_step=_last_step(steps, plan, refit))


def _last_step(steps: int, plan: TrainPlan, refit: TrainPlan) -> int | None:
    """Returns the refit's last step; None if the champion's weights are those of its last planned step.

    Args:
        steps: the step of the champion's training whose weights the champion has.
        plan: the plan of the champion's training.
        refit: the plan of the refit.
    """
    if steps >= plan.steps_per_epoch * plan.train.epochs:
        return None
    return -(-steps * refit.steps_per_epoch // plan.steps_per_epoch)


# The code below plans a training run whose rows are in memory, without a dataset of a lake.

# The name under which the models are stored. A lake has one folder of models for each name.
NAME = "frame"
_NO_CHECKPOINTS = 2**31 - 1


def make_table_plan(
    model: ModelConfig,
    train: Train,
    spec: FeatureSpec,
    tables: Mapping[Split, pa.Table],
    lake: LakePaths,
    items: Sequence[str] = (),
) -> TrainPlan:
    """Creates the plan of a training run from random weights, without baselines and checkpoints.

    The trained model has the weights that train_model computes on one rank from a dataset with the same rows.
    This requires that each split is one day, and that the files of this day have `output.row_group_rows`
    rows. If there are validation rows and `train.evaluate_every_steps` is 0, the model is measured at the end
    of each epoch, which does not change its weights.

    Args:
        model: the section `model`.
        train: the section `train`. The settings for ranks, checkpoints and a lake are ignored.
        spec: the features of the model.
        tables: the rows of the split `train`, and of `validation` if there are any. They have the columns
            `spec.label` and the features, with the dtypes of the spec. Only lists may be null.
        lake: the lake in which the model is saved.
        items: for a model with histories of items: the features among which the item's feature is chosen, if
            `model` does not name it.

    Raises:
        ConfigError: the architecture does not exist or does not have one of the settings, the settings do not
            fit the features, or the loss cannot train the model.
    """
    model = complete(with_item(model, items))
    _check_features(model, spec)
    check_loss(train, model)
    splits = {split: _files(split, table) for split, table in tables.items()}
    if "validation" in splits and not train.evaluate_every_steps:
        train = train.model_copy(update={"evaluate_every_steps": _steps_per_epoch(splits["train"], train)})
    digest = digest_of({split: table_digest(table) for split, table in tables.items()})
    extensions = training_digests(train, [model.architecture])
    version = versions.version_of(model, train, digest, None, extensions)
    description: dict[str, Any] = {
        "name": NAME,
        "version": version,
        "architecture": model.architecture,
        "model": model.model_dump(mode="json"),
        "feature_spec": spec.to_json(),
        "workflow_version": spec.workflow_version,
        "dataset_digest": digest,
        "code_version": versions.code_version(),
        "parent": None,
        "trained_days": [],
        "scores": train.score_kind(draws=False),
    }
    return TrainPlan(
        description,
        model,
        train.model_copy(update={"checkpoint_every_steps": _NO_CHECKPOINTS}),
        spec,
        splits,
        splits["train"],
        model_path=versions.model_path(lake, NAME, version),
        checkpoint_path=lake.checkpoints(version),
        parent_path=None,
        saves_bad_rows=False,
    )


def _files(split: Split, table: pa.Table) -> tuple[DataFile, ...]:
    """Returns the rows as files in memory, of the size that build_features writes."""
    size = Output().row_group_rows
    parts = [table.slice(start, size).combine_chunks() for start in range(0, table.num_rows, size)]
    return tuple(DataFile(f"the {split} rows", part.num_rows, table=part) for part in parts)


def _steps_per_epoch(files: tuple[DataFile, ...], train: Train) -> int:
    rows = [group.rows for group in row_groups(files)]
    return plan_shards(rows, train.num_shards, train.global_batch_size).steps


def _check_features(model: ModelConfig, spec: FeatureSpec) -> None:
    """Raises ConfigError if the model's settings do not fit the features, or if the model needs scopes.

    All features of a workflow that was fitted on a DataFrame have the scope `pair`, so such a model cannot be
    trained.
    """
    kinds = (spec.dense, spec.categorical, spec.multi_hot, spec.scoped("pair"))
    features = Features(*([feature.name for feature in kind] for kind in kinds))
    check_model(model, replace(features, pairs=()))
    try:
        check_model(model, features)
    except ConfigError as error:
        raise ConfigError(
            f"{error.problem}. A workflow that was fitted on a DataFrame has no scopes",
            "choose another architecture, or the workflow of a lake whose configuration has the section "
            "`scopes`",
        ) from error
