"""Some steps of a training on one rank, with the waits of the last step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from conf.types import Train
from tests.checked_device import Checks
from tests.training.test_spread_tables import ROWS, make_model, share
from training.collectives import Collectives
from training.loop.train_step import Trainer

STEPS = 3


def run_steps(
    collectives: Collectives, device: torch.device, settings: dict[str, Any], architecture: str, **model: Any
) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The operations of the last step that wait for the device, and the final state on the CPU.

    Args:
        collectives: those of the rank.
        device: the device of the model.
        settings: the section `train.embeddings`.
        architecture, model: the model.
    """
    train = Train.model_validate(
        {
            "num_ranks": collectives.size,
            "num_shards": 4,
            "global_batch_size": ROWS,
            "embeddings": settings,
        }
    )
    built = make_model(collectives, settings, architecture, **model)
    with Checks() as checks:
        trainer = Trainer(built.to(device).train(), train, collectives)
        batches = [share(step, collectives).to(device) for step in range(STEPS + 1)]
        for batch, next_batch in pairwise(batches):
            checks.waits.clear()
            trainer.step(batch, 1.0, next_batch=next_batch)
        trainer.discard_requests()
        waits = dict(checks.waits)
        return waits, {name: value.detach().cpu() for name, value in trainer.state().items()}
