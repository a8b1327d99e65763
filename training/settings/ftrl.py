"""The settings of FTRL-Proximal (training/optimizers/dense_optimizers.py has the algorithm)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conf.types import Strict

_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class FtrlSettings(Strict):
    """FTRL-Proximal (McMahan et al. 2013, algorithm 1).

    The paper recommends `beta` 1 for gradients of single examples. Here the gradient is computed from a
    batch's mean loss, in which each example's gradient is divided by the batch size. So divide the paper's
    `beta` by the batch size too.
    """

    learning_rate: _Positive = Field(default=0.1, description="Learning rate, α in the paper.")
    beta: _Positive = Field(default=1.0, description="Smoothing of the learning rate, β in the paper.")
    l1: _NotNegative = Field(default=0.0, description="Strength of L1 regularization, λ₁ in the paper.")
    l2: _NotNegative = Field(default=0.0, description="Strength of L2 regularization, λ₂ in the paper.")
