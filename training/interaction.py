"""Dot products of all pairs of vectors, each once, with a backward pass that is one product.

Autograd would differentiate both factors of the product of a matrix with its own transpose, and scatter the gradient of the
pairs into a matrix of zeros. Here that gradient is gathered into the symmetric matrix G + Gᵀ at once, and (G + Gᵀ) V is the answer:
for L = Σ_{i>j} g_ij v_i · v_j, dL/dv_i = Σ_{j<i} g_ij v_j + Σ_{j>i} g_ji v_j.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class PairDots(nn.Module):
    """(B, F, E) → (B, F (F - 1) / 2): v_i · v_j for i > j, ordered by i, then by j."""

    pairs: Tensor
    mirror: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        below = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        num_pairs = below.shape[1]
        mirror = torch.full((num_vectors, num_vectors), num_pairs)  # the diagonal's gradient is zero
        mirror[below[0], below[1]] = mirror[below[1], below[0]] = torch.arange(num_pairs)
        self.register_buffer("pairs", below[0] * num_vectors + below[1], persistent=False)
        self.register_buffer("mirror", mirror.flatten(), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # which fuses the plain form
            return _dots(vectors, self.pairs)
        result: Tensor = _PairDots.apply(vectors, self.pairs, self.mirror)
        return result


def _dots(vectors: Tensor, pairs: Tensor) -> Tensor:
    dots = torch.bmm(vectors, vectors.transpose(1, 2))  # (B, F, F)
    return dots.flatten(1).index_select(1, pairs)


class _PairDots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, pairs: Tensor, mirror: Tensor) -> Tensor:
        dots = _dots(vectors, pairs)
        ctx.save_for_backward(vectors.to(dots.dtype), mirror)  # as autocast had them multiplied
        ctx.dtype = vectors.dtype
        return dots

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        vectors, mirror = ctx.saved_tensors
        num_vectors = vectors.shape[1]
        padded = functional.pad(gradients[0].to(vectors.dtype), (0, 1))
        both = padded.index_select(1, mirror).view(-1, num_vectors, num_vectors)  # G + Gᵀ
        return torch.bmm(both, vectors).to(ctx.dtype), None, None
