"""Kernels on several ranks: rows that are exchanged are gathered and updated by kernels too."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.types import Train
from tests.training.interpreted import device_of_kernels
from tests.training.ranks_in_threads import on_ranks
from tests.training.test_spread_tables import PLACEMENTS, make_model, unsharded
from tests.training.test_spread_tables import share as share_of_rows
from training import kernels
from training.collectives import Collectives
from training.data.batch import Batch
from training.embeddings.table import StackedEmbedding, tables_of
from training.loop.train_step import Trainer

ROWS, STEPS = 16, 2  # Triton's interpreter needs milliseconds for each row


def share(seed: int, collectives: Collectives) -> Batch:
    """A rank's part of a small global batch."""
    return share_of_rows(seed, collectives, ROWS)


class Called:
    """Counts the calls of kernels. Triton's interpreter runs one kernel at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self._lock = Lock()
        for name in ("look_up", "update"):
            monkeypatch.setattr(kernels, name, self._counted(name, getattr(kernels, name)))

    def _counted(self, name: str, kernel: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            with self._lock:
                self.counts[name] += 1
                return kernel(*arguments, **named)

        return call


def trained(
    ranks: int, placement: str, optimizer: str, device: torch.device, steps: int = STEPS, **model: Any
) -> tuple[list[float], list[tuple[StackedEmbedding, Tensor]]]:
    """The losses, and the table of each rank."""
    settings = {**PLACEMENTS[placement], "optimizer": optimizer}
    train = Train.model_validate(
        {"num_ranks": ranks, "num_shards": 4, "global_batch_size": ROWS, "embeddings": settings}
    )

    def body(collectives: Collectives) -> tuple[list[float], tuple[StackedEmbedding, Tensor]]:
        built = make_model(collectives, settings, "deepfm", **model).to(device).train()
        trainer = Trainer(built, train, collectives)
        losses = [float(trainer.step(share(step, collectives).to(device), 1.0)) for step in range(steps)]
        table = tables_of(built)["embedding.weight"]
        return losses, (table, table.weight.detach().cpu())

    results = on_ranks(ranks, body)
    assert all(losses == results[0][0] for losses, _ in results)
    return results[0][0], [table for _, table in results]


@pytest.mark.parametrize(
    "placement, optimizer", [*((placement, "row_wise_adagrad") for placement in PLACEMENTS), ("auto", "sgd")]
)
def test_ranks_with_kernels_train_as_ranks_without(
    monkeypatch: pytest.MonkeyPatch, placement: str, optimizer: str
) -> None:
    cpu = torch.device("cpu")
    expected, expected_tables = trained(2, placement, optimizer, cpu)
    device, called = device_of_kernels(monkeypatch), Called(monkeypatch)
    losses, tables = trained(2, placement, optimizer, device)
    assert called.counts == {"look_up": 2 * 2 * STEPS, "update": 2 * 2 * STEPS}  # ranks, tables, steps
    assert losses == pytest.approx(expected, rel=1e-4)
    for mine, other in zip(unsharded(tables), unsharded(expected_tables), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_rounding_does_not_depend_on_where_a_row_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over ranks round differently, which changes a few numbers; other random bits would change half."""
    device, _ = device_of_kernels(monkeypatch), Called(monkeypatch)
    tables = [
        unsharded(trained(ranks, "row_wise", "sgd", device, steps=1, embedding_storage="bf16")[1])
        for ranks in (1, 2)
    ]
    alone, spread = (torch.cat(features) for features in tables)
    assert alone.shape == spread.shape
    assert float((alone != spread).float().mean()) < 0.02


def test_several_lookups_of_one_step_are_summed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks then use torch's operators."""
    device = device_of_kernels(monkeypatch)

    def body(collectives: Collectives) -> tuple[str, float]:
        model: Any = make_model(collectives, PLACEMENTS["row_wise"], "deepfm").to(device).train()
        ids = share(0, collectives).categorical.to(device)
        with torch.enable_grad():
            vectors = model.embedding(ids).sum() + model.embedding(ids).sum()
        vectors.backward()
        assert model.embedding.take_lookup_gradient(collectives) is None
        gradient = model.embedding.take_gradient(collectives)
        assert len(gradient.rows.unique()) == len(gradient.rows)
        return type(gradient).__name__, float(gradient.values.sum())

    _ = Called(monkeypatch)
    results = on_ranks(2, body)
    assert {name for name, _ in results} == {"SummedRowGradient"}
    assert sum(total for _, total in results) > 0


class Recorded:
    """Passes calls on to collectives, and keeps the dtypes of the vectors that are sent."""

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self.sent: list[torch.dtype] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collectives, name)

    def start_all_to_all(self, values: Tensor, splits: Any, name: str) -> Any:
        if values.dim() == 2:
            self.sent.append(values.dtype)
        return self._collectives.start_all_to_all(values, splits, name)


def test_vectors_and_gradients_of_16_bits_have_16_bits_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = device_of_kernels(monkeypatch), Called(monkeypatch)

    def body(collectives: Collectives, dtype: torch.dtype) -> tuple[list[torch.dtype], Tensor, Tensor]:
        recorded: Any = Recorded(collectives)
        table = make_model(recorded, PLACEMENTS["row_wise"], "deepfm").to(device).train().embedding
        ids = share(0, collectives).categorical.to(device)
        with torch.enable_grad():
            vectors = table(ids, dtype)
        assert vectors.dtype == dtype
        generator = torch.Generator().manual_seed(collectives.rank)
        vectors.backward(torch.randn(vectors.shape, generator=generator).to(dtype))
        gradient = table.take_lookup_gradient(recorded)
        assert gradient is not None
        summed = torch.zeros(table.weight.shape).index_add_(0, gradient.rows, gradient.values.float())
        return recorded.sent, vectors.detach().float(), summed

    half, full = (
        on_ranks(2, lambda collectives, dtype=dtype: body(collectives, dtype))
        for dtype in (torch.bfloat16, torch.float32)
    )
    for (sent, vectors, gradient), (sent_in_full, expected, of_full) in zip(half, full, strict=True):
        assert sent == [torch.bfloat16] * 2
        assert sent_in_full == [torch.float32] * 2
        assert float(of_full.abs().sum()) > 0
        assert not torch.equal(vectors, expected)
        torch.testing.assert_close(vectors, expected, rtol=2**-6, atol=2**-8)
        torch.testing.assert_close(gradient, of_full, rtol=2**-6, atol=2**-5)
