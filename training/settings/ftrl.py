"""The settings of FTRL-Proximal (training/optimizers/ftrl.py has the algorithm)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from conf.types import Strict

_Positive = Annotated[float, Field(gt=0)]
_NotNegative = Annotated[float, Field(ge=0)]


class FtrlSettings(Strict):
    """`learning_rate` is α, `beta` β, `l1` λ₁ and `l2` λ₂ of the paper. It found β = 1 good for gradients of single examples;
    those of a batch's mean are smaller by as much as the batch is larger, and so should β be.
    """

    learning_rate: _Positive = 0.1
    beta: _Positive = 1.0
    l1: _NotNegative = 0.0
    l2: _NotNegative = 0.0
