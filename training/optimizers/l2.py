"""L2 regularization: the gradient of ½ · l2 · Σ weight², added to the gradients of a step.

As in BPR (Rendle et al. 2009, UAI, section 4), the vectors that a step uses are regularized, not the whole
table. A row is used if its gradient, summed over ranks, is not zero. So the result does not depend on the
number of ranks. A row that is only looked up for a row of weight zero has the gradient zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from training.embeddings.row_gradients import SummedRowGradient
from training.embeddings.table import StackedEmbedding


class L2:
    """Adds the gradient of the regularization to gradients that are summed over ranks.

    Args:
        model: the model.
        parameters: its dense parameters, in the order of the flat gradient. Biases, the parameters of
            normalization layers, and the slopes of PReLU (He et al. 2015, ICCV, section 2.1) are not
            regularized.
        factor: `train.l2`; with 0, gradients are returned unchanged.
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
        """Returns the gradient (size,) of the parameters, one after the other, plus that of the term."""
        if not self._factor or not self._parameters:
            return gradient
        pairs = zip(self._parameters, self._factors, strict=True)
        return gradient + torch.cat([parameter.flatten() * factor for parameter, factor in pairs])

    @torch.no_grad()
    def add_rows(self, gradient: SummedRowGradient, table: StackedEmbedding) -> SummedRowGradient:
        """Returns the gradient of rows of a table plus that of the term, for the rows that a step uses."""
        if not self._factor:
            return gradient
        used = gradient.values.any(dim=1, keepdim=True)
        weights = table.matrix.index_select(0, gradient.rows).float()
        return SummedRowGradient(gradient.rows, gradient.values + weights * used * self._factor)
