"""Trainings on one rank in this process: learning, resuming, warm starts, and the plan of a training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.errors import DataError
from conf.types import Config, ModelConfig, Scope, Train
from storage import file_io
from storage.dataset import Dataset, split_partitions
from storage.feature_spec import FeatureSpec
from storage.paths import LakePaths
from tests.training.architectures import VARIANTS, variant
from tests.training.feature_rows import make_spec, random_rows, segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.checkpoints import load_model, open_trained, save_trained
from training.checkpoints.stored import StoredState
from training.collectives import LocalCollectives
from training.loop import training_loop
from training.loop.run import train_in_process, warm_start
from training.loop.train_step import Trainer
from training.loop.training_plan import TrainPlan, make_plan
from training.models import build_model
from training.registry import versions
from training.registry.model_json import read_description
from training.registry.warm_or_fresh import find_parent

RUN_DATE = "2026-01-04"
MODEL = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def publish_segments(lake: LakePaths, rows: int = 40_000) -> Dataset:
    spec, train = segment_rows(rows, seed=1)
    held_out = {
        "validation": {"2026-01-03": segment_rows(8_000, 2)[1]},
        "test": {RUN_DATE: segment_rows(8_000, 3)[1]},
    }
    return publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": train}, **held_out}, file_rows=3_000)


def segments_config(lake: LakePaths, **train: Any) -> Config:
    return make_config(
        lake, model=MODEL, train={"global_batch_size": 512, "epochs": 2, "num_ranks": 1, **train}
    )


def publish_random(lake: LakePaths, rows: int = 600) -> Dataset:
    spec = make_spec(2, [9, 5])
    days = {"train": "2026-01-02", "validation": "2026-01-03", "test": RUN_DATE}
    splits = {split: {dt: random_rows(spec, rows, seed)} for seed, (split, dt) in enumerate(days.items())}
    return publish_all(lake, RUN_DATE, spec, splits, file_rows=100)


def random_plan(lake: LakePaths, **train: Any) -> TrainPlan:
    train = {"global_batch_size": 64, "num_shards": 4, "num_ranks": 1, "log_every_steps": 1, **train}
    return make_plan(make_config(lake, model=MODEL, train=train), lake, publish_random(lake))


def weights_of(plan: TrainPlan) -> dict[str, torch.Tensor]:
    return load_model(plan.model_path, torch.device("cpu")).model.state_dict()


def test_dlrm_learns_what_no_linear_model_can(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    dataset = publish_segments(lake)
    config = segments_config(lake, baselines=["logistic_regression"])
    plan = make_plan(config, lake, dataset)
    description = train_in_process(plan)
    assert (
        description["metrics"]["test"]["auc"] > 0.5 + 0.95 * 0.3
    )  # 0.8 is what the true probabilities reach
    assert description["baselines"]["logistic_regression"]["test"]["auc"] < 0.55
    assert description["metrics"]["test"]["rows"] == 8_000
    assert description["steps"] == 2 * -(-40_000 // 512)
    written = read_description(plan.model_path)
    assert json.loads(json.dumps(description)).items() <= written.items()


@pytest.mark.parametrize("num_dense, cardinalities", [(2, []), (0, [5])])
@pytest.mark.parametrize("name", VARIANTS)
def test_one_kind_of_feature_is_enough(
    tmp_path: Path, num_dense: int, cardinalities: list[int], name: str
) -> None:
    lake = LakePaths(str(tmp_path))
    spec = make_spec(num_dense, cardinalities)
    rows = {"2026-01-02": random_rows(spec, 200, seed=0)}
    dataset = publish_all(lake, RUN_DATE, spec, {"train": rows, "validation": rows})
    train = {"global_batch_size": 64, "num_shards": 4, "num_ranks": 1}
    plan = make_plan(make_config(lake, model=variant(name).model_dump(), train=train), lake, dataset)
    description = train_in_process(plan)
    assert description["metrics"]["validation"]["rows"] == 200
    assert description["metrics"]["test"] == {
        "auc": None,
        "log_loss": None,
        "normalized_entropy": None,
        "rows": 0,
        "positives": 0,
        "calibration": None,
    }
    assert load_model(plan.model_path, torch.device("cpu")).spec == spec


class Interrupted(Exception):
    """Stands for a killed process."""


@pytest.mark.parametrize("killed_at", [3, 4, 11])
def test_a_resumed_training_ends_in_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    settings = {"epochs": 2, "checkpoint_every_steps": 4}  # 10 steps an epoch: step 12 lies in the second
    undisturbed = random_plan(LakePaths(str(tmp_path / "a")), **settings)
    expected = train_in_process(undisturbed)
    plan = random_plan(LakePaths(str(tmp_path / "b")), **settings)
    steps = 0

    def counting(*arguments: Any) -> float:
        nonlocal steps
        steps += 1
        if steps > killed_at:
            raise Interrupted
        return original(*arguments)

    original = training_loop.learning_rate_factor
    monkeypatch.setattr(training_loop, "learning_rate_factor", counting)
    with pytest.raises(Interrupted):
        train_in_process(plan)
    assert len(list(Path(plan.checkpoint_path).glob("step-*.json"))) == min(killed_at // 4, 2)
    monkeypatch.setattr(training_loop, "learning_rate_factor", original)
    resumed = train_in_process(plan)
    actual, undisturbed_weights = weights_of(plan), weights_of(undisturbed)
    assert all(torch.equal(actual[name], undisturbed_weights[name]) for name in undisturbed_weights)
    assert [entry["loss"] for entry in resumed["history"]] == [entry["loss"] for entry in expected["history"]]
    assert resumed["metrics"] == expected["metrics"]
    assert not Path(plan.checkpoint_path).exists()


def test_training_twice_gives_the_same_weights(tmp_path: Path) -> None:
    plans = [random_plan(LakePaths(str(tmp_path / name))) for name in "ab"]
    histories = [[entry["loss"] for entry in train_in_process(plan)["history"]] for plan in plans]
    assert histories[0] == histories[1]
    first, second = (weights_of(plan) for plan in plans)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_diverging_loss_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the loss at step .* is nan"):
        train_in_process(
            random_plan(LakePaths(str(tmp_path)), learning_rate=1e30, embedding_learning_rate=1e30, epochs=5)
        )


def make_trainer(spec: FeatureSpec, seed: int = 0, **model: Any) -> Trainer:
    config = ModelConfig.model_validate({**MODEL, **model})
    return Trainer(build_model(config, spec, seed), Train(), LocalCollectives())


def stored(path: Path, trainer: Trainer, spec: FeatureSpec) -> tuple[StoredState, FeatureSpec]:
    """A trainer's state as a model on disk holds it."""
    save_trained(str(path), trainer, {"feature_spec": spec.to_json()}, LocalCollectives())
    return open_trained(str(path))


