"""The optimizers of dense parameters, Adam and FTRL-Proximal, and L2 regularization.

The gradients of all dense parameters are in one flat buffer, which is summed over ranks. The moments have the
layout of this buffer. The update uses torch's fused kernel, which needs one pass over memory. The kernel is
called directly, because torch.optim would import torch's compiler, which takes seconds on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.embeddings.rows import SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.settings.shared_settings import FtrlSettings


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
        self._kernel_steps = torch.zeros((), device=device)  # the fused kernel reads float32

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


# FTRL-Proximal (McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", KDD, algorithm 1).
#
# Each coordinate w of the weights is updated as follows. g is the gradient of a batch's mean loss. In the
# paper, g is the gradient of a single example.
#
#     σ = (√(n + g²) − √n) / α;   z += g − σ w;   n += g²
#     w = 0 where |z| ≤ λ₁, elsewhere −(z − sgn(z) λ₁) / ((β + √n) / α + λ₂)
#
# Here z and n are the state of the coordinate. α, β, λ₁ and λ₂ are the settings learning_rate, beta, l1 and
# l2. If g is 0, then z, n and w do not change, so only the looked-up rows of a table need updates. The
# learning rate of a coordinate decreases as its squared gradients add up, so the learning rate schedule is
# not applied.


class FtrlRows:
    """FTRL for the looked-up rows of a table. The table's weights must be zero at first, like z.

    Attributes:
        z, n: the state, two tensors of shape (rows, E).
    """

    def __init__(self, table: StackedEmbedding, settings: FtrlSettings) -> None:
        self.table = table
        self.settings = settings
        self.z = table.new_rows(table.dim)
        self.n = table.new_rows(table.dim)

    @torch.no_grad()
    def step(self, gradient: SummedRowGradient) -> None:
        """Updates the rows that have a gradient."""
        matrices = (self.table.matrix, self.z, self.n)
        weight, z, n = (matrix.index_select(0, gradient.rows) for matrix in matrices)
        updated = _step(weight, z, n, gradient.values, self.settings)
        for matrix, values in zip(matrices, updated, strict=True):
            matrix.index_copy_(0, gradient.rows, values)


class FtrlDense:
    """FTRL for dense parameters that start at zero.

    The state consists of two tensors, z and n, of shape (size,). In each tensor, the parameters' values
    follow one another.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], settings: FtrlSettings) -> None:
        self._parameters = list(parameters)
        self.settings = settings
        self.z = torch.cat([torch.zeros_like(parameter).flatten() for parameter in self._parameters]).detach()
        self.n = torch.zeros_like(self.z)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Updates the parameters.

        `gradient` (size,) contains the gradients of the parameters, one after the other.
        """
        weight = torch.cat([parameter.flatten() for parameter in self._parameters])
        weight, self.z[:], self.n[:] = _step(weight, self.z, self.n, gradient, self.settings)
        parts = weight.split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))


def _step(
    weight: Tensor, z: Tensor, n: Tensor, gradient: Tensor, settings: FtrlSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the new values of `weight`, `z` and `n` after a step. All tensors have the same shape."""
    new_n = n + gradient.square()
    sigma = (new_n.sqrt() - n.sqrt()) / settings.learning_rate
    new_z = z + gradient - sigma * weight
    curvature = (settings.beta + new_n.sqrt()) / settings.learning_rate + settings.l2
    shrunk = new_z.sign() * (new_z.abs() - settings.l1).clamp(min=0)  # 0 where |z| ≤ λ₁
    return -shrunk / curvature, new_z, new_n


# L2 regularization: the gradient of ½ · l2 · Σ weight², added to the gradients of a step.
#
# As in BPR (Rendle et al. 2009, UAI, section 4), the vectors that a step uses are regularized, not the whole
# table. A row is used if its gradient, summed over ranks, is not zero. So the result does not depend on the
# number of ranks. If a table row is looked up only for batch rows of weight zero, its gradient is zero.


class L2:
    """Adds the gradient of the regularization to gradients that are summed over ranks.

    Args:
        model: the model.
        parameters: its dense parameters, in the order of the flat gradient. Biases, the parameters of
            normalization layers, and the slopes of PReLU (He et al. 2015, ICCV, section 2.1) are not
            regularized.
        factor: `train.l2`. If it is 0, gradients are returned unchanged.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter], factor: float) -> None:
        self._factor = factor
        self._parameters = list(parameters)
        left_out = {id(parameter) for name, parameter in model.named_parameters() if name.endswith("bias")}
        left_out |= {
            id(parameter)
            for module in model.modules()
            if isinstance(module, nn.LayerNorm | nn.PReLU)
            for parameter in module.parameters()
        }
        self._factors = [0.0 if id(parameter) in left_out else factor for parameter in self._parameters]

    @torch.no_grad()
    def add_dense(self, gradient: Tensor) -> Tensor:
        """Returns the gradient (size,) of the parameters, one after the other, with the L2 term."""
        if not self._factor or not self._parameters:
            return gradient
        pairs = zip(self._parameters, self._factors, strict=True)
        return gradient + torch.cat([parameter.flatten() * factor for parameter, factor in pairs])

    @torch.no_grad()
    def add_rows(self, gradient: SummedRowGradient, table: StackedEmbedding) -> SummedRowGradient:
        """Returns the gradient of the rows of a table that a step uses, with the L2 term."""
        if not self._factor:
            return gradient
        used = gradient.values.any(dim=1, keepdim=True)
        weights = table.matrix.index_select(0, gradient.rows).float()
        return SummedRowGradient(gradient.rows, gradient.values + weights * used * self._factor)
