"""A refit sees every row of the three splits, serves for its champion, and changes nothing that is measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from conf.errors import ConfigError, DataError
from conf.types import Config
from jobs import model_training, train_model
from storage import file_io
from storage.dataset import read_dataset
from storage.paths import LakePaths
from tests.training.choices import SPEC, Choices, choices
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.refit_lake import (
    DAYS,
    MODEL,
    NAME,
    RUN_DATES,
    TRAIN,
    config_of,
    context_of,
    publish,
    refit,
    rows_of,
    train_and_promote,
    without_spark,
)
from training.checkpoints import load_model
from training.collectives import ALONE
from training.data.batch import Batch
from training.data.item_catalogue import pair_hash
from training.data.row_keys import hash_keys
from training.loop import run as loop_run
from training.loop.evaluate import evaluate
from training.loop.run import train_in_process
from training.loop.train_step import Trainer
from training.loop.training_plan import TrainPlan, make_plan, make_refit_plan
from training.registry.model_json import read_description
from training.registry.overrides import OverrideRequest, pin, release, roll_back
from training.registry.refits import Refit, read_refits, record_refit, refit_name, serving_model
from training.registry.versions import challenger_of, model_path

FIRST, SECOND = RUN_DATES


@dataclass
class Runs:
    """Two runs with refits. The second training starts from the champion of the first run.

    Attributes:
        before, after: the bytes of all files of the champions and of the decisions, before and after a refit.
    """

    config: Config
    lake: LakePaths
    champions: list[str]
    refits: list[str]
    before: list[dict[str, bytes]]
    after: list[dict[str, bytes]]


def files_of(lake: LakePaths) -> dict[str, bytes]:
    """The files of models and decisions, without the records of refits."""
    root = Path(lake.models(NAME))
    files = (path for path in root.rglob("*") if path.is_file() and path.parent.name != "refits")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def no_spark() -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, no_spark: None) -> Runs:
    lake = LakePaths(str(tmp_path_factory.mktemp("lake")))
    publish(lake)
    result = Runs(config_of(lake), lake, [], [], [], [])
    for run_date in RUN_DATES:
        result.champions.append(train_and_promote(result.config, run_date))
        result.before.append(files_of(lake))
        result.refits.append(str(refit(result.config, run_date).facts["version"]))
        result.after.append(files_of(lake))
    return result


def plan_of(runs: Runs, run_date: str) -> TrainPlan:
    champion = runs.champions[RUN_DATES.index(run_date)]
    return make_refit_plan(runs.config, runs.lake, read_dataset(runs.lake, run_date), champion)


class Recorder(Trainer):
    """Records the dense values of the rows of each step, without padding."""

    steps: list[np.ndarray]

    def step(
        self, batch: Batch, rate_factor: float, progress: float = 1.0, next_batch: Batch | None = None
    ) -> Tensor:
        self.steps.append(batch.dense[batch.weights > 0].numpy().copy())
        return super().step(batch, rate_factor, progress, next_batch)


@pytest.mark.parametrize(
    "run_date, days",
    [
        (FIRST, DAYS[:4]),  # fresh weights: all days of the dataset
        (SECOND, DAYS[2:]),  # a warm start: its parent was trained on the second day of the lake
    ],
)
def test_every_row_of_the_three_splits_is_used_once_per_epoch(
    runs: Runs, run_date: str, days: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(runs, run_date)
    Recorder.steps = []
    monkeypatch.setattr(loop_run, "Trainer", Recorder)
    train_in_process(replace(plan, model_path=f"{tmp_path}/model", checkpoint_path=f"{tmp_path}/none"))
    expected = np.concatenate([rows_of(day).dense for day in days])
    expected = expected[np.lexsort(expected.T)]
    steps = plan.steps_per_epoch
    assert len(Recorder.steps) == 2 * steps
    for epoch in (0, 1):
        rows = np.concatenate(Recorder.steps[epoch * steps : (epoch + 1) * steps])
        np.testing.assert_array_equal(rows[np.lexsort(rows.T)], expected)


def test_the_refit_equals_a_training_whose_train_split_has_all_days(runs: Runs, tmp_path: Path) -> None:
    lake, spec = LakePaths(str(tmp_path)), segment_rows(1, 0)[0]
    dataset = publish_all(
        lake, FIRST, spec, {"train": {day: rows_of(day) for day in DAYS[:4]}}, file_rows=100
    )
    plan = make_plan(config_of(lake), lake, dataset)
    plan = replace(plan, splits={"train": plan.splits["train"]})  # there is nothing to measure it on
    train_in_process(plan)
    models = [
        load_model(path, torch.device("cpu")).model.state_dict()
        for path in (plan.model_path, plan_of(runs, FIRST).model_path)
    ]
    assert models[0].keys() == models[1].keys()
    for name, weights in models[0].items():
        torch.testing.assert_close(models[1][name], weights, rtol=0, atol=0)


def test_what_is_measured_does_not_change(runs: Runs) -> None:
    """The files of models and decisions are the same after a refit, and so are the versions without refits."""
    assert runs.after == runs.before
    for run_date, champion in zip(RUN_DATES, runs.champions, strict=True):
        without = config_of(runs.lake, refit=False)
        plan = make_plan(without, runs.lake, read_dataset(runs.lake, run_date))
        assert plan.description["version"] == challenger_of(runs.lake, NAME, run_date) == champion


def test_model_json_names_the_champion_and_claims_no_measures(runs: Runs) -> None:
    for number, champion in enumerate(runs.champions):
        path = model_path(runs.lake, refit_name(NAME), runs.refits[number])
        description, measured = (
            read_description(path),
            read_description(model_path(runs.lake, NAME, champion)),
        )
        assert description["refit_of"] == champion
        assert (description["metrics"], description["baselines"]) == ({}, {})
        assert "refit_of" not in measured
        assert description["parent"] == measured["parent"] == [None, runs.champions[0]][number]
        assert description["trained_days"] == DAYS[: 4 + number]


def test_a_warm_start_uses_the_champion_and_not_its_refit(runs: Runs) -> None:
    plan = make_plan(runs.config, runs.lake, read_dataset(runs.lake, SECOND))
    assert plan.parent_path == plan_of(runs, SECOND).parent_path
    assert plan.parent_path == model_path(runs.lake, NAME, runs.champions[0])
    assert [file.dt for file in plan.train_files] == [DAYS[2]] * 2  # the test day of no run is left out


def test_a_refit_has_a_held_out_day_on_which_the_champion_before_was_trained(
    runs: Runs, tmp_path: Path
) -> None:
    """The window moved back: the second day was a train day of the champion before, and validates now.

    So the training starts from fresh weights, and no model of its chain has learned this day.
    """
    lake = LakePaths(f"{tmp_path}/lake")
    shutil.copytree(runs.lake.root, lake.root)
    dataset = read_dataset(lake, SECOND)
    (third, fourth), (fifth,) = (
        (dataset.splits["train"][1], *dataset.splits["validation"]),
        dataset.splits["test"],
    )
    second = read_dataset(lake, FIRST).splits["train"][1]
    moved = replace(dataset, splits={"train": (third, fourth), "validation": (second,), "test": (fifth,)})
    champion = make_plan(config_of(lake), lake, moved)
    file_io.replace_json(f"{champion.model_path}/model.json", {"steps": 1})
    plan = make_refit_plan(config_of(lake), lake, moved, champion.description["version"])
    assert champion.parent_path is None
    assert sorted({file.dt for file in champion.train_files}) == [DAYS[2], DAYS[3]]
    assert sorted({file.dt for file in plan.train_files}) == [DAYS[1], DAYS[2], DAYS[3], DAYS[4]]


def test_a_rerun_trains_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(model_training, "train_plan", fails)
    record = Path(runs.lake.models(NAME)) / f"refits/dt={SECOND}.json"
    before = record.read_text()
    assert refit(runs.config, SECOND).facts["version"] == runs.refits[1]
    assert record.read_text() == before
    assert json.loads(before)["refit_of"] == runs.champions[1]


def served(runs: Runs, run_date: str, **train: Any) -> str | None:
    serving = serving_model(config_of(runs.lake, **train), runs.lake, run_date)
    assert serving is not None
    return serving.version


def test_the_refit_of_the_champion_of_a_date_serves(runs: Runs) -> None:
    assert serving_model(runs.config, runs.lake, DAYS[2]) is None
    assert [served(runs, run_date) for run_date in RUN_DATES] == runs.refits
    assert served(runs, "2026-02-01") == runs.refits[1]
    assert [served(runs, run_date, refit=False) for run_date in RUN_DATES] == runs.champions
    serving = serving_model(runs.config, runs.lake, SECOND)
    assert serving is not None
    assert serving.folder(runs.lake, NAME) == model_path(runs.lake, refit_name(NAME), runs.refits[1])


def test_rollbacks_and_pins_bring_the_refit_of_the_champion(runs: Runs) -> None:
    """Overrides name champions; they take effect on dates after those of the other tests."""
    request = OverrideRequest("2026-03-01", "ada", "clicks fell")
    roll_back(runs.lake, NAME, request)
    assert served(runs, "2026-03-01") == runs.refits[0]
    assert served(runs, "2026-02-28") == runs.refits[1]
    pin(runs.lake, NAME, replace(request, run_date="2026-03-02", version=runs.champions[1]))
    assert served(runs, "2026-03-02") == runs.refits[1]
    release(runs.lake, NAME, replace(request, run_date="2026-03-03"))
    assert served(runs, "2026-03-03") == runs.refits[1]
    with pytest.raises(DataError, match="is none of the complete models"):
        pin(runs.lake, NAME, replace(request, run_date="2026-03-03", version=runs.refits[0]))


def test_a_champion_without_a_refit_serves_itself(no_spark: None, tmp_path: Path) -> None:
    """Nothing is refitted if the gate kept the champion, and the champion keeps its refit."""
    lake = LakePaths(str(tmp_path))
    publish(lake)
    config = config_of(lake)
    champion = train_and_promote(config, FIRST)
    serving = serving_model(config, lake, FIRST)
    assert serving is not None
    assert (serving.version, serving.refit) == (champion, None)
    assert serving.folder(lake, NAME) == model_path(lake, NAME, champion)
    first = refit(config, FIRST).facts["version"]
    train_and_promote(config, SECOND, promoted=False)
    summary = refit(config, SECOND)
    assert (summary.output, summary.facts["version"]) == (None, None)
    assert [(record.run_date, record.version) for record in read_refits(lake, NAME, SECOND)] == [
        (FIRST, first)
    ]
    record_refit(lake, NAME, Refit("2026-01-09", champion, "of a later date"))
    for run_date, version in ((SECOND, first), ("2026-01-09", "of a later date")):
        serving = serving_model(config, lake, run_date)
        assert serving is not None
        assert serving.version == version


def test_a_withdrawn_model_is_not_refitted(no_spark: None, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    publish(lake)
    config = config_of(lake)
    for run_date in RUN_DATES:
        train_and_promote(config, run_date)
    roll_back(lake, NAME, OverrideRequest(SECOND, "ada", "clicks fell"))
    assert refit(config, SECOND).facts["version"] is None


def test_the_refit_does_the_same_share_of_its_steps(no_spark: None, tmp_path: Path) -> None:
    lake = LakePaths(str(tmp_path))
    publish(lake)
    stop_at = {"metric": "log_loss", "value": 10.0}  # reached at the first evaluation
    config = config_of(lake, epochs=3, evaluate_every_steps=4, stop_at=stop_at)
    champion = read_description(model_path(lake, NAME, train_and_promote(config, FIRST)))
    assert (champion["steps"], champion["stopped"] is None) == (4, False)
    facts = train_model.run(context_of(config, FIRST)).facts  # of the trained model
    assert facts["rows_per_s"] == pytest.approx(4 * 64 / facts["train_s"], rel=0.05)  # four batches of 64
    measured = make_plan(config, lake, read_dataset(lake, FIRST)).steps_per_epoch
    refitted = read_description(str(refit(config, FIRST).output))
    plan = make_refit_plan(config, lake, read_dataset(lake, FIRST), champion["version"])
    assert plan.steps_per_epoch > measured
    assert refitted["steps"] == plan.last_step == int(np.ceil(4 * plan.steps_per_epoch / measured))
    assert refitted["stopped"] == f"step {plan.last_step} is the last step of the training plan"
    assert [entry["step"] for entry in refitted["history"]][-1] == refitted["steps"]
    # Both are before the decay of a schedule of three epochs.
    assert refitted["history"][-1]["learning_rate"] == champion["history"][-1]["learning_rate"] == 3e-3
    again = train_in_process(replace(plan, model_path=f"{tmp_path}/again"))
    assert again["steps"] == refitted["steps"]


def test_the_refit_ends_at_the_share_of_the_kept_step(
    no_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = LakePaths(str(tmp_path))
    publish(lake)
    aucs = iter([0.6, 0.7, 0.5])  # at the end of each epoch

    def measure(*arguments: Any) -> dict[str, Any]:
        measured = evaluate(*arguments)
        return {**measured, "auc": next(aucs, measured["auc"])}

    monkeypatch.setattr(loop_run, "evaluate", measure)
    config = config_of(lake, epochs=3)
    summary = train_model.run(context_of(config, FIRST))
    champion = read_description(str(summary.output))
    epoch = make_plan(config, lake, read_dataset(lake, FIRST)).steps_per_epoch
    assert champion["kept"] == {
        "step": 2 * epoch, "epoch": 2, "metric": "auc", "value": 0.7, "best_step": 2 * epoch
    }  # fmt: skip
    assert (summary.facts["kept_step"], summary.facts["kept_epoch"]) == (2 * epoch, 2)
    assert (summary.facts["kept_metric"], summary.facts["kept_value"]) == ("auc", 0.7)
    assert (summary.facts["steps"], summary.facts["best_step"]) == (3 * epoch, 2 * epoch)
    plan = make_refit_plan(config, lake, read_dataset(lake, FIRST), champion["version"])
    assert plan.last_step == 2 * plan.steps_per_epoch


def test_a_refit_needs_its_setting_and_the_training_of_the_champion(runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"train\.refit is false"):
        refit(config_of(runs.lake, refit=False), SECOND)
    with pytest.raises(DataError, match="was trained with another configuration, dataset or release"):
        refit(config_of(runs.lake, seed=1), SECOND)


def test_the_configuration_refuses_lists_that_are_measured_on_the_test_split() -> None:
    train = {"refit": True}
    for measure in ({"against": "test_split"}, {"against": "next_day"}):
        if measure["against"] == "next_day":
            assert make_config(LakePaths("lake"), model=MODEL, train=train, measure=measure).train.refit
            continue
        with pytest.raises(ValueError, match=r"with train\.refit=true, .* also trained on the test split"):
            make_config(LakePaths("lake"), model=MODEL, train=train, measure=measure)


def test_choices_of_all_splits_are_known_when_negatives_are_drawn(no_spark: None, tmp_path: Path) -> None:
    lake, days = LakePaths(str(tmp_path)), [choices(200, seed=number, day=number) for number in range(4)]
    splits: dict[Any, dict[str, Any]] = {"train": {}, "validation": {}, "test": {}}
    for split, number in (("train", 0), ("train", 1), ("validation", 2), ("test", 3)):
        splits[split][DAYS[number]] = days[number].rows
    dataset = publish_all(lake, FIRST, SPEC, splits)
    sections: dict[str, Any] = {
        "model": {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]},
        "train": {**TRAIN, "negatives": {"per_positive": 2}},
        "negatives": {"per_positive": 1},
        "keys": {"user": "I0", "item": "label"},
    }
    config = make_config(lake, **sections)
    champion = make_plan(config, lake, dataset)
    train_in_process(champion)
    plan = make_refit_plan(config, lake, dataset, champion.description["version"])
    assert catalogue_pairs(champion) == pairs_of(days[:2])
    assert catalogue_pairs(plan) == pairs_of(days)


def catalogue_pairs(plan: TrainPlan) -> set[int]:
    """The pairs of user and item that are known when the plan draws negatives."""
    rank = loop_run._Rank(plan, ALONE, torch.device("cpu"), None, kernels=False)
    sampler: Any = rank.rows_of_step(plan.train_files, rank.build(plan.model))
    return set(sampler._catalogue.pairs.tolist())


def pairs_of(days: list[Choices]) -> set[int]:
    """The pairs of user and item that the rows with label 1 of these days have."""
    pairs: set[int] = set()
    for day in days:
        users, items = (
            torch.from_numpy(hash_keys(pa.chunked_array([np.array(keys)[day.rows.labels == 1]])))
            for keys in day.rows.keys
        )
        pairs |= set(pair_hash(users, items).tolist())
    return pairs


@pytest.mark.parametrize(
    "train, draws, scores, measured",
    [
        ({}, False, "click_probability", True),
        ({"negatives": {"per_positive": 2}}, True, "probability", True),
        ({"negatives": {"per_positive": 2}, "loss": "softmax"}, True, "ranking", False),
    ],
)
def test_a_model_says_what_its_scores_are_and_has_only_measures_that_they_have(
    no_spark: None, tmp_path: Path, train: dict[str, Any], draws: bool, scores: str, measured: bool
) -> None:
    lake, days = LakePaths(str(tmp_path)), [choices(60, seed=number, day=number) for number in range(3)]
    splits: dict[Any, dict[str, Any]] = {
        split: {DAYS[number]: days[number].rows}
        for number, split in enumerate(("train", "validation", "test"))
    }
    publish_all(lake, FIRST, SPEC, splits)
    config = make_config(
        lake,
        model={"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]},
        train={**TRAIN, "epochs": 1, "evaluate_every_steps": 1, "global_batch_size": 16, **train},
        negatives={"per_positive": 1} if draws else None,
        keys={"user": "I0", "item": "label"},
        scopes={"user": ["I0"]},
    )
    summary = train_model.run(context_of(config, FIRST))
    description = read_description(str(summary.output))
    assert description["scores"] == scores
    history = [entry["validation"] for entry in description["history"] if "validation" in entry]
    found = [description["metrics"]["validation"], description["metrics"]["test"], *history]
    assert len(found) > 2
    for metrics in (*found, summary.facts):
        assert metrics["auc"] is not None
        assert (metrics["log_loss"] is not None) is measured
        assert (metrics["normalized_entropy"] is not None) is measured
    assert (description["metrics"]["test"]["calibration"] is not None) is measured