def test_warm_start_keeps_rows_of_a_grown_vocabulary(tmp_path: Path) -> None:
    old_spec, new_spec = make_spec(2, [5, 7, 4]), make_spec(2, [5, 9, 6], "w2")
    parent, child, fresh = make_trainer(old_spec, 1), make_trainer(new_spec, 2), make_trainer(new_spec, 2)
    parent.state()["adagrad.embedding.weight"].copy_(torch.arange(16))
    parent.state()["adam.mean"].normal_()
    warm_start(child, new_spec, *stored(tmp_path, parent, old_spec))
    columns = (trainer.model.embedding.block_rows() for trainer in (child, parent, fresh))
    for rows, old, new in zip(*columns, strict=True):
        assert torch.equal(rows[: len(old)], old)
        assert torch.equal(rows[len(old) :], new[len(old) :])
    accumulated = child.state()["adagrad.embedding.weight"].tolist()
    assert accumulated == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 0, 12, 13, 14, 15, 0, 0]
    assert torch.equal(child.state()["adam.mean"], parent.state()["adam.mean"])
    rows = random_rows(old_spec, 20, seed=0)
    inputs = torch.from_numpy(rows.dense), torch.from_numpy(rows.categorical).long()
    with torch.no_grad():
        assert torch.equal(child.model(*inputs), parent.model(*inputs))


