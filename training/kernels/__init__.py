"""Triton kernels for what a GPU does badly one operation at a time: lookups, their update, and the dot interaction.

Each has a plain counterpart in torch, which CPUs use; results are the same but for rounding. Triton is imported when the
first kernel is called, never before: its import costs each rank a second. Under TRITON_INTERPRET=1, Triton's own switch,
the kernels run on CPU tensors too, slowly, which is how tests hold them against NumPy where there is no GPU.

Notation: B rows of a batch, C features made of ids, W columns of ids, R rows of the table, E numbers a row, N lookups.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

# Read once: the compiler, which traces `available`, takes constants as they are.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_FOUND = find_spec("triton") is not None

# Vectors a row whose dots fit a program's registers; beyond it the interaction is left to torch.
_MOST_VECTORS = 64


def available(device: torch.device) -> bool:
    """Whether the kernels run on tensors of this device: on a GPU, and on CPUs where Triton interprets."""
    return _FOUND and (device.type == "cuda" or (device.type == "cpu" and INTERPRETED))


def look_up(
    weight: Tensor, ids: Tensor, first_rows: Tensor, list_lengths: Sequence[int], mean: bool
) -> Tensor:
    """Vectors (B, C, E) float32 of ids (B, W), lists pooled; one kernel.

    Args:
        first_rows: (C,) int64 the row of `weight` that holds each feature's id 0.
        list_lengths: columns of each of the last features, which are lists.
    """
    from training.kernels.lookup import Features, gather

    return gather(weight, ids, Features.of(first_rows, list_lengths, mean), torch.float32)


def update(
    weight: Tensor,
    accumulator: Tensor | None,
    rows: Tensor,
    values: Tensor,
    rate: float,
    *,
    sources: Tensor | None = None,
    scales: Tensor | None = None,
    seed: int,
    step: int,
    epsilon: float = 1e-8,
) -> None:
    """Row-wise Adagrad, or SGD without an accumulator, on the rows that were looked up, in place; see `row_update`."""
    from training.kernels.row_update import update_rows

    update_rows(
        weight,
        accumulator,
        rows,
        values,
        rate,
        sources=sources,
        scales=scales,
        epsilon=epsilon,
        seed=seed,
        step=step,
    )


def interacts(device: torch.device, num_vectors: int) -> bool:
    """Whether `interact` takes so many vectors a row on this device."""
    return available(device) and num_vectors <= _MOST_VECTORS


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """DLRM's interaction with its concatenation, (B, E + F (F - 1) / 2); see `interaction`."""
    from training.kernels.interaction import interact

    return interact(bottom, embedded)
