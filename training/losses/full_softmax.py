"""Softmax over all items of a row's day."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.train_types import Compares, LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from training.data.batch import Batch, Vectors


class Settings(LossSettings):
    """Cross-entropy of a positive row's item among all items that have a train row on the row's day."""

    compares: ClassVar[Compares] = "catalogue"


def mean_loss(settings: Settings, vectors: Vectors, batch: Batch) -> Tensor:
    """Returns Σ w · cross-entropy of each row's item among all items of the row's day, divided by N.

    `training.losses` has the notation. With `vectors.bags`, a row has several target items i with weights
    y_i, and the sum is Σ w · Σ_i y_i · cross-entropy of item i. This is the multinomial log-likelihood of
    Liang et al. (WWW 2018, equation 2), negated and without its constant. The weight y_i is 1 for the row's
    item. For any other item, it is the item's weight in the row's bag.
    """
    import torch
    from torch.nn import functional

    users, items, bags = vectors.users, vectors.items, vectors.bags
    own, starts = vectors.catalogue.own, vectors.catalogue.starts
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
            total = total + (losses * batch.weights[rows]).sum()
    return total / batch.global_weight
