"""Loss scaling for fp16 and gradient clipping, applied between the backward pass and the update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from training.collectives import ALONE, Collectives
from training.embeddings.rows import RowGradient


class LossScale:
    """Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2).

    The loss is multiplied by a power of two before the backward pass, so that small gradients do not
    underflow in fp16. This power of two is the scale. Afterwards the gradients are divided by the scale. If
    the gradients of a step overflow, the step is skipped and the scale is halved. After `growth_steps` steps
    without overflow the scale doubles. At a scale of 1, no step is skipped, because a smaller scale would not
    help. If gradients overflow at this scale, the loss becomes infinite, and the training ends.

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
        """Returns whether the loss is scaled. Steps are skipped only in this case."""
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
        """Adapts the scale, and returns whether to apply this step's gradients.

        The result is equal on all ranks.

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


# The code below keeps the gradient of all dense parameters in one flat buffer, and sums it over ranks during
# the backward pass.
#
# With several ranks, the buffer is divided into buckets, as in PyTorch's DistributedDataParallel (Li et al.
# 2020, Proc. VLDB Endow. 13, section 3.2). The backward pass computes the gradients of the last layers first.
# When all gradients of a bucket are computed, the ranks start to sum them, while the backward pass continues.

# The minimum size of a bucket. The sum of a smaller bucket would take the same time, because the ranks
# negotiate each message first.
_BUCKET_BYTES = 2**20

# The first number of the buffer is the loss. The gradients start at an aligned address.
_FIRST = 16


@dataclass
class _Bucket:
    """A bucket: consecutive parameters, and the part of the buffer that has their gradients.

    Attributes:
        parameters: the parameters, in their order.
        part: the part of the buffer.
        missing: number of gradients that are not computed yet.
        wait: waits for the sum over ranks; None if the sum was not started.
    """

    parameters: list[nn.Parameter]
    part: Tensor
    missing: int = field(default=0)
    wait: Callable[[], Tensor] | None = field(default=None)


class DenseGradient:
    """Collects the gradients of dense parameters, P numbers, and sums them over ranks.

    Args:
        parameters: the parameters. Their gradients are in the buffer in this order.
        device: the device of the model.
        collectives: the ranks' collectives.
        bucket_bytes: the minimum size of a bucket. When few gradients are left, the minimum is half of their
            bytes, but at least a quarter of `bucket_bytes`. The last bucket may have any size.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        collectives: Collectives = ALONE,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        self._collectives = collectives
        self._buffer = torch.zeros(_FIRST + sum(parameter.numel() for parameter in parameters), device=device)
        self._parameters = list(parameters)
        self._buckets = self._divide(bucket_bytes) if collectives.size > 1 else []
        self._started = 0

    def _divide(self, bucket_bytes: int) -> list[_Bucket]:
        """Returns the buckets, the last parameters first. The buckets become smaller towards the end.

        The last bucket is ready only when the backward pass ends, so it should be small.
        """
        buckets: list[_Bucket] = []
        parameters: list[nn.Parameter] = []
        end = start = len(self._buffer)
        for parameter in reversed(self._parameters):
            parameters.insert(0, parameter)
            start -= parameter.numel()
            left = (end - _FIRST) * self._buffer.element_size()
            enough = max(min(bucket_bytes, left // 2), bucket_bytes // 4)
            if (end - start) * self._buffer.element_size() >= enough:
                buckets.append(_Bucket(parameters, self._buffer[start:end]))
                parameters, end = [], start
        # The last bucket has the loss, and the first parameters, whose gradients are computed last.
        return [*buckets, _Bucket(parameters, self._buffer[:end])]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context for a backward pass, in which sums over ranks are started as early as possible."""
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._computed, bucket))
            for bucket in self._buckets
            for parameter in bucket.parameters
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _computed(self, bucket: _Bucket, _: Tensor) -> None:
        bucket.missing -= 1
        # The last bucket also contains the loss.
        while self._started < len(self._buckets) - 1 and not self._buckets[self._started].missing:
            self._start(self._buckets[self._started])

    def _start(self, bucket: _Bucket) -> None:
        places = bucket.part[_FIRST:] if bucket is self._buckets[-1] else bucket.part
        _take_gradients(bucket.parameters, places)
        bucket.wait = self._collectives.start_allreduce_sum(bucket.part, f"dense.{self._started}")
        self._started += 1

    def start_sum(self, loss: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
        """Starts the sums that `computing` did not start, and clears the gradients of the parameters.

        Args:
            loss: this rank's part of the loss, a scalar.

        Returns:
            A function that waits for the sums over ranks. It returns the gradients (P,), which are zero for a
            parameter on which the loss does not depend, and the loss, a scalar. The function may be called
            several times. The next step overwrites both results.
        """
        self._buffer[0] = loss
        if not self._buckets:
            _take_gradients(self._parameters, self._buffer[_FIRST:])
        while self._started < len(self._buckets):
            self._start(self._buckets[self._started])
        return self._wait

    def _wait(self) -> tuple[Tensor, Tensor]:
        for bucket in self._buckets:
            if bucket.wait is not None:
                bucket.wait()
                bucket.wait = None
        self._started = 0
        return self._buffer[_FIRST:], self._buffer[0]


def _take_gradients(parameters: Sequence[nn.Parameter], out: Tensor) -> None:
    """Copies the gradients of parameters to `out`, one after the other, and clears them."""
    if not parameters:
        return
    gradients = []
    for parameter in parameters:
        gradient, parameter.grad = parameter.grad, None
        gradients.append(torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten())
    torch.cat(gradients, out=out)
