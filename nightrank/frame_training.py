"""Trains a model on the rows of a frame, in this process, without a lake and without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError, DataError
from conf.load import read_section, read_yaml
from conf.messages import counted
from conf.types import ModelConfig, Split, Train
from nightrank.frames import require_torch, shown_progress
from nightrank.model import Model
from nightrank.saved_models import delete_folder, private_folder
from nightrank.spark_frames import AnyFrame, local_table
from nightrank.workflow import Workflow, copy_of, learned_by
from scoring.model.model_info import read_model_info
from storage.feature_spec import FeatureSpec
from storage.paths import LakePaths
from training.settings import complete, known_architectures


def train(
    workflow: Workflow,
    rows: AnyFrame | pa.RecordBatch,
    *,
    model: Mapping[str, Any] | ModelConfig | str | PathLike[str],
    train: Mapping[str, Any] | Train | None = None,
    validation: AnyFrame | pa.RecordBatch | None = None,
    label: str | None = None,
) -> Model:
    """Trains a model on one rank in this process, from random weights, and returns it.

    The weights are those that train_model computes from a dataset with the same rows. The files of the model
    are temporary. `Model.save` copies them to a folder, and a pickle of the model contains them. On a
    terminal and in a notebook, a bar shows the progress and the time left.

    Args:
        workflow: a fitted workflow, which computes the features. If it has the operator target_encoding, it
            must have been fitted on `rows`.
        rows: the raw rows to train on, a frame of pandas, Polars, Arrow or Spark. A frame of Spark is copied
            to this process.
        model: the section `model` of a configuration, such as {"architecture": "deepfm"}, or the path of its
            YAML file. If the model reads a history, its setting `item` defaults to the feature that has the
            same vocabulary as the history.
        train: the section `train`. Settings about ranks, a lake, drawn negatives or baselines are refused.
        validation: raw rows for measuring the model at the end of each epoch, or every `evaluate_every_steps`
            steps; see `Model.metrics`. The training may end early (`stop_at`).
        label: the column with the label, 0 or 1; None for the label of the workflow.

    Raises:
        ConfigError: the workflow is not fitted, was fitted on other rows, or reads the label; `rows` or
            `validation` is not a frame; a setting is wrong, unknown or refused; or torch is not installed.
        DataError: a frame has no rows or lacks a column, a value is invalid, a label is not 0 or 1, all
            labels are equal, a feature is null, or the loss is not finite.
        InfrastructureError: a temporary file cannot be written.
    """
    require_torch()
    sections = read_model(model), read_train(train, is_measured=validation is not None)
    fitted = copy_of(workflow)
    label = workflow.label if label is None else label
    frames: dict[Split, AnyFrame | pa.RecordBatch] = {"train": rows}
    if validation is not None:
        frames["validation"] = validation
    tables: dict[Split, pa.Table] = {}
    for split, frame in frames.items():
        with _named(split):
            tables[split] = _table(workflow, frame, label, split)
    return _trained(*sections, tables, fitted)


def _trained(model: ModelConfig, train: Train, tables: Mapping[Split, pa.Table], workflow: Workflow) -> Model:
    """Trains a model in a temporary folder.

    The folder is deleted when the model is freed, or if the training fails.
    """
    from training.loop.run import train_in_process  # imports torch
    from training.loop.training_plan import make_table_plan

    folder = private_folder()
    lake = LakePaths(folder)
    try:
        items = _features_with_ids_of(str(model.settings.get("history")), workflow)
        plan = make_table_plan(model, train, workflow.spec, tables, lake, items)
        with shown_progress() as report:
            train_in_process(plan, report)
        return Model.in_temporary_folder(folder, read_model_info(plan.model_path), workflow)
    except BaseException:
        delete_folder(folder)
        raise


def _features_with_ids_of(history: str, workflow: Workflow) -> list[str]:
    """Returns the features of kind categorical that have the same vocabulary as the feature `history`.

    The result is empty if `history` is not a feature of kind multi_hot, or has no vocabulary.
    """
    fitted, spec = learned_by(workflow), workflow.spec
    if history not in [feature.name for feature in spec.multi_hot]:
        return []
    found = []
    for feature in spec.categorical:
        with suppress(ConfigError):  # one of the two features has no vocabulary
            if fitted.vocabulary_of(feature.name) == fitted.vocabulary_of(history):
                found.append(feature.name)
    return found


@contextmanager
def _named(split: Split) -> Iterator[None]:
    """Adds the name of the split (train or validation) to DataErrors that a `with` block raises."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{split} rows: {error.problem}", error.remedy) from error


def _table(workflow: Workflow, rows: AnyFrame | pa.RecordBatch, label: str, split: Split) -> pa.Table:
    """Returns the label and the features of rows in the loader's format.

    If the workflow expects a column of weights, it is added with the weight 1 for each row.
    """
    raw = local_table(rows, list(dict.fromkeys([*workflow.training_columns, label])))
    if label not in raw.column_names:
        raise DataError(
            f"the frame has no column {label!r}, the label", "pass the name of its column as `label`"
        )
    if not raw.num_rows:
        raise DataError("the frame has no rows", "pass rows with labels")
    labels = read_labels(label, raw.column(label))
    if split == "train":
        _require_two_labels(labels)
        features = workflow.encode_training(raw, label)
    else:
        features = workflow.encode_to_arrow(raw)
    _require_values(features, workflow.spec)
    labelled = features.append_column(workflow.spec.label, labels)
    if workflow.spec.weight is None:
        return labelled
    return labelled.append_column(workflow.spec.weight, pa.array(np.ones(len(labels), np.float32)))