def test_warm_start_rejects_what_is_no_extension(tmp_path: Path) -> None:
    spec = make_spec(2, [5, 7])
    child = make_trainer(spec)
    shrunk, other = make_spec(2, [5, 8]), make_spec(1, [5, 7, 3])
    with pytest.raises(DataError, match="C1 has 7 ids, fewer than the 8 ids of the parent"):
        warm_start(child, spec, *stored(tmp_path / "1", make_trainer(shrunk), shrunk))
    with pytest.raises(DataError, match=r"features differ from the parent's: \['C2', 'I1'\]"):
        warm_start(child, spec, *stored(tmp_path / "2", make_trainer(other), other))
    with pytest.raises(DataError, match=r"its parent's weights: .* has shape \(.*\), but shape \(.*\) in "):
        warm_start(child, spec, *stored(tmp_path / "3", make_trainer(spec, top_mlp=[17]), spec))


def promote(lake: LakePaths, run_date: str, version: str) -> None:
    decision = versions.ChampionDecision(version, None, True, version, "first")
    file_io.replace_json(f"{lake.models('tiny')}/promotions/dt={run_date}.json", decision.__dict__)


def next_run_dataset(dataset: Dataset, lake: LakePaths) -> Dataset:
    """The dataset of a day later: the window has moved on by the day that was validation."""
    splits = {**dataset.splits, "train": (*dataset.splits["train"], *dataset.splits["validation"])}
    return replace(dataset, run_date="2026-01-05", splits=splits, mode="apply")


def test_a_challenger_starts_from_the_champion_only_where_that_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lake = LakePaths(str(tmp_path))
    config = segments_config(lake)
    dataset = publish_random(lake)
    later = next_run_dataset(dataset, lake)
    assert find_parent(config, lake, later) is None
    version = train_in_process(make_plan(config, lake, dataset))["version"]
    promote(lake, "2026-01-04", version)
    parent = find_parent(config, lake, later)
    assert parent is not None
    assert (parent.version, parent.trained_days) == (version, {"2026-01-02"})
    extended = replace(later, workflow_version="w2", parent_workflow="w1", mode="extend")
    assert find_parent(config, lake, extended) == parent
    for changed, reason in [
        (
            (config, lake, replace(later, workflow_version="w2")),
            "the champion was trained on ids of workflow w1, which stand for other values in workflow w2",
        ),
        (
            (make_config(lake, model={**MODEL, "top_mlp": [17]}), lake, later),
            "the champion has the section model",
        ),
        ((segments_config(lake, retrain={"start": "fresh"}), lake, later), "train.retrain.start is fresh"),
        (
            (config, lake, replace(later, splits=dataset.splits)),
            "the champion has already been trained on all train days",
        ),
    ]:
        assert find_parent(*changed) is None
        assert reason in caplog.text


@pytest.mark.parametrize("model, kept", [(MODEL, True), ({"architecture": "neumf"}, False)])
def test_a_champion_with_other_scopes_is_a_parent_only_of_models_that_ignore_scopes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, model: dict[str, Any], kept: bool
) -> None:
    """The section `scopes` does not change ids, so build_features extends the champion's workflow."""
    caplog.set_level("INFO")
    lake = LakePaths(str(tmp_path))
    config = make_config(lake, model=model, train={"num_ranks": 1, "global_batch_size": 64})
    dataset = publish_random(lake, 100)
    version = train_in_process(make_plan(config, lake, dataset))["version"]
    promote(lake, RUN_DATE, version)
    spec = make_spec(2, [9, 5], "w2")
    train = {"train": {"2026-01-03": random_rows(spec, 100, seed=0)}}
    scopes: list[tuple[Scope, str | None]] = [("item", version), ("user", version if kept else None)]
    for scope, parent in scopes:
        features = [replace(one, scope=scope) if one.name == "C1" else one for one in spec.features]
        moved = replace(spec, features=tuple(features))
        later = publish_all(lake, "2026-01-05", moved, train, mode="extend", parent_workflow="w1")
        assert make_plan(config, lake, later).description["parent"] == parent
    reason = "the champion was trained with other `scopes`: ['C1 had scope item and now has scope user']"
    assert (reason in caplog.text) == (not kept)
    warm = config.model_copy(update={"train": Train.model_validate({"retrain": {"start": "warm"}})})
    if not kept:
        with pytest.raises(DataError, match=r"cannot start from champion .*other `scopes`"):
            make_plan(warm, lake, later)


