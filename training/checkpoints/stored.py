"""Reads a training's state from disk into the tensors of a rank.

The placement of rows on ranks may differ from the placement at the time of saving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from storage import file_io
from training.checkpoints.blocks import StoredBlock, overlap
from training.checkpoints.tensor_file import TensorFile
from training.embeddings.rows import RowBlock, RowTensor, rows_of_block


class StateMismatchError(Exception):
    """Stored tensors belong to another model, or some of their rows are missing. The message has details."""


class _Files:
    """The open files of a folder. Each file is opened when it is first used."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._opened: dict[str, TensorFile] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, name: str) -> TensorFile:
        """Returns the open file with this name."""
        if name not in self._opened:
            self._opened[name] = self._stack.enter_context(TensorFile(f"{self._folder}/{name}"))
        return self._opened[name]


class StoredState:
    """The state of a training run in the files of one folder. The tensors are named as in `Trainer.state()`.

    Args:
        folder: path or URI.
        prefixes: maps the name of each file to the prefix that is added to the names of its tensors.
        rows: maps the name of each tensor with one entry per table row to the stored blocks of these rows.
        cardinalities: number of rows of each feature, in the order in which a table has the features. They
            are needed only to read models that early versions of this code saved. In such a model, each table
            is one tensor, and model.json lists no blocks.
    """

    def __init__(
        self,
        folder: str,
        prefixes: Mapping[str, str],
        rows: Mapping[str, Sequence[StoredBlock]],
        cardinalities: Sequence[int] = (),
    ) -> None:
        self.folder = folder
        self._prefixes = prefixes
        self._rows = rows
        self._cardinalities = cardinalities

    @cached_property
    def _tensors(self) -> dict[str, tuple[list[str], list[int]]]:
        """Returns, for each tensor, the files that contain it, and its shape in the first of these files."""
        tensors: dict[str, tuple[list[str], list[int]]] = {}
        for name, prefix in self._prefixes.items():
            with TensorFile(f"{self.folder}/{name}") as file:
                for tensor in file.header:
                    files, _ = tensors.setdefault(prefix + tensor, ([], file.shape(tensor)))
                    files.append(name)
        return tensors

    @torch.no_grad()
    def load(
        self,
        state: Mapping[str, RowTensor],
        row_state: Mapping[str, Sequence[RowBlock]],
        *,
        unread: tuple[str, ...] = (),
    ) -> None:
        """Fills a rank's tensors in place. Extra memory is needed only for one chunk of a table.

        Args:
            state: the tensors by name.
            row_state: maps the name of each tensor with one entry per table row to the blocks of these rows
                on this rank. Only the rows of these blocks are filled.
            unread: prefixes of names. A stored tensor whose name begins with one of them is skipped if it is
                missing in `state`. Any other stored tensor must be in `state`.

        Raises:
            StateMismatchError: the stored tensors do not fit `state`. If the reason is that rows are missing
                in the files, some tensors may already be filled. In all other cases no tensor has been
                changed.
            DataError: a file is missing or damaged.
        """
        self._require_fit(state, row_state, unread)
        with _Files(self.folder) as files:
            for name, value in state.items():
                if isinstance(value, Tensor) and name not in row_state:
                    (file,) = self._tensors[name][0]
                    value.copy_(files.open(file).read(self._name_in_file(name, file)))
                    continue
                copied = sum(self._copy_rows(files, name, block, value) for block in row_state[name])
                needed = sum(block.rows for block in row_state[name])
                if copied != needed:
                    raise StateMismatchError(
                        f"{self.folder} has only {copied} of the {needed} rows of {name}"
                    )

    def rows_of(self, name: str, cardinalities: Sequence[int]) -> StoredTensorRows:
        """Opens the files of a tensor with one entry per table row, to read single rows.

        Args:
            name: the name of the tensor.
            cardinalities: number of rows of each feature of the table.

        Raises:
            DataError: a file is missing or damaged.
        """
        blocks = self._blocks(name)
        names = {block.file: self._name_in_file(name, block.file) for block in blocks}
        return StoredTensorRows(self.folder, blocks, names, cardinalities)

    def _copy_rows(self, files: _Files, name: str, block: RowBlock, matrix: RowTensor) -> int:
        copied = 0
        for stored in self._blocks(name) if block.rows else ():
            common = overlap(block, stored.block)
            if common is None:
                continue
            first, step = common.target_first, common.target_step
            target = rows_of_block(matrix, block)[first : first + (common.rows - 1) * step + 1 : step]
            files.open(stored.file).read_rows(
                self._name_in_file(name, stored.file),
                stored.block.place + common.source_first,
                common.source_step,
                target,
            )
            copied += common.rows
        return copied

    def _blocks(self, name: str) -> Sequence[StoredBlock]:
        if name in self._rows:
            return self._rows[name]
        (file,) = self._tensors[name][0]
        starts = accumulate(self._cardinalities, initial=0)
        return [
            StoredBlock(file, RowBlock(feature, 0, 1, rows, start))
            for feature, (rows, start) in enumerate(zip(self._cardinalities, starts, strict=False))
        ]

    def _name_in_file(self, name: str, file: str) -> str:
        return name.removeprefix(self._prefixes[file])

    def _require_fit(
        self,
        state: Mapping[str, RowTensor],
        row_state: Mapping[str, Sequence[RowBlock]],
        unread: tuple[str, ...],
    ) -> None:
        empty = {name for name, blocks in row_state.items() if not any(block.rows for block in blocks)}
        missing = sorted(state.keys() - self._tensors.keys() - empty)
        unknown = self._tensors.keys() - state.keys()
        surplus = sorted(name for name in unknown if not name.startswith(unread))
        if missing or surplus:
            raise StateMismatchError(
                f"{self.folder}: missing tensors: {missing or 'none'}; "
                f"unexpected tensors: {surplus or 'none'}"
            )
        for name, value in state.items():
            if name not in self._tensors:
                continue
            stored_shape, shape = self._tensors[name][1], list(value.shape)
            if name in row_state:
                stored_shape, shape = stored_shape[1:], shape[1:]
            if stored_shape != shape:
                subject = f"rows of {name} have" if name in row_state else f"{name} has"
                raise StateMismatchError(
                    f"{subject} shape {tuple(shape)}, but shape {tuple(stored_shape)} in {self.folder}"
                )


