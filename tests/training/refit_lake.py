"""A lake with five days of rows and two runs, whose models are trained, promoted and refitted without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from conf.types import Config
from jobs import model_training, refit_model, train_model
from storage import feature_spec, file_io
from storage.dataset import Dataset, publish_dataset
from storage.job_summary import JobSummary
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.training.feature_rows import Rows, segment_rows
from tests.training.feature_tables import make_config, publish_day
from training.loop.run import train_in_process
from training.registry import mlflow_mirror
from training.registry.champion_history import champion_state_as_of
from training.registry.versions import ChampionDecision, record_decision

DAYS = [f"2026-01-0{number}" for number in range(1, 6)]
RUN_DATES = DAYS[3:]
NAME = "tiny"
MODEL = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]}
TRAIN = {
    "global_batch_size": 64,
    "num_shards": 4,
    "num_ranks": 1,
    "epochs": 2,
    "checkpoint_every_steps": 5,
    "log_every_steps": 1,
    "device": "cpu",
    "refit": True,
}


def rows_of(day: str) -> Rows:
    """The rows of a day: no two rows of the lake have the same dense values."""
    return segment_rows(150 + 10 * DAYS.index(day), DAYS.index(day))[1]


def publish(lake: LakePaths) -> None:
    """Publishes the days, and a dataset for each run date: two train days, validation, and test."""
    spec = segment_rows(1, 0)[0]
    file_io.replace_text(lake.feature_spec(spec.workflow_version), feature_spec.dumps(spec))
    members = [publish_day(lake, spec, day, rows_of(day), file_rows=100) for day in DAYS]
    for first, run_date in enumerate(RUN_DATES):
        *train, validation, test = members[first : first + 4]
        splits = {"train": tuple(train), "validation": (validation,), "test": (test,)}
        publish_dataset(lake, Dataset(run_date, spec.workflow_version, splits, "apply"), "")


def config_of(lake: LakePaths, **train: Any) -> Config:
    return make_config(lake, model=MODEL, train={**TRAIN, **train})


def without_spark(patch: pytest.MonkeyPatch) -> None:
    """Trainings run in this process, and MLflow is not updated."""
    patch.setattr(model_training, "train_plan", lambda _, plan, __: train_in_process(plan))
    for name in ("prepare", "track_training", "set_aliases"):
        patch.setattr(mlflow_mirror, name, lambda *_: None)


def context_of(config: Config, run_date: str) -> RunContext:
    no_session: Any = object()
    return RunContext("test", config, run_date, _spark=no_session)


def train_and_promote(config: Config, run_date: str, *, promoted: bool = True) -> str:
    """Trains the challenger of a run date and records the gate's decision. Returns its version."""
    lake = LakePaths(config.lake)
    version = str(train_model.run(context_of(config, run_date)).facts["version"])
    before = champion_state_as_of(lake, NAME, run_date, before=True).champion
    after = version if promoted else before
    record_decision(lake, NAME, run_date, ChampionDecision(version, before, promoted, after, "because"))
    return version


def refit(config: Config, run_date: str) -> JobSummary:
    return refit_model.run(context_of(config, run_date))
