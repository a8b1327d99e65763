"""When a training starts from the champion; build_features and train_model decide it in the same way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.errors import DataError
from conf.types import Config, Train
from jobs.features_of_run import workflows_of_run
from storage import file_io
from storage.dataset import Dataset, Member
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.training.feature_tables import make_config
from training.registry import mlflow_mirror
from training.registry.overrides import OverrideRequest, roll_back
from training.registry.versions import ChampionDecision, model_path, record_decision, record_run
from training.registry.warm_or_fresh import find_parent, fresh_start

MODEL: dict[str, Any] = {"architecture": "logistic_regression"}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakePaths:
    monkeypatch.setattr(mlflow_mirror, "set_aliases", lambda *_: None)
    return LakePaths(str(tmp_path))


def config_of(lake: LakePaths, **retrain: Any) -> Config:
    config = make_config(lake, model=MODEL, train={"retrain": retrain})
    split = config.split.model_copy(update={"by": "day", "train_days": 2})
    return config.model_copy(update={"split": split})


def ran(
    lake: LakePaths,
    config: Config,
    day: int,
    parent: str | None,
    *,
    promoted: bool = True,
    workflow: str = "w1",
) -> str:
    """Records a run that trained on the two days before its validation day; returns its version."""
    version, date = f"v{day:02d}", f"2026-01-{day:02d}"
    description = {
        "version": version,
        "parent": parent,
        "model": config.model.model_dump(mode="json"),
        "workflow_version": workflow,
        "trained_days": [f"2026-01-{train_day:02d}" for train_day in (day - 3, day - 2)],
    }
    file_io.replace_json(f"{model_path(lake, config.name, version)}/model.json", description)
    record_run(lake, config.name, date, version)
    decision = ChampionDecision(version, parent, promoted, version if promoted else parent, "because")
    record_decision(lake, config.name, date, decision)
    return version


def dataset_of(day: int, workflow: str = "w1") -> Dataset:
    train = tuple(Member(f"2026-01-{train_day:02d}", "d", None) for train_day in (day - 3, day - 2))
    return Dataset(f"2026-01-{day:02d}", workflow, {"train": train}, "apply")


def test_a_fresh_start_is_due_a_period_after_the_last_one_whether_or_not_it_was_promoted(
    lake: LakePaths,
) -> None:
    config = config_of(lake, fresh_every_days=7)
    champion = ran(lake, config, 8, None)
    for day in range(9, 15):
        assert fresh_start(config, lake, f"2026-01-{day:02d}") is None
        champion = ran(lake, config, day, champion)
    due = fresh_start(config, lake, "2026-01-15")
    assert due == "the last fresh training was train.retrain.fresh_every_days=7 or more days ago"
    assert find_parent(config, lake, dataset_of(15)) is None
    ran(lake, config, 15, None, promoted=False)
    assert fresh_start(config, lake, "2026-01-15") == due  # a rerun of that date decides as before
    assert fresh_start(config, lake, "2026-01-16") is None
    parent = find_parent(config, lake, dataset_of(16))
    assert parent is not None
    assert parent.version == champion == "v14"
    assert fresh_start(config, lake, "2026-01-22") == due
    assert fresh_start(config_of(lake), lake, "2026-01-22") is None


def test_fresh_never_starts_from_a_champion(lake: LakePaths) -> None:
    config = config_of(lake, start="fresh")
    ran(lake, config, 8, None)
    assert fresh_start(config, lake, "2026-01-09") == "train.retrain.start is fresh"
    assert find_parent(config, lake, dataset_of(9)) is None


@pytest.mark.parametrize("promoted, applied", [(True, "w2"), (False, "w1")])
def test_the_date_of_a_promotion_applies_the_workflow_of_the_promoted_model(
    lake: LakePaths, promoted: bool, applied: str
) -> None:
    """Also if its training had a fresh start that the configuration of a later run does not have."""
    config = config_of(lake)
    ran(lake, config, 8, None)
    ran(lake, config, 9, None, promoted=promoted, workflow="w2")
    for mode, expected in (("apply", applied), ("auto", "w1"), ("retrain", "w1"), ("extend", "w1")):
        workflow = config.workflow.model_copy(update={"mode": mode})
        of_run = config.model_copy(update={"workflow": workflow})
        assert workflows_of_run(RunContext("build_features", of_run, "2026-01-09")) == (expected, None), mode


def test_warm_stops_where_it_cannot_and_says_why(lake: LakePaths) -> None:
    config = config_of(lake, start="warm")
    assert find_parent(config, lake, dataset_of(8)) is None  # there is no champion yet
    ran(lake, config, 8, None)
    parent = find_parent(config, lake, dataset_of(9))
    assert parent is not None
    assert parent.version == "v08"
    with pytest.raises(
        DataError,
        match=r"is warm, but .* cannot start from champion v08: the champion was trained on ids of workflow",
    ) as refused:
        find_parent(config, lake, dataset_of(9, "w2"))
    assert refused.value.remedy.startswith("run build_features with workflow.mode=retrain, or")
    with pytest.raises(DataError, match="the champion has already been trained on all train days"):
        find_parent(config, lake, replace(dataset_of(8), run_date="2026-01-09"))


def test_a_log_without_days_is_trained_from_fresh_weights(
    lake: LakePaths, caplog: pytest.LogCaptureFixture
) -> None:
    """Each run reads the whole log, so the rows of the first training are among those of the second."""
    caplog.set_level("INFO")
    reason = "has no {date}, so the log contains the rows on which earlier models were trained"

    def of_one_file(config: Config) -> Config:
        return config.model_copy(update={"log": config.log.model_copy(update={"path": "{lake}/log.tsv"})})

    config = of_one_file(config_of(lake))
    ran(lake, config, 8, None)
    later = replace(dataset_of(9), splits={"train": (Member("2026-01-09", "d", "train"),)})
    assert reason in str(fresh_start(config, lake, later.run_date))
    assert find_parent(config, lake, later) is None
    assert reason in caplog.text
    with pytest.raises(DataError, match=r"cannot start from champion v08: .*log\.tsv") as refused:
        find_parent(of_one_file(config_of(lake, start="warm")), lake, later)
    assert refused.value.remedy == "set train.retrain.start=auto"


@pytest.mark.parametrize(
    "validation_days, test_days, known",
    [
        (1, 2, []),
        (1, 3, ["2026-01-06"]),
        (2, 3, ["2026-01-05", "2026-01-06"]),
    ],
)
def test_a_new_workflow_is_fitted_if_the_champions_contains_days_that_measure_models(
    lake: LakePaths, validation_days: int, test_days: int, known: list[str]
) -> None:
    """Statistics of the champion's workflow contain the labels of these days."""
    ran(lake, config_of(lake), 8, None)  # trained on the 5th and 6th
    config = config_of(lake)
    longer = {"validation_days": validation_days, "test_days": test_days}
    config = config.model_copy(update={"split": config.split.model_copy(update=longer)})
    reason = fresh_start(config, lake, "2026-01-09")
    expected = f"the champion was trained on days that now measure models, in validation or test: {known}"
    assert reason == (expected if known else None)


