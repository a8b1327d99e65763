"""Tables spread over ranks train as on one: threads are the ranks."""

from __future__ import annotations

from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conf.errors import ConfigError
from conf.train_types import Embeddings
from conf.types import ModelConfig, Train
from metrics import auc
from storage.feature_spec import FeatureSpec
from tests.training.architectures import small_spec, variant
from tests.training.feature_rows import make_spec, random_rows
from tests.training.ranks_in_threads import on_ranks
from training.collectives import ALONE, Collectives
from training.data.batch import Batch
from training.embeddings.placement import TableShape, plan_placement
from training.embeddings.table import StackedEmbedding, tables_of
from training.loop.train_step import Trainer
from training.models import build_model

pytestmark = pytest.mark.slow

ROWS, STEPS, LENGTH = 64, 20, 4
CARDINALITIES, LISTS = [40, 9, 150], [30, 5]
# Of the tables of 8 numbers a row, `auto` replicates C1 and L1. C2 is row-wise, C0 and L0 are table-wise.
AUTO = {"placement": "auto", "replicated_max_bytes": 400, "row_wise_share": 0.8}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "auto": AUTO,
    **{kind: {"placement": kind} for kind in ("replicated", "table_wise", "row_wise")},
}
OPTIMIZERS = {"row_wise_adagrad": 0.15, "sgd": 1.0, "lazy_adam": 0.01}


def make_batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """dense, categorical and labels of a global batch. Hot ids come often, lists may be empty."""
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for cardinality, width, lowest in [(n, 1, 0) for n in CARDINALITIES] + [(n, LENGTH, 1) for n in LISTS]:
        drawn = torch.rand(ROWS, width, generator=generator).square() * (cardinality - lowest)
        ids = drawn.long() + lowest
        if lowest:
            held = torch.randint(0, LENGTH + 1, (ROWS, 1), generator=generator)
            ids[torch.arange(LENGTH) >= held] = 0
        columns.append(ids)
    categorical = torch.cat(columns, dim=1)
    dense = torch.randn(ROWS, 2, generator=generator)
    clicked = torch.rand(ROWS, generator=generator) < 0.2 + 0.6 * (categorical[:, 0] + categorical[:, 2]) % 2
    return dense, categorical, clicked.float()


def share(seed: int, collectives: Collectives, global_rows: int = ROWS) -> Batch:
    """A rank's part of the first rows of a global batch, of which the last 5 are padding."""
    dense, categorical, labels = make_batch(seed)
    weights = (torch.arange(global_rows) < global_rows - 5).float()
    rows = global_rows // collectives.size
    part = slice(collectives.rank * rows, (collectives.rank + 1) * rows)
    return Batch(dense[part], categorical[part], labels[part], weights[part], global_rows - 5)


def make_model(
    collectives: Collectives, settings: dict[str, Any], architecture: str, **changed: Any
) -> torch.nn.Module:
    config: ModelConfig = variant(architecture, **{"multi_hot": {"max_length": LENGTH}, **changed})
    spec: FeatureSpec = make_spec(2, CARDINALITIES, lists=LISTS)
    return build_model(config, spec, 7, Embeddings.model_validate(settings), collectives)


def unsharded(parts: list[tuple[StackedEmbedding, Tensor]]) -> list[Tensor]:
    """The rows of each feature, collected by the blocks that ranks write."""
    results = [torch.full((n, *parts[0][1].shape[1:]), torch.nan) for n in parts[0][0].cardinalities]
    for table, held in parts:
        for block in table.blocks:
            if block.written:
                rows = held[block.place : block.place + block.rows].float()
                results[block.feature][block.first :: block.step] = rows
    assert not any(bool(rows.isnan().any()) for rows in results)
    return results


def steps(trainer: Trainer, batches: list[Batch]) -> list[float]:
    """The losses of one step a batch, each of which also gets the next batch, as in a training."""
    return [
        float(trainer.step(batch, 1.0, next_batch=next_batch))
        for batch, next_batch in zip_longest(batches, batches[1:])
    ]


