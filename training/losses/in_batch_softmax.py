"""Softmax over the items of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.train_types import Compares, LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from training.data.batch import Batch, Vectors


class Settings(LossSettings):
    """Cross-entropy of a positive row's item among the items of all positive rows of the step.

    Logits are corrected for the popularity of the items.
    """

    compares: ClassVar[Compares] = "batch"


def mean_loss(settings: Settings, vectors: Vectors, batch: Batch) -> Tensor:
    """Returns Σ w · cross-entropy of each row's item among all ranks' items, divided by N.

    `training.losses` has the notation. The logarithm of each item's share of the positive rows is subtracted
    from the item's logit. The probability that an item is in a batch is proportional to this share (Yi et al.
    2019, RecSys, section 4, where the share is estimated from a stream). The comparison of a row leaves out
    other rows with the same item, and rows of weight zero.
    """
    import torch
    from torch.nn import functional

    from training.collectives import gather_vectors

    users, compared, collectives = vectors.users, vectors.of_batch, vectors.collectives
    rank = torch.full_like(compared.keys, collectives.rank)
    keys, log_shares, all_weights, ranks = collectives.allgather(
        compared.keys, compared.log_shares, batch.weights, rank
    )
    first = int((ranks < collectives.rank).sum())
    items = gather_vectors(vectors.items, first, collectives)  # (N, E), the items of all ranks
    place = torch.arange(len(users), device=users.device)
    own = first + place
    left_out = (compared.keys[:, None] == keys) | (all_weights == 0)  # (P, N)
    left_out[place, own] = False
    logits = (users @ items.t() - log_shares).masked_fill(left_out, -torch.inf)
    losses = functional.cross_entropy(logits, own, reduction="none")
    return (losses * batch.weights).sum() / batch.global_weight
