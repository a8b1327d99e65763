"""A search of compare_models that SIGKILLs its process before it writes a file."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from conf.types import Config
from jobs import compare_models as stage
from storage import file_io
from storage.job_summary import JobSummary
from storage.manifest import read_manifest
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.loop.run import train_in_process
from training.registry.comparison import Comparison

RUN_DATE = "2026-01-04"
MODEL = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]}
TRAIN = {
    "global_batch_size": 128,
    "num_shards": 4,
    "num_ranks": 1,
    "device": "cpu",
    "checkpoint_every_steps": 4,
}
SEARCH = {
    "trials": 9,
    "prune": True,
    "space": {
        "train.learning_rate": {"low": "1e-4", "high": 0.1, "log": True},
        "model.top_mlp": {"choices": [[8], [16, 8]]},
        "train.epochs": {"low": 2, "high": 4},
    },
}


def publish(folder: Path) -> None:
    """Publishes a dataset of 1,200 train rows, which are ten steps an epoch."""
    spec, rows = segment_rows(1_200, 1)
    held_out = {
        "validation": {"2026-01-03": segment_rows(600, 2)[1]},
        "test": {RUN_DATE: segment_rows(600, 3)[1]},
    }
    publish_all(LakePaths(str(folder / "lake")), RUN_DATE, spec, {"train": {"2026-01-02": rows}, **held_out})


def config_of(folder: Path) -> Config:
    return make_config(LakePaths(str(folder / "lake")), model=MODEL, train=TRAIN)


def search(folder: Path) -> tuple[JobSummary, list[str]]:
    """Runs the search in this process; returns its summary and the versions that it trained."""
    config, versions = config_of(folder), []

    def train(_: object, plan: Any, __: object) -> dict[str, Any]:
        versions.append(plan.description["version"])
        return train_in_process(plan)

    path = folder / "search.yaml"
    path.write_text(yaml.safe_dump({"name": "killed", "search": SEARCH}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage.mlflow_mirror, "prepare", lambda lake: None)
        patch.setattr(stage, "track_comparison", lambda *_: None)
        patch.setattr(stage, "train_plan", train)
        patch.setattr(RunContext, "spark", None)
        request = stage.ComparisonRequest(str(path), str(folder / "config.yaml"))
        summary = stage.run(RunContext("compare_models", config, RUN_DATE), request)
    return summary, versions


def result(folder: Path) -> Comparison:
    lake = LakePaths(config_of(folder).lake)
    return Comparison.from_facts(read_manifest(lake.comparisons("killed").partition(RUN_DATE)).facts)


def dies_before(pattern: str, number: int, write: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    def dying(path: str, value: Any) -> Any:
        if re.search(pattern, path):
            seen.append(path)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return write(path, value)

    return dying


def search_and_die(folder: Path, pattern: str, number: int) -> None:
    """Dies before it writes the file that is the `number`-th, from 1, whose path matches the pattern."""
    torch.set_num_threads(1)
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("create_json", "replace_json"):
            patch.setattr(file_io, name, dies_before(pattern, number, getattr(file_io, name), seen))
        search(folder)