# The code below reads single rows of a table from the files of a model, by requests for byte ranges.

# If at most this number of bytes lie between two rows, one request reads both rows and the bytes between
# them. That takes less time than two requests.
_LOCAL_GAP, _REMOTE_GAP = 4 << 10, 256 << 10
_MOST_BYTES = 16 << 20  # largest size of one read
_REQUESTS = 16  # largest number of requests to an object store at the same time


class StoredTensorRows:
    """The rows of one tensor of a model, in the files of its folder.

    Args:
        folder: the model's folder.
        blocks: for each block of the tensor's rows, the block and the name of its file.
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
        rows_read = sum(self._read_block(stored, wanted, values) for stored in self._blocks)
        if rows_read != len(wanted):
            raise DataError(
                f"{self._folder} has only {rows_read} of {len(wanted)} rows of {self._names[first.file]}",
                "train the model again",
            )
        return torch.from_numpy(values).view(dtype)

    def _read_block(self, stored: StoredBlock, wanted: NDArray[np.int64], values: NDArray[np.uint8]) -> int:
        """Reads the wanted rows that are in a block, and returns the number of these rows."""
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
    """Groups rows of a file into runs. A run is read by one request, from its first to its last row.

    Args:
        places: (N,) the indices of the rows in the file, ascending.
        gap: the largest number of bytes between neighbouring rows of a run.
        most_bytes: the largest size of a run. The tensor is divided into sections of this size (rounded down
            to complete rows), and each run lies within one section.
        row_bytes: bytes of a row.
    """
    if not len(places):
        return []
    rows = max(most_bytes // row_bytes, 1)
    divided = (np.diff(places) > 1 + gap // row_bytes) | (np.diff(places // rows) > 0)
    bounds = [0, *(np.flatnonzero(divided) + 1).tolist(), len(places)]
    return [slice(low, high) for low, high in pairwise(bounds)]
