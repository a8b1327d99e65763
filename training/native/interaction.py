"""The compiled interaction of DLRM (interaction.cpp). training/models/interaction.py calls it.

Notation: B rows, C embeddings per row, E numbers per embedding, F vectors per row (C, plus one with a bottom
MLP), P = F (F - 1) / 2 pairs. All tensors are float32 on the CPU.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from training.native.library import BEST, address, required_library

# The number of threads is at most the number of multiplications divided by this number.
_PRODUCTS_OF_A_THREAD = 500_000


class _Batch(ctypes.Structure):
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
    """Returns `bottom` and the dot products of all pairs of vectors, (B, E + P); (B, P) without a bottom MLP.

    Args:
        bottom: (B, E), or (B, 0) if there is no bottom MLP.
        embedded: (B, C, E).
        instructions: the CPU instruction set; BEST selects the best one of this processor.

    Raises:
        MemoryError: memory ran out.
    """
    vectors = embedded.shape[1] + (bottom.shape[1] > 0)
    result = embedded.new_empty(len(embedded), bottom.shape[1] + vectors * (vectors - 1) // 2)
    _run(bottom, embedded, instructions, result=result)
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
    _run(bottom, embedded, instructions, gradient=gradient.contiguous(), **gradients)
    return bottom_gradient, embedded_gradient


def _run(bottom: Tensor, embedded: Tensor, instructions: int, **others: Tensor) -> None:
    bottom, embedded = bottom.contiguous(), embedded.contiguous()
    rows, count, dim = embedded.shape
    first = int(bottom.shape[1] > 0)
    vectors = count + first
    batch = _Batch(
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
