"""Adam (Kingma & Ba 2015, algorithm 1) on one flat buffer.

The gradients of all dense parameters are in one flat buffer, which is summed over ranks. The moments have the
layout of this buffer. The update uses torch's fused kernel, which needs one pass over memory. The kernel is
called directly, because torch.optim would import torch's compiler, which takes seconds on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Adam:
    """Adam for dense parameters. The moments are stored in the order of the parameters.

    Args:
        parameters: the parameters to update. They must be float32, and all must stay on the same device.
    """

    decay, square_decay, epsilon = 0.9, 0.999, 1e-8

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        # These are views: updating a view updates the parameter.
        self._flat = [parameter.detach().view(-1) for parameter in parameters]
        self._sizes = [parameter.numel() for parameter in parameters]
        device = parameters[0].device if parameters else torch.device("cpu")
        self.mean = torch.zeros(sum(self._sizes), device=device)
        self.square = torch.zeros(sum(self._sizes), device=device)
        self.steps = torch.zeros((), dtype=torch.int64)
        self._kernel_steps = torch.zeros((), device=device)  # the fused kernel needs float32

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: float) -> None:
        """Updates the parameters.

        `gradient` (size,) contains the gradients of the parameters, one after the other.
        """
        self.steps += 1
        if not self._flat:
            return
        self._kernel_steps.fill_(int(self.steps))
        torch._fused_adam_(
            self._flat,
            list(gradient.split(self._sizes)),
            list(self.mean.split(self._sizes)),
            list(self.square.split(self._sizes)),
            [],
            [self._kernel_steps] * len(self._flat),
            lr=rate,
            beta1=self.decay,
            beta2=self.square_decay,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )
