"""SGD and lazy Adam on looked-up rows against NumPy.

The test of row-wise Adagrad is in test_embedding.py, that of FTRL in test_ftrl.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from conf.types import ModelConfig, Train
from tests.training.architectures import VARIANTS
from tests.training.feature_rows import make_spec
from training import kernels
from training.collectives import ALONE
from training.embeddings.rows import LookupGradient, SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.loop.train_step import Trainer
from training.models import build_model
from training.native.library import AVX2, AVX512, BEST, EVERYWHERE
from training.optimizers import updates as optimizers
from training.optimizers.updates import LazyAdam, RowSgd, Updates, row_optimizer

ROWS, DIM = 12, 3
RATES = (0.1, 0.05, 0.2, 0.1)


def make_table() -> StackedEmbedding:
    table = StackedEmbedding([5, 7], DIM)
    table.init_normal(1.0)
    return table


def gradients(seed: int) -> Iterator[tuple[float, NDArray[np.int64], NDArray[np.float32]]]:
    """(rate, rows, values): each touches 5 of 12 rows."""
    rng = np.random.default_rng(seed)
    for rate in RATES:
        yield (
            rate,
            np.sort(rng.choice(ROWS, size=5, replace=False)),
            rng.normal(size=(5, DIM)).astype(np.float32),
        )


def test_sgd_equals_numpy() -> None:
    table = make_table()
    weight = table.weight.numpy().copy()
    sgd = RowSgd(table)
    for step, (rate, rows, values) in enumerate(gradients(0)):
        sgd.step(SummedRowGradient(torch.from_numpy(rows), torch.from_numpy(values)), rate, step)
        weight[rows] -= rate * values
    np.testing.assert_allclose(table.weight.numpy(), weight, rtol=1e-6, atol=1e-7)
    assert sgd.state() == {}


@pytest.mark.parametrize("compiled", [True, False])
def test_lazy_adam_equals_numpy_and_counts_each_rows_own_updates(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(optimizers, "library", lambda: None)
    table = make_table()
    weight = table.weight.numpy().astype(np.float64)
    mean, square, updates = np.zeros((ROWS, DIM)), np.zeros((ROWS, DIM)), np.zeros(ROWS, np.int64)
    adam = LazyAdam(table)
    for step, (rate, rows, values) in enumerate(gradients(1)):
        adam.step(SummedRowGradient(torch.from_numpy(rows), torch.from_numpy(values)), rate, step)
        for row, g in zip(rows, values.astype(np.float64), strict=True):
            updates[row] += 1
            mean[row] = 0.9 * mean[row] + 0.1 * g
            square[row] = 0.999 * square[row] + 0.001 * g**2
            unbiased = square[row] / (1 - 0.999 ** updates[row])
            weight[row] -= rate * mean[row] / (1 - 0.9 ** updates[row]) / (np.sqrt(unbiased) + 1e-8)
    assert 0 < updates.min() + 1 < updates.max() + 1
    np.testing.assert_allclose(table.weight.numpy(), weight, rtol=1e-5, atol=1e-6)
    state = adam.state()
    assert state["lazy_adam.updates"].tolist() == updates.tolist()
    np.testing.assert_allclose(state["lazy_adam.mean"].numpy(), mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state["lazy_adam.square"].numpy(), square, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("instructions", [BEST, EVERYWHERE, AVX2, AVX512])
@pytest.mark.parametrize("dim", [1, 7, 64, 100])
def test_the_compiled_lazy_adam_is_that_of_torch(
    instructions: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each processor's instructions; any number of threads gives the same to the bit."""
    rng = np.random.default_rng(dim)
    rows = torch.from_numpy(rng.permutation(700)[:600])
    values = [torch.from_numpy(rng.normal(size=(600, dim)).astype(np.float32)) for _ in range(3)]
    monkeypatch.setattr(optimizers, "_NUMBERS_OF_A_THREAD", 1)

    def changes(threads: int | None) -> list[torch.Tensor]:
        table = StackedEmbedding([700], dim)
        adam = LazyAdam(table)
        adam.updates[:] = torch.arange(700, dtype=torch.int32) % 300
        results = []
        for number, value in enumerate(values):
            before = table.weight.detach().clone()
            gradient = SummedRowGradient(rows, value)
            if threads is None:
                with mock.patch.object(optimizers, "library", return_value=None):
                    adam.step(gradient, 0.01, number)
                results.append((table.weight - before)[rows])
            else:
                with mock.patch("torch.get_num_threads", return_value=threads):
                    results.append(adam.compiled_change(gradient, 0.01, instructions))
                table.add_to_rows(rows, results[-1], number)
        return [*results, *adam.state().values()]

    alone = changes(1)
    assert all(torch.equal(one, other) for one, other in zip(changes(3), alone, strict=True))
    for one, other in zip(alone, changes(None), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_a_row_first_met_late_moves_by_the_rate() -> None:
    """Bias correction by the steps of the whole training would move the row 3.2 times as far."""
    table = make_table()
    before = table.weight.clone()
    adam = LazyAdam(table)
    for step in range(1000):
        adam.step(SummedRowGradient(torch.tensor([0]), torch.ones(1, DIM)), 0.01, step)
    adam.step(SummedRowGradient(torch.tensor([7]), torch.full((1, DIM), -5.0)), 0.01, 1000)
    torch.testing.assert_close(table.weight[7] - before[7], torch.full((DIM,), 0.01), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["row_wise_adagrad", "sgd", "lazy_adam"])
def test_rows_whose_gradient_is_zero_keep_their_weights_and_their_state(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only rows of weight zero looked them up, and the number of these rows depends on that of ranks."""
    if not compiled:
        monkeypatch.setattr(optimizers, "library", lambda: None)
    table = make_table()
    optimizer = row_optimizer(name, table)
    optimizer.step(SummedRowGradient(torch.tensor([2, 5, 9]), torch.ones(3, DIM)), 0.1, 1)
    before = [table.weight.clone(), *(value.clone() for value in optimizer.state().values())]
    values = torch.stack([torch.zeros(DIM), -torch.zeros(DIM), torch.tensor([0, 0, 1e-30]), torch.ones(DIM)])
    optimizer.step(SummedRowGradient(torch.tensor([2, 3, 5, 11]), values), 0.1, 2)
    for value, old in zip([table.weight, *optimizer.state().values()], before, strict=True):
        assert torch.equal(value[[2, 3, 9]], old[[2, 3, 9]])
        assert not torch.equal(value[11], old[11])
    if name == "lazy_adam":
        assert optimizer.state()["lazy_adam.updates"].tolist() == [0, 0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize("name", ["row_wise_adagrad", "sgd", "lazy_adam"])
def test_rows_without_gradient_stay(name: str) -> None:
    table = make_table()
    before = table.weight.clone()
    optimizer = row_optimizer(name, table)
    touched = torch.tensor([2, 9])
    optimizer.step(SummedRowGradient(touched, torch.ones(2, DIM)), 0.1, 1)
    optimizer.step(SummedRowGradient(touched[:0], torch.ones(0, DIM)), 0.1, 2)
    changed = (table.weight != before).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [2, 9]
    for value in optimizer.state().values():
        assert value.flatten(1).any(dim=1).nonzero().flatten().tolist() == [2, 9] if value.dim() > 1 else True
        assert value.shape[0] == ROWS


@pytest.mark.parametrize(
    "name, kinds",
    [
        ("row_wise_adagrad", {"adagrad"}),
        ("sgd", set()),
        ("lazy_adam", {"lazy_adam.mean", "lazy_adam.square", "lazy_adam.updates"}),
    ],
)
def test_the_configuration_chooses_and_the_state_says_it(name: str, kinds: set[str]) -> None:
    train = Train.model_validate({"embeddings": {"optimizer": name}})
    model = build_model(ModelConfig.model_validate(VARIANTS["wide_and_deep"]), make_spec(2, [9], lists=[7]))
    trainer = Trainer(model, train, ALONE)
    by_row = set(trainer.row_state())
    assert by_row == {
        "model.embedding.weight",
        "model.wide.embedding.weight",
        "ftrl.z.wide.embedding.weight",
        "ftrl.n.wide.embedding.weight",
        *(f"{kind}.embedding.weight" for kind in kinds),
    }
    state = trainer.state()
    assert all(len(state[name]) == 16 for name in by_row)


def test_only_optimizers_with_an_update_kernel_get_lookup_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without kernels, several lookups, or FTRL: gradients are summed by row before the update."""
    monkeypatch.setattr(kernels, "available", lambda device: device.type == "cpu")
    monkeypatch.setattr(kernels, "look_up", lambda weight, ids, *_, **__: weight[ids].detach().clone())
    for name, kind in (("sgd", LookupGradient), ("lazy_adam", SummedRowGradient)):
        train = Train.model_validate({"embeddings": {"optimizer": name}})
        model = build_model(ModelConfig.model_validate(VARIANTS["dlrm"]), make_spec(2, [9])).train()
        updates = Updates(model, train)
        table: Any = model.embedding
        for lookups, expected in ((1, kind), (2, SummedRowGradient), (0, SummedRowGradient)):
            for _ in range(lookups):
                table(torch.tensor([[4], [4]])).sum().backward()
            gradient = updates.take_row_gradients()["embedding.weight"]
            assert type(gradient) is expected
            rows = {LookupGradient: [4, 4], SummedRowGradient: [4]}[expected] if lookups else []
            assert gradient.rows.tolist() == rows
            assert float(gradient.values.sum()) == lookups * 2 * table.weight.shape[1]
