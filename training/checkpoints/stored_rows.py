"""Reads single rows of a table from the files of a model, by range reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from storage import file_io
from training.checkpoints.blocks import StoredBlock
from training.checkpoints.tensor_file import TensorFile

# Rows that are closer to each other than this number of bytes are read together: reading the bytes between
# them takes less time than another request.
_LOCAL_GAP, _REMOTE_GAP = 4 << 10, 256 << 10
_MOST_BYTES = 16 << 20  # of one read
_REQUESTS = 16  # at the same time, of an object store


class StoredRows:
    """The rows of one tensor of a model, in the files of its folder.

    Args:
        folder: the model's folder.
        blocks: the blocks of the tensor's rows, and the files that they are in.
        names: the tensor's name in each file.
        cardinalities: number of rows of each feature.

    Raises:
        DataError: a file is missing or damaged.
    """

    def __init__(
        self,
        folder: str,
        blocks: Sequence[StoredBlock],
        names: Mapping[str, str],
        cardinalities: Sequence[int],
    ) -> None:
        # The files stay open as long as this object exists.
        self._files = {name: TensorFile(f"{folder}/{name}") for name in {stored.file for stored in blocks}}
        self._folder, self._blocks, self._names = folder, blocks, names
        self._starts = list(accumulate(cardinalities, initial=0))
        self._gap = _LOCAL_GAP if file_io.is_local(folder) else _REMOTE_GAP
        self._pool = None if file_io.is_local(folder) else ThreadPoolExecutor(_REQUESTS)

    def read(self, rows: Tensor) -> Tensor:
        """Returns the rows (U, E) with the indices `rows` (U,) int64 in the unsharded table.

        The indices are distinct and in ascending order.

        Raises:
            DataError: no file has one of the rows, or a file ends too early.
        """
        wanted = rows.numpy()
        first = self._blocks[0]
        dtype, width = self._files[first.file].row_type(self._names[first.file])
        values = np.empty((len(wanted), width * dtype.itemsize), dtype=np.uint8)
        found = sum(self._read_block(stored, wanted, values) for stored in self._blocks)
        if found != len(wanted):
            raise DataError(
                f"{self._folder} has only {found} of {len(wanted)} rows of {self._names[first.file]}",
                "train the model again",
            )
        return torch.from_numpy(values).view(dtype)

    def _read_block(self, stored: StoredBlock, wanted: NDArray[np.int64], values: NDArray[np.uint8]) -> int:
        """Reads those of the wanted rows that a block has. Returns how many these are."""
        block = stored.block
        start, end = self._starts[block.feature : block.feature + 2]
        low, high = np.searchsorted(wanted, [start, end])
        steps, rest = np.divmod(wanted[low:high] - start - block.first, block.step)
        inside = np.flatnonzero((rest == 0) & (steps >= 0) & (steps < block.rows))
        places, targets = block.place + steps[inside], low + inside
        file, name = self._files[stored.file], self._names[stored.file]

        def read(span: slice) -> None:
            values[targets[span]] = file.read_places(name, places[span])

        spans = spans_of(places, self._gap, _MOST_BYTES, values.shape[1])
        for _ in map(read, spans) if self._pool is None else self._pool.map(read, spans):
            pass
        return len(inside)


def spans_of(places: NDArray[np.int64], gap: int, most_bytes: int, row_bytes: int) -> list[slice]:
    """Divides ascending places of rows into runs that are read together.

    Args:
        places: (N,) places of rows in a file.
        gap: the largest number of bytes between two rows of a run.
        most_bytes: a run is divided where another part of this number of bytes of the file begins.
        row_bytes: bytes of a row.
    """
    if not len(places):
        return []
    rows = max(most_bytes // row_bytes, 1)
    divided = (np.diff(places) > 1 + gap // row_bytes) | (np.diff(places // rows) > 0)
    bounds = [0, *(np.flatnonzero(divided) + 1).tolist(), len(places)]
    return [slice(low, high) for low, high in pairwise(bounds)]
