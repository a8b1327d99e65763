"""L2 regularization: dense weights and the table rows that a step uses, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from conf.types import Train
from tests.training.architectures import small_spec, variant
from tests.training.feature_rows import make_spec, random_rows
from tests.training.ranks_in_threads import on_ranks
from training import kernels
from training.collectives import ALONE, Collectives
from training.data.batch import Batch
from training.embeddings.rows import SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.loop.train_step import Trainer
from training.models import build_model
from training.optimizers.updates import L2, Updates, row_optimizer

ROWS, CARDINALITIES, L2_FACTOR = 16, (5, 7), 0.3
RATE, ROW_RATE = 0.01, 0.5


def settings(**changed: Any) -> Train:
    base = {
        "num_ranks": 1,
        "num_shards": 2,
        "global_batch_size": ROWS,
        "l2": L2_FACTOR,
        "learning_rate": RATE,
        "embedding_learning_rate": ROW_RATE,
        "embeddings": {"optimizer": "sgd"},
    }
    return Train.model_validate({**base, **changed})


def batch(seed: int) -> Batch:
    """The last row has the weight zero, and it is the only one with the last id of both features."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.integers(0, n - 1, ROWS) for n in CARDINALITIES], axis=1)
    ids[-1] = np.array(CARDINALITIES) - 1
    weights = np.ones(ROWS, np.float32)
    weights[-1] = 0
    return Batch(
        torch.from_numpy(rng.normal(size=(ROWS, 3)).astype(np.float32)),
        torch.from_numpy(ids),
        torch.from_numpy(rng.integers(0, 2, ROWS).astype(np.float32)),
        torch.from_numpy(weights),
        global_weight=ROWS - 1,
    )


def part(whole: Batch, rank: int, ranks: int) -> Batch:
    own = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    columns = (whole.dense[own], whole.categorical[own], whole.labels[own], whole.weights[own])
    return Batch(*columns, global_weight=whole.global_weight)


def trained_in_numpy(
    weights: NDArray, rows: NDArray, bias: float, batches: list[Batch]
) -> tuple[NDArray, NDArray, float]:
    """Logistic regression: Adam on the dense weights and the bias, SGD on the weights of ids."""
    parameters = np.append(weights, bias)
    mean, square = np.zeros(4), np.zeros(4)
    for step, data in enumerate(batches, start=1):
        x, y = data.dense.numpy().astype(np.float64), data.labels.numpy()
        ids = data.categorical.numpy() + np.array([0, CARDINALITIES[0]])
        logits = x @ parameters[:3] + parameters[3] + rows[ids].sum(axis=1)
        errors = (1 / (1 + np.exp(-logits)) - y) * data.weights.numpy() / data.global_weight
        gradient = np.append(x.T @ errors + L2_FACTOR * parameters[:3], errors.sum())
        of_rows = np.zeros_like(rows)
        for row, error in zip(ids, errors, strict=True):
            of_rows[row] += error
        used = np.unique(ids[data.weights.numpy() > 0])
        of_rows[used] += L2_FACTOR * rows[used]
        rows = rows - ROW_RATE * of_rows
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        scale = np.sqrt(square / (1 - 0.999**step)) + 1e-8
        parameters = parameters - RATE * mean / (1 - 0.9**step) / scale
    return parameters[:3], rows, float(parameters[3])


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_equals_numpy_for_any_number_of_ranks(ranks: int) -> None:
    batches = [batch(seed) for seed in range(5)]
    spec = make_spec(3, list(CARDINALITIES))
    rng = np.random.default_rng(9)
    weights, rows, bias = rng.normal(size=3), rng.normal(size=sum(CARDINALITIES)), 0.4

    def run(collectives: Collectives) -> tuple[NDArray, NDArray, float]:
        model: Any = build_model(variant("logistic_regression"), spec, collectives=collectives)
        with torch.no_grad():
            model.weights.copy_(torch.from_numpy(weights))
            model.embedding.weight.copy_(torch.from_numpy(rows).unsqueeze(1))
            model.bias.fill_(bias)
        trainer = Trainer(model.train(), settings(num_ranks=ranks), collectives)
        for whole in batches:
            trainer.step(part(whole, collectives.rank, ranks), 1.0)
        return model.weights.detach().numpy(), model.embedding.weight.numpy()[:, 0], float(model.bias)

    expected = trained_in_numpy(weights, rows, bias, batches)
    assert expected[1][CARDINALITIES[0] - 1] == rows[CARDINALITIES[0] - 1]  # only in rows of weight zero
    for result in on_ranks(ranks, run):
        assert_allclose(result[0], expected[0], rtol=1e-4, atol=1e-6)
        assert_allclose(result[1], expected[1], rtol=1e-4, atol=1e-6)
        assert result[2] == pytest.approx(expected[2], rel=1e-4)


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["row_wise_adagrad", "sgd", "lazy_adam"])
def test_every_row_optimizer_gets_the_gradient_of_the_term(name: str, storage: torch.dtype) -> None:
    """The term is the gradient l2 · weight of the rows with a gradient other than zero."""
    results = []
    for factor in (L2_FACTOR, 0.0):
        torch.manual_seed(3)
        table = StackedEmbedding([12], 4, storage=storage)
        table.init_normal(1.0)
        optimizer = row_optimizer(name, table)
        term = L2(torch.nn.Identity(), [], factor)
        for step in range(3):
            rows = torch.tensor([1, 4, 5 + step, 11])
            values = np.random.default_rng(step).normal(size=(4, 4)).astype(np.float32)
            values[3] = 0
            if not factor:  # the expected result: the term is added by hand
                values[:3] += np.float32(L2_FACTOR) * table.weight.float().numpy()[rows[:3]]
            gradient = term.add_rows(SummedRowGradient(rows, torch.from_numpy(values)), table)
            optimizer.step(gradient, 0.1, step)
        results.append(table.weight.float().numpy().copy())
    assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sasrec", "dcn_v2_full", "two_tower", "din"])
