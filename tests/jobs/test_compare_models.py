"""compare_models: interrupted and repeated, nothing promoted, failures, and the files that it writes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pyspark.sql import SparkSession

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.load import load_config
from conf.types import Config
from jobs import compare_models as stage
from jobs.compare_models import ComparisonRequest, run
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.faults.training_process import MODEL
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan
from training.registry.champion_history import champion_state_as_of
from training.registry.comparison import Comparison
from training.registry.versions import challenger_of

RUN_DATE = "2026-01-04"
TRAIN = {"global_batch_size": 128, "num_shards": 4, "num_ranks": 1, "epochs": 2, "device": "cpu"}
RUNS: list[dict[str, Any]] = [
    {"name": "base"},
    {"name": "slow", "set": {"train.learning_rate": 1e-5, "train.embedding_learning_rate": 1e-5}},
    {"name": "linear", "set": {"model": {"architecture": "logistic_regression"}}},
]

Train = Callable[[object, TrainPlan, object], dict[str, Any]]


class Trainings:
    """Trains in this process instead of on Spark's tasks; remembers the versions. `before` may raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: list[str] = []
        self.before: Callable[[int], None] = lambda number: None
        monkeypatch.setattr(stage, "train_plan", self.train)

    def train(self, _: object, plan: TrainPlan, show: object) -> dict[str, Any]:
        self.before(len(self.versions))
        self.versions.append(plan.description["version"])
        return train_in_process(plan)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    monkeypatch.setattr(stage.mlflow_mirror, "prepare", lambda lake: None)
    monkeypatch.setattr(stage, "track_comparison", lambda *_: None)
    monkeypatch.setattr(RunContext, "spark", None)
    return Trainings(monkeypatch)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    lake = LakePaths(str(tmp_path / "lake"))
    spec, rows = segment_rows(1_200, 1)
    held_out = {
        "validation": {"2026-01-03": segment_rows(600, 2)[1]},
        "test": {RUN_DATE: segment_rows(600, 3)[1]},
    }
    publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": rows}, **held_out})
    return make_config(lake, model=MODEL, train=TRAIN)


