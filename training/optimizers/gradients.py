"""Loss scaling for fp16 and gradient clipping, applied between the backward pass and the update."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from training.distributed.collectives import Collectives
from training.embeddings.row_gradients import RowGradient


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2).

    The loss is multiplied by a power of two before the backward pass, so that small gradients do not
    underflow in fp16. This power of two is the scale. Afterwards the gradients are divided by the scale. If
    the gradients of a step overflow, the step is skipped and the scale is halved. After `growth_steps` steps
    without overflow the scale doubles. At a scale of 1, no step is skipped, because a smaller scale would not
    help. The training then ends when its loss becomes infinite.

    Args:
        device: the device of the gradients.
        active: whether the precision is fp16. If not, loss and gradients are not scaled, and no step is
            skipped.
    """

    first, growth_steps = 2.0**16, 2000

    def __init__(self, device: torch.device, *, active: bool) -> None:
        self._active = active
        self._scale = torch.tensor(self.first, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int64)
        self._skipped = torch.zeros((), dtype=torch.int64)

    @property
    def is_active(self) -> bool:
        """Returns whether the loss is scaled. Only then is a step ever skipped."""
        return self._active

    @property
    def scale(self) -> Tensor | None:
        """Returns the factor by which the loss is multiplied, a scalar; None if nothing is scaled."""
        return self._scale if self._active else None

    def facts(self) -> dict[str, float]:
        """Returns the scale and the number of skipped steps so far; an empty mapping if nothing is scaled."""
        if not self._active:
            return {}
        return {"loss_scale": float(self._scale), "skipped_steps": int(self._skipped)}

    def accepts(self, dense: Tensor, rows: Iterable[RowGradient], collectives: Collectives) -> bool:
        """Adapts the scale, and returns whether to apply this step's gradients; equal on all ranks.

        Args:
            dense: the dense gradients, summed over ranks.
            rows: the gradients of table rows, summed over ranks. Ranks may hold different rows.
            collectives: the ranks' collectives.
        """
        if not self._active:
            return True
        gradients = (dense, *(gradient.values for gradient in rows))
        finite = torch.stack([torch.isfinite(values).all() for values in gradients])
        overflows = collectives.allreduce_sum(1 - finite.all().float().view(1))
        if bool(overflows > 0) and bool(self._scale > 1):
            self._scale /= 2
            self._good_steps.zero_()
            self._skipped += 1
            return False
        self._good_steps += 1
        if int(self._good_steps) == self.growth_steps:
            self._scale *= 2
            self._good_steps.zero_()
        return True

    def unscaled(self, gradient: Tensor) -> Tensor:
        """Converts a gradient of the scaled loss to the gradient of the loss.

        The division is exact, because the scale is a power of two.
        """
        return gradient / self._scale if self._active else gradient

    def state(self) -> dict[str, Tensor]:
        """Returns the tensors `scaler.*` without copying them; an empty dictionary if nothing is scaled."""
        if not self._active:
            return {}
        return {
            "scaler.scale": self._scale,
            "scaler.good_steps": self._good_steps,
            "scaler.skipped": self._skipped,
        }


def clipped(gradient: Tensor, norm: float | None) -> Tensor:
    """Scales a gradient (P,) down to at most the norm `norm` (Pascanu et al. 2013, algorithm 1)."""
    if norm is None:
        return gradient
    return gradient * (norm / gradient.norm().clamp_min(norm))
