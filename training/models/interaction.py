"""DLRM's interaction (Naumov et al. 2019, arXiv:1906.00091, section 2.1): dot products of pairs of vectors.

    out = [bottom, ⟨v_1, v_0⟩, ⟨v_2, v_0⟩, ⟨v_2, v_1⟩, …]
    ∂v = (G + Gᵀ) V

Here v_0 is the output of the bottom MLP, and v_1 … v_C are the embeddings of a row. The rows of V are the
vectors v_0 … v_C. The rows of ∂v are the gradients of these vectors. G is a matrix with the gradients of the
dot products below its diagonal, and zeros elsewhere. ∂v_0 also includes the gradient of the copy of v_0 in
`out`.

In float32 on a CPU, a compiled function computes one row at a time (training/native/interaction.cpp). A GPU
uses a kernel (training/kernels/). In all other cases, torch computes one tile (some rows of the batch) at a
time. The tile's vectors and their dot products stay in a core's cache. The backward pass copies the vectors
of the tile again. Operations over complete batches would write V (B, F, E) to memory and read it several
times.

Notation: B rows, C embeddings per row, E numbers per embedding, F vectors per row: C, plus one if there is a
bottom MLP.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from training.kernels.torch_operators import differentiable, operator
from training.models.factorization import Side, positions_by_side
from training.native.library import BEST, address, library, required_library

# Rows are processed in tiles. The vectors of a tile have at most this many numbers (2 MiB in bf16).
_TILE_NUMBERS = 2**20


class PairDots(nn.Module):
    """Computes the dot products v_i · v_j of all pairs i > j of F vectors, ordered by i, then by j."""

    pairs: Tensor

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        self.register_buffer("pairs", _pairs(num_vectors), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns the dot products, (B, F (F - 1) / 2), of `vectors` (B, F, E)."""
        dots = torch.bmm(vectors, vectors.transpose(1, 2))  # (B, F, F)
        return dots.flatten(1).gather(1, self.pairs.expand(len(dots), -1))


def interaction_columns(vector_sides: Sequence[Side], first_width: int) -> dict[Side, list[int]]:
    """Returns, for each side of a factorization, the columns of the interaction that this side computes.

    Args:
        vector_sides: (F,), the side of each vector. Only v_0 may have the side PAIR.
        first_width: number of columns that contain v_0 itself: E, or 0 if only the dot products of v_0 are
            used. These columns come first.

    Returns:
        USER, ITEM: v_0 if it belongs to this side, then the dot products within the side, in the order of
            `PairDots`.
        PAIR: first the dot products of each item vector with all user vectors. If v_0 has the side PAIR,
            these columns follow: v_0, its dot products with user vectors, and its dot products with item
            vectors.
    """

    def dot(left: int, right: int) -> int:
        row, column = max(left, right), min(left, right)
        return first_width + row * (row - 1) // 2 + column

    vectors = positions_by_side(vector_sides)
    columns: dict[Side, list[int]] = {}
    for side in (Side.USER, Side.ITEM):
        first = range(first_width if vector_sides[0] is side else 0)
        within = vectors[side]
        columns[side] = [*first, *(dot(within[i], within[j]) for i in range(len(within)) for j in range(i))]
    users, items = vectors[Side.USER], vectors[Side.ITEM]
    columns[Side.PAIR] = [dot(item, user) for item in items for user in users]
    if vector_sides[0] is Side.PAIR:
        columns[Side.PAIR] += [*range(first_width), *(dot(0, vector) for vector in (*users, *items))]
    return columns


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """Returns the interaction (B, E + F (F - 1) / 2) of `bottom` (B, E) and `embedded` (B, C, E).

    If `bottom` is None, the result has only the dot products.

    Under autocast, the dot products and the result have autocast's dtype. The gradients of `bottom` and
    `embedded` have the dtypes of these tensors.
    """
    if torch.compiler.is_exporting():
        return _plain_interaction(bottom, embedded)
    first = embedded.new_empty(len(embedded), 0) if bottom is None else bottom
    dtype = embedded.dtype
    if torch.is_autocast_enabled(embedded.device.type):
        dtype = torch.get_autocast_dtype(embedded.device.type)
    return tiled_interaction(first, embedded, dtype)


