"""An interrupted training that resumes with another number of ranks, its tables distributed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from conf.train_types import Embeddings
from storage.paths import LakePaths
from tests.training.ranks_in_threads import on_ranks
from tests.training.test_training import Interrupted, random_plan
from training.checkpoints import load_model
from training.collectives import Collectives
from training.loop import training_loop
from training.loop.run import run_plan, train_in_process
from training.loop.training_plan import TrainPlan

CPU = torch.device("cpu")


def run_until(
    plan: TrainPlan, ranks: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any] | None:
    """Trains on so many ranks; all of them break off before step `limit + 1`."""
    original = training_loop.learning_rate_factor

    def limited(step: int, *others: Any) -> float:
        if step == limit:
            raise Interrupted
        return original(step, *others)

    def body(collectives: Collectives) -> dict[str, Any] | None:
        train = plan.train.model_copy(update={"num_ranks": ranks})
        try:
            return run_plan(replace(plan, train=train), collectives, CPU)
        except Interrupted:
            return None

    with monkeypatch.context() as patch:
        patch.setattr(training_loop, "learning_rate_factor", limited)
        return on_ranks(ranks, body)[0]


@pytest.mark.parametrize("placement", ["table_wise", "row_wise"])
def test_other_numbers_of_ranks_go_on_where_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    placement: Literal["table_wise", "row_wise"],
) -> None:
    """1 → 2 → 4 → 1 ranks, within DESIGN's sense of equal: sums over ranks round differently."""
    caplog.set_level("INFO")
    settings = {
        "epochs": 2,
        "keep": "last",  # otherwise the end of the first epoch, step 10, has a checkpoint too
        "checkpoint_every_steps": 4,
        "embeddings": Embeddings(placement=placement).model_dump(),
    }
    undisturbed = random_plan(LakePaths(str(tmp_path / "a")), **settings)
    expected = train_in_process(undisturbed)
    plan = random_plan(LakePaths(str(tmp_path / "b")), **settings)
    for ranks, limit, before in [(1, 6, 0), (2, 11, 4), (4, 15, 8)]:
        assert run_until(plan, ranks, limit, monkeypatch) is None
        assert caplog.messages.count(f"resuming after step {before}") == (ranks if before else 0)
    resumed = run_until(plan, 1, None, monkeypatch)
    assert resumed is not None
    assert "resuming after step 12" in caplog.messages
    losses = [[entry["loss"] for entry in of["history"]] for of in (expected, resumed)]
    assert len(losses[1]) == 20
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    actual, weights = (
        load_model(of_plan.model_path, CPU).model.state_dict() for of_plan in (plan, undisturbed)
    )
    for name, value in weights.items():
        torch.testing.assert_close(actual[name], value, rtol=2e-3, atol=2e-4)
    assert resumed["metrics"]["test"]["auc"] == pytest.approx(expected["metrics"]["test"]["auc"], abs=2e-3)


@pytest.mark.parametrize("placement", ["table_wise", "row_wise"])
def test_ranks_save_the_model_that_one_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: Literal["table_wise", "row_wise"]
) -> None:
    settings = {"checkpoint_every_steps": 4, "embeddings": Embeddings(placement=placement).model_dump()}
    plan = random_plan(LakePaths(str(tmp_path / "one")), **settings)
    assert run_until(plan, 1, 4, monkeypatch) is None  # what it starts from is drawn by one rank
    states = []
    for ranks in (1, 2, 4):
        folder = tmp_path / str(ranks)
        copied = replace(plan, model_path=str(folder / "model"), checkpoint_path=str(folder / "checkpoints"))
        Path(copied.checkpoint_path).mkdir(parents=True)
        for path in Path(plan.checkpoint_path).iterdir():
            (Path(copied.checkpoint_path) / path.name).write_bytes(path.read_bytes())
        assert run_until(copied, ranks, None, monkeypatch) is not None
        states.append(load_model(copied.model_path, CPU).model.state_dict())
        holding = len(list(Path(copied.model_path).glob("embeddings-*")))
        assert holding == (min(ranks, 2) if placement == "table_wise" else ranks)  # there are two features
    for state in states[1:]:
        for name, value in states[0].items():
            torch.testing.assert_close(state[name], value, rtol=2e-3, atol=2e-4)
