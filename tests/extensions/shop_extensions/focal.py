"""Focal loss (Lin et al. 2017, ICCV): cross-entropy with less weight for rows that the model predicts well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from nightrank.extending import LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from nightrank.extending import Batch


class Settings(LossSettings):
    """Cross-entropy of a row times (1 - probability of its label) ^ gamma."""

    gamma: float = Field(default=2.0, ge=0, description="Exponent. 0 is the cross-entropy.")


def mean_loss(settings: Settings, logits: Tensor, batch: Batch) -> Tensor:
    """Returns this rank's share of the mean loss of a global batch."""
    from torch.nn import functional

    entropy = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    losses = (1 - (-entropy).exp()) ** settings.gamma * entropy
    return (losses * batch.weights).sum() / batch.global_weight
