"""Trainings with kernels against trainings without: the same losses and the same state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.types import ModelConfig, Train
from tests.training.feature_rows import make_spec, random_rows
from tests.training.interpreted import device_of_kernels
from training import kernels
from training.collectives import LocalCollectives
from training.data.batch import Batch
from training.embeddings.scoring_tables import to_int8
from training.embeddings.table import StackedEmbedding, set_kernels
from training.loop.train_step import Trainer
from training.models import build_model

DLRM = {"architecture": "dlrm", "embedding_dim": 4, "bottom_mlp": [6, 4], "top_mlp": [8]}
DEEPFM = {"architecture": "deepfm", "embedding_dim": 3, "deep": [6], "multi_hot": {"max_length": 3}}
SPEC = make_spec(2, [5, 40, 3], lists=[7])
ROWS = 8  # Triton's interpreter needs milliseconds for each row


def batches() -> list[Batch]:
    result = []
    for seed in range(3):
        rows = random_rows(SPEC, ROWS, seed)
        dense, categorical = rows.tensors(3)
        labels = torch.from_numpy(rows.labels)
        result.append(Batch(dense, categorical, labels, torch.ones(ROWS), ROWS))
    return result


def trained(
    model: dict[str, Any], settings: dict[str, Any], device: torch.device
) -> tuple[list[float], dict[str, Tensor]]:
    train = Train.model_validate({"num_ranks": 1, "global_batch_size": ROWS, "num_shards": 8, **settings})
    config = ModelConfig.model_validate({**model, "multi_hot": {"max_length": 3}})
    trainer = Trainer(build_model(config, SPEC, 3).to(device), train, LocalCollectives())
    trainer.model.train()
    losses = [float(trainer.step(batch.to(device), 1.0)) for batch in batches()]
    return losses, {name: value.detach().cpu().clone() for name, value in trainer.state().items()}


@pytest.mark.parametrize(
    "model, settings",
    [(DLRM, {}), (DLRM, {"embeddings": {"optimizer": "sgd"}}), (DEEPFM, {}), (DLRM, {"precision": "fp16"})],
)
def test_a_training_with_kernels_is_one_without(
    monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], settings: dict[str, Any]
) -> None:
    expected, state = trained(model, settings, torch.device("cpu"))
    called = []
    device = device_of_kernels(monkeypatch)
    update = kernels.update
    monkeypatch.setattr(kernels, "update", lambda *a, **k: (called.append(a), update(*a, **k))[1])
    losses, with_kernels = trained(model, settings, device)
    assert len(called) == 3 * (1 if model is DLRM else 2)  # each table, each step
    tolerance = 3e-3 if settings.get("precision") == "fp16" else 1e-4
    assert losses == pytest.approx(expected, rel=tolerance)
    assert with_kernels.keys() == state.keys()
    for name, value in state.items():
        torch.testing.assert_close(
            with_kernels[name],
            value,
            rtol=10 * tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def test_tables_of_16_bits_are_trained_by_kernels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = {**DLRM, "embedding_storage": "bf16"}
    expected, state = trained(model, {}, torch.device("cpu"))
    losses, with_kernels = trained(model, {}, device_of_kernels(monkeypatch))
    assert losses == pytest.approx(expected, rel=2e-2)  # kernels and torch draw different bits for rounding
    weight = with_kernels["model.embedding.weight"]
    assert weight.dtype == torch.bfloat16
    assert not torch.equal(weight, state["model.embedding.weight"])
    torch.testing.assert_close(weight.float(), state["model.embedding.weight"].float(), rtol=0.05, atol=0.01)


def test_two_lookups_of_one_step_are_both_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch sums the gradients of several lookups, as on a CPU."""
    device = device_of_kernels(monkeypatch)
    config = ModelConfig.model_validate({**DLRM, "multi_hot": {"max_length": 3}})
    model = build_model(config, SPEC, 3).to(device).train()
    train = Train(num_ranks=1, num_shards=8, global_batch_size=ROWS)
    trainer = Trainer(model, train, LocalCollectives())
    table: Any = model.embedding
    first, second = (batch.to(device) for batch in batches()[:2])
    (table(first.categorical).sum() + table(second.categorical).sum()).backward()
    gradient = table.take_gradient()
    assert type(gradient).__name__ == "SummedRowGradient"
    assert len(gradient.rows.unique()) == len(gradient.rows)
    assert float(gradient.values.sum()) > 0
    assert trainer.step(replace(first, global_weight=ROWS), 1.0) > 0