def compare(
    folder: Path,
    config: Config,
    *,
    context: RunContext | None = None,
    best: str | None = None,
    **contents: Any,
) -> JobSummary:
    path = folder / "trial.yaml"
    path.write_text(yaml.safe_dump({"name": "trial", **({} if contents else {"runs": RUNS}), **contents}))
    (folder / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    request = ComparisonRequest(str(path), str(folder / "config.yaml"), ("name=other",), best)
    return run(context or RunContext("compare_models", config, RUN_DATE), request)


def result(config: Config) -> Comparison:
    return Comparison.from_facts(
        read_manifest(LakePaths(config.lake).comparisons("trial").partition(RUN_DATE)).facts
    )


def test_a_repeated_run_trains_what_is_missing(tmp_path: Path, config: Config, trainings: Trainings) -> None:
    def interrupt(number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt

    trainings.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path, config)
    (first,) = trainings.versions
    assert not (Path(config.lake) / "comparisons").exists()
    trainings.before = lambda number: None
    summary = compare(tmp_path, config)
    assert len(trainings.versions) == 3
    assert trainings.versions.count(first) == 1
    comparison = result(config)
    assert [outcome.name for outcome in comparison.experiments] == ["base", "slow", "linear"]
    assert [outcome.trainings[0].version for outcome in comparison.experiments] == trainings.versions
    losses = [outcome.trainings[0].validation["log_loss"] for outcome in comparison.experiments]
    assert summary.facts["best"] == ("base", "slow", "linear")[int(np.argmin(losses))]
    assert compare(tmp_path, config).facts == summary.facts
    assert len(trainings.versions) == 3
    assert json.loads(summary.line())["trainings"] == 3


def test_results_are_those_of_the_models_and_curves_have_a_point_for_each_epoch(
    tmp_path: Path, config: Config, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = compare(tmp_path, config, runs=RUNS, repeat_seeds=[3, 4])
    assert len(set(trainings.versions)) == 6
    comparison = result(config)
    for outcome in comparison.experiments:
        assert [training.seed for training in outcome.trainings] == [3, 4]
        for training in outcome.trainings:
            folder = Path(config.lake) / "models/tiny-experiments" / training.version
            model = json.loads((folder / "model.json").read_text())
            for split, measures in (("validation", training.validation), ("test", training.test)):
                assert measures == {key: model["metrics"][split][key] for key in measures}
            assert model["parent"] is None
            assert model["baselines"] == {}
            assert [entry.epoch for entry in training.curve] == [1.0, 2.0]
            kept = int(model["kept"]["epoch"]) - 1
            assert training.curve[kept].measures == training.validation
            assert training.best_epoch("auc") == kept + 1
    page = Path(summary.output or "").read_text()
    table = capsys.readouterr().err
    for outcome in comparison.experiments:
        assert outcome.name in page
        mean = f"{outcome.mean('validation', 'log_loss'):.4f} ± {outcome.deviation('validation', 'log_loss'):.4f}"
        assert mean in page
        assert mean in table
    assert summary.facts["command"] in table


def test_nothing_becomes_challenger_or_champion(tmp_path: Path, config: Config, trainings: Trainings) -> None:
    compare(tmp_path, config)
    lake = LakePaths(config.lake)
    assert [folder.name for folder in (tmp_path / "lake/models").iterdir()] == ["tiny-experiments"]
    folders = list((tmp_path / "lake/models/tiny-experiments").iterdir())
    assert sorted(folder.name for folder in folders) == sorted(trainings.versions)
    for name in ("tiny", "tiny-experiments"):
        assert champion_state_as_of(lake, name, "2030-01-01").champion is None
        with pytest.raises(DataError, match="no model was trained"):
            challenger_of(lake, name, RUN_DATE)
    # A training of the nightly chain is planned as if there had been no comparison.
    plan = make_plan(config, lake, read_dataset(lake, RUN_DATE))
    assert plan.parent_path is None
    assert not Path(plan.model_path).exists()


def test_a_failed_training_does_not_end_the_comparison(
    tmp_path: Path, config: Config, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverge(number: int) -> None:
        if number == 0:
            trainings.versions.append("failed")
            raise DataError("the loss of step 3 is nan", "lower the learning rate")

    trainings.before = diverge
    summary = compare(tmp_path, config)
    assert summary.facts["failed"] == ["base"]
    assert summary.facts["best"] in ("slow", "linear")
    assert "base failed: the loss of step 3 is nan" in capsys.readouterr().err
    assert "the loss of step 3 is nan" in Path(summary.output or "").read_text()
    trainings.before = lambda number: None
    assert compare(tmp_path, config).facts["failed"] == []


def test_an_infrastructure_error_ends_the_comparison(
    tmp_path: Path, config: Config, trainings: Trainings
) -> None:
    def lose_rank(number: int) -> None:
        raise InfrastructureError("a rank died", "rerun")

    trainings.before = lose_rank
    with pytest.raises(InfrastructureError, match="a rank died"):
        compare(tmp_path, config)


def test_the_written_configuration_is_the_best_experiment(
    tmp_path: Path, config: Config, trainings: Trainings
) -> None:
    best = tmp_path / "best.yaml"
    runs = [{"name": "wide", "set": {"model.top_mlp": [16], "train.learning_rate": 0.01}}]
    summary = compare(tmp_path, config, best=str(best), runs=runs)
    assert summary.facts["best"] == "wide"
    chosen = load_config(str(best))
    assert chosen.model.settings["top_mlp"] == [16]
    assert chosen.train == config.train.model_copy(update={"learning_rate": 0.01})
    assert compare(tmp_path, config, best=str(best), runs=runs).facts["best"] == "wide"


@pytest.mark.parametrize(
    "contents, best, message",
    [
        ({"grid": {"train.num_ranks": [1, 2]}}, None, "'num_ranks=1' and 'num_ranks=2' train the same model"),
        ({"grid": {"train.learning_rat": [1]}}, None, "unknown key train.learning_rat=1"),
        ({"runs": [{"name": "a", "set": {"model.top": [8]}}]}, None, r"'a', which sets model.top=\[8\]: "),
        ({"runs": RUNS}, "config.yaml", "which compare_models did not write"),
        ({"runs": RUNS}, "best.txt", "is not the path of a YAML file"),
    ],
)
def test_a_wrong_request_trains_nothing(
    tmp_path: Path, config: Config, trainings: Trainings, contents: Any, best: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(tmp_path, config, best=best and str(tmp_path / best), **contents)
    assert trainings.versions == []


def test_a_dataset_without_validation_rows_is_refused(tmp_path: Path, trainings: Trainings) -> None:
    lake = LakePaths(str(tmp_path / "lake"))
    spec, rows = segment_rows(400, 1)
    publish_all(lake, RUN_DATE, spec, {"train": {"2026-01-02": rows}, "test": {RUN_DATE: rows}})
    with pytest.raises(DataError, match="the validation split of the dataset has no rows"):
        compare(tmp_path, make_config(lake, model=MODEL, train=TRAIN))
    assert trainings.versions == []


def test_without_a_dataset_nothing_is_trained(tmp_path: Path, trainings: Trainings) -> None:
    with pytest.raises(DataError, match="datasets has no published partition"):
        compare(tmp_path, make_config(LakePaths(str(tmp_path / "lake")), model=MODEL, train=TRAIN))


def test_on_the_ranks_of_a_session(
    spark: SparkSession, tmp_path: Path, config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nightrank.compare_models")
    context = RunContext("compare_models", config, RUN_DATE, open_session=lambda _: spark)
    summary = compare(tmp_path, config, context=context, runs=RUNS[:2])
    assert len(list((tmp_path / "lake/models/tiny-experiments").iterdir())) == 2
    caplog.clear()
    again = compare(tmp_path, config, context=context, runs=RUNS[:2])
    assert again.facts == summary.facts
    assert caplog.text.count("was trained before") == 2
