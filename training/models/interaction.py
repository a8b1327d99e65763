"""DLRM's interaction (Naumov et al. 2019, arXiv:1906.00091, section 2.1): dot products of all pairs of vectors, each once.

    out = [bottom, ⟨v_1, v_0⟩, ⟨v_2, v_0⟩, ⟨v_2, v_1⟩, …]    v_0 the bottom MLP's vector, v_1 … v_C the embeddings
    ∂v = (G + Gᵀ) V, G the gradients of the dots below the diagonal; ∂v_0 also takes the gradient of its copy

On a CPU it is done a tile of rows at a time: the tile's vectors, in the precision that multiplies them, and their dots stay
in a core's cache, in the backward pass too, which makes them anew. As operations over whole batches the matrix V (B, F, E) alone,
written and read again several times, took a third of a step. On a GPU it is a kernel (training/kernels/).

Notation: B rows, C embeddings, E numbers of each, F vectors a row: C, and one more where there is a bottom MLP.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from training.kernels.torch_operators import differentiable, operator

# Numbers of a tile's vectors: two megabytes in bf16.
_TILE_NUMBERS = 2**20


class PairDots(nn.Module):
    """(B, F, E) → (B, F (F - 1) / 2): v_i · v_j for i > j, ordered by i, then by j."""

    pairs: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        self.register_buffer("pairs", _pairs(num_vectors), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        dots = torch.bmm(vectors, vectors.transpose(1, 2))  # (B, F, F)
        return dots.flatten(1).index_select(1, self.pairs)


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """(B, E + F (F - 1) / 2) of bottom (B, E) and embedded (B, C, E); the dots alone without bottom.

    Under autocast products are taken in its dtype, which the result has; vectors are read, and their gradients written, as
    they are.
    """
    first = embedded.new_empty(len(embedded), 0) if bottom is None else bottom
    dtype = embedded.dtype
    if torch.is_autocast_enabled(embedded.device.type):
        dtype = torch.get_autocast_dtype(embedded.device.type)
    return tiled_interaction(first, embedded, dtype)


def _result(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    width = bottom.shape[1]
    num_vectors = embedded.shape[1] + (width > 0)
    num_pairs = num_vectors * (num_vectors - 1) // 2
    return embedded.new_empty(len(embedded), width + num_pairs, dtype=dtype)


def _gradients(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(bottom), torch.empty_like(embedded)


@operator("tiled_interaction(Tensor bottom, Tensor embedded, ScalarType dtype) -> Tensor", _result)
def tiled_interaction(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    """As `interact`, in `dtype`; bottom is (B, 0) where there is none."""
    width = bottom.shape[1]
    tiles = _Tiles(bottom, embedded, dtype)
    pairs = _pairs(tiles.num_vectors, embedded.device)
    result = torch.empty(len(embedded), width + len(pairs), dtype=dtype, device=embedded.device)
    with torch.autocast(embedded.device.type, enabled=False):
        for rows, vectors, dots, _ in tiles:
            torch.bmm(vectors, vectors.transpose(1, 2), out=dots)
            if width:
                result[rows, :width] = vectors[:, 0]
            result[rows, width:] = dots.flatten(1)[:, pairs]
    return result


@operator(
    "tiled_interaction_backward(Tensor bottom, Tensor embedded, Tensor gradient) -> (Tensor, Tensor)",
    _gradients,
)
def tiled_interaction_backward(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `bottom` and `embedded`, by that of the result."""
    width = bottom.shape[1]
    of_bottom, of_embedded = torch.empty_like(bottom), torch.empty_like(embedded)
    tiles = _Tiles(bottom, embedded, gradient.dtype)
    mirror = _mirror(tiles.num_vectors, embedded.device)
    with torch.autocast(embedded.device.type, enabled=False):
        padded = gradient.new_zeros(tiles.rows, gradient.shape[1] - width + 1)  # the diagonal's is zero
        for rows, vectors, both, products in tiles:
            of_pairs = padded[: len(vectors)]
            of_pairs[:, :-1] = gradient[rows, width:]
            torch.index_select(of_pairs, 1, mirror, out=both.flatten(1))  # G + Gᵀ
            torch.bmm(both, vectors, out=products)
            if width:
                torch.add(products[:, 0], gradient[rows, :width], out=of_bottom[rows])
            of_embedded[rows] = products[:, bool(width) :]
    return of_bottom, of_embedded


class _Tiles:
    """Rows of a batch, some at a time: their slice, V (R, F, E) in `dtype`, and memory for (R, F, F) and (R, F, E) numbers."""

    def __init__(self, bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> None:
        self._bottom, self._embedded = bottom, embedded
        self._first = int(bottom.shape[1] > 0)
        count, embeddings, dim = embedded.shape
        self.num_vectors = embeddings + self._first
        self.rows = min(count, max(_TILE_NUMBERS // max(self.num_vectors * dim, 1), 1))
        self._vectors = embedded.new_empty(self.rows, self.num_vectors, dim, dtype=dtype)
        self._products = torch.empty_like(self._vectors)
        self._dots = embedded.new_empty(self.rows, self.num_vectors, self.num_vectors, dtype=dtype)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        for start in range(0, len(self._embedded), max(self.rows, 1)):
            rows = slice(start, start + self.rows)
            embedded = self._embedded[rows]
            count = len(embedded)
            vectors = self._vectors[:count]
            vectors[:, self._first :] = embedded
            if self._first:
                vectors[:, 0] = self._bottom[rows]
            yield rows, vectors, self._dots[:count], self._products[:count]


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    return (*tiled_interaction_backward(*ctx.saved_tensors, gradient), None)


differentiable(tiled_interaction, _differentiate, _keep)


# What is kept may first be asked for under inference mode, whose tensors no training can use afterwards.
@cache
@torch.inference_mode(False)
def _pairs(num_vectors: int, device: torch.device | None = None) -> Tensor:
    """(P,) where in a flat matrix (F, F) the pairs stand."""
    row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=device)
    return row * num_vectors + column


@cache
@torch.inference_mode(False)
def _mirror(num_vectors: int, device: torch.device) -> Tensor:
    """(F * F,) which pair's dot stands there in the symmetric matrix; P, beyond all pairs, on the diagonal."""
    row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=device)
    mirror = torch.full((num_vectors, num_vectors), len(row), device=device)
    mirror[row, column] = mirror[column, row] = torch.arange(len(row), device=device)
    return mirror.flatten()
