"""What happens to gradients between the backward pass and the update: scaling against fp16's underflow, and clipping."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from training.distributed.collectives import Collectives
from training.embeddings.row_gradients import RowGradient


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2).

    The loss is multiplied by a power of two before it is differentiated, so that small gradients survive fp16, and the
    gradients are divided by it afterwards. A step whose gradients overflow is skipped and halves the scale; it doubles
    after `growth_steps` steps without one. At a scale of 1 nothing is skipped any more: what is infinite there is no
    matter of scaling, and the loop ends on the loss it makes.

    Args:
        active: False leaves loss and gradients alone and skips nothing; that is for every precision but fp16.
    """

    first, growth_steps = 2.0**16, 2000

    def __init__(self, device: torch.device, *, active: bool) -> None:
        self._active = active
        self._scale = torch.tensor(self.first, device=device)
        self._good_steps = torch.zeros((), dtype=torch.int64)
        self._skipped = torch.zeros((), dtype=torch.int64)

    @property
    def scale(self) -> Tensor | None:
        """What to multiply the loss by, a scalar."""
        return self._scale if self._active else None

    def facts(self) -> dict[str, float]:
        """`loss_scale` and `skipped_steps`, those since the training began; nothing where nothing is scaled."""
        if not self._active:
            return {}
        return {"loss_scale": float(self._scale), "skipped_steps": int(self._skipped)}

    def accepts(self, dense: Tensor, rows: Iterable[RowGradient], collectives: Collectives) -> bool:
        """Whether to make this step's update, the same on all ranks; adapts the scale to it.

        Args:
            dense, rows: the gradients summed over ranks, of which ranks may hold different rows.
        """
        if not self._active:
            return True
        finite = torch.stack(
            [torch.isfinite(each).all() for each in (dense, *(each.values for each in rows))]
        )
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
        """A gradient of the loss from one of the scaled loss; exact, for the scale is a power of two."""
        return gradient / self._scale if self._active else gradient

    def state(self) -> dict[str, Tensor]:
        """`scaler.*`, not copied; empty where nothing is scaled."""
        if not self._active:
            return {}
        return {
            "scaler.scale": self._scale,
            "scaler.good_steps": self._good_steps,
            "scaler.skipped": self._skipped,
        }


def clipped(gradient: Tensor, norm: float | None) -> Tensor:
    """(P,) scaled down to a Euclidean norm of `norm` where it is longer (Pascanu et al. 2013, algorithm 1)."""
    if norm is None:
        return gradient
    return gradient * (norm / gradient.norm().clamp_min(norm))
