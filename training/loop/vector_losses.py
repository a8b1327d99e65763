"""The losses that compare the user vector of a positive row with vectors of items.

The logit of a user and an item is the dot product of their vectors. A model's constant bias is the same for
all items, so it cancels.

Notation: P positive rows of this rank, I items, E numbers per vector; w are the weights of rows; N is the
expected number of positive rows in the global batch, or the expected sum of their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from training.data.batch import Batch
from training.data.compared_items import BatchItems, CatalogueItems
from training.distributed.collectives import Collectives
from training.distributed.gather_vectors import gather_vectors
from training.models.objective import Bags


def mean_vector_loss(
    users: Tensor, items: Tensor, batch: Batch, collectives: Collectives, bags: Bags | None = None
) -> Tensor:
    """Returns this rank's share of the mean loss of a global batch, a scalar.

    Args:
        users: (P, E) float32, the vectors of the rows' users.
        items: (I, E) float32, the vectors of `batch.items`.
        batch: the positive rows.
        collectives: the ranks' collectives. If there are several ranks, all of them must call this function,
            and run the backward pass.
        bags: the items that rows reconstruct in addition to their own; only with CatalogueItems.
    """
    compared = batch.items
    assert compared is not None
    if isinstance(compared, BatchItems):
        total = _in_batch_softmax(users, items, compared, batch.weights, collectives)
    elif isinstance(compared, CatalogueItems):
        total = _full_softmax(users, items, compared.own, compared.starts, batch.weights, bags)
    else:
        assert_never(compared)
    return total / batch.global_weight


def _full_softmax(
    users: Tensor, items: Tensor, own: Tensor, starts: Sequence[int], weights: Tensor, bags: Bags | None
) -> Tensor:
    """Returns Σ w · cross-entropy of each row's own item among all items of the row's day.

    With `bags`, it is Σ w · Σ_i y_i · cross-entropy of item i, the multinomial log-likelihood of Liang et al.
    (WWW 2018, equation 2) without its constant. y_i is 1 for the row's own item, and the bag's weight for
    other items.

    Args:
        users, items: (P, E) and (I, E).
        own: (P,) int64, the position of each row's own item.
        starts: the first item of each day, and then I.
        weights: (P,).
        bags: the items that rows reconstruct in addition to their own.
    """
    day = torch.bucketize(own, torch.tensor(starts[1:], device=own.device), right=True)
    rows_of_days = day.argsort(stable=True).split(torch.bincount(day, minlength=len(starts) - 1).tolist())
    total = users.new_zeros(())
    for first, last, rows in zip(starts[:-1], starts[1:], rows_of_days, strict=True):
        if len(rows):
            logits = users[rows] @ items[first:last].t()
            target = place = own[rows] - first
            if bags is not None:
                target = bags.weights[rows][:, bags.item_ids[first:last]]  # (rows, items of the day)
                target.scatter_(1, place.unsqueeze(1), 1.0)
            losses = functional.cross_entropy(logits, target, reduction="none")
            total = total + (losses * weights[rows]).sum()
    return total


def _in_batch_softmax(
    users: Tensor, items: Tensor, compared: BatchItems, weights: Tensor, collectives: Collectives
) -> Tensor:
    """Returns Σ w · cross-entropy of each row's own item among the items of all ranks' positive rows.

    The logarithm of each item's share of the positive rows is subtracted from its logit, because an item is
    in a batch with a probability proportional to this share (Yi et al. 2019, RecSys, section 4, where the
    share is estimated from a stream). Other rows with the row's own item are left out.

    Args:
        users, items: (P, E) each, of this rank.
        compared: the items of this rank.
        weights: (P,); a row of weight zero is not an item for other rows.
        collectives: the ranks' collectives.
    """
    rank = torch.full_like(compared.keys, collectives.rank)
    keys, log_shares, all_weights, ranks = collectives.allgather(
        compared.keys, compared.log_shares, weights, rank
    )
    first = int((ranks < collectives.rank).sum())
    vectors = gather_vectors(items, first, collectives)  # (N, E), the items of all ranks
    place = torch.arange(len(users), device=users.device)
    own = first + place
    left_out = (compared.keys[:, None] == keys) | (all_weights == 0)  # (P, N)
    left_out[place, own] = False
    logits = (users @ vectors.t() - log_shares).masked_fill(left_out, -torch.inf)
    return (functional.cross_entropy(logits, own, reduction="none") * weights).sum()
