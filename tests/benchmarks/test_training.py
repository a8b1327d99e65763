"""The benchmarks of training: what they draw and say, and that those for a GPU run without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.criteo_shapes import CARDINALITIES, EXPONENT, capped, draw_ids, make_batches, spec_of
from benchmarks.dense_part import without_tables
from benchmarks.peers.plain_dlrm import PlainDLRM, PlainStep
from benchmarks.steps import alternate
from benchmarks.training import ratios_of, verdict
from benchmarks.training_ranks import TimedCollectives
from conf.types import ModelConfig, Train
from training.collectives import LocalCollectives, ReceivedRows
from training.loop.train_step import Trainer
from training.models import build_model

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
SMALL = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]}


def test_the_published_tables_hold_what_their_authors_say() -> None:
    assert len(CARDINALITIES) == 26
    assert sum(CARDINALITIES) * 128 * 4 / 2**30 == pytest.approx(15.6, abs=0.1)
    assert max(capped(100)) == 100
    assert capped(None) == list(CARDINALITIES)


def test_ids_follow_the_power_law_and_stay_within_their_table() -> None:
    ids = draw_ids(20_000, [4, 3, 1000], torch.Generator().manual_seed(0))
    assert ids.min(dim=0).values.tolist() == [3, 0, 3]  # reserved ids are drawn where there are no others
    assert ids[:, 1].max() <= 2
    assert ids[:, 2].max() <= 999
    power = 1 - EXPONENT
    expected = (1 - 2**power) / (1 - 998**power)  # of the first value: the law's weight of [1, 2) in [1, 998)
    assert float((ids[:, 2] == 3).float().mean()) == pytest.approx(expected, abs=0.015)


def test_the_plain_model_is_ours_written_otherwise() -> None:
    """Given our weights it gives our logits."""
    cardinalities = [7, 5, 9]
    ours: Any = build_model(ModelConfig.model_validate(SMALL), spec_of(cardinalities))
    plain = PlainDLRM(13, cardinalities, 4, [8, 4], [8])
    with torch.no_grad():
        for table, rows in zip(plain.tables, ours.embedding.block_rows(), strict=True):
            table.weight.copy_(rows)
        theirs = [*plain.bottom.parameters(), *plain.top.parameters()]
        mine = [*ours.bottom.parameters(), *ours.top.parameters(), *ours.logit.parameters()]
        for parameter, value in zip(theirs, mine, strict=True):
            parameter.copy_(value)
        (batch,) = make_batches(1, 6, cardinalities)
        ours.eval()
        torch.testing.assert_close(
            plain(batch.dense, batch.categorical), ours(batch.dense, batch.categorical)
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_the_plain_step_learns(precision: Any, optimizer: Any) -> None:
    cardinalities = [7, 5, 9]
    torch.manual_seed(0)
    step = PlainStep(PlainDLRM(13, cardinalities, 4, [8, 4], [8]), CPU, precision, optimizer, 0.01, 0.1)
    (batch,) = make_batches(1, 64, cardinalities)
    tables = [table.weight.detach().clone() for table in step.model.tables]
    losses = [float(step(batch)) for _ in range(30)]
    assert losses[-1] < losses[0] - 0.02
    assert all(not torch.equal(a, b.weight) for a, b in zip(tables, step.model.tables, strict=True))


def test_the_dense_part_trains_no_table() -> None:
    model = build_model(ModelConfig.model_validate(SMALL), spec_of([4, 4]))
    fixed = without_tables(model, 6, 2, 4, CPU)
    trainer = Trainer(model, Train(num_ranks=1, global_batch_size=16), LocalCollectives())
    assert not any("embedding" in name for name in trainer.state())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    (batch,) = make_batches(1, 6, [4, 4])
    trainer.step(batch, 1.0)
    assert fixed.vectors.grad is not None  # the interaction's backward pass is part of the limit
    assert fixed.vectors.grad.abs().sum() > 0
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_contenders_take_turns_and_equal_numbers_of_steps() -> None:
    taken: list[str] = []
    batches = make_batches(2, 4, [5])
    steps = {name: lambda batch, name=name: taken.append(name) for name in "abc"}
    speeds = alternate(steps, batches, warm_up=1, steps=2, turns=3, device=CPU)
    assert "".join(taken) == "abc" + "aabbcc" + "bbccaa" + "ccaabb"
    assert all(
        figures["lowest"] <= figures["samples_per_s"] <= figures["highest"] for figures in speeds.values()
    )


def test_ratios_are_ours_over_the_others() -> None:
    names = ("ours", "plain", "plain_sgd", "dense_part")
    speeds = {
        f"{name}_fp32": {"samples_per_s": rate}
        for name, rate in zip(names, (4.0, 2.0, 3.2, 5.0), strict=True)
    }
    ranks: dict[str, dict[str, Any]] = {
        "end_to_end": {"ranks": 1, "step": 10.0, "end_to_end": 9.0},
        "ranks_1": {"ranks": 1, "step": 6.0},
        "ranks_2": {"ranks": 2, "step": 9.0},
        "independent_2": {"ranks": 2, "step": 10.0},
    }
    ratios = ratios_of(speeds, ranks)
    assert ratios["plain_fp32"] == 2.0
    assert ratios["plain_sgd_fp32"] == 1.25
    assert ratios["plain_bf16"] is None
    assert ratios["dense_limit"] == 0.8
    assert ratios["end_to_end"] == 0.9
    assert ratios["scaling_2"] == 0.75
    assert ratios["scaling_2_of_ceiling"] == 0.9


class Two:
    """Collectives of the second of two ranks, which return at once."""

    rank, size = 1, 2

    def start_allreduce_sum(self, values: torch.Tensor, name: str) -> Callable[[], torch.Tensor]:
        return lambda: values

    def allgather(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [*tensors]

    def start_all_to_all(self, values: torch.Tensor, splits: Sequence[int], name: str) -> ReceivedRows:
        return lambda: (values, [*splits])


def test_bytes_are_those_that_leave_the_rank() -> None:
    timed = TimedCollectives(Two())
    wait = timed.start_allreduce_sum(torch.zeros(100), "sum")
    wait()
    timed.allgather(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 4))
    timed.start_all_to_all(torch.zeros(7, 4, dtype=torch.bfloat16), [5, 2], "rows")()
    timed.start_all_to_all(torch.zeros(0, 4), [0, 0], "rows")()
    seconds, reduced, exchanged = timed.take()
    assert seconds > 0
    assert reduced == 400  # 2 (R - 1) / R of it
    assert exchanged == 3 * 8 + 3 * 16 + 5 * 8
    assert timed.take() == (0, 0, 0)
    assert timed.size == 2


@pytest.mark.parametrize(
    "name, ratio, words",
    [
        ("plain_fp32", 1.2, ["1.200", "met"]),
        ("plain_fp32", 0.8, ["the peer is 1.25 times as fast", "MISSED"]),
        ("end_to_end", 0.9, ["0.900", "MISSED"]),
        ("plain_bf16", None, ["not measured"]),
    ],
)
def test_the_verdict_says_what_was_missed(name: str, ratio: float | None, words: list[str]) -> None:
    assert all(word in verdict(name, ratio) for word in words)
