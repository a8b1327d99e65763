"""Calls the loss of a training (training/losses), and computes the penalty of a model.

Notation: L rows of this rank in groups of G rows; N is the expected number of groups in the global batch, or
the expected sum of the weights of their positive rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from conf.errors import ConfigError
from conf.loss_types import loss_name, loss_settings
from conf.plugins import LOSS
from training.data.batch import Batch, Vectors

MeanLoss = Callable[[Tensor | Vectors, Batch], Tensor]


def read_loss(loss: str | dict[str, dict[str, Any]]) -> MeanLoss:
    """Returns the function that computes this rank's share of the mean loss of a global batch, a scalar.

    Its arguments are the logits (L,) float32 or the vectors of the rows, and the batch.

    Args:
        loss: the value of `train.loss`.

    Raises:
        ConfigError: the module of a package does not obey the contract of training/losses. The returned
            function raises this error too, if the loss does not return a scalar tensor.
    """
    plugin, settings = LOSS.get(loss_name(loss)), loss_settings(loss)
    mean_loss = plugin.member("mean_loss")

    def checked(compared: Tensor | Vectors, batch: Batch) -> Tensor:
        result = mean_loss(settings, compared, batch)
        if not isinstance(result, Tensor) or result.ndim:
            shown = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise ConfigError(
                f"{plugin} returned {shown}, not a scalar tensor",
                "let its function mean_loss return the sum over rows, divided by the weight of the batch",
            )
        return result

    return checked


def mean_penalty(penalties: Tensor, batch: Batch) -> Tensor:
    """Returns this rank's share of the mean penalty of a global batch, a scalar.

    The rows of a group have the same user, so only the penalty of its first row counts.

    Args:
        penalties: (L,) float32, the penalty of each row.
        batch: the rows.
    """
    of_groups, weights = penalties.view(-1, batch.group)[:, 0], batch.weights.view(-1, batch.group)[:, 0]
    return (of_groups * weights).sum() / batch.global_weight
