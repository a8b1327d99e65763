"""The plan of a training whose rows are in memory, without a dataset of a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from conf.errors import ConfigError
from conf.types import ModelConfig, Output, Split, Train
from storage.feature_spec import FeatureSpec
from storage.manifest import digest_of
from storage.paths import Lake
from storage.table_digest import table_digest
from training.data.sharding import DataFile, plan_shards, row_groups
from training.loop.training_plan import TrainPlan
from training.registry import versions
from training.settings import (
    Features,
    check_loss,
    check_model,
    complete,
    training_digests,
    with_item,
)

# The name of the models. A lake has one folder of models for each name.
NAME = "frame"
_NO_CHECKPOINTS = 2**31 - 1


def make_table_plan(
    model: ModelConfig,
    train: Train,
    spec: FeatureSpec,
    tables: Mapping[Split, pa.Table],
    lake: Lake,
    items: Sequence[str] = (),
) -> TrainPlan:
    """Creates the plan of a training from random weights, without baselines and checkpoints.

    The trained model has the weights that train_model computes on one rank from a dataset with the same rows,
    if each split is one day and the files of this day have `output.row_group_rows` rows. If there are
    validation rows and `train.evaluate_every_steps` is 0, the model is measured at the end of each epoch,
    which does not change its weights.

    Args:
        model: the section `model`.
        train: the section `train`. Its settings for ranks, checkpoints and a lake are not used.
        spec: the features of the model.
        tables: the rows of the split `train`, and of `validation` if there are any. They have the columns
            `spec.label` and the features, with the dtypes of the spec. Only lists may be null.
        lake: the lake in which the model is saved.
        items: the features that may be the item of a model with histories, if `model` does not name it.

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
    """Raises ConfigError if the model's settings do not fit the features, or if it needs scopes.

    All features of a workflow that was fitted on a frame have the scope `pair`.
    """
    kinds = (spec.dense, spec.categorical, spec.multi_hot, spec.scoped("pair"))
    features = Features(*([feature.name for feature in kind] for kind in kinds))
    check_model(model, replace(features, pairs=()))
    try:
        check_model(model, features)
    except ConfigError as error:
        raise ConfigError(
            f"{error.problem}. A workflow that was fitted on a frame has no scopes",
            "choose another architecture, or the workflow of a lake whose configuration has the section "
            "`scopes`",
        ) from error