def test_the_compiler_takes_the_interaction_as_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of_kernels(monkeypatch)
    bottom, embedded = (
        torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 4), (3, 5, 4))
    )
    compiled = torch.compile(
        lambda *arguments: kernels.interact(*arguments) * 2, backend="aot_eager", fullgraph=True
    )
    gradient = torch.randn(3, 20, device=device)  # 4 + 15, and a zero
    gradients = torch.autograd.grad(compiled(bottom, embedded), (bottom, embedded), gradient)
    expected = torch.autograd.grad(kernels.interact(bottom, embedded) * 2, (bottom, embedded), gradient)
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.fixture
def dlrm(monkeypatch: pytest.MonkeyPatch) -> Any:
    device = device_of_kernels(monkeypatch)
    config = ModelConfig.model_validate({**DLRM, "multi_hot": {"max_length": 3}})
    return build_model(config, SPEC, 3).to(device).train()


@pytest.mark.parametrize(
    "halved, expected",
    [(None, torch.float32), (torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16)],
)
def test_vectors_are_bf16_only_in_mixed_precision_in_bf16(
    dlrm: Any, halved: torch.dtype | None, expected: torch.dtype
) -> None:
    """In fp16, small gradients of vectors would be lost before they are divided by the loss scale."""
    ids = batches()[0].categorical.to(dlrm.logit.weight.device)
    with torch.autocast(ids.device.type, halved, enabled=halved is not None):
        (vectors,) = dlrm.embed(ids)
    assert vectors.dtype == expected
    reference = dlrm.embedding(ids)
    torch.testing.assert_close(vectors.float(), reference, rtol=2**-7, atol=0)


def test_without_kernels_vectors_are_float32(dlrm: Any) -> None:
    set_kernels(dlrm, False)
    ids = batches()[0].categorical.to(dlrm.logit.weight.device)
    with torch.autocast(ids.device.type, torch.bfloat16):
        assert dlrm.embed(ids)[0].dtype == torch.float32


def test_batches_share_memory_only_if_a_graph_reads_them(dlrm: Any) -> None:
    table = dlrm.embedding
    device = table.weight.device
    first, second, third = (batch.categorical.to(device) for batch in batches())

    def look_up(ids: Tensor) -> Tensor:
        vectors = table(ids)
        assert torch.equal(vectors, expected(ids))
        return vectors

    def expected(ids: Tensor) -> Tensor:
        with torch.no_grad():
            return table(ids)

    kept = [look_up(ids).data_ptr() for ids in (first, second)]
    assert len(set(kept)) == 2
    table._pending.take_gradient(table.weight, LocalCollectives())
    table.reuses_memory = True
    reused = look_up(first)
    again = look_up(second)  # a second lookup of the same step must not overwrite the first
    assert reused.data_ptr() != again.data_ptr()
    assert torch.equal(reused, expected(first))
    table._pending.take_gradient(table.weight, LocalCollectives())
    later = look_up(third)
    assert later.data_ptr() == reused.data_ptr()
    assert later.requires_grad
    assert later.grad is None
    assert expected(first).data_ptr() != later.data_ptr()


def test_a_training_that_reuses_memory_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of_kernels(monkeypatch)
    expected = trained(DLRM, {}, device)
    monkeypatch.setattr(StackedEmbedding, "reuses_memory", True)
    losses, state = trained(DLRM, {}, device)
    assert losses == expected[0]
    assert all(torch.equal(state[name], value) for name, value in expected[1].items())


@pytest.mark.parametrize("top", [[], [8]])
def test_columns_of_zeros_change_no_logit(monkeypatch: pytest.MonkeyPatch, top: list[int]) -> None:
    settings = {**DLRM, "top_mlp": top, "multi_hot": {"max_length": 3}}
    model: Any = build_model(ModelConfig.model_validate(settings), SPEC, 3).train()
    batch = batches()[0]
    with torch.no_grad():
        expected = model(batch.dense, batch.categorical)
    device = device_of_kernels(monkeypatch)
    model, batch = model.to(device), batch.to(device)
    with torch.no_grad():
        interactions = model._interactions(model._of_dense(batch.dense), *model.embed(batch.categorical))
        assert interactions.shape[1] == 16  # 4 numbers, 10 pairs and 2 zeros
        logits = model(batch.dense, batch.categorical)
    torch.testing.assert_close(logits.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_tables_of_int8_are_looked_up_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig.model_validate({**DLRM, "multi_hot": {"max_length": 3}})
    model: Any = build_model(config, SPEC, 3).eval()
    to_int8(model)
    ids = batches()[0].categorical
    expected = model.embedding(ids)
    device = device_of_kernels(monkeypatch)
    called = []
    look_up = kernels.look_up
    monkeypatch.setattr(kernels, "look_up", lambda *a, **k: (called.append(a), look_up(*a, **k))[1])
    vectors = model.to(device).embedding(ids.to(device))
    assert len(called) == 1
    torch.testing.assert_close(vectors.cpu(), expected, rtol=1e-5, atol=1e-6)
