"""FTRL-Proximal (McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", KDD, algorithm 1).

Each coordinate w of the weights is updated as follows. g is the gradient of a batch's mean loss, while the
paper uses the gradient of a single example.

    σ = (√(n + g²) − √n) / α;   z += g − σ w;   n += g²
    w = 0 where |z| ≤ λ₁, elsewhere −(z − sgn(z) λ₁) / ((β + √n) / α + λ₂)

Here z and n are the state of the coordinate. α, β, λ₁ and λ₂ are the settings learning_rate, beta, l1 and l2.
If g is 0, then z, n and w do not change, so only the looked-up rows of a table need updates. The learning
rate of a coordinate decreases as its squared gradients add up, so the learning rate schedule is not applied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.embeddings.row_gradients import SummedRowGradient
from training.embeddings.table import StackedEmbedding
from training.settings.ftrl import FtrlSettings


class FtrlRows:
    """FTRL for the looked-up rows of a table. The table must start at zero, as z does.

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

    The state consists of two tensors, z and n, of shape (size,). Each tensor contains the state of one
    parameter after the other.
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
