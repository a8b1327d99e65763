"""A DLRM whose dense part sleeps as long as it would compute.

Its parameters and its embedding table are those of a DLRM, so the messages between ranks are the same. But
ranks that share the cores of one machine do not take them from each other while they sleep.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from training.architectures.dlrm import DLRM
from training.models.click_model import ClickModel
from training.models.interaction import interact

_GRADIENT = 1e-6
_MOST_FILLED = 2**22


@dataclass(frozen=True)
class Seconds:
    """The seconds of a part's forward pass and of its backward pass."""

    forward: float
    backward: float


@dataclass(frozen=True)
class SecondsOfParts:
    """The seconds of the parts of a DLRM's dense part.

    Attributes:
        bottom, top: one entry per layer of the MLP. The last layer of the top MLP computes the logit.
        interaction: those of the interaction.
    """

    bottom: list[Seconds]
    interaction: Seconds
    top: list[Seconds]

    @property
    def total(self) -> float:
        """Returns the seconds of all parts."""
        parts = [*self.bottom, self.interaction, *self.top]
        return sum(part.forward + part.backward for part in parts)


def measure(model: DLRM, rows: int, repeats: int = 9) -> SecondsOfParts:
    """Measures the parts of a model's dense part, each alone, in this process. The results are medians.

    Args:
        model: the model.
        rows: number of rows of a batch.
        repeats: how often each part is measured.
    """
    dim, features = model.embedding.dim, model.num_vectors - 1
    bottom, top = _layers(model.bottom), _layers(model.top, model.logit)
    return SecondsOfParts(
        [_of_layer(layer, rows, repeats) for layer in bottom],
        _median(
            lambda first, vectors: interact(first, vectors),
            [torch.randn(rows, dim), torch.randn(rows, features, dim)],
            repeats,
        ),
        [_of_layer(layer, rows, repeats) for layer in top],
    )


def _layers(*parts: nn.Module) -> list[list[nn.Module]]:
    """Returns the layers of MLPs: each linear map with the functions that follow it."""
    layers: list[list[nn.Module]] = []
    for module in (module for part in parts for module in part.modules()):
        if isinstance(module, nn.Linear):
            layers.append([module])
        elif layers and not list(module.children()):
            layers[-1].append(module)
    return layers


def _of_layer(layer: Sequence[nn.Module], rows: int, repeats: int) -> Seconds:
    linear = layer[0]
    assert isinstance(linear, nn.Linear)
    return _median(nn.Sequential(*layer), [torch.randn(rows, linear.in_features)], repeats)


def _median(compute: Callable[..., Tensor], inputs: Sequence[Tensor], repeats: int) -> Seconds:
    for tensor in inputs:
        tensor.requires_grad_()
    forward, backward = [], []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        output = compute(*inputs)
        computed = time.perf_counter()
        output.backward(torch.ones_like(output))
        forward.append(computed - began)
        backward.append(time.perf_counter() - computed)
    return Seconds(statistics.median(forward[1:]), statistics.median(backward[1:]))


class _Sleep(torch.autograd.Function):
    """Returns a scalar after it has slept. Its backward pass sleeps too, and returns constant gradients."""

    @staticmethod
    def forward(ctx: Any, seconds: Seconds, token: Tensor, *inputs: Tensor) -> Tensor:
        time.sleep(seconds.forward)
        ctx.seconds = seconds
        ctx.shapes = [tensor.shape for tensor in inputs]
        return token.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        time.sleep(ctx.seconds.backward)  # type: ignore[attr-defined]
        return None, gradients[0], *map(_gradient, ctx.shapes)  # type: ignore[attr-defined]


def _gradient(shape: torch.Size) -> Tensor:
    """Returns a constant gradient. To fill a large one would take time, so its numbers are arbitrary."""
    gradient = torch.empty(shape)
    return gradient if gradient.numel() > _MOST_FILLED else gradient.fill_(_GRADIENT)


class SleepingDLRM(ClickModel):
    """A DLRM whose dense part sleeps. Its logits are zeros.

    Args:
        model: the DLRM; its parameters are shared.
        seconds: how long its parts sleep.
    """

    def __init__(self, model: DLRM, seconds: SecondsOfParts) -> None:
        super().__init__()
        self.embedding, self.bottom, self.top, self.logit = (
            model.embedding,
            model.bottom,
            model.top,
            model.logit,
        )
        self._seconds = seconds

    def embed(self, categorical: Tensor) -> list[Tensor]:
        """Returns a list with one tensor, the vectors (B, C, E) of `categorical` (B, W) int64."""
        return [self.embedding(categorical)]

    def forward(self, dense: Tensor, categorical: Tensor) -> Tensor:
        """See `DLRM.forward`."""
        token = self._of_dense()
        return self._logits(token, self.embed(categorical)).expand(len(dense))

    def forward_dense(self, dense: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        """Returns zeros (B,) after the time in which a DLRM computes its logits."""
        return self._logits(self._of_dense(), vectors).expand(len(dense))

    def _of_dense(self) -> Tensor:
        token = torch.zeros((), requires_grad=True)
        for layer, seconds in zip(_layers(self.bottom), self._seconds.bottom, strict=True):
            token = _Sleep.apply(seconds, token, *layer[0].parameters())
        return token

    def _logits(self, token: Tensor, vectors: Sequence[Tensor]) -> Tensor:
        token = _Sleep.apply(self._seconds.interaction, token, vectors[0])
        for layer, seconds in zip(_layers(self.top, self.logit), self._seconds.top, strict=True):
            token = _Sleep.apply(seconds, token, *layer[0].parameters())
        return token
