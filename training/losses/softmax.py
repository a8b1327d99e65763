"""Sampled softmax: the positive row of a group among its negatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.train_types import Compares, LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from training.data.batch import Batch


class Settings(LossSettings):
    """Cross-entropy of the positive row in a group of this row and its negatives.

    Logits are corrected for the probability with which an item is drawn.
    """

    compares: ClassVar[Compares] = "groups"


def mean_loss(settings: Settings, logits: Tensor, batch: Batch) -> Tensor:
    """Returns Σ w · cross-entropy of the positive row in its group, divided by N.

    `training.losses` has the notation. Negatives of weight zero are left out. The logarithm of the
    probability with which an item is drawn is subtracted from the item's logit. Then the sampled softmax
    approaches the softmax over all items (Bengio and Senécal 2008, IEEE Trans. Neural Networks 19).
    """
    import torch

    assert batch.log_draw is not None
    by_group = logits.view(-1, batch.group) - batch.log_draw.view(-1, batch.group)
    weights = batch.weights.view(-1, batch.group)
    left_out = weights[:, 1:] == 0
    negatives = by_group[:, 1:].masked_fill(left_out, -torch.inf)
    losses = torch.cat([by_group[:, :1], negatives], dim=1).logsumexp(dim=1) - by_group[:, 0]
    return (losses * weights[:, 0]).sum() / batch.global_weight
