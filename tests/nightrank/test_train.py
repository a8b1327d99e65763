"""nightrank.train: models that are trained on frames equal those of the job, and no label leaks."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import random
import re
import signal
import stat
import subprocess
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyspark.sql import SparkSession
from sklearn.metrics import log_loss, roc_auc_score

import nightrank
from conf.types import Train
from nightrank.frame_training import read_train
from nightrank.workflow import learned_by
from storage.paths import LakePaths
from tests.processes import ROOT
from tests.training.feature_rows import Rows
from tests.training.feature_tables import make_config, publish_all
from training.checkpoints import load_model
from training.launch.ranks import train_in_driver
from training.loop import run, training_plan
from training.loop.training_plan import TrainPlan, make_plan

MODEL: dict[str, Any] = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}
DROPOUT: dict[str, Any] = {"architecture": "deepfm", "embedding_dim": 8, "deep": [16], "dropout": 0.3}
SMALL: dict[str, Any] = {"architecture": "logistic_regression"}
TRAIN: dict[str, Any] = {"global_batch_size": 128, "num_shards": 4, "epochs": 2, "device": "cpu"}
GROUPS: list[dict[str, Any]] = [
    {"columns": ["user", "item"], "kind": "categorical", "ops": [{"categorify": {"min_count": 2}}]},
    {"columns": ["price"], "kind": "dense", "ops": ["fill_median", "normalize"]},
    {"columns": ["tags"], "kind": "multi_hot", "ops": ["categorify"]},
    {"columns": ["user"], "kind": "dense", "ops": ["target_encoding"]},
]
PLAIN = GROUPS[:3]  # without target_encoding


def make_rows(count: int, seed: int) -> pd.DataFrame:
    """Clicks that depend on user and item together. Some prices and lists are missing."""
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, 12, count), rng.integers(0, 9, count)
    likes = (user + item) % 3 == 0
    price = rng.gamma(2.0, 5.0, count)
    price[rng.random(count) < 0.1] = np.nan
    tags = [[f"t{tag}" for tag in rng.integers(0, 6, size)] or None for size in rng.integers(0, 4, count)]
    return pd.DataFrame(
        {
            "label": (rng.random(count) < np.where(likes, 0.85, 0.15)).astype(np.int64),
            "user": [f"u{value}" for value in user],
            "item": [f"i{value}" for value in item],
            "price": price,
            "tags": tags,
        },
        index=rng.permutation(count),
    )


ROWS: Any = make_rows(1500, 0)
OTHERS: Any = make_rows(600, 1)


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def fitted(groups: list[dict[str, Any]] = GROUPS, rows: Any = ROWS) -> nightrank.Workflow:
    return nightrank.Workflow(groups).fit(rows)


def trained(workflow: nightrank.Workflow | None = None, rows: Any = ROWS, **changed: Any) -> nightrank.Model:
    """A small model on the plain features."""
    arguments: dict[str, Any] = {"model": SMALL, "train": TRAIN, **changed}
    return nightrank.train(workflow or fitted(PLAIN), rows, **arguments)


def untyped(value: Any) -> Any:
    """A frame or series, of which mypy does not know that it is one of pandas."""
    return value


def published_rows(features: pa.Table, workflow: nightrank.Workflow) -> Rows:
    spec = workflow.spec

    def matrix(names: list[str], dtype: type) -> np.ndarray:
        return np.stack([features.column(name).to_numpy() for name in names], axis=1).astype(dtype)

    return Rows(
        features.column("label").to_numpy().astype(np.float32),
        matrix([feature.name for feature in spec.dense], np.float32),
        matrix([feature.name for feature in spec.categorical], np.int32),
        tuple(features.column(feature.name).to_pylist() for feature in spec.multi_hot),
    )


def weights_of(model: nightrank.Model) -> Mapping[str, torch.Tensor]:
    return load_model(model._info.path, torch.device("cpu")).model.state_dict()


@pytest.mark.parametrize("config, file_rows", [(MODEL, 10_000), (MODEL, 700), (DROPOUT, 10_000)])
def test_it_computes_what_the_job_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], file_rows: int
) -> None:
    """To the bit, against train_in_driver, which train_model calls for one rank on one machine.

    The job reads the features of `fit_transform` and `transform` from files of a lake through Petastorm.
    """
    monkeypatch.setattr(training_plan, "Output", lambda: SimpleNamespace(row_group_rows=file_rows))
    workflow = nightrank.Workflow(GROUPS)
    tables = [
        pa.Table.from_pandas(workflow.fit_transform(ROWS, keep=["label"]), preserve_index=False),
        pa.Table.from_pandas(workflow.transform(OTHERS, keep=["label"]), preserve_index=False),
    ]
    days = {"train": "2026-01-02", "validation": "2026-01-03"}
    splits = {
        split: {day: published_rows(table, workflow)}
        for (split, day), table in zip(days.items(), tables, strict=True)
    }
    lake = LakePaths(str(tmp_path / "lake"))
    spec = replace(workflow.spec, key_columns=("row_id",))
    dataset = publish_all(lake, "2026-01-04", spec, splits, file_rows=file_rows)  # type: ignore[arg-type]
    plan = make_plan(make_config(lake, model=config, train={**TRAIN, "num_ranks": 1}), lake, dataset)
    job = train_in_driver(plan, torch.get_num_threads(), None)

    model = nightrank.train(workflow, ROWS, model=config, train=TRAIN, validation=OTHERS)
    expected = load_model(plan.model_path, torch.device("cpu")).model.state_dict()
    weights = weights_of(model)
    assert weights.keys() == expected.keys()
    assert sum(len(value) for value in weights.values() if value.dim()) > 50
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    assert model.description["steps"] == job["steps"] == 24
    assert model.description["metrics"]["validation"] == job["metrics"]["validation"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_steps_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # tests of notebooks import it
    rows = ROWS.head(300)
    workflow = nightrank.Workflow(PLAIN).fit(rows)
    capsys.readouterr()
    nightrank.train(workflow, rows, model=SMALL, train=TRAIN, label="label")
    shown = capsys.readouterr().err
    if is_terminal:
        assert re.search(r"logistic_regression: 100%.* 6/6 \[.*<00:00.*, loss 0\.\d{4}\]", shown), shown
    else:
        assert "logistic_regression" not in shown


def test_scores_have_the_metrics_of_the_training() -> None:
    model = nightrank.train(fitted(), ROWS, model=MODEL, train={**TRAIN, "epochs": 10}, validation=OTHERS)
    scores = model.score(OTHERS)
    assert isinstance(scores, pd.Series)
    assert (scores.name, str(scores.dtype)) == ("probability", "float32")
    assert scores.index.equals(OTHERS.index)
    steps = -(-len(ROWS) // 128)
    pairs = [(entry["epoch"], entry["step"]) for entry in model.metrics]
    assert pairs == [(epoch, epoch * steps) for epoch in range(1, 11)]
    last = model.metrics[-1]
    assert set(last) == {"epoch", "step", "auc", "log_loss", "normalized_entropy"}
    assert roc_auc_score(OTHERS["label"], scores) == pytest.approx(last["auc"], abs=1e-5)
    assert log_loss(OTHERS["label"], scores.astype(float)) == pytest.approx(last["log_loss"], abs=1e-5)
    assert last["auc"] > 0.75  # the true probabilities reach 0.85
    assert trained().metrics == []
    assert model.refit_of is None
    with pytest.raises(nightrank.ConfigError, match="has no run date"):
        model.recommend(["u1"])


def test_validation_does_not_change_the_weights_and_settings_do() -> None:
    workflow = fitted(PLAIN)
    plain = weights_of(trained(workflow))
    measured = trained(
        workflow, validation=OTHERS, train={**TRAIN, "evaluate_every_steps": 5, "keep": "last"}
    )
    assert [entry["step"] for entry in measured.metrics] == [5, 10, 15, 20, 24]
    for name, value in weights_of(measured).items():
        assert torch.equal(value, plain[name])
    for changed in ({"seed": 1}, {"learning_rate": 0.1}, {"epochs": 1}):
        other = weights_of(trained(workflow, train={**TRAIN, **changed}))
        assert any(not torch.equal(value, plain[name]) for name, value in other.items()), changed


def test_the_weights_of_the_best_epoch_are_kept_unless_the_last_are_requested() -> None:
    """Random labels are memorized, so the measure of other rows goes up and down."""
    rng = np.random.default_rng(3)
    rows, others = (
        ROWS.assign(label=rng.integers(0, 2, len(ROWS))),
        OTHERS.assign(label=rng.integers(0, 2, len(OTHERS))),
    )
    settings = {**TRAIN, "epochs": 5, "learning_rate": 0.03}
    model = trained(fitted(PLAIN), rows, validation=others, train=settings)
    measured = {entry["step"]: entry["auc"] for entry in model.metrics}
    best = max(measured, key=lambda step: measured[step])
    assert list(measured) == [12, 24, 36, 48, 60]
    assert best < 60, "the example must get worse"
    assert (model.kept["step"], model.kept["value"]) == (best, measured[best])
    assert roc_auc_score(others.label, model.score(others)) == pytest.approx(measured[best], abs=1e-5)
    last = trained(fitted(PLAIN), rows, validation=others, train={**settings, "keep": "last"})
    assert last.kept["step"] == 60
    assert roc_auc_score(others.label, last.score(others)) == pytest.approx(measured[60], abs=1e-5)
    with pytest.raises(
        nightrank.ConfigError, match=r"train\.keep=best cannot be used without validation rows"
    ):
        trained(train={**TRAIN, "keep": "best"})


def test_a_training_ends_early_as_in_the_job() -> None:
    stop = {"stop_at": {"metric": "auc", "value": 0.01}, "evaluate_every_steps": 3}
    model = trained(validation=OTHERS, train={**TRAIN, **stop})
    assert "has reached the target of 0.01" in model.description["stopped"]
    assert [entry["step"] for entry in model.metrics] == [3]


def test_all_kinds_of_frames_give_the_same_model() -> None:
    arrow = pa.Table.from_pandas(ROWS, preserve_index=False)
    kinds = [ROWS, arrow, pl.from_arrow(arrow), arrow.combine_chunks().to_batches()[0]]
    kinds.append(pa.concat_tables([arrow.slice(0, 11), arrow.slice(11)]))
    workflow = fitted()
    models = [trained(workflow, rows) for rows in kinds]
    assert len({model.version for model in models}) == 1
    of_polars = models[0].score(pl.from_arrow(arrow))
    assert isinstance(of_polars, pl.Series)
    np.testing.assert_array_equal(of_polars.to_numpy(), models[-1].score(ROWS).to_numpy())
    booleans = ROWS.assign(label=ROWS["label"].astype(bool))
    floats = ROWS.assign(label=ROWS["label"].astype(np.float32))
    plain = fitted(PLAIN)
    assert trained(plain, booleans).version == trained(plain, floats).version == trained(plain).version


def test_frames_of_spark_are_copied(spark: SparkSession) -> None:
    columns = ["label", "user", "price"]
    rows = ROWS.head(200)[columns].fillna(1.0)
    groups: list[dict[str, Any]] = [
        {"columns": ["user"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["price"], "kind": "dense", "ops": ["normalize"]},
    ]
    frame = spark.createDataFrame(rows.values.tolist(), columns).coalesce(1)
    workflow = fitted(groups, rows)
    assert trained(workflow, frame).version == trained(workflow, rows.astype({"label": float})).version


class Stopped(Exception):
    """Ends a training before its first step."""


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[TrainPlan]:
    """The plans of all trainings, none of which takes place."""
    kept: list[TrainPlan] = []

    def stop(plan: TrainPlan, _report: object) -> None:
        kept.append(plan)
        raise Stopped

    monkeypatch.setattr(run, "train_in_process", stop)
    return kept


def features_of(
    plans: list[TrainPlan], workflow: nightrank.Workflow, rows: Any, **changed: Any
) -> dict[str, Any]:
    """The features with which a training on `rows` would begin, by split."""
    with pytest.raises(Stopped):
        trained(workflow, rows, **changed)
    files = {split: file for split, (file,) in plans[-1].splits.items()}
    return {split: file.table.to_pandas() for split, file in files.items() if file.table is not None}


def test_training_rows_have_the_features_of_fit_transform(plans: list[TrainPlan], folders: Path) -> None:
    workflow = nightrank.Workflow(GROUPS)
    expected = untyped(workflow.fit_transform(ROWS)).reset_index(drop=True)
    features = features_of(plans, workflow, ROWS, validation=ROWS)
    pd.testing.assert_frame_equal(features["train"][list(expected)], expected)
    pd.testing.assert_frame_equal(
        features["validation"][list(expected)], untyped(workflow.transform(ROWS)).reset_index(drop=True)
    )
    assert not features["validation"]["user_te"].equals(expected["user_te"])
    assert features["train"]["label"].tolist() == ROWS["label"].tolist()
    assert list(folders.iterdir()) == []


def test_a_label_is_not_in_the_features_of_its_row(plans: list[TrainPlan]) -> None:
    """Changing a label changes no feature of its own row, but features of others."""
    features = ["user", "item", "price", "user_te"]
    before = features_of(plans, fitted(), ROWS)["train"]
    for place in (0, 7, 801):
        changed = ROWS.copy()
        changed.iloc[place, 0] = 1 - changed.iloc[place, 0]
        after = features_of(plans, fitted(rows=changed), changed)["train"]
        assert after["label"][place] != before["label"][place]
        assert after.loc[place, features].equals(before.loc[place, features])
        assert (after["user_te"] != before["user_te"]).any()


def test_a_model_cannot_learn_random_labels_from_their_own_encoding() -> None:
    """Each key has few rows, so the mean of a key that included the row itself would predict its label."""
    rng = np.random.default_rng(5)
    rows = pd.DataFrame({"key": [f"k{i // 3}" for i in range(1500)], "label": rng.integers(0, 2, 1500)})
    group = {"columns": ["key"], "kind": "dense", "ops": [{"target_encoding": {"smoothing": 1}}]}
    workflow = fitted([group], rows)
    settings = {**TRAIN, "epochs": 4, "learning_rate": 0.1}
    model = trained(workflow, rows, train=settings)
    assert model.description["history"][-1]["loss"] > 0.66
    leaking = workflow.transform(rows, keep=["label"])  # what `train` must not use
    plain = [{"columns": ["key_te"], "kind": "dense", "ops": ["normalize"]}]
    other = trained(fitted(plain, leaking), leaking, train=settings)
    assert other.description["history"][-1]["loss"] < 0.6


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.head(1000),
        lambda rows: rows.iloc[::-1],
        lambda rows: rows.assign(label=1 - rows["label"]),
        lambda rows: rows.assign(price=rows["price"].fillna(0.0)),
    ],
)  # fmt: skip
def test_target_encoding_refuses_rows_that_it_was_not_fitted_on(change: Any) -> None:
    with pytest.raises(nightrank.ConfigError, match="was not fitted on these rows in this order"):
        trained(fitted(), change(ROWS))


@pytest.mark.parametrize("dtype", ["bool", "boolean", "category"])
def test_target_encoding_refuses_another_order_of_labels_of_any_type(dtype: str) -> None:
    rows = ROWS.astype({"label": dtype})
    workflow = fitted(rows=rows)
    assert workflow.encode_training(rows).num_rows == len(rows)
    others = rows.assign(label=(1 - ROWS["label"]).astype(dtype))
    with pytest.raises(nightrank.ConfigError, match="was not fitted on these rows in this order"):
        workflow.encode_training(others)


def test_target_encoding_refuses_a_loaded_workflow(tmp_path: Path) -> None:
    workflow = fitted()
    workflow.save(tmp_path / "w")
    with pytest.raises(nightrank.ConfigError, match="was not fitted on these rows in this order"):
        trained(nightrank.Workflow.load(tmp_path / "w"))
    plain = fitted(PLAIN)
    plain.save(tmp_path / "plain")
    assert trained(nightrank.Workflow.load(tmp_path / "plain")).version == trained(plain).version


def test_features_that_contain_the_label_are_refused(tmp_path: Path) -> None:
    clicks = ROWS.rename(columns={"label": "click"})
    reads = [{"columns": ["click"], "kind": "dense", "ops": ["normalize"]}]
    with pytest.raises(nightrank.ConfigError, match="features are computed from 'click', which is the label"):
        trained(fitted(reads, clicks), clicks, label="click")
    join = {"join_groupby": {"statistics": ["mean"], "of": ["click"]}}
    groups = [*PLAIN, {"columns": ["user"], "kind": "dense", "ops": [join]}]
    workflow = fitted(groups, clicks)
    workflow.save(tmp_path)
    for one in (workflow, nightrank.Workflow.load(tmp_path)):
        with pytest.raises(
            nightrank.ConfigError, match="join_groupby would compute features of a row from the label 'click'"
        ):
            trained(one, clicks, label="click")
    other = ROWS.assign(click=1 - ROWS["label"])
    assert trained(fitted(groups, other), other).version  # `click` is not the label of this training


def test_the_label_is_that_of_the_workflow_or_named() -> None:
    clicks = ROWS.rename(columns={"label": "click"})
    workflow = nightrank.Workflow(GROUPS, label="click").fit(clicks)
    assert workflow.label == "click"
    model, other = trained(workflow, clicks), trained(fitted())
    assert model.version == other.version
    assert trained(fitted(PLAIN, clicks), clicks, label="click").version == trained().version


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"rows": ROWS.head(0)}, "DataError", "train rows: the frame has no rows"),
        ({"validation": ROWS.head(0)}, "DataError", "validation rows: the frame has no rows"),
        ({"label": "click"}, "DataError", "train rows: the frame has no column 'click', the label"),
        ({"rows": ROWS.assign(label=ROWS["label"] + 1)}, "DataError", r"column label, the label, row \d+: 2 is not 0 or 1"),
        ({"rows": ROWS.assign(label=np.where(ROWS.index == 3, np.nan, ROWS["label"]))}, "DataError", r"None is not 0 or 1 \(1 of 1500"),
        ({"rows": pa.Table.from_pandas(ROWS.assign(label=0.5))}, "DataError", r"row 0: 0\.5 is not 0 or 1 \(1500 of"),
        ({"rows": pa.Table.from_pandas(ROWS).set_column(0, "label", pa.array([np.nan] * 1500))}, "DataError", "nan is not 0 or 1"),
        ({"rows": ROWS.assign(label=None)}, "DataError", "the label, has the type null"),
        ({"rows": ROWS.assign(label="1")}, "DataError", "the label, has the type string"),
        ({"rows": ROWS.assign(label=1)}, "DataError", "all 1500 labels are 1"),
        ({"validation": OTHERS.drop(columns="price")}, "DataError", r"validation rows: the rows lack the columns \['price'\]"),
        ({"validation": OTHERS.drop(columns="label")}, "DataError", "validation rows: the frame has no column 'label'"),
        ({"rows": ROWS.drop(columns="tags")}, "DataError", r"train rows: the rows lack the columns \['tags'\]"),
        ({"validation": OTHERS.assign(price="much")}, "DataError", "validation rows: column price has the type string"),
        ({"rows": [1]}, "ConfigError", r"builtins\.list is not a frame"),
        ({"model": {"architecture": "resnet"}}, "ConfigError", "model.architecture='resnet' does not exist"),
        ({"model": {}}, "ConfigError", "model.architecture is missing"),
        ({"model": "dlrm"}, "ConfigError", r"model='dlrm' is an architecture.*\n.*\{\"architecture\": 'dlrm'\}"),
        ({"model": "none.yaml"}, "ConfigError", "cannot read none.yaml"),
        ({"model": 3}, "ConfigError", "model is 3, but it must be a mapping"),
        ({"model": {**MODEL, "dropouts": 1}}, "ConfigError", "unknown key model.dropouts=1"),
        ({"model": {**MODEL, "history": "tags"}}, "ConfigError", "unknown key model.history='tags'"),
        ({"model": {"architecture": "din", "item": "item"}}, "ConfigError", "model.history='history' is not a feature of kind multi_hot"),
        ({"model": {"architecture": "two_tower"}}, "ConfigError", "A workflow that was fitted on a DataFrame has no scopes"),
        ({"model": {"architecture": "wide_and_deep", "crosses": [{"left": ["user"], "right": ["none"]}]}}, "ConfigError", r"model.crosses names \['none'\]"),
        ({"train": {"epochs": 0}}, "ConfigError", "train.epochs=0"),
        ({"train": {"epoch": 1}}, "ConfigError", "unknown key train.epoch=1"),
        ({"train": 3}, "ConfigError", "train is 3, but it must be a mapping"),
        ({"train": {"evaluate_every_steps": 3}}, "ConfigError", "train.evaluate_every_steps cannot be used without validation rows"),
        ({"workflow": nightrank.Workflow(PLAIN)}, "ConfigError", "the workflow is not fitted"),
    ],
)  # fmt: skip
def test_bad_input_is_named(changes: dict[str, Any], error: str, message: str, folders: Path) -> None:
    arguments = {"workflow": fitted(PLAIN), "rows": ROWS, **changes}
    with pytest.raises(getattr(nightrank, error), match=message):
        trained(**arguments)
    assert list(folders.iterdir()) == []


def test_features_without_a_value_are_named() -> None:
    group = {"columns": ["price"], "kind": "dense", "ops": ["log1p"]}
    missing = int(ROWS["price"].isna().sum())
    with pytest.raises(nightrank.DataError, match=f"the feature price is null in {missing} of 1,500 rows"):
        trained(fitted([group]))


def test_a_loss_that_is_not_finite_leaves_no_files(folders: Path) -> None:
    rows = ROWS.assign(price=np.where(np.arange(1500) < 700, 3e38, -3e38))
    group = {"columns": ["price"], "kind": "dense", "ops": ["fill_median"]}
    with pytest.raises(nightrank.DataError, match="the loss at step") as caught:
        trained(
            fitted([group], rows),
            rows,
            model={**MODEL, "architecture": "dlrm"},
            train={**TRAIN, "learning_rate": 10},
        )
    assert str(folders) not in str(caught.value)
    assert list(folders.iterdir()) == []


# Every setting of the section `train` that is refused, with a value that would be valid in a configuration.
REFUSED: dict[str, Any] = {
    "num_ranks": 2,
    "elastic": {"min_ranks": 1},
    "start_timeout_s": 10,
    "checkpoint_every_steps": 500,
    "keep_checkpoints": 1,
    "profile": {"first_step": 1},
    "retrain": {"start": "fresh"},
    "refit": True,
    "embedding_memory": "device",
    "embedding_memory_mib": 1,
    "negatives": {"per_positive": 2},
    "unknown_share": {"user": 0.1},
    "shuffle": "users",
    "max_softmax_items": 10,
    "baselines": ["logistic_regression"],
}
# Those of its sections that are refused.
REFUSED_PARTS: dict[str, Any] = {
    "embeddings.placement": "replicated",
    "embeddings.replicated_max_bytes": 1,
    "embeddings.row_wise_share": 0.5,
    "reading.staging_folder": "/tmp",
    "reading.staging_mib": 1,
}
# All others have an effect.
USED = {
    "num_shards", "global_batch_size", "epochs", "loss", "l2", "learning_rate", "embedding_learning_rate",
    "embeddings", "warmup_share", "decay_start_share", "decay_power", "decay_end_factor", "clip_norm",
    "precision", "compile", "cuda_graphs", "kernels", "evaluate_every_steps", "stop_at", "keep", "log_every_steps",
    "seed", "reading", "device",
}  # fmt: skip


def test_every_setting_is_used_or_refused() -> None:
    assert set(REFUSED) | USED == set(Train.model_fields)
    assert not set(REFUSED) & USED
    for part in ("embeddings", "reading"):
        kept = {
            "optimizer",
            "rank_max_bytes",
            "pool_rows",
            "read_ahead_mib",
            "pools",
            "device_mib",
            "threads",
        }
        inner = set(type(getattr(Train(), part)).model_fields)
        assert inner - kept == {name.split(".")[1] for name in REFUSED_PARTS if name.startswith(part)}
    for name, value in {**REFUSED, **REFUSED_PARTS}.items():
        outer, _, inner_name = name.partition(".")
        section: dict[str, Any] = {outer: {inner_name: value} if inner_name else value}
        if name == "embedding_memory_mib":
            section["embedding_memory"] = "auto"
        for passed in (section, Train.model_validate(section)):
            with pytest.raises(nightrank.ConfigError, match=rf"train\.{name} \("):
                read_train(passed, is_measured=True)
    for loss in ("full_softmax", "in_batch_softmax"):
        with pytest.raises(nightrank.ConfigError, match=f"train.loss={loss}"):
            read_train({"loss": loss}, is_measured=True)
    used = {"loss": "bce", "embeddings": {"optimizer": "sgd"}, "reading": {"pool_rows": 4}}
    assert read_train(used, is_measured=False).embeddings.optimizer == "sgd"


def state_of_process() -> dict[str, Any]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logger = logging.getLogger("nightrank.training.steps")
    return {
        "threads": torch.get_num_threads(),
        "torch": torch.get_rng_state().tolist(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index]
        "random": random.getstate(),
        "environment": dict(os.environ),
        "handlers": handlers,
        "warnings": list(warnings.filters),
        "logging": (logger.level, logging.getLogger().level, list(logging.getLogger().handlers)),
        "folder": Path.cwd(),
    }


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_state_of_the_process_stays() -> None:
    workflow = fitted()
    before = state_of_process()
    trained(workflow, model=DROPOUT, validation=OTHERS).score(OTHERS)
    assert state_of_process() == before
    stopping = {"global_batch_size": 128, "num_shards": 5}
    with pytest.raises(nightrank.ConfigError, match="num_shards=5"):
        trained(workflow, train=stopping)
    assert state_of_process() == before


def test_an_error_in_the_training_leaves_state_and_no_files(
    monkeypatch: pytest.MonkeyPatch, folders: Path, threads: None
) -> None:
    """KeyboardInterrupt, as Ctrl-C in a notebook raises it."""
    workflow = fitted(PLAIN)
    before = state_of_process()
    steps = iter(range(3))

    def interrupted(*_: object) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("training.loop.loss_check.LossCheck.on_step_end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(workflow)
    assert state_of_process() == before
    assert list(folders.iterdir()) == []


def test_temporary_files_are_private_and_deleted_with_the_model(folders: Path) -> None:
    model = trained()
    (folder,) = folders.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    workflow = model.workflow
    model.score(OTHERS)
    del model
    gc.collect()
    assert list(folders.iterdir()) == []
    assert len(untyped(workflow.transform(OTHERS))) == len(OTHERS)


def test_a_forked_process_keeps_the_files_of_its_parent(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    del model
    gc.collect()
    (folder,) = folders.iterdir()
    assert any(folder.rglob("model.json"))


def test_folders_that_cannot_be_written_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/models").write_text("no folder")
    with pytest.raises(nightrank.InfrastructureError, match=r"cannot copy .* to .*/full/models/frame/"):
        model.save(tmp_path / "full")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nothing"))
    with pytest.raises(nightrank.InfrastructureError, match="cannot make a temporary folder"):
        trained()


def test_a_later_fit_does_not_change_the_model() -> None:
    workflow = fitted()
    model = trained(workflow)
    before, version = model.score(OTHERS), workflow.version
    workflow.fit(OTHERS)
    assert model.workflow.version == version != workflow.version
    pd.testing.assert_series_equal(untyped(model.score(OTHERS)), untyped(before))


def test_saved_models_are_read_and_saved_again(tmp_path: Path) -> None:
    model = nightrank.train(fitted(), ROWS, model=MODEL, train=TRAIN, validation=OTHERS)
    model.save(tmp_path / "a")
    model.save(tmp_path / "a")
    nightrank.Model.load(tmp_path / "a").save(str(tmp_path / "b"))
    scores, version, metrics = model.score(OTHERS), model.version, model.metrics
    del model
    gc.collect()
    for folder in "ab":
        loaded = nightrank.Model.load(str(tmp_path / folder), version)
        assert loaded.version == version
        assert loaded.metrics == metrics
        assert loaded.date is None
        pd.testing.assert_series_equal(untyped(loaded.score(OTHERS)), untyped(scores))
        assert nightrank.Workflow.load(tmp_path / folder).version == loaded.workflow.version
    names = [sorted(path.name for path in (tmp_path / f).rglob("models/**/*")) for f in "ab"]
    assert names[0] == names[1]
    trained().save(tmp_path / "a")
    with pytest.raises(nightrank.ConfigError, match=r"has several models: \["):
        nightrank.Model.load(tmp_path / "a")
    assert nightrank.Model.load(tmp_path / "a", version).version == version
    with pytest.raises(nightrank.DataError, match="nothing has no model\n"):
        nightrank.Model.load(tmp_path / "nothing")
    with pytest.raises(nightrank.DataError, match="has no model none"):
        nightrank.Model.load(tmp_path / "a", "none")


def test_a_model_may_be_named_by_its_file(tmp_path: Path) -> None:
    """As in a configuration."""
    file = tmp_path / "model.yaml"
    file.write_text("architecture: dlrm\nembedding_dim: 8\nbottom_mlp: [8, 8]\ntop_mlp: [16]\n")
    expected = trained(model=MODEL).version
    for model in (file, str(file)):
        assert trained(model=model).version == expected
    file.write_text("embedding_dim: 8\n")
    with pytest.raises(nightrank.ConfigError, match=r"model\.architecture is missing"):
        trained(model=file)


def test_the_item_of_a_model_over_histories_is_the_feature_with_the_vocabulary_of_the_history() -> None:
    ids = {"share": "ids"}
    groups: list[Any] = [
        {"columns": ["user"], "kind": "categorical", "ops": ["categorify"]},
        {"columns": ["sku"], "kind": "categorical", "ops": [{"categorify": ids}]},
        {"columns": ["clicked"], "kind": "multi_hot", "ops": [{"categorify": {**ids, "counts": False}}]},
    ]
    rows = ROWS.rename(columns={"item": "sku"}).assign(clicked=[["i1", "i2"]] * len(ROWS))
    workflow = nightrank.Workflow(groups).fit(rows)
    spec = workflow.spec
    scopes: dict[str, Any] = {"user": "user", "sku": "item", "clicked": "user"}
    features = tuple(replace(feature, scope=scopes[feature.name]) for feature in spec.features)
    workflow._fitted = replace(learned_by(workflow), spec=replace(spec, features=features))  # as in a lake
    model = {"architecture": "din", "history": "clicked", "embedding_dim": 4}
    assert trained(workflow, rows, model=model).description["model"]["item"] == "sku"
    unshared = [*groups[:2], {"columns": ["clicked"], "kind": "multi_hot", "ops": ["categorify"]}]
    with pytest.raises(
        nightrank.ConfigError, match=r"model.item is null, but no feature .*\n.*'user', 'sku'"
    ):
        trained(nightrank.Workflow(unshared).fit(rows), rows, model=model)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_a_copy_of_a_temporary_model_has_files_of_its_own(folders: Path, copied: Any) -> None:
    model = nightrank.train(fitted(), ROWS, model=MODEL, train=TRAIN, validation=OTHERS)
    scores, version, metrics = model.score(OTHERS), model.version, model.metrics
    other = copied(model)
    assert len(list(folders.iterdir())) == 2
    del model
    gc.collect()
    assert len(list(folders.iterdir())) == 1
    assert (other.version, other.metrics, other.workflow.version) == (version, metrics, fitted().version)
    pd.testing.assert_series_equal(untyped(other.score(OTHERS)), untyped(scores))
    other.save(folders / "saved")
    assert nightrank.Model.load(folders / "saved").version == version


def test_joblib_keeps_models_and_workflows(tmp_path: Path) -> None:
    model = trained()
    scores, before = model.score(OTHERS), model.workflow.transform(OTHERS)
    joblib.dump({"model": model, "workflow": model.workflow}, tmp_path / "m.joblib")
    del model
    gc.collect()
    kept = joblib.load(tmp_path / "m.joblib")
    pd.testing.assert_series_equal(untyped(kept["model"].score(OTHERS)), untyped(scores))
    pd.testing.assert_frame_equal(untyped(kept["workflow"].transform(OTHERS)), untyped(before))


def test_a_model_whose_temporary_files_are_gone_cannot_be_pickled(folders: Path) -> None:
    model = trained()
    for path in folders.rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(nightrank.DataError, match=r"the temporary files of model .* were deleted\n.*`save`"):
        pickle.dumps(model)


def test_the_pickle_of_a_saved_model_contains_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the folder was passed as a relative path, and the working directory has changed since."""
    model = trained()
    scores = model.score(OTHERS)
    monkeypatch.chdir(tmp_path)
    model.save("saved")
    loaded, workflow = nightrank.Model.load("saved"), nightrank.Workflow.load("saved")
    pickles = [pickle.dumps(loaded), pickle.dumps(workflow)]
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for other in (loaded, pickle.loads(pickles[0]), copy.deepcopy(loaded)):
        pd.testing.assert_series_equal(untyped(other.score(OTHERS)), untyped(scores))
    assert pickle.loads(pickles[1]).transform(OTHERS).equals(workflow.transform(OTHERS))
    (tmp_path / "saved").rename(tmp_path / "moved")
    for pickled, remedy in zip(pickles, ("Model.load", "Workflow.load"), strict=True):
        with pytest.raises(nightrank.DataError, match=f"{tmp_path}/saved.*not there now(.|\n)*{remedy}"):
            pickle.loads(pickled)


