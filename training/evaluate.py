"""Measures a model on a split, over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from training.collectives import Collectives
from training.metrics import summarize
from training.reading.loader import Loader
from training.reading.prefetch import Prefetch


@torch.no_grad()  # not inference_mode: Horovod resizes its output tensors in a thread of its own
def evaluate(
    model: nn.Module, loader: Loader, collectives: Collectives, device: torch.device
) -> dict[str, Any]:
    """`summarize` over every row of the split once: exact, because all ranks' probabilities are gathered."""
    found = [torch.zeros(0, 2, device=device)]
    with Prefetch(loader.batches()) as batches:
        for batch in batches:
            local = batch.to(device)
            probabilities = torch.sigmoid(model(local.dense, local.categorical))
            found.append(torch.stack([local.labels, probabilities], dim=1)[local.weights > 0])
    (gathered,) = collectives.allgather(torch.cat(found))
    labels, probabilities = gathered.cpu().numpy().T  # (N,) each
    return summarize(labels, probabilities)
