"""DLRM's dot interaction (Naumov et al. 2019, arXiv:1906.00091, section 2.1) as Triton kernels.

There is one kernel for the forward pass and one for the backward pass:

    out = [bottom, ⟨v_1, v_0⟩, ⟨v_2, v_0⟩, ⟨v_2, v_1⟩, …]
    ∂v = (G + Gᵀ) V

Here v_0 is the output of the bottom MLP, and v_1 … v_C are the embeddings of a row. The rows of V are the
vectors v_0 … v_C. The rows of ∂v are the gradients of these vectors. G is a matrix with the gradients of the
dot products below its diagonal, and zeros elsewhere. ∂v_0 also includes the gradient of the copy of v_0 in
`out`.

The vectors V (B, F, E) and the matrices of dot products (B, F, F) are not written to memory. The forward
kernel reads each vector once, and writes the top MLP's input once. B is the number of rows, C the number of
embeddings per row, and E the width of a vector. F = C + 1, or C if there is no bottom MLP.

Columns of zeros at the end of `out` make its rows a multiple of 16 bytes. For rows of other lengths, cuBLAS
has only slower matrix products (docs/decisions/training-on-gpus.md#0074).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton determines the types of kernel parameters)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from training.device import on_device_of
from training.kernels.torch_operators import differentiable, operator

_BLOCK_DIM = 128
# Without tensor cores, a thread holds whole rows of both factors of a product. With larger blocks, or with
# more vectors for only four warps, registers would spill to memory (tests/training/test_compiled_kernels.py).
_EXACT_BLOCK_DIM, _EXACT_BLOCK = 16, 32
_ROW_BYTES = 16


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """Returns the interaction of `bottom` (B, E) and `embedded` (B, C, E), padded with columns of zeros.

    The result has the shape (B, K), where K is E + F (F - 1) / 2, rounded up until a row is a multiple of 16
    bytes. If `bottom` is None, the result has only the dot products.

    Under autocast, the dot products and the result have autocast's dtype. The gradients of `bottom` and
    `embedded` have the dtypes of these tensors.
    """
    first = embedded.new_empty(len(embedded), 0) if bottom is None else bottom
    dtype = embedded.dtype
    if torch.is_autocast_enabled(embedded.device.type):
        dtype = torch.get_autocast_dtype(embedded.device.type)
    return dot_interaction(first, embedded, dtype)


def _result(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    return embedded.new_empty(len(embedded), _padded(_width(bottom, embedded), dtype), dtype=dtype)


def _gradients(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return bottom.new_empty(bottom.shape), embedded.new_empty(embedded.shape)


@operator("dot_interaction(Tensor bottom, Tensor embedded, ScalarType dtype) -> Tensor", _result)
def dot_interaction(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    """Computes DLRM's dot interaction (`interact`) in `dtype`; without a bottom MLP, `bottom` is (B, 0)."""
    shape = _Shape(bottom, embedded, dtype)
    out = torch.empty(len(embedded), shape.width, dtype=dtype, device=embedded.device)
    if out.numel():
        with on_device_of(embedded):
            _forward[(len(embedded),)](bottom.contiguous(), embedded.contiguous(), out, **shape.arguments)
    return out


