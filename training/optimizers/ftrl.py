"""FTRL-Proximal (McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", KDD, algorithm 1).

Per coordinate, with the gradient g of a batch's mean loss in place of the paper's single example:

    σ = (√(n + g²) − √n) / α;   z += g − σ w;   n += g²
    w = 0 where |z| ≤ λ₁, elsewhere −(z − sgn(z) λ₁) / ((β + √n) / α + λ₂)

A coordinate that a batch does not touch has g = 0 and keeps z, n and w, so tables are updated by touched rows alone.
The rate of each coordinate falls with its own gradients: the training's schedule does not apply to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.embeddings.table import RowGradient, StackedEmbedding
from training.settings.ftrl import FtrlSettings


class FtrlRows:
    """FTRL for a table, on touched rows only. The table must start at zero, where z is.

    Attributes:
        z, n: (rows, E) each.
    """

    def __init__(self, table: StackedEmbedding, settings: FtrlSettings) -> None:
        self.table = table
        self.settings = settings
        self.z = torch.zeros_like(table.weight, requires_grad=False)
        self.n = torch.zeros_like(table.weight, requires_grad=False)

    @torch.no_grad()
    def step(self, gradient: RowGradient) -> None:
        rows, weight = gradient.rows, self.table.weight
        updated = _step(weight[rows], self.z[rows], self.n[rows], gradient.values, self.settings)
        for whole, part in zip((weight, self.z, self.n), updated, strict=True):
            whole[rows] = part


class FtrlDense:
    """FTRL for dense parameters that start at zero; z and n (size,) are laid out in the parameters' order."""

    def __init__(self, parameters: Sequence[nn.Parameter], settings: FtrlSettings) -> None:
        self._parameters = list(parameters)
        self.settings = settings
        self.z = torch.cat([torch.zeros_like(each).flatten() for each in self._parameters]).detach()
        self.n = torch.zeros_like(self.z)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        """Updates the parameters by their gradients (size,), laid out in their order."""
        weight = torch.cat([each.flatten() for each in self._parameters])
        weight, self.z[:], self.n[:] = _step(weight, self.z, self.n, gradient, self.settings)
        parts = weight.split([each.numel() for each in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view_as(parameter))


def _step(
    weight: Tensor, z: Tensor, n: Tensor, gradient: Tensor, settings: FtrlSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """(weight, z, n) after a step, of any one shape."""
    more = n + gradient.square()
    sigma = (more.sqrt() - n.sqrt()) / settings.learning_rate
    moved = z + gradient - sigma * weight
    curvature = (settings.beta + more.sqrt()) / settings.learning_rate + settings.l2
    shrunk = moved.sign() * (moved.abs() - settings.l1).clamp(min=0)  # 0 where |z| ≤ λ₁
    return -shrunk / curvature, moved, more
