"""A training's state on disk, read into the tensors of a rank, wherever its rows lie now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from training.checkpoints.blocks import StoredBlock, overlap
from training.checkpoints.tensor_file import TensorFile
from training.embeddings.rows import RowBlock


class Misfit(Exception):
    """The files hold another model's tensors, or not all rows; says what differs."""


class _Files:
    """Files of a folder, opened when they are first needed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._opened: dict[str, TensorFile] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, name: str) -> TensorFile:
        if name not in self._opened:
            self._opened[name] = self._stack.enter_context(TensorFile(f"{self._folder}/{name}"))
        return self._opened[name]


class StoredState:
    """Tensors by their names in `Trainer.state()`, in the files of one folder.

    Args:
        prefixes: file → what goes before the names in it.
        rows: tensor that holds one entry a row → the blocks it lies in.
        cardinalities: of the features, in order: models of earlier versions hold every table whole, without blocks.
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
    def _held(self) -> dict[str, tuple[list[str], list[int]]]:
        """Tensor → the files it lies in, and its shape in the first of them."""
        found: dict[str, tuple[list[str], list[int]]] = {}
        for name, prefix in self._prefixes.items():
            with TensorFile(f"{self.folder}/{name}") as file:
                for tensor in file.header:
                    held, _ = found.setdefault(prefix + tensor, ([], file.shape(tensor)))
                    held.append(name)
        return found

    @torch.no_grad()
    def load(
        self,
        state: Mapping[str, Tensor],
        row_state: Mapping[str, Sequence[RowBlock]],
        *,
        unread: tuple[str, ...] = (),
    ) -> None:
        """Fills a rank's tensors in place: those of `row_state` where its blocks lie, all others wholly.

        No more than a piece of a table is in memory beside them.

        Args:
            unread: what names begin with that may be stored and are not in `state`.

        Raises:
            Misfit: before anything is written, unless rows are missing.
            DataError: a file is missing or damaged.
        """
        self._require_fit(state, row_state, unread)
        with _Files(self.folder) as files:
            for name, value in state.items():
                if name not in row_state:
                    (file,) = self._held[name][0]
                    value.copy_(files.open(file).read(self._inner(name, file)))
                    continue
                copied = sum(self._copy_rows(files, name, block, value) for block in row_state[name])
                wanted = sum(block.rows for block in row_state[name])
                if copied != wanted:
                    raise Misfit(f"{self.folder} holds {copied} of the {wanted} rows of {name}")

    def _copy_rows(self, files: _Files, name: str, block: RowBlock, into: Tensor) -> int:
        copied = 0
        for stored in self._blocks(name) if block.rows else ():
            common = overlap(block, stored.block)
            if common is None:
                continue
            first, step = block.place + common.mine, common.mine_step
            target = into[first : first + (common.rows - 1) * step + 1 : step]
            files.open(stored.file).read_rows(
                self._inner(name, stored.file), stored.block.place + common.theirs, common.theirs_step, target
            )
            copied += common.rows
        return copied

    def _blocks(self, name: str) -> Sequence[StoredBlock]:
        if name in self._rows:
            return self._rows[name]
        (file,) = self._held[name][0]
        starts = accumulate(self._cardinalities, initial=0)
        return [
            StoredBlock(file, RowBlock(feature, 0, 1, rows, start))
            for feature, (rows, start) in enumerate(zip(self._cardinalities, starts, strict=False))
        ]

    def _inner(self, name: str, file: str) -> str:
        return name.removeprefix(self._prefixes[file])

    def _require_fit(
        self,
        state: Mapping[str, Tensor],
        row_state: Mapping[str, Sequence[RowBlock]],
        unread: tuple[str, ...],
    ) -> None:
        empty = {name for name, blocks in row_state.items() if not any(block.rows for block in blocks)}
        missing = sorted(state.keys() - self._held.keys() - empty)
        more = sorted(each for each in self._held.keys() - state.keys() if not each.startswith(unread))
        if missing or more:
            raise Misfit(f"{self.folder} lacks {missing or 'nothing'} and holds {more or 'nothing'} beside")
        for name, value in state.items():
            if name not in self._held:
                continue
            stored, mine = self._held[name][1], list(value.shape)
            if name in row_state:
                stored, mine = stored[1:], mine[1:]
            if stored != mine:
                what = f"rows of {name} have" if name in row_state else f"{name} has"
                raise Misfit(f"{what} shape {tuple(mine)}, in {self.folder} {tuple(stored)}")
