"""Binary cross-entropy of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.train_types import LossSettings

if TYPE_CHECKING:
    from torch import Tensor

    from training.data.batch import Batch


class Settings(LossSettings):
    """Binary cross-entropy of every row."""

    predicts_probabilities: ClassVar[bool] = True


def mean_loss(settings: Settings, logits: Tensor, batch: Batch) -> Tensor:
    """Returns the weighted sum of the rows' cross-entropies, divided by the weight of the global batch."""
    from torch.nn import functional

    losses = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    drawn = batch.drawn_weight
    total = batch.global_weight * batch.group if drawn is None else batch.global_weight + drawn
    return (losses * batch.weights).sum() / total
