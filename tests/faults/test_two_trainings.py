"""Two trainings of one model version at once; train_model after damage and after a half-written model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pyspark.sql import SparkSession

from conf.types import Config
from jobs.train_model import run as train_model
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.paths import LakePaths
from storage.run_context import RunContext
from tests.faults.training_process import MODEL, RUN_DATE, TRAIN
from tests.training.checkpoints.attempts import attempt, make_old, server_of_attempts
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from training.checkpoints import checkpoints, load_model
from training.loop.run import train_in_process
from training.loop.training_plan import TrainPlan, make_plan
from training.registry.model_json import is_complete, read_description

pytestmark = [pytest.mark.timeout(900), pytest.mark.processes]

EVERY = 10  # steps from checkpoint to checkpoint, of 32


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    with server_of_attempts(__name__, "training.architectures.dlrm", "training.data.row_groups"):
        yield


def config_of(root: str) -> Config:
    train = {**TRAIN, "epochs": 2, "num_ranks": 1, "checkpoint_every_steps": EVERY, "baselines": []}
    return make_config(LakePaths(root), model=MODEL, train=train)


def plan_of(root: str) -> TrainPlan:
    return make_plan(config_of(root), LakePaths(root), read_dataset(LakePaths(root), RUN_DATE))


def publish(folder: Path) -> str:
    spec, rows = segment_rows(2_000, 1)
    held_out = {
        "validation": {"2026-01-03": segment_rows(500, 2)[1]},
        "test": {RUN_DATE: segment_rows(500, 3)[1]},
    }
    publish_all(LakePaths(str(folder)), RUN_DATE, spec, {"train": {"2026-01-02": rows}, **held_out})
    return str(folder)


def train(root: str) -> tuple[str, float]:
    """A file and the test AUC of the model that the training says it has made."""
    torch.set_num_threads(1)
    checkpoints._PUBLISH_TIMEOUT_S = 600.0  # for the writing thread, which the test stops meanwhile
    description = train_in_process(plan_of(root))
    return description["weights"][0], description["metrics"]["test"]["auc"]


@pytest.mark.parametrize(
    "stopped_at",
    [
        "create step-000000000010.json",
        "create step-000000000030.json",
        "write dense",
        "create model.json",
    ],
)
def test_a_retry_beside_a_training_that_lives_on(tmp_path: Path, stopped_at: str) -> None:
    """The scheduler takes the first for dead; it goes on when its retry is done."""
    root = publish(tmp_path)
    with attempt(train, root) as first:
        first.until(stopped_at)
        with attempt(train, root) as retry:
            result = retry.finish()
        assert first.finish() == result
    require_whole(plan_of(root))


def test_a_training_that_ends_while_its_retry_resumes(tmp_path: Path) -> None:
    root = publish(tmp_path)
    with attempt(train, root) as first:
        first.until("create step-000000000020.json")
        with attempt(train, root) as retry:
            retry.until("write step-000000000020")  # it has resumed after step 10
            result = first.finish()
            assert retry.finish() == result
    require_whole(plan_of(root))


def require_whole(plan: TrainPlan) -> None:
    assert is_complete(plan.model_path, checksums=True)
    description = load_model(plan.model_path, torch.device("cpu")).description
    names = {"model.json", *description["weights"], *description["optimizer"]}
    assert {path.name for path in Path(plan.model_path).iterdir()} == names
    assert not Path(plan.checkpoint_path).exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_train_model_trains_a_damaged_model_again(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = publish(tmp_path)
    path = Path(plan_of(root).model_path)

    def run() -> JobSummary:
        caplog.clear()
        return train_model(RunContext("train_model", config_of(root), RUN_DATE, _spark=spark))

    summary = run()
    content = (path / "model.json").read_bytes()
    assert run().facts == summary.facts
    assert (path / "model.json").read_bytes() == content, "a whole model is left alone"
    for damage, kind in ((cut, "embeddings-00000"), (change, "optimizer-dense"), (cut, "model.json")):
        named = ["model.json", *(entry["name"] for entry in read_description(str(path))["files"])]
        (name,) = [name for name in named if name.startswith(kind)]
        damage(path / name)
        again = run()
        assert "is damaged and has to be trained again" in caplog.text
        assert again.facts["version"] == summary.facts["version"]
        assert again.facts["test"] == summary.facts["test"]
        assert is_complete(str(path), checksums=True)


def test_train_model_deletes_old_files_that_no_model_names(spark: SparkSession, tmp_path: Path) -> None:
    root = publish(tmp_path)
    plan = plan_of(root)
    with attempt(train, root) as killed:
        killed.until("create model.json")
        killed.kill()
    job = RunContext("train_model", config_of(root), RUN_DATE, _spark=spark)
    train_model(job)
    folder = Path(plan.model_path)
    named = json.loads((folder / "model.json").read_text())
    names = {"model.json", *named["weights"], *named["optimizer"]}
    (Path(plan.checkpoint_path)).mkdir(parents=True)
    (Path(plan.checkpoint_path) / "step-000000000040.0badf00d.dense.safetensors").write_text("killed")
    assert {path.name for path in folder.iterdir()} > names
    make_old(tmp_path)
    train_model(job)
    assert {path.name for path in folder.iterdir()} == names
    assert not Path(plan.checkpoint_path).exists()
