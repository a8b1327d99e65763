"""The benchmark of communication behind computation: its ratios, its sleeping model, and a whole small run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import overlap
from benchmarks.criteo_shapes import make_batches, spec_of
from benchmarks.overlap import SwitchedCollectives, ratios_of
from benchmarks.sleeping_model import Seconds, SecondsOfParts, SleepingDLRM, measure
from conf.types import ModelConfig, Train
from training.collectives import ALONE
from training.loop.train_step import Trainer
from training.models import build_model

pytestmark = pytest.mark.processes

CONFIG = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8, 6]}
ROWS = [20] * 26


def dlrm() -> Any:
    return build_model(ModelConfig.model_validate(CONFIG), spec_of(ROWS))


def test_what_is_hidden_is_what_costs_no_time() -> None:
    assert ratios_of({"silent": 1.0, "blocking": 1.5, "overlapped": 1.1}) == {
        "overlapped_over_blocking": pytest.approx(1.5 / 1.1),
        "hidden": pytest.approx(0.8),
    }


def test_every_layer_is_measured_and_sleeps() -> None:
    model = dlrm()
    seconds = measure(model, rows=16, repeats=2)
    assert (len(seconds.bottom), len(seconds.top)) == (2, 3)
    assert all(part.forward > 0 for part in [*seconds.bottom, *seconds.top])
    slow = Seconds(0.02, 0.03)
    sleeping = SleepingDLRM(model, SecondsOfParts([slow] * 2, slow, [slow] * 3))
    assert sleeping.state_dict().keys() == model.state_dict().keys()
    trainer = Trainer(sleeping.train(), Train(num_ranks=1), ALONE)
    before = {name: value.clone() for name, value in sleeping.state_dict().items()}
    (batch,) = make_batches(1, 16, ROWS)
    began = time.monotonic()
    trainer.step(batch, 1.0)
    assert time.monotonic() - began >= 6 * 0.05
    changed = [name for name, value in sleeping.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == list(before)  # every parameter gets a gradient


class Noted:
    """Collectives of the first of two ranks, which note when they wait."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.events: list[str] = []

    def start_all_to_all(self, values: torch.Tensor, splits: Sequence[int], name: str) -> Callable[[], Any]:
        self.events.append("start")

        def wait() -> tuple[torch.Tensor, list[int]]:
            self.events.append("wait")
            return values, [*splits]

        return wait


def test_modes_send_nothing_or_wait_at_once_or_later() -> None:
    inner: Any = Noted()
    collectives = SwitchedCollectives(inner)
    for mode, events in {
        "silent": [],
        "blocking": ["start", "wait"],
        "overlapped": ["start"],
    }.items():
        collectives.mode = mode
        inner.events.clear()
        wait = collectives.start_all_to_all(torch.arange(4), [1, 3], "table.request")
        assert inner.events == events
        received, counts = wait()
        assert received.tolist() == [0, 1, 2, 3]
        assert counts == [1, 3]
        assert inner.events == (["start", "wait"] if mode == "overlapped" else events)
    assert list(collectives.waited) == ["ids"]


@pytest.mark.large
def test_a_small_run_on_real_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = SecondsOfParts([Seconds(1e-3, 1e-3)] * 3, Seconds(1e-3, 1e-3), [Seconds(1e-3, 1e-3)] * 5)
    monkeypatch.setattr(overlap, "measure", lambda *_: seconds)
    assert overlap.main(["--quick", "--ranks", "2", "--batch", "64", "--most-rows", "40"]) == 0
    shown = capsys.readouterr().out
    summary = SimpleNamespace(**json.loads(shown.splitlines()[-1]))
    assert summary.benchmark == "overlap"
    assert summary.ours["step_s"] > seconds.total
    assert summary.peers["blocking"] > seconds.total
    assert set(summary.ours["waiting"]) == {"dense gradients", "ids", "row gradients", "vectors"}
    assert summary.ratios.keys() == {"overlapped_over_blocking", "hidden"}
    assert "hidden: " in shown
