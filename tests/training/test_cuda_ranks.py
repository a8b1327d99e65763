"""Ranks as threads on one GPU: early requests on a stream of their own, kernels, and rows in two memories.

Real ranks have a GPU each. Threads that share one show whether streams are ordered and memory is kept.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch import Tensor

from conf.types import Train
from tests.training.ranks_in_threads import on_ranks
from tests.training.test_spread_tables import OPTIMIZERS, PLACEMENTS, make_model, share
from tests.training.test_tiered_training import batches_of, trainer_of
from training.collectives import Collectives
from training.embeddings.table import tables_of
from training.loop.train_step import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

STEPS = 6
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def trained(
    ranks: int, device: torch.device, placement: str, optimizer: str, architecture: str, *, ahead: bool
) -> list[tuple[list[float], dict[str, Tensor]]]:
    """The losses and the final state on the CPU, for each rank."""
    embeddings: dict[str, Any] = {**PLACEMENTS[placement], "optimizer": optimizer}
    train = Train.model_validate(
        {"num_ranks": 1, "embedding_learning_rate": OPTIMIZERS[optimizer], "embeddings": embeddings}
    )

    def body(collectives: Collectives) -> tuple[list[float], dict[str, Tensor]]:
        model = make_model(collectives, embeddings, architecture).to(device).train()
        trainer = Trainer(model, train, collectives)
        batches = [share(seed, collectives).to(device) for seed in range(STEPS)]
        following = batches[1:] if ahead else []
        losses = [
            float(trainer.step(batch, 1.0, next_batch=next_batch))
            for batch, next_batch in zip_longest(batches, following)
        ]
        return losses, {name: value.detach().cpu() for name, value in trainer.state().items()}

    return on_ranks(ranks, body)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("architecture", ["dlrm", "wide_and_deep"])
@pytest.mark.parametrize("placement, optimizer", [("row_wise", "row_wise_adagrad"), ("auto", "lazy_adam")])
def test_ranks_on_a_gpu_train_as_ranks_on_cpus(
    ranks: int, architecture: str, placement: str, optimizer: str
) -> None:
    settings = (placement, optimizer, architecture)
    expected = trained(ranks, CPU, *settings, ahead=False)
    for ahead in (False, True):
        for mine, other in zip(trained(ranks, GPU, *settings, ahead=ahead), expected, strict=True):
            assert mine[0] == pytest.approx(other[0], rel=1e-3)
            for name, value in other[1].items():
                result = mine[1][name]
                if ".updates." in name:  # kernels look padding rows up, with the weight 0, and count this
                    result = torch.where(value > 0, result, 0)
                torch.testing.assert_close(result, value, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "architecture, optimizer", [("dlrm", "row_wise_adagrad"), ("wide_and_deep", "sgd"), ("dlrm", "lazy_adam")]
)
def test_rows_in_pinned_memory_change_no_bit(ranks: int, architecture: str, optimizer: str) -> None:
    embeddings = {**PLACEMENTS["row_wise"], "optimizer": optimizer}

    def body(collectives: Collectives, hot_share: float | None) -> tuple[list[float], list[Tensor]]:
        trainer = trainer_of(collectives, architecture, embeddings, hot_share, GPU)
        tables = tables_of(trainer.model).values()
        assert all((table.tail is not None) == (hot_share is not None) for table in tables)
        assert all(table.tail.is_pinned() for table in tables if table.tail is not None)
        batches = batches_of(architecture, collectives, GPU)
        losses = [
            float(trainer.step(batch, 1.0, next_batch=next_batch))
            for batch, next_batch in zip_longest(batches, batches[1:])
        ]
        rows = []
        for table in tables:
            of_features: dict[int, list[Tensor]] = {}
            for block, part in zip(table.blocks, table.block_rows(), strict=True):
                of_features.setdefault(block.feature, []).append(part.cpu())
            rows += [torch.cat(parts) for _, parts in sorted(of_features.items())]
        return losses, rows

    expected = on_ranks(ranks, lambda collectives: body(collectives, None))
    for hot_share in (0.0, 0.3):
        divided = on_ranks(ranks, lambda collectives, hot_share=hot_share: body(collectives, hot_share))
        for (losses, rows), (of_losses, of_rows) in zip(divided, expected, strict=True):
            assert losses == of_losses
            assert len(rows) == len(of_rows)
            assert all(torch.equal(mine, other) for mine, other in zip(rows, of_rows, strict=True))
