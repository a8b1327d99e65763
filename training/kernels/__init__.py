"""Triton kernels for embedding lookups, updates of table rows, and DLRM's dot interaction.

On a GPU, torch's own operators for these computations are slow.

Each kernel has a counterpart in torch, which CPUs use. Both give equal results, except for rounding. Triton
is imported when a kernel is first called, because the import takes a second on each rank. With
TRITON_INTERPRET=1, a setting of Triton, kernels also run on CPU tensors, slowly. In this way, tests compare
the kernels with NumPy on machines without a GPU.

Notation: B rows of a batch, C features that are ids, W columns of ids, R rows of the table, E numbers per
row, N lookups.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from training.kernels.tail import Tail

# These values are read once, because torch.compile traces `available`, which must return constants.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_HAS_TRITON = find_spec("triton") is not None

# The largest number of vectors per row whose dot products fit into the registers of a program. Larger
# interactions are computed by torch.
_MAX_VECTORS = 64


def available(device: torch.device) -> bool:
    """Returns whether the kernels run on tensors of this device.

    The kernels run on a GPU, and on a CPU if Triton interprets them.
    """
    return _HAS_TRITON and (device.type == "cuda" or (device.type == "cpu" and INTERPRETED))


def look_up(
    weight: Tensor,
    ids: Tensor,
    first_rows: Tensor,
    list_lengths: Sequence[int],
    mean: bool,
    dtype: torch.dtype = torch.float32,
    *,
    scales: Tensor | None = None,
    out: Tensor | None = None,
    tail: Tail | None = None,
) -> Tensor:
    """Returns the vectors of ids, (B, C, E) in `dtype`, computed by one kernel.

    The vectors of a list's ids are pooled into one vector.

    Args:
        weight: (R, E).
        ids: (B, W) int32 or int64.
        first_rows: (C,) int64, for each feature, the row of `weight` that holds its id 0.
        list_lengths: number of columns of each list feature. List features come last.
        mean: True if the vectors of a list are pooled by their mean, False for their sum.
        dtype: the dtype of the result.
        scales: (R,) float32, a factor for each row of `weight`; None means that all factors are 1.
        out: memory for the result. It is used if it has the result's shape and dtype.
        tail: the rows of the table that are not in `weight`; None if there are none.
    """
    from training.kernels.lookup import FeaturePositions, gather

    features = FeaturePositions.of(first_rows, list_lengths, mean)
    return gather(weight, ids, features, dtype, scales=scales, out=out, tail=tail)


def update(
    weight: Tensor,
    accumulator: Tensor | None,
    rows: Tensor,
    values: Tensor,
    rate: float,
    *,
    sources: Tensor | None = None,
    scales: Tensor | None = None,
    names: Tensor | None = None,
    seed: int,
    step: int,
    epsilon: float = 1e-8,
    tail: Tail | None = None,
    order_by: Tensor | None = None,
) -> None:
    """Updates the looked-up rows in place by row-wise Adagrad, or by SGD if `accumulator` is None.

    The arguments are those of `row_update.update_rows`; `values` is its argument `gradient`.
    """
    from training.kernels.row_update import update_rows

    update_rows(
        weight,
        accumulator,
        rows,
        values,
        rate,
        sources=sources,
        scales=scales,
        names=names,
        epsilon=epsilon,
        seed=seed,
        step=step,
        tail=tail,
        order_by=order_by,
    )


def take(hot: Tensor, tail: Tensor, first_tail: int, rows: Tensor) -> Tensor:
    """Returns rows of a matrix whose rows are on the device and in host memory; see `tiered_rows.take`."""
    from training.kernels import tiered_rows

    return tiered_rows.take(hot, tail, first_tail, rows)


def put(hot: Tensor, tail: Tensor, first_tail: int, rows: Tensor, values: Tensor) -> None:
    """Sets rows of a matrix whose rows are on the device and in host memory; see `tiered_rows.put`."""
    from training.kernels import tiered_rows

    tiered_rows.put(hot, tail, first_tail, rows, values)


def interacts(device: torch.device, num_vectors: int) -> bool:
    """Returns whether `interact` supports this number of vectors per row on this device."""
    return available(device) and num_vectors <= _MAX_VECTORS


def interact(bottom: Tensor | None, embedded: Tensor) -> Tensor:
    """Returns DLRM's dot interaction, padded with columns of zeros; see `interaction.interact`."""
    from training.kernels.interaction import interact

    return interact(bottom, embedded)
