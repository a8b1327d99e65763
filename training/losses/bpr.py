"""Bayesian personalized ranking (Rendle et al. 2009, UAI)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.train_types import Compares, LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from training.data.batch import Batch


class Settings(LossSettings):
    """-log sigmoid(logit of a positive row minus logit of one of its negatives), for each negative."""

    compares: ClassVar[Compares] = "groups"


def mean_loss(settings: Settings, logits: Tensor, batch: Batch) -> Tensor:
    """Returns Σ w · -log sigmoid(positive - negative) over all negatives, divided by N · (G - 1).

    `training.losses` has the notation.
    """
    from torch.nn import functional

    by_group, weights = logits.view(-1, batch.group), batch.weights.view(-1, batch.group)
    losses = functional.softplus(by_group[:, 1:] - by_group[:, :1])
    return (losses * weights[:, 1:] * weights[:, :1]).sum() / (batch.global_weight * (batch.group - 1))