def test_a_warm_started_training_goes_on_with_the_days_it_has_not_seen(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    dataset = publish_segments(lake)
    first = train_in_process(make_plan(segments_config(lake), lake, dataset))
    promote(lake, "2026-01-04", first["version"])
    plan = make_plan(segments_config(lake, epochs=1), lake, next_run_dataset(dataset, lake))
    second = train_in_process(plan)
    assert second["parent"] == first["version"]
    assert second["train_rows"] == 8_000
    assert second["trained_days"] == ["2026-01-02", "2026-01-03"]
    assert second["history"][-1]["loss"] < first["history"][0]["loss"] - 0.1
    assert second["metrics"]["test"]["auc"] > first["metrics"]["test"]["auc"] - 0.01


def test_the_version_knows_data_code_parent_and_configuration_but_not_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = segments_config(LakePaths(str(tmp_path)))
    version = versions.model_version(config, "data", None)
    embeddings = {"placement": "row_wise", "rank_max_bytes": 10**9}
    same = segments_config(
        LakePaths("elsewhere"), num_ranks=4, log_every_steps=7, device="cpu", embeddings=embeddings
    )
    assert versions.model_version(same, "data", None) == version
    others = [
        versions.model_version(segments_config(LakePaths("x"), learning_rate=0.5), "data", None),
        versions.model_version(
            segments_config(LakePaths("x"), embeddings={"optimizer": "sgd"}), "data", None
        ),
        versions.model_version(config, "other data", None),
        versions.model_version(config, "data", "parent"),
    ]
    monkeypatch.setattr(versions, "code_version", lambda: "other code")
    others.append(versions.model_version(config, "data", None))
    assert len({version, *others}) == 6


def test_a_plan_names_what_is_missing(tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    dataset = publish_random(lake)
    with pytest.raises(DataError, match="the train split of dataset 2026-01-04 has no rows"):
        make_plan(make_config(lake, model=MODEL), lake, replace(dataset, splits={}))


@pytest.mark.parametrize("share, message", [(0, "contain no click"), (1, "contain only clicks")])
def test_a_plan_refuses_training_days_of_one_label(tmp_path: Path, share: int, message: str) -> None:
    lake = LakePaths(str(tmp_path))
    dataset, config = publish_random(lake), make_config(lake, model=MODEL)
    train = dataset.splits["train"]
    rows = [
        sum(entry.rows for entry in manifest.files)
        for _, manifest, _ in split_partitions(lake, dataset, "train")
    ]

    def with_clicks(clicks: list[int]) -> Dataset:
        counted = (replace(member, clicks=count) for member, count in zip(train, clicks, strict=True))
        return replace(dataset, splits={**dataset.splits, "train": tuple(counted)})

    with pytest.raises(
        DataError, match=rf"{message} \({train[0].dt}: {share * rows[0]} of {rows[0]} rows"
    ) as caught:
        make_plan(config, lake, with_clicks([share * count for count in rows]))
    assert caught.value.exit_code == 3
    assert make_plan(config, lake, with_clicks([1, *rows[1:]])).train_files
    assert make_plan(config, lake, dataset).train_files  # of a release that did not count clicks