def test_a_lake_of_a_relative_path_is_found_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lake/datasets/dt=2026-01-01").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(nightrank.open("lake"))
    monkeypatch.chdir("/")
    assert pickle.loads(pickled).root == str(tmp_path / "lake")


def test_models_are_not_saved_where_jobs_write_or_nobody_can(tmp_path: Path) -> None:
    model = trained()
    (tmp_path / "lake/datasets/dt=2026-01-01").mkdir(parents=True)
    with pytest.raises(nightrank.ConfigError, match="is a lake, to which only jobs write"):
        model.save(tmp_path / "lake")
    assert not (tmp_path / "lake/models").exists()
    model.save(tmp_path / "a")
    (weights,) = (tmp_path / "a").rglob("dense-*.safetensors")
    weights.unlink()
    with pytest.raises(nightrank.DataError, match=r"dense-.* is missing, although model\.json names it"):
        nightrank.Model.load(tmp_path / "a").save(tmp_path / "b")
    model.save(tmp_path / "a")  # replaces the damaged copy
    assert len(nightrank.Model.load(tmp_path / "a").score(OTHERS)) == len(OTHERS)


WITHOUT_SPARK = """
import sys
class Missing:  # as if these packages were not installed
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "petastorm", "horovod", "mlflow", "pandas", "sklearn"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import polars as pl
import nightrank
rows = pl.DataFrame({"a": ["x", "y", "x", "z"] * 50, "n": [1.5, 0.5, 2.0, 1.0] * 50, "label": [1, 0, 1, 0] * 50})
groups = [
    {"columns": ["a"], "kind": "categorical", "ops": ["categorify"]},
    {"columns": ["a"], "kind": "dense", "ops": ["target_encoding"]},
    {"columns": ["n"], "kind": "dense", "ops": ["normalize"]},
]
workflow = nightrank.Workflow(groups).fit(rows)
train = {"epochs": 3, "global_batch_size": 32, "device": "cpu", "learning_rate": 0.1}
model = nightrank.train(workflow, rows, model={"architecture": "deepfm"}, train=train, validation=rows)
model.save(sys.argv[1])
loaded = nightrank.Model.load(sys.argv[1])
print(loaded.score(rows).equals(model.score(rows)), len(model.metrics), model.metrics[-1]["auc"])
pickled = {"model": model, "workflow": workflow, "rows": rows, "scores": model.score(rows)}
with open(sys.argv[1] + ".pickle", "wb") as file:
    import pickle
    pickle.dump(pickled, file)
"""
IN_ANOTHER_PROCESS = """
import pickle, sys
with open(sys.argv[1] + ".pickle", "rb") as file:
    pickled = pickle.load(file)
model, workflow, rows = pickled["model"], pickled["workflow"], pickled["rows"]
print(model.score(rows).equals(pickled["scores"]), model.workflow.version == workflow.version)
print(workflow.transform(rows).equals(model.workflow.transform(rows)), model.metrics[-1]["auc"])
again = pickle.dumps(model)
del model, pickled
print(len(pickle.loads(again).score(rows)))
"""


@pytest.mark.processes
def test_spark_horovod_petastorm_and_pandas_are_not_needed(tmp_path: Path) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    for code, last_lines in (
        (WITHOUT_SPARK, ["True 3 1.0"]),
        (IN_ANOTHER_PROCESS, ["True True", "True 1.0", "200"]),  # the pickle contains the model
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "m")],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(temporary)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-len(last_lines) :] == last_lines
        assert done.stderr == ""
        assert list(temporary.iterdir()) == []


def test_the_release_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert nightrank.__version__ == project["version"]