@operator(
    "dot_interaction_backward(Tensor bottom, Tensor embedded, Tensor gradient) -> (Tensor, Tensor)",
    _gradients,
)
def dot_interaction_backward(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gradients of `bottom` and `embedded`, computed from the gradient of the result."""
    shape = _Shape(bottom, embedded, gradient.dtype)
    bottom, embedded = bottom.contiguous(), embedded.contiguous()
    bottom_gradient, embedded_gradient = torch.empty_like(bottom), torch.empty_like(embedded)
    if embedded.numel():
        arguments = (bottom, embedded, gradient.contiguous(), bottom_gradient, embedded_gradient)
        with on_device_of(embedded):
            _backward[(len(embedded),)](*arguments, **shape.arguments)
    return bottom_gradient, embedded_gradient


def _save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    return (*dot_interaction_backward(*ctx.saved_tensors, gradient), None)


differentiable(dot_interaction, _differentiate, _save_inputs)


def _width(bottom: Tensor, embedded: Tensor) -> int:
    """Returns the number of columns of the interaction: the width of `bottom` plus the pairs of vectors."""
    num_vectors = embedded.shape[1] + (bottom.shape[1] > 0)
    return bottom.shape[1] + num_vectors * (num_vectors - 1) // 2


def _padded(columns: int, dtype: torch.dtype) -> int:
    """Rounds `columns` up to the next number for which a row's bytes are a multiple of 16."""
    multiple = _ROW_BYTES // dtype.itemsize
    return -(-columns // multiple) * multiple


def program_of(num_vectors: int, dim: int, *, exact: bool) -> dict[str, int]:
    """Returns the tile sizes of a program (an instance of a kernel) and its number of warps.

    Args:
        num_vectors, dim: F and E.
        exact: whether products are computed in float32, without tensor cores.
    """
    block = max(16, triton.next_power_of_2(num_vectors))
    widest = _EXACT_BLOCK_DIM if exact else _BLOCK_DIM
    return {
        "BLOCK": block,
        "BLOCK_DIM": min(widest, max(16, triton.next_power_of_2(dim))),
        "num_warps": 8 if exact and block > _EXACT_BLOCK else 4,
    }


class _Shape:
    """The arguments of the forward and the backward kernel. `width` also counts output columns of zeros."""

    def __init__(self, bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> None:
        _, num_features, dim = embedded.shape
        first = int(bottom.shape[1] > 0)
        num_vectors = num_features + first
        self.width = _padded(_width(bottom, embedded), dtype)
        exact = dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        self.arguments: dict[str, Any] = {
            "width": self.width,
            "FIRST": first,
            "VECTORS": num_vectors,
            "DIM": dim,
            "PRECISION": "ieee" if exact else "tf32",
            **program_of(num_vectors, dim, exact=exact),
        }


@triton.jit
def _vectors(
    bottom, embedded, row, index, column, FIRST: tl.constexpr, VECTORS: tl.constexpr, DIM: tl.constexpr
):
    """Loads the tile V[index, column] of a row in float32. A bottom MLP's output is vector 0."""
    inside = (column < DIM)[None, :]
    mask = ((index >= FIRST) & (index < VECTORS))[:, None] & inside
    start = embedded + row * (VECTORS - FIRST) * DIM
    tile = tl.load(start + (index - FIRST)[:, None] * DIM + column[None, :], mask=mask, other=0.0).to(
        tl.float32
    )
    if FIRST:
        is_first = (index == 0)[:, None] & inside
        zero = (index * 0)[:, None]
        first = tl.load(bottom + row * DIM + column[None, :] + zero, mask=is_first, other=0.0)
        tile = tl.where(is_first, first.to(tl.float32), tile)
    return tile


@triton.jit
def _forward(
    bottom,
    embedded,
    out,
    width,
    FIRST: tl.constexpr,
    VECTORS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Computes the results of one row of the batch in each program (an instance of the kernel)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    dots = tl.full((BLOCK, BLOCK), 0.0, tl.float32)
    for begin in range(0, DIM, BLOCK_DIM):
        column = begin + tl.arange(0, BLOCK_DIM)
        tile = _vectors(bottom, embedded, row, index, column, FIRST, VECTORS, DIM).to(out.dtype.element_ty)
        dots += tl.dot(tile, tl.trans(tile), input_precision=PRECISION)
        if FIRST:
            copied = tl.load(bottom + row * DIM + column, mask=column < DIM, other=0.0)
            tl.store(out + row * width + column, copied.to(out.dtype.element_ty), mask=column < DIM)
    lower, upper = index[:, None], index[None, :]
    pair = lower * (lower - 1) // 2 + upper
    mask = (upper < lower) & (lower < VECTORS)
    tl.store(out + row * width + FIRST * DIM + pair, dots.to(out.dtype.element_ty), mask=mask)
    zeros = FIRST * DIM + VECTORS * (VECTORS - 1) // 2 + tl.arange(0, 8)
    tl.store(out + row * width + zeros, (zeros * 0).to(out.dtype.element_ty), mask=zeros < width)


@triton.jit
def _backward(
    bottom,
    embedded,
    gradient,
    bottom_gradient,
    embedded_gradient,
    width,
    FIRST: tl.constexpr,
    VECTORS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Computes the gradients of one row of the batch in each program (an instance of the kernel)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    lower = tl.maximum(index[:, None], index[None, :])
    upper = tl.minimum(index[:, None], index[None, :])
    pair = lower * (lower - 1) // 2 + upper
    mask = (upper < lower) & (lower < VECTORS)
    both = tl.load(gradient + row * width + FIRST * DIM + pair, mask=mask, other=0.0)  # G + Gᵀ
    for begin in range(0, DIM, BLOCK_DIM):
        column = begin + tl.arange(0, BLOCK_DIM)
        tile = _vectors(bottom, embedded, row, index, column, FIRST, VECTORS, DIM).to(both.dtype)
        result = tl.dot(both, tile, input_precision=PRECISION)
        inside = (column < DIM)[None, :]
        is_embedded = ((index >= FIRST) & (index < VECTORS))[:, None] & inside
        start = embedded_gradient + row * (VECTORS - FIRST) * DIM
        target = start + (index - FIRST)[:, None] * DIM + column[None, :]
        tl.store(target, result.to(embedded_gradient.dtype.element_ty), mask=is_embedded)
        if FIRST:
            is_first = (index == 0)[:, None] & inside
            zero = (index * 0)[:, None]
            copied = tl.load(gradient + row * width + column[None, :] + zero, mask=is_first, other=0.0)
            target = bottom_gradient + row * DIM + column[None, :] + zero
            tl.store(
                target, (result + copied.to(tl.float32)).to(bottom_gradient.dtype.element_ty), mask=is_first
            )
