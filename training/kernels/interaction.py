"""The dot interaction of DLRM (Naumov et al. 2019, arXiv:1906.00091, section 2.1) in one kernel each way.

    out = [bottom, ⟨v_1, v_0⟩, ⟨v_2, v_0⟩, ⟨v_2, v_1⟩, …]    v_0 the bottom MLP's vector, v_1 … v_C the embeddings
    ∂v = (G + Gᵀ) V, G the gradients of the dots below the diagonal; ∂v_0 also takes the gradient of its copy

Neither the matrix V (B, F, E), nor the dots (B, F, F), nor the concatenation's parts are written to memory: vectors are read
once and what the top MLP takes is written once. F = C + 1, or C where there is no bottom MLP.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# (Triton gives the parameters of kernels their types)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from training.kernels.torch_operators import differentiable, operator

_BLOCK_DIM = 128


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """(B, E + F (F - 1) / 2) of bottom (B, E) and embedded (B, C, E); the dots alone without bottom.

    Under autocast products are taken in its dtype, which the result has; vectors are read, and their gradients written, as
    they are.
    """
    first = embedded.new_empty(len(embedded), 0) if bottom is None else bottom
    dtype = embedded.dtype
    if torch.is_autocast_enabled(embedded.device.type):
        dtype = torch.get_autocast_dtype(embedded.device.type)
    return dot_interaction(first, embedded, dtype)


def _result(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    return embedded.new_empty(len(embedded), _width(bottom, embedded), dtype=dtype)


def _gradients(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return bottom.new_empty(bottom.shape), embedded.new_empty(embedded.shape)


@operator("dot_interaction(Tensor bottom, Tensor embedded, ScalarType dtype) -> Tensor", _result)
def dot_interaction(bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
    """As `interact`, in `dtype`; bottom is (B, 0) where there is none."""
    shape = _Shape(bottom, embedded, dtype)
    out = torch.empty(len(embedded), shape.width, dtype=dtype, device=embedded.device)
    if out.numel():
        _forward[(len(embedded),)](bottom.contiguous(), embedded.contiguous(), out, **shape.arguments)
    return out


@operator(
    "dot_interaction_backward(Tensor bottom, Tensor embedded, Tensor gradient) -> (Tensor, Tensor)",
    _gradients,
)
def dot_interaction_backward(bottom: Tensor, embedded: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `bottom` and `embedded`, by that of the result."""
    shape = _Shape(bottom, embedded, gradient.dtype)
    bottom, embedded = bottom.contiguous(), embedded.contiguous()
    of_bottom, of_embedded = torch.empty_like(bottom), torch.empty_like(embedded)
    if embedded.numel():
        arguments = (bottom, embedded, gradient.contiguous(), of_bottom, of_embedded)
        _backward[(len(embedded),)](*arguments, **shape.arguments)
    return of_bottom, of_embedded


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    return (*dot_interaction_backward(*ctx.saved_tensors, gradient), None)


differentiable(dot_interaction, _differentiate, _keep)


def _width(bottom: Tensor, embedded: Tensor) -> int:
    """Numbers a row of the result."""
    num_vectors = embedded.shape[1] + (bottom.shape[1] > 0)
    return bottom.shape[1] + num_vectors * (num_vectors - 1) // 2


class _Shape:
    """What both kernels are compiled for. `width`: numbers a row of the output."""

    def __init__(self, bottom: Tensor, embedded: Tensor, dtype: torch.dtype) -> None:
        _, num_features, dim = embedded.shape
        first = int(bottom.shape[1] > 0)
        num_vectors = num_features + first
        self.width = _width(bottom, embedded)
        block_dim = min(_BLOCK_DIM, max(16, triton.next_power_of_2(dim)))
        exact = dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        self.arguments: dict[str, Any] = {
            "width": self.width,
            "FIRST": first,
            "VECTORS": num_vectors,
            "DIM": dim,
            "BLOCK": max(16, triton.next_power_of_2(num_vectors)),
            "BLOCK_DIM": block_dim,
            "PRECISION": "ieee" if exact else "tf32",
        }


@triton.jit
def _vectors(
    bottom, embedded, row, index, place, FIRST: tl.constexpr, VECTORS: tl.constexpr, DIM: tl.constexpr
):
    """The tile V[index, place] of a row in float32: vector 0 is the bottom one where there is one."""
    inside = (place < DIM)[None, :]
    mask = ((index >= FIRST) & (index < VECTORS))[:, None] & inside
    start = embedded + row * (VECTORS - FIRST) * DIM
    tile = tl.load(start + (index - FIRST)[:, None] * DIM + place[None, :], mask=mask, other=0.0).to(
        tl.float32
    )
    if FIRST:
        own = (index == 0)[:, None] & inside
        zero = (index * 0)[:, None]
        first = tl.load(bottom + row * DIM + place[None, :] + zero, mask=own, other=0.0)
        tile = tl.where(own, first.to(tl.float32), tile)
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
    """One row of the batch a program."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    dots = tl.full((BLOCK, BLOCK), 0.0, tl.float32)
    for begin in range(0, DIM, BLOCK_DIM):
        place = begin + tl.arange(0, BLOCK_DIM)
        tile = _vectors(bottom, embedded, row, index, place, FIRST, VECTORS, DIM).to(out.dtype.element_ty)
        dots += tl.dot(tile, tl.trans(tile), input_precision=PRECISION)
        if FIRST:
            copied = tl.load(bottom + row * DIM + place, mask=place < DIM, other=0.0)
            tl.store(out + row * width + place, copied.to(out.dtype.element_ty), mask=place < DIM)
    lower, upper = index[:, None], index[None, :]
    pair = lower * (lower - 1) // 2 + upper
    mask = (upper < lower) & (lower < VECTORS)
    tl.store(out + row * width + FIRST * DIM + pair, dots.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _backward(
    bottom,
    embedded,
    gradient,
    of_bottom,
    of_embedded,
    width,
    FIRST: tl.constexpr,
    VECTORS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One row of the batch a program."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    lower = tl.maximum(index[:, None], index[None, :])
    upper = tl.minimum(index[:, None], index[None, :])
    pair = lower * (lower - 1) // 2 + upper
    mask = (upper < lower) & (lower < VECTORS)
    both = tl.load(gradient + row * width + FIRST * DIM + pair, mask=mask, other=0.0)  # G + Gᵀ
    for begin in range(0, DIM, BLOCK_DIM):
        place = begin + tl.arange(0, BLOCK_DIM)
        tile = _vectors(bottom, embedded, row, index, place, FIRST, VECTORS, DIM).to(both.dtype)
        result = tl.dot(both, tile, input_precision=PRECISION)
        inside = (place < DIM)[None, :]
        of_vectors = ((index >= FIRST) & (index < VECTORS))[:, None] & inside
        start = of_embedded + row * (VECTORS - FIRST) * DIM
        target = start + (index - FIRST)[:, None] * DIM + place[None, :]
        tl.store(target, result.to(of_embedded.dtype.element_ty), mask=of_vectors)
        if FIRST:
            own = (index == 0)[:, None] & inside
            zero = (index * 0)[:, None]
            copied = tl.load(gradient + row * width + place[None, :] + zero, mask=own, other=0.0)
            target = of_bottom + row * DIM + place[None, :] + zero
            tl.store(target, (result + copied.to(tl.float32)).to(of_bottom.dtype.element_ty), mask=own)