def read_labels(name: str, column: pa.ChunkedArray) -> pa.Array:
    """Returns the labels as float32. Raises DataError if a label is missing, or is not 0 or 1."""
    kind = column.type
    if not (pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise DataError(f"column {name}, the label, has the type {kind}", "convert it to the numbers 0 and 1")
    values = pa.concat_arrays(column.chunks)
    numbers = values.cast(pa.int8() if pa.types.is_boolean(kind) else pa.float64(), safe=False)
    wrong = pc.invert(pc.is_in(numbers, value_set=pa.array([0, 1], numbers.type)))
    count = pc.sum(wrong).as_py()
    if count:
        row = pc.index(wrong, True).as_py()
        raise DataError(
            f"column {name}, the label, row {row}: {values[row].as_py()!r} is not 0 or 1 ({count} of "
            f"{len(values)} labels are wrong)",
            "correct these labels, or leave these rows out",
        )
    return numbers.cast(pa.float32())


def _require_two_labels(labels: pa.Array) -> None:
    distinct = labels.unique().to_pylist()
    if len(distinct) < 2:
        raise DataError(
            f"all {len(labels)} labels are {distinct[0]:g}, so a model could only learn a constant",
            "pass rows with label 0 and rows with label 1",
        )


def _require_values(features: pa.Table, spec: FeatureSpec) -> None:
    """Raises DataError if a feature is null. Only features that are lists may be null."""
    for feature in (*spec.dense, *spec.categorical):
        nulls = features.column(feature.name).null_count
        if nulls:
            raise DataError(
                f"the feature {feature.name} is null in {nulls:,} of {counted(len(features), 'row')}",
                "add an operator that fills nulls, such as fill_median, and fit again",
            )


# Functions that read the sections `model` and `train` for training on a frame. They refuse settings that only
# jobs support.

_ONE_RANK = "one rank trains, in this process"
_NO_LAKE = "the training does not use a lake"
_NO_KEYS = "rows of a frame have no keys of users and items"

# Settings that have no effect when a model is trained on a frame, or that need data that a frame lacks.
_REFUSED = {
    "num_ranks": _ONE_RANK,
    "elastic": _ONE_RANK,
    "start_timeout_s": _ONE_RANK,
    "embeddings.placement": _ONE_RANK,
    "embeddings.replicated_max_bytes": _ONE_RANK,
    "embeddings.row_wise_share": _ONE_RANK,
    "checkpoint_every_steps": _NO_LAKE,
    "keep_checkpoints": _NO_LAKE,
    "profile": _NO_LAKE,
    "retrain": _NO_LAKE,
    "refit": _NO_LAKE,
    "reading.staging_folder": _NO_LAKE,
    "reading.staging_mib": _NO_LAKE,
    "embedding_memory": _NO_LAKE,
    "embedding_memory_mib": _NO_LAKE,
    "negatives": _NO_KEYS,
    "unknown_share": _NO_KEYS,
    "shuffle": _NO_KEYS,
    "max_softmax_items": _NO_KEYS,
    "baselines": "train each baseline with a separate call",
}
_MEASURED = ("evaluate_every_steps", "stop_at")


def read_model(section: Mapping[str, Any] | ModelConfig | str | PathLike[str]) -> ModelConfig:
    """Returns the section `model` from a mapping or a YAML file, with all settings of its architecture.

    Raises:
        ConfigError: the section is not a mapping, the file cannot be read, the architecture does not exist,
            or a setting is wrong.
    """
    if not isinstance(section, str | PathLike):
        return complete(_read(ModelConfig, section, "model"))
    if section in known_architectures():
        raise ConfigError(
            f"model={section!r} is an architecture, but it must be a mapping or the path of a YAML file",
            f'pass {{"architecture": {section!r}}}',
        )
    return complete(_read(ModelConfig, read_yaml(Path(section)), "model"))


def read_train(section: Mapping[str, Any] | Train | None, *, is_measured: bool) -> Train:
    """Returns the section `train`.

    Args:
        section: the keys of the section; None for its defaults. Keys that have no effect when a model is
            trained on a frame are refused.
        is_measured: whether there are validation rows.

    Raises:
        ConfigError: a key is unknown or refused, a value breaks its rule, or a setting needs validation rows.
    """
    train = Train() if section is None else _read(Train, section, "train")
    wrong = [f"train.{name} ({why})" for name, why in _REFUSED.items() if _is_set(train, name)]
    if train.loss_settings.compares != "rows":
        wrong.append(f"train.loss={train.loss_name} ({_NO_KEYS})")
    if wrong:
        raise ConfigError(
            f"training on a frame does not support the settings {', '.join(wrong)}",
            "remove them, or train in a lake with train_model",
        )
    unmeasured = [f"train.{name}" for name in _MEASURED if getattr(train, name)]
    unmeasured += ["train.keep=best"] if _is_set(train, "keep") and train.keep == "best" else []
    if unmeasured and not is_measured:
        raise ConfigError(
            f"{' and '.join(unmeasured)} cannot be used without validation rows",
            "pass `validation`, or remove these settings",
        )
    return train


def _read(kind: Any, section: Any, name: str) -> Any:
    """Returns the section `model` or `train` of a configuration as an object of the class `kind`."""
    if isinstance(section, kind):
        return section
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{name} is {section!r}, but it must be a mapping", f"pass the keys of the section `{name}`"
        )
    return read_section(kind, dict(section), "", f"correct these keys of `{name}`", (name,))


def _is_set(train: Train, name: str) -> bool:
    """Returns whether the caller has set a key, such as `seed` or `embeddings.placement`."""
    outer, _, inner = name.partition(".")
    if outer not in train.model_fields_set:
        return False
    return not inner or inner in getattr(train, outer).model_fields_set