def _plain_interaction(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """Computes DLRM's dot interaction (`interact`) by plain torch operators, for exported models."""
    vectors = embedded if bottom is None else torch.cat([bottom.unsqueeze(1), embedded], dim=1)
    dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)  # (B, F * F)
    count = vectors.shape[1]
    # Do not call `_pairs` here: it would cache a tensor of the exporter, which later calls cannot use.
    row, column = torch.tril_indices(count, count, offset=-1, device=embedded.device)
    pairs = dots.index_select(1, row * count + column)
    return pairs if bottom is None else torch.cat([bottom, pairs], dim=1)


def _result(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    width = bottom.shape[1]
    num_vectors = embedded.shape[1] + (width > 0)
    num_pairs = num_vectors * (num_vectors - 1) // 2
    return embedded.new_empty(len(embedded), width + num_pairs, dtype=dtype)


def _gradients(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(bottom), torch.empty_like(embedded)


@operator("tiled_interaction(Tensor bottom, Tensor embedded, ScalarType dtype) -> Tensor", _result)
def tiled_interaction(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    """Computes DLRM's dot interaction (`interact`) in `dtype`; without a bottom MLP, `bottom` is (B, 0)."""
    if _is_compiled(dtype, bottom, embedded):
        return compiled_interaction(bottom, embedded)
    width = bottom.shape[1]
    tiles = _Tiles(bottom, embedded, dtype)
    pairs = _pairs(tiles.num_vectors, embedded.device)
    result = torch.empty(len(embedded), width + len(pairs), dtype=dtype, device=embedded.device)
    with torch.autocast(embedded.device.type, enabled=False):
        for rows, vectors, dots, _ in tiles:
            torch.bmm(vectors, vectors.transpose(1, 2), out=dots)
            if width:
                result[rows, :width] = vectors[:, 0]
            # On CPUs, `gather` is faster than an index or `index_select` along the last dimension.
            torch.gather(dots.flatten(1), 1, pairs.expand(len(vectors), -1), out=result[rows, width:])
    return result


@operator(
    "tiled_interaction_backward(Tensor bottom, Tensor embedded, Tensor gradient) -> (Tensor, Tensor)",
    _gradients,
)
def tiled_interaction_backward(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `bottom` and `embedded`, computed from the gradient of the result."""
    if _is_compiled(torch.float32, bottom, embedded, gradient):
        return compiled_interaction_backward(bottom, embedded, gradient)
    width = bottom.shape[1]
    bottom_gradient, embedded_gradient = torch.empty_like(bottom), torch.empty_like(embedded)
    tiles = _Tiles(bottom, embedded, gradient.dtype)
    # G + Gᵀ has the gradient of each pair twice. Its diagonal is zero, but `gather` needs a valid index for
    # the diagonal as well.
    mirror = _mirror(tiles.num_vectors, embedded.device)
    place = (width + mirror).clamp(max=max(gradient.shape[1] - 1, 0))
    with torch.autocast(embedded.device.type, enabled=False):
        for rows, vectors, both, products in tiles:
            if gradient.shape[1]:
                torch.gather(gradient[rows], 1, place.expand(len(vectors), -1), out=both.flatten(1))
            both.diagonal(dim1=1, dim2=2).zero_()
            torch.bmm(both, vectors, out=products)
            if width:
                torch.add(products[:, 0], gradient[rows, :width], out=bottom_gradient[rows])
            embedded_gradient[rows] = products[:, bool(width) :]
    return bottom_gradient, embedded_gradient


def _is_compiled(dtype: torch.dtype, *tensors: Tensor) -> bool:
    """Returns whether the compiled functions can compute the interaction of these tensors in `dtype`."""
    suitable = all(tensor.dtype == dtype and tensor.device.type == "cpu" for tensor in tensors)
    return suitable and dtype == torch.float32 and library() is not None


class _Tiles:
    """Iterates over tiles, each of which has R rows of a batch.

    Yields, for each tile, the slice of the tile's rows, their vectors V (R, F, E) in `dtype`, and two buffers
    for results, (R, F, F) and (R, F, E).
    """

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


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    return (*tiled_interaction_backward(*ctx.saved_tensors, gradient), None)


differentiable(tiled_interaction, _differentiate, _save_inputs)


# These tensors are cached and also used in training. The first call may run in inference mode, but training
# cannot use tensors that were created in that mode.
@cache
@torch.inference_mode(False)
def _pairs(num_vectors: int, device: torch.device | None = None) -> Tensor:
    """Returns the positions (P,) of all P = F (F - 1) / 2 pairs of vectors in a flattened matrix (F, F)."""
    row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=device)
    return row * num_vectors + column


@cache
@torch.inference_mode(False)
def _mirror(num_vectors: int, device: torch.device) -> Tensor:
    """Returns, for each position of a flattened symmetric matrix (F, F), the index of its pair of vectors.

    The result has the shape (F * F,). The P pairs i > j have the indices 0 to P - 1. Positions on the
    diagonal get P.
    """
    row, column = torch.tril_indices(num_vectors, num_vectors, offset=-1, device=device)
    mirror = torch.full((num_vectors, num_vectors), len(row), device=device)
    mirror[row, column] = mirror[column, row] = torch.arange(len(row), device=device)
    return mirror.flatten()


# The code below calls the compiled interaction (training/native/interaction.cpp), for float32 tensors on the
# CPU. A row has P = F (F - 1) / 2 pairs of vectors.

# Further threads are used only if each thread then does at least this number of multiplications.
_PRODUCTS_OF_A_THREAD = 500_000


class _CompiledBatch(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("vectors", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("bottom", ctypes.c_void_p),
        ("embedded", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("bottom_gradient", ctypes.c_void_p),
        ("embedded_gradient", ctypes.c_void_p),
    )


def compiled_interaction(bottom: Tensor, embedded: Tensor, instructions: int = BEST) -> Tensor:
    """Returns `bottom`, if there is a bottom MLP, followed by the dot products of all pairs of vectors.

    The result has the shape (B, E + P), or (B, P) without a bottom MLP.

    Args:
        bottom: (B, E), or (B, 0) if there is no bottom MLP.
        embedded: (B, C, E).
        instructions: the CPU instruction set; BEST selects the best one of this processor.

    Raises:
        MemoryError: memory ran out.
    """
    vectors = embedded.shape[1] + (bottom.shape[1] > 0)
    result = embedded.new_empty(len(embedded), bottom.shape[1] + vectors * (vectors - 1) // 2)
    _run_compiled(bottom, embedded, instructions, result=result)
    return result


def compiled_interaction_backward(
    bottom: Tensor, embedded: Tensor, gradient: Tensor, instructions: int = BEST
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `bottom` and `embedded` from the `gradient` of the result.

    Raises:
        MemoryError: memory ran out.
    """
    bottom_gradient = torch.empty_like(bottom, memory_format=torch.contiguous_format)
    embedded_gradient = torch.empty_like(embedded, memory_format=torch.contiguous_format)
    gradients = {"bottom_gradient": bottom_gradient, "embedded_gradient": embedded_gradient}
    _run_compiled(bottom, embedded, instructions, gradient=gradient.contiguous(), **gradients)
    return bottom_gradient, embedded_gradient


def _run_compiled(bottom: Tensor, embedded: Tensor, instructions: int, **others: Tensor) -> None:
    bottom, embedded = bottom.contiguous(), embedded.contiguous()
    rows, count, dim = embedded.shape
    first = int(bottom.shape[1] > 0)
    vectors = count + first
    batch = _CompiledBatch(
        rows=rows,
        vectors=vectors,
        dim=dim,
        first=first,
        bottom=address(bottom),
        embedded=address(embedded),
        **{name: address(tensor) for name, tensor in others.items()},
    )
    threads = min(torch.get_num_threads(), max(rows * vectors**2 * dim // _PRODUCTS_OF_A_THREAD, 1))
    backward = "gradient" in others
    failed = required_library().nightrank_interaction(ctypes.byref(batch), backward, threads, instructions)
    if failed:
        raise MemoryError
