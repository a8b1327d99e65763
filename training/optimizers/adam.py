"""Adam (Kingma & Ba 2015, algorithm 1) on one flat buffer.

The dense gradients arrive as one buffer, summed over ranks, so the moments are kept the same way: a handful of
operations a step whatever the number of layers. torch.optim would import its compiler, which takes each rank seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Adam:
    """First and second moments of all dense parameters, in the parameters' order.

    Args:
        parameters: what is updated; float32, on one device.
    """

    decay, square_decay, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        size = sum(each.numel() for each in self._parameters)
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self.mean = torch.zeros(size, device=device)
        self.square = torch.zeros(size, device=device)
        self.steps = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """Updates the parameters by their gradients (size,), laid out in their order."""
        self.steps += 1
        steps = int(self.steps)
        self.mean.lerp_(gradient, 1 - self.decay)
        self.square.mul_(self.square_decay).addcmul_(gradient, gradient, value=1 - self.square_decay)
        scale = (self.square / (1 - self.square_decay**steps)).sqrt_().add_(self.epsilon)
        update = (self.mean / scale).mul_(-rate / (1 - self.decay**steps))
        parts = update.split([each.numel() for each in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.add_(part.view_as(parameter))