def test_biases_normalization_layers_and_slopes_of_prelu_are_left_out(name: str) -> None:
    model = build_model(variant(name), small_spec(name), seed=1)
    parameters = dict(model.named_parameters())
    dense = {key: value for key, value in parameters.items() if "embedding" not in key}
    gradient = torch.ones(sum(value.numel() for value in dense.values()))
    added = L2(model, list(dense.values()), L2_FACTOR).add_dense(gradient) - 1
    counts = [value.numel() for value in dense.values()]
    left_out = {"norm.weight", "attention_norm.weight", "mlp_norm.weight"}
    left_out |= {key for key, value in dense.items() if name == "din" and value.ndim == 1}
    for (key, value), change in zip(dense.items(), added.split(counts), strict=True):
        skipped = key.endswith("bias") or any(key.endswith(norm) for norm in left_out)
        expected = torch.zeros_like(change) if skipped else L2_FACTOR * value.detach().flatten()
        torch.testing.assert_close(change, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(gradient, torch.ones_like(gradient))


def test_weights_that_ftrl_trains_are_left_out() -> None:
    """FTRL has its own l2. In the first step the gradients of both trainings are equal."""
    spec = small_spec("wide_and_deep")
    rows = random_rows(spec, 8, seed=1)
    dense, categorical = rows.tensors(32)
    data = Batch(dense, categorical, torch.from_numpy(rows.labels), torch.ones(8), global_weight=8)
    states = []
    for factor in (0.0, L2_FACTOR):
        model = build_model(variant("wide_and_deep"), spec, seed=2).train()
        Trainer(model, settings(l2=factor), ALONE).step(data, 1.0)
        states.append(model.state_dict())
    same = {name for name in states[0] if torch.equal(states[0][name], states[1][name])}
    assert {name for name in states[0] if name.startswith("wide.")} <= same
    assert "embedding.weight" not in same
    assert any(name.startswith("deep") and name.endswith("weight") for name in states[0].keys() - same)


def test_the_update_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sums the gradients of a row itself, so the term could not be added to the sum."""
    monkeypatch.setattr(kernels, "available", lambda device: device.type == "cpu")
    monkeypatch.setattr(kernels, "look_up", lambda weight, ids, *_, **__: weight[ids].detach().clone())
    model: Any = build_model(variant("dlrm"), make_spec(2, [9])).train()
    updates = Updates(model, settings())
    model.embedding(torch.tensor([[4], [4]])).sum().backward()
    gradient = updates.take_row_gradients()["embedding.weight"]
    assert isinstance(gradient, SummedRowGradient)
    assert gradient.rows.tolist() == [4]
