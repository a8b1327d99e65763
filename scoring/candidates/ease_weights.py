"""Computes the weights of EASE in closed form (H. Steck, Embarrassingly Shallow Autoencoders, WWW 2019).

X is the matrix of clicks with one row per user and one column per item: 1 if the user clicked the item, else
0. EASE finds the matrix B with zeros on its diagonal that minimizes ||X - X B||² + λ ||B||². With the Gram
matrix G = XᵀX and P = (G + λ I)⁻¹, the solution is (equation 8)

    B_ij = -P_ij / P_jj for i ≠ j,    B_jj = 0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError, InfrastructureError
from scoring.requests import ITEM_INDEX, VECTOR, DeviceKind
from training.device import choose_device

WEIGHTS = pa.schema([(ITEM_INDEX, pa.int32()), (VECTOR, pa.list_(pa.float32()))])

# The sum of the absolute weights of an item is at most this number of units. float32 represents all integers
# up to 2²⁴ exactly.
_MOST_UNITS_BITS = 23
# Part of the message of the RuntimeError that torch raises when the CPU's memory runs out.
_CPU_OUT_OF_MEMORY = "can't allocate memory"
_BLOCK_ROWS = 256
_BATCH_ELEMENTS = 1 << 22  # 16 MiB of weights


def gram_matrix(pairs: Iterable[pa.RecordBatch], items: NDArray[np.int32]) -> Tensor:
    """Returns the Gram matrix G (M, M), float64 on the CPU.

    Args:
        pairs: batches with the columns item_index, other and users: the number of users who clicked both
            items. Each unordered pair of items occurs at most once; an item also forms a pair with itself.
        items: (M,) the item indices, ascending.
    """
    gram = torch.zeros((len(items), len(items)), dtype=torch.float64)
    cells = gram.numpy()
    for batch in pairs:
        row, column, users = (batch.column(index).to_numpy() for index in range(3))
        row, column = np.searchsorted(items, row), np.searchsorted(items, column)
        cells[row, column] = users
        cells[column, row] = users
    return gram


def ease_weights(gram: Tensor, l2: float) -> Tensor:
    """Returns the weights B (M, M), float32, on the device of the Gram matrix.

    The weights are rounded to multiples of a power of two. The power is large enough that a float32 can
    represent every sum of weights exactly. So scores are exact in any order of addition.

    Args:
        gram: (M, M) float64. The function overwrites it.
        l2: λ, greater than 0.

    Raises:
        DataError: λ is too small, so that G + λ I is not invertible in float64.
    """
    gram.diagonal().add_(l2)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed.item():
        raise DataError(
            f"source ease: with l2={l2:g}, the Gram matrix of {len(gram)} items cannot be inverted",
            "raise `l2` of the source `ease`",
        )
    weights = torch.cholesky_inverse(factor, out=gram)  # P
    del factor
    weights /= -weights.diagonal().clone()  # divides column j by -P_jj
    weights.fill_diagonal_(0.0)
    # The sums are computed in blocks, because `weights.abs()` of the complete matrix would double the memory.
    sums = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
    for block in weights.split(_BLOCK_ROWS):
        sums += block.abs().sum(dim=0)
    largest = float(sums.max())
    unit = 2.0 ** (math.ceil(math.log2(largest)) - _MOST_UNITS_BITS) if largest > 0 else 1.0
    return weights.div_(unit).round_().mul_(unit).float()


def weight_batches(
    pairs: Iterable[pa.RecordBatch],
    items: NDArray[np.int32],
    l2: float,
    device: DeviceKind,
    gpu: int | None,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the weights B, with the schema WEIGHTS.

    Args:
        pairs, items: as in `gram_matrix`.
        l2: λ, greater than 0.
        device: the device for the inverse.
        gpu: index of the GPU that Spark assigned to the task; None for the first GPU.
        threads: number of CPU threads that torch may use.

    Raises:
        ConfigError: the requested device does not exist.
        DataError: λ is too small.
        InfrastructureError: there is too little memory.
    """
    torch.set_num_threads(threads)
    target = choose_device(device, gpu, "score.device")
    try:
        weights = ease_weights(gram_matrix(pairs, items).to(target), l2).cpu().numpy()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or _CPU_OUT_OF_MEMORY in str(error):
            raise _too_large(len(items)) from error
        raise
    step = max(1, _BATCH_ELEMENTS // max(len(items), 1))
    for first in range(0, len(items), step):
        rows = weights[first : first + step]
        offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1])
        vectors = pa.ListArray.from_arrays(offsets, pa.array(rows.ravel()))
        columns = [pa.array(items[first : first + step]), vectors]
        yield pa.RecordBatch.from_arrays(columns, schema=WEIGHTS)


def _too_large(items: int) -> InfrastructureError:
    """Returns the error for a matrix that does not fit into the memory of the worker."""
    return InfrastructureError(
        f"source ease: the weights of {items} items need {16 * items**2 / 2**30:.1f} GiB of memory in one "
        "worker, which has less",
        "give the workers more memory, or use fewer items: set `candidates.active_days`, or `window_days` of "
        "the source `ease`",
    )
