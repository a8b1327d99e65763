"""Evaluates a model on a split, over all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from training.data.loader import Loader
from training.data.prefetch import Prefetch
from training.distributed.collectives import Collectives
from training.loop.distributed_metrics import summarize_over_ranks
from training.loop.threads_of_model import threads_of_model


@torch.no_grad()  # not inference_mode: Horovod resizes its output tensors in another thread
def evaluate(
    model: nn.Module, loader: Loader, collectives: Collectives, device: torch.device
) -> dict[str, Any]:
    """Returns the metrics of a model on a split. All ranks get the same metrics.

    This is a collective: all ranks must call it. The model computes in float32.

    The model is in evaluation mode during the call, and in its former mode afterwards. A rank needs 8 bytes
    of memory for each of its rows.
    """
    was_training = model.training
    model.eval()
    labels, probabilities = [torch.zeros(0, device=device)], [torch.zeros(0, device=device)]
    with threads_of_model(model), Prefetch(loader.batches()) as batches:
        for batch in batches:
            local = batch.to(device)
            real = local.weights > 0
            labels.append(local.labels[real])
            probabilities.append(torch.sigmoid(model(local.dense, local.categorical))[real])
    model.train(was_training)
    return summarize_over_ranks(torch.cat(labels), torch.cat(probabilities), collectives)
