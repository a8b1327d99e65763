"""Triton kernels for lookups, updates of rows, and the dot interaction, which torch computes slowly on a GPU.

Each kernel has a counterpart in torch, which CPUs use. Their results are equal except for rounding. Triton is
imported at the first call of a kernel, because the import costs each rank a second. With TRITON_INTERPRET=1,
a setting of Triton, kernels also run on CPU tensors, slowly. Tests compare them with NumPy in this way on
machines without a GPU.

Notation: B rows of a batch, C features made of ids, W columns of ids, R rows of the table, E numbers a row, N
lookups.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

# Read once, because torch.compile traces `available` and needs constants.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_HAS_TRITON = find_spec("triton") is not None

# The largest number of vectors a row whose dots fit a program's registers. Torch computes larger
# interactions.
_MAX_VECTORS = 64


def available(device: torch.device) -> bool:
    """Whether the kernels run on tensors of this device: on a GPU, or on a CPU if Triton interprets."""
    return _HAS_TRITON and (device.type == "cuda" or (device.type == "cpu" and INTERPRETED))


def look_up(
    weight: Tensor, ids: Tensor, first_rows: Tensor, list_lengths: Sequence[int], mean: bool
) -> Tensor:
    """Vectors (B, C, E) float32 of ids (B, W), lists pooled; one kernel.

    Args:
        weight: (R, E).
        ids: (B, W) int32 or int64.
        first_rows: (C,) int64, the row of `weight` that holds id 0 of each feature.
        list_lengths: columns of each of the last features, which are lists.
        mean: whether lists are pooled by their mean, else by their sum.
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
    """Row-wise Adagrad, or SGD without an accumulator, on the rows of lookups, in place; see `row_update`."""
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
    """Whether `interact` takes this number of vectors a row on this device."""
    return available(device) and num_vectors <= _MAX_VECTORS


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """DLRM's interaction with its concatenation, (B, E + F (F - 1) / 2); see the module `interaction`."""
    from training.kernels.interaction import interact

    return interact(bottom, embedded)