def train_as_rank(
    collectives: Collectives, settings: dict[str, Any], architecture: str, number_of_steps: int = STEPS
) -> tuple[list[float], Tensor, dict[str, tuple[StackedEmbedding, Tensor]]]:
    """Losses, the probabilities of this rank's part of a held-out batch, and tables before training."""
    model = make_model(collectives, settings, architecture)
    fresh = {name: (table, table.weight.clone()) for name, table in tables_of(model).items()}
    rate = OPTIMIZERS[settings["optimizer"]]
    train = Train.model_validate({"num_ranks": 1, "embedding_learning_rate": rate, "embeddings": settings})
    trainer = Trainer(model.train(), train, collectives)
    losses = steps(trainer, [share(seed, collectives) for seed in range(number_of_steps)])
    held_out = [share(1000 + seed, collectives) for seed in range(8)]
    with torch.no_grad():
        results = [torch.sigmoid(model.eval()(batch.dense, batch.categorical)) for batch in held_out]
    (gathered,) = collectives.allgather(torch.stack(results, dim=1))
    return losses, gathered.T.flatten(), fresh


@cache
def alone(
    optimizer: str, architecture: str, number_of_steps: int = STEPS
) -> tuple[list[float], Tensor, dict[str, list[Tensor]]]:
    losses, probabilities, fresh = train_as_rank(
        ALONE, {"optimizer": optimizer}, architecture, number_of_steps
    )
    return losses, probabilities, {name: unsharded([table]) for name, table in fresh.items()}


