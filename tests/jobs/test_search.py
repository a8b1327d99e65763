"""compare_models with a search: trials, pruning, repeated and interrupted runs, and the files that it writes."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError, DataError
from conf.load import load_config
from conf.types import Config
from jobs import compare_models as stage
from tests.jobs.test_compare_models import Trainings, compare, config, result, trainings
from training.registry.comparison import Comparison, delete_old_experiments

__all__ = ["config", "trainings"]  # fixtures

SPACE = {
    "train.learning_rate": {"low": "1e-4", "high": 0.1, "log": True},
    "model.top_mlp": {"choices": [[8], [16, 8]]},
    "train.epochs": {"low": 2, "high": 4},
}


def section(trials: int = 9, **values: Any) -> dict[str, Any]:
    return {"trials": trials, "space": SPACE, **values}


def timeless(comparison: Comparison) -> Comparison:
    """The comparison without the seconds of its trainings."""
    experiments = [
        replace(one, trainings=[replace(training, seconds=0.0) for training in one.trainings])
        for one in comparison.experiments
    ]
    return replace(comparison, experiments=experiments)


def test_an_interrupted_search_goes_on_to_the_same_trials(
    tmp_path: Path, config: Config, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    search = section(prune=True)
    other = tmp_path / "other"
    shutil.copytree(config.lake, other / "lake")
    second = config.model_copy(update={"lake": str(other / "lake")})
    summary = compare(tmp_path, config, search=search)
    whole, versions = result(config), list(trainings.versions)
    page, table = Path(summary.output or "").read_text(), capsys.readouterr().err

    # The trials are those of the space; the best is the best complete one.
    assert whole.search is not None
    assert (whole.search.done, whole.search.planned) == (9, 9)
    assert len(versions) == len(set(versions)) == len(whole.experiments) == 9 - len(whole.search.repeated)
    for trial in whole.experiments:
        assert sorted(trial.changes) == sorted(SPACE)
        assert 1e-4 <= trial.changes["train.learning_rate"] <= 0.1
        assert trial.changes["model.top_mlp"] in ([8], [16, 8])
        assert trial.changes["train.epochs"] in (2, 3, 4)
        model = Path(config.lake) / "models/tiny-experiments" / trial.trainings[0].version / "model.json"
        assert model.exists() == (trial.pruned is None)
        assert trial.name in page
        assert trial.name in table
    losses = {one.name: one.mean("validation", "log_loss") for one in whole.experiments if one.pruned is None}
    assert summary.facts["best"] == min(losses, key=lambda name: losses[name] or 9.0)

    # A pruned trial is not ranked, and is repeated from its record.
    pruned = [trial for trial in whole.experiments if trial.pruned is not None]
    assert pruned, "the settings of this test give at least one"
    assert summary.facts["pruned"] == [trial.name for trial in pruned]
    for trial in pruned:
        assert trial not in whole.ranked
        assert trial.pruned is not None
        assert trial.pruned < trial.changes["train.epochs"]
        assert f"{trial.name} (pruned after {trial.pruned:g} epoch" in page
        assert f"{trial.name} (pruned after {trial.pruned:g} epoch" in table
        assert trial.trainings[0].version in whole.versions

    # A repeated run trains nothing and has the same result.
    assert compare(tmp_path, config, search=search).facts == summary.facts
    assert trainings.versions == versions
    assert result(config) == whole

    # In a second lake, runs are interrupted after one, two and half of the trainings. The trials are the same.
    del trainings.versions[:]
    for trained in sorted({0, 1, len(versions) // 2, len(versions) - 1}):

        def interrupt(number: int, most: int = trained) -> None:
            if number > most:
                raise KeyboardInterrupt

        trainings.before = interrupt
        with pytest.raises(KeyboardInterrupt) if trained + 1 < len(versions) else nullcontext():
            compare(other, second, search=search)
        assert trainings.versions == versions[: trained + 1]
    assert timeless(result(second)) == timeless(whole)


def test_more_trials_continue_a_search_and_pruned_records_are_kept(
    tmp_path: Path, config: Config, trainings: Trainings
) -> None:
    compare(tmp_path, config, search=section(7, prune=True))
    first, versions = result(config), list(trainings.versions)
    summary = compare(tmp_path, config, search=section(8, prune=True))
    assert trainings.versions[: len(versions)] == versions
    assert len(trainings.versions) == 8
    assert result(config).experiments[: len(first.experiments)] == first.experiments
    assert summary.facts["trainings"] == 8
    hours_ago = config.output.model_copy(update={"grace_hours": 0})
    assert delete_old_experiments(config.model_copy(update={"output": hours_ago})) == 0


def test_no_trial_begins_after_the_time_limit(
    tmp_path: Path,
    config: Config,
    trainings: Trainings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "nightrank.compare_models")
    monkeypatch.setattr(f"{stage.__name__}.monotonic", lambda: 40.0 * len(trainings.versions))
    summary = compare(tmp_path, config, search=section(timeout=60))
    assert len(trainings.versions) == 2
    assert "search.timeout=60 s have passed" in caplog.text
    search = result(config).search
    assert search is not None
    assert (search.done, search.planned) == (2, 9)
    page = Path(summary.output or "").read_text()
    assert "2 of 9 trials were done, because the search reached its time limit" in page


def test_failed_and_repeated_trials(
    tmp_path: Path, config: Config, trainings: Trainings, capsys: pytest.CaptureFixture[str]
) -> None:
    """A space has four combinations, so some of six trials repeat; the first trial diverges."""

    def diverge(number: int) -> None:
        if number == 0:
            trainings.versions.append("failed")
            raise DataError("the loss of step 3 is nan", "lower the learning rate")

    trainings.before = diverge
    space = {"train.epochs": {"low": 1, "high": 2}, "model.top_mlp": {"choices": [[8], [4]]}}
    summary = compare(tmp_path, config, search={"trials": 6, "space": space})
    comparison = result(config)
    assert comparison.search is not None
    assert len(comparison.experiments) + len(comparison.search.repeated) == 6
    assert comparison.search.repeated
    for trial, earlier in comparison.search.repeated:
        assert earlier < trial
        assert earlier in [one.trial for one in comparison.experiments]
    assert len(trainings.versions) == len(comparison.experiments) <= 4
    assert summary.facts["failed"] == ["trial 1"]
    assert "trial 1 failed: the loss of step 3 is nan" in capsys.readouterr().err
    assert "had the settings of an earlier trial" in Path(summary.output or "").read_text()


def test_a_combination_that_the_configuration_refuses_is_a_failed_trial(
    tmp_path: Path, config: Config, trainings: Trainings
) -> None:
    models = [config.model.model_dump(mode="json"), {"architecture": "logistic_regression"}]
    space = {"model.top_mlp": {"choices": [[8], [4]]}, "model": {"choices": models}}
    summary = compare(tmp_path, config, search={"trials": 5, "space": space})
    refused = [one for one in result(config).experiments if one.changes["model"] == models[1]]
    assert refused
    assert summary.facts["failed"] == [one.name for one in refused]
    for trial in refused:
        assert "logistic_regression" in (trial.failure or "")
        assert "top_mlp" in (trial.failure or "")
    assert summary.facts["trainings"] == len(trainings.versions)
    assert result(config).ranked


def test_the_best_trial_is_written_as_a_configuration(
    tmp_path: Path, config: Config, trainings: Trainings
) -> None:
    best = tmp_path / "best.yaml"
    summary = compare(tmp_path, config, best=str(best), search=section(3))
    (chosen,) = [one for one in result(config).experiments if one.name == summary.facts["best"]]
    written = load_config(str(best))
    assert written.train.learning_rate == chosen.changes["train.learning_rate"]
    assert written.train.epochs == chosen.changes["train.epochs"]
    assert written.model.settings["top_mlp"] == chosen.changes["model.top_mlp"]
    for value in chosen.changes.values():
        assert json.dumps(value) in summary.facts["command"]


@pytest.mark.parametrize(
    "space, message",
    [
        ({"train.num_ranks": {"low": 1, "high": 2}}, "'search.space, train.num_ranks=1' and .* same model"),
        ({"train.epochs": {"low": 0, "high": 2}}, "search.space, train.epochs=0: train.epochs=0: .*greater"),
        ({"train.epochs": {"low": 1.0, "high": 2.0}}, r"search.space, train.epochs=1.38\d*: .*valid integer"),
        ({"train.learning_rat": {"low": 1, "high": 2}}, "unknown key train.learning_rat=1"),
        ({"model.top": {"choices": [[8], [9]]}}, r"'search.space, model.top=\[8\]', which sets model.top"),
        ({"model.top_mlp": {"choices": [[8], "wide"]}}, "model.top_mlp='wide'"),
        ({"split.train_days": {"low": 1, "high": 2}}, "share one published dataset"),
    ],
)
def test_a_wrong_space_trains_nothing(
    tmp_path: Path, config: Config, trainings: Trainings, space: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compare(tmp_path, config, search={"trials": 3, "space": space})
    assert str(tmp_path / "trial.yaml") in caught.value.problem
    assert caught.value.remedy
    assert trainings.versions == []


@pytest.mark.processes
def test_only_a_search_imports_optuna() -> None:
    code = "import jobs.compare_models, jobs.compare_models, sys; assert 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(stage.__file__).parents[2])