@pytest.mark.parametrize(
    "validation, test, known",
    [
        ([7], [8, 9], []),
        ([7], [6, 8, 9], ["2026-01-06"]),
        ([5], [6, 7, 8, 9], ["2026-01-05", "2026-01-06"]),
        ([6], [], ["2026-01-06"]),
    ],
)
def test_a_champion_that_was_trained_on_days_that_measure_models_is_no_parent(
    lake: LakePaths,
    caplog: pytest.LogCaptureFixture,
    validation: list[int],
    test: list[int],
    known: list[str],
) -> None:
    """`split.test_days` or `split.validation_days` was enlarged after the training of the champion."""
    caplog.set_level("INFO")
    ran(lake, config_of(lake), 8, None)  # trained on the 5th and 6th

    def members(days: list[int]) -> tuple[Member, ...]:
        return tuple(Member(f"2026-01-{day:02d}", "d", None) for day in days)

    splits = {"train": members([3, 4]), "validation": members(validation), "test": members(test)}
    dataset = Dataset("2026-01-09", "w1", splits, "extend")
    parent = find_parent(config_of(lake), lake, dataset)
    assert (parent is None) == bool(known)
    if known:
        reason = f"the champion was trained on days that now measure models, in validation or test: {known}"
        assert f"fresh weights, not from champion v08: {reason}" in caplog.text
        with pytest.raises(DataError, match=r"is warm, but .* days that now measure models") as refused:
            find_parent(config_of(lake, start="warm"), lake, dataset)
        assert refused.value.remedy == "set train.retrain.start=auto"


def test_days_between_two_windows_are_named(lake: LakePaths, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(lake)
    ran(lake, config, 8, None)  # learned from the 5th and 6th
    find_parent(config, lake, dataset_of(10))  # the 7th and 8th
    assert "no model is trained on this day" not in caplog.text
    find_parent(config, lake, dataset_of(12))  # the 9th and 10th
    skipped = [
        record.getMessage()[:10] for record in caplog.records if "no model is trained" in record.getMessage()
    ]
    assert skipped == ["2026-01-07", "2026-01-08"]


def test_a_withdrawn_model_is_no_parent(lake: LakePaths) -> None:
    config = config_of(lake)
    first = ran(lake, config, 8, None)
    ran(lake, config, 9, first)
    roll_back(lake, config.name, OverrideRequest("2026-01-10", "ada", "clicks fell"))
    parent = find_parent(config, lake, dataset_of(10))
    assert parent is not None
    assert parent.version == first


def test_a_period_needs_auto() -> None:
    with pytest.raises(ValueError, match="fresh_every_days=3 needs start=auto, but start=warm is set"):
        Train.model_validate({"retrain": {"start": "warm", "fresh_every_days": 3}})
