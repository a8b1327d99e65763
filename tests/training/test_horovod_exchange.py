"""Tables spread over real Horovod ranks: processes of their own, without Spark."""

from __future__ import annotations

import time
from pathlib import Path

import horovod
import numpy as np
import pytest
import torch

from metrics import auc
from tests.training.test_spread_tables import PLACEMENTS, alone, make_batch, train_as_rank
from training.collectives import Collectives, gather_vectors

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
_STEPS = 10
_START_TIMEOUT_S = 600  # four interpreters that import torch, on a machine that may be busy


def _train(cases: list[tuple[str, str, str]]) -> list[tuple[list[float], list[float]]]:
    """On one rank: losses and held-out probabilities of each (placement, optimiser, architecture)."""
    import horovod.torch as hvd

    from training.launch.rank_main import HorovodCollectives

    torch.set_num_threads(1)
    hvd.init()
    try:
        collectives = HorovodCollectives()
        _check_exchange_of_16_bits(collectives)
        _check_gradients_of_gathered_vectors(collectives)
        _check_that_a_waiting_rank_sleeps(collectives)
        results = []
        for placement, optimizer, architecture in cases:
            settings = {**PLACEMENTS[placement], "optimizer": optimizer}
            losses, probabilities, _ = train_as_rank(collectives, settings, architecture, _STEPS)
            results.append((losses, probabilities.tolist()))
        return results
    finally:
        hvd.shutdown()


def _check_exchange_of_16_bits(collectives: object) -> None:
    """Rank r sends r + 1 rows to rank 0, none to the others."""
    rank, size = collectives.rank, collectives.size  # type: ignore[attr-defined]
    for dtype in (torch.bfloat16, torch.float16):
        sent = torch.full((rank + 1, 3), 1.5 + rank, dtype=dtype)
        received, counts = collectives.all_to_all(sent, [rank + 1, *[0] * (size - 1)])  # type: ignore[attr-defined]
        expected = [1.5 + sender for sender in range(size) for _ in range(sender + 1)] if rank == 0 else []
        assert received.dtype == dtype
        assert received[:, 2].tolist() == expected
        assert counts == ([sender + 1 for sender in range(size)] if rank == 0 else [0] * size)


def _check_gradients_of_gathered_vectors(collectives: Collectives) -> None:
    """Rank r has a few vectors of r. The gradient of a vector is the sum of the gradients on all ranks."""
    rank, size = collectives.rank, collectives.size
    for more in (1, 3):
        values = torch.full((rank + more, 2), float(rank), requires_grad=True)
        ranks, halves = collectives.allgather(
            torch.full((rank + more,), rank), torch.full((rank + more,), rank / 2)
        )
        first = int((ranks < rank).sum())
        gathered = gather_vectors(values, first, collectives)
        assert gathered[:, 0].tolist() == ranks.tolist() == (2 * halves).tolist()
        assert len(gathered) == sum(other + more for other in range(size))
        positions = torch.arange(len(gathered)).unsqueeze(1)
        (gathered * positions * (rank + 1)).sum().backward()
        expected = (first + torch.arange(rank + more)) * (size * (size + 1) / 2)
        assert values.grad is not None
        assert values.grad[:, 1].tolist() == expected.tolist()


def _check_that_a_waiting_rank_sleeps(collectives: Collectives) -> None:
    """Rank 0 waits for the others, and uses no core meanwhile, so that its other threads have it."""
    for start in (
        lambda: collectives.start_allreduce_sum(torch.ones(1), "late sum"),
        lambda: collectives.start_all_to_all(
            torch.ones(collectives.size), [1] * collectives.size, "late rows"
        ),
    ):
        if collectives.rank:
            time.sleep(1)
        began, used = time.monotonic(), time.thread_time()
        start()()
        if not collectives.rank:
            assert time.monotonic() - began > 0.5
            assert time.thread_time() - used < 0.2


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one(ranks: int) -> None:
    cases = [
        ("auto", "row_wise_adagrad", "wide_and_deep"),
        ("row_wise", "lazy_adam", "dlrm"),
        ("table_wise", "sgd", "dlrm"),
        ("replicated", "row_wise_adagrad", "dlrm"),
    ]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(ROOT))  # the ranks import this file
        results_of_ranks = horovod.run(
            _train, (cases,), num_proc=ranks, use_gloo=True, start_timeout=_START_TIMEOUT_S
        )
    labels = torch.cat([make_batch(1000 + seed)[2] for seed in range(8)]).numpy()
    for case, (_, optimizer, architecture) in enumerate(cases):
        losses, probabilities, _ = alone(optimizer, architecture, _STEPS)
        for results in results_of_ranks:
            assert results[case] == results_of_ranks[0][case]
            np.testing.assert_allclose(results[case][0], losses, rtol=1e-4)
        measured = auc(labels, np.array(results_of_ranks[0][case][1]))
        assert measured == pytest.approx(auc(labels, probabilities.numpy()), abs=2e-3)
