"""Reads a training's state from disk into the tensors of a rank.

The placement of rows on ranks may differ from the placement at the time of saving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from training.checkpoints.blocks import StoredBlock, overlap
from training.checkpoints.stored_rows import StoredRows
from training.checkpoints.tensor_file import TensorFile
from training.embeddings.rows import RowBlock
from training.embeddings.tiered_rows import RowTensor, rows_of_block


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
    """The state of a training in the files of one folder. The tensors are named as in `Trainer.state()`.

    Args:
        folder: path or URI.
        prefixes: maps the name of each file to a prefix. The prefix is added to the names of the tensors in
            this file.
        rows: maps the name of each tensor with one entry per table row to the stored blocks of these rows.
        cardinalities: the cardinalities of the features, in order. Cardinalities are needed only to read
            models that early versions of this code saved. In such a model, each table is one tensor, without
            a list of blocks.
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
        """Maps the name of each tensor to the files that contain it and its shape in the first of them."""
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
            unread: stored tensors may be missing in `state` if their names begin with one of these prefixes.

        Raises:
            StateMismatchError: the stored tensors do not fit `state`. If rows are missing in the files, some
                tensors may already be filled. Otherwise nothing was changed.
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

    def rows_of(self, name: str, cardinalities: Sequence[int]) -> StoredRows:
        """Opens the files of a tensor with one entry per table row, to read single rows.

        Args:
            name: the tensor.
            cardinalities: number of rows of each feature of the table.

        Raises:
            DataError: a file is missing or damaged.
        """
        blocks = self._blocks(name)
        names = {block.file: self._name_in_file(name, block.file) for block in blocks}
        return StoredRows(self.folder, blocks, names, cardinalities)

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
