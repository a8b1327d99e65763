"""The losses of a step.

Notation: L rows of this rank in groups of G rows, a positive row first and then its negatives; w are the
weights of rows; N is the expected number of groups in the global batch, or the expected sum of the weights of
their positive rows. A batch without groups has N rows, or rows whose weights have the sum N.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from conf.train_types import Loss
from training.data.batch import Batch


def mean_loss(name: Loss, logits: Tensor, batch: Batch) -> Tensor:
    """Returns this rank's share of the mean loss of a global batch, a scalar.

    Args:
        name: `bce`, `bpr` or `softmax`; see `Train.loss`.
        logits: (L,) float32.
        batch: the rows. `bpr` and `softmax` need G > 1.

    Raises:
        ValueError: the loss compares vectors of users and items (`mean_vector_loss`), not logits.
    """
    if name == "bce":
        losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        drawn = batch.drawn_weight
        total = batch.global_weight * batch.group if drawn is None else batch.global_weight + drawn
        return (losses * batch.weights).sum() / total
    by_group, weights = logits.view(-1, batch.group), batch.weights.view(-1, batch.group)
    if name == "bpr":
        return _bpr(by_group, weights) / (batch.global_weight * (batch.group - 1))
    if name == "softmax":
        assert batch.log_draw is not None
        return _softmax(by_group - batch.log_draw.view(-1, batch.group), weights) / batch.global_weight
    if name == "full_softmax" or name == "in_batch_softmax":
        raise ValueError(f"internal error, please report: the loss {name} does not compare logits")
    assert_never(name)


def mean_penalty(penalties: Tensor, batch: Batch) -> Tensor:
    """Returns this rank's share of the mean penalty of a global batch, a scalar.

    The rows of a group have the same user, so only the penalty of its first row counts.

    Args:
        penalties: (L,) float32, the penalty of each row.
        batch: the rows.
    """
    of_groups, weights = penalties.view(-1, batch.group)[:, 0], batch.weights.view(-1, batch.group)[:, 0]
    return (of_groups * weights).sum() / batch.global_weight


def _bpr(logits: Tensor, weights: Tensor) -> Tensor:
    """Returns Σ w · -log sigmoid(positive - negative) over all negatives (Rendle et al. 2009, UAI)."""
    losses = functional.softplus(logits[:, 1:] - logits[:, :1])
    return (losses * weights[:, 1:] * weights[:, :1]).sum()


def _softmax(logits: Tensor, weights: Tensor) -> Tensor:
    """Returns Σ w · cross-entropy of the positive row in its group, without negatives of weight zero.

    Subtracting the logarithm of each item's probability of being drawn from its logit makes the sampled
    softmax approach the softmax over all items (Bengio and Senécal 2008, IEEE Trans. Neural Networks 19).
    """
    left_out = weights[:, 1:] == 0
    negatives = logits[:, 1:].masked_fill(left_out, -torch.inf)
    losses = torch.cat([logits[:, :1], negatives], dim=1).logsumexp(dim=1) - logits[:, 0]
    return (losses * weights[:, 0]).sum()