@pytest.mark.parametrize("architecture", ["dlrm", "wide_and_deep"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_ranks_train_as_one(placement: str, ranks: int, optimizer: str, architecture: str) -> None:
    """With lists, padding rows, and in wide_and_deep a table of one number a row that FTRL trains."""
    settings = {**PLACEMENTS[placement], "optimizer": optimizer}
    losses, probabilities, fresh = alone(optimizer, architecture)
    results = on_ranks(ranks, lambda collectives: train_as_rank(collectives, settings, architecture))
    for name, expected in fresh.items():
        for mine, theirs in zip(unsharded([result[2][name] for result in results]), expected, strict=True):
            assert torch.equal(mine, theirs), "initial values hang on the number of ranks"
    for result in results:
        assert result[0] == results[0][0]
        np.testing.assert_allclose(result[0], losses, rtol=1e-4)
        assert torch.equal(result[1], results[0][1])
    assert losses[-1] < losses[0]
    labels = torch.cat([make_batch(1000 + seed)[2] for seed in range(8)]).numpy()
    assert auc(labels, results[0][1].numpy()) == pytest.approx(auc(labels, probabilities.numpy()), abs=2e-3)


@pytest.mark.parametrize("architecture", ["sasrec", "hstu", "bert4rec", "mult_vae", "din"])
def test_items_of_histories_are_read_from_rows_of_other_ranks(architecture: str) -> None:
    """bert4rec and mult_vae also have a table of biases, with one row for each feature that is not the item."""
    spec, settings = small_spec(architecture), {**PLACEMENTS["row_wise"], "optimizer": "lazy_adam"}
    config = variant(architecture, dropout=0.0, multi_hot={"max_length": LENGTH})
    inputs = [
        (rows.tensors(LENGTH), rows.labels) for rows in (random_rows(spec, ROWS, seed) for seed in range(4))
    ]

    def losses_of(collectives: Collectives, settings: dict[str, Any]) -> tuple[list[float], set[int]]:
        model = build_model(config, spec, 7, Embeddings.model_validate(settings), collectives)
        train = Train.model_validate({"num_ranks": 1, "embedding_learning_rate": 0.1, "embeddings": settings})
        trainer = Trainer(model.train(), train, collectives)
        rows = ROWS // collectives.size
        part = slice(collectives.rank * rows, (collectives.rank + 1) * rows)
        batches = [
            Batch(dense[part], ids[part], torch.from_numpy(labels[part]), torch.ones(rows), ROWS)
            for (dense, ids), labels in inputs * 2
        ]
        losses = steps(trainer, batches)
        return losses, {len(table.weight) for table in tables_of(model).values()}

    expected, _ = losses_of(ALONE, {"optimizer": "lazy_adam"})
    for losses, sizes in on_ranks(2, lambda collectives: losses_of(collectives, settings)):
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        assert max(sizes) < sum(spec.cardinalities)  # a rank has only some of the rows
    assert sum(expected[4:]) < sum(expected[:4])


def test_auto_mixes_all_kinds_here() -> None:
    shape = TableShape((*CARDINALITIES, *LISTS), 8 * 4 + 4, (1, 1, 1, LENGTH, LENGTH))
    for ranks in (2, 4):
        placement = plan_placement(shape, ranks, Embeddings.model_validate(AUTO))
        assert {feature.kind for feature in placement.features} == {"replicated", "table_wise", "row_wise"}


@pytest.mark.parametrize("storage", ["bf16", "fp16"])
@pytest.mark.parametrize("placement", ["table_wise", "row_wise", "auto"])
def test_16_bit_rows_round_alike_wherever_they_lie(placement: str, storage: str) -> None:
    """Gradients are whole numbers, so their sums are exact and all bits of the weights must be equal."""
    changed = {"embedding_storage": storage, "multi_hot": {"max_length": LENGTH, "pooling": "sum"}}

    def body(collectives: Collectives) -> tuple[StackedEmbedding, Tensor]:
        model: Any = make_model(collectives, PLACEMENTS[placement], "dlrm", **changed)
        table: StackedEmbedding = model.embedding.train()
        for step in range(5):
            vectors = table(share(step, collectives).categorical)
            (vectors * torch.arange(-3, 5)).sum().backward()
            gradient = table.take_gradient(collectives)
            table.add_to_rows(gradient.rows, gradient.values * 2**-9, step)
        return table, table.weight

    expected = unsharded([body(ALONE)])
    assert len(expected[2].unique()) > 100
    for ranks in (2, 4):
        for mine, theirs in zip(unsharded(on_ranks(ranks, body)), expected, strict=True):
            assert torch.equal(mine, theirs)


def test_a_table_larger_than_a_rank_may_hold_trains() -> None:
    rows, ranks, budget = 50_000, 4, 600_000
    settings = Embeddings(placement="auto", rank_max_bytes=budget)
    assert rows * (8 * 4 + 4) > 2 * budget
    spec = make_spec(2, [rows, 20])
    train = Train(num_ranks=1, embeddings=settings)

    def body(collectives: Collectives) -> tuple[int, list[float], set[int]]:
        model = build_model(variant("dlrm"), spec, 1, settings, collectives)
        trainer = Trainer(model, train, collectives)
        generator = torch.Generator().manual_seed(3)
        whole = torch.randint(0, rows, (ROWS, 1), generator=generator)
        whole = torch.cat([whole, whole % 20], dim=1)[collectives.rank :: ranks]
        labels = (whole[:, 0] % 2).float()
        batch = Batch(torch.zeros(len(whole), 2), whole, labels, torch.ones(len(whole)), ROWS)
        losses = [float(trainer.step(batch, 1.0)) for _ in range(40)]
        held = sum(trainer.state()[name].nbytes for name in trainer.row_state())
        return held, losses, {len(trainer.state()[name]) for name in trainer.row_state()}

    for held, losses, lengths in on_ranks(ranks, body):
        assert held <= budget
        assert max(lengths) <= rows // ranks + 20
        assert losses[-1] < losses[0] / 2
    with pytest.raises(ConfigError, match="a rank would hold 1800720 bytes of an embedding table"):
        build_model(variant("dlrm"), spec, 1, settings)


def test_a_rank_that_looks_nothing_up_takes_part() -> None:
    def body(collectives: Collectives) -> list[list[int]]:
        model: Any = make_model(collectives, PLACEMENTS["auto"], "dlrm")
        ids = torch.zeros(0, 11, dtype=torch.int64) if collectives.rank else make_batch(0)[1]
        model.embedding(ids).sum().backward()
        gradient = model.embedding.take_gradient(collectives)
        where = model.embedding.router.unsharded_rows(gradient.rows)
        return [where.tolist(), gradient.rows.tolist()]

    results = on_ranks(2, body)
    (expected, _), *_ = on_ranks(1, body)
    assert sorted({row for where, _ in results for row in where}) == expected
    for _, rows in results:
        assert rows == sorted(set(rows))
