"""Batches of one rank, read through Petastorm: every row of its shards exactly once an epoch.

The order of rows depends on the plan, the seed and the epoch alone, so an epoch may begin at any step and two runs
see the same batches. Files are read one at a time in a single background thread, ahead of the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conf.errors import DataError
from conf.feature_spec import PAD_ID, FeatureSpec
from conf.types import MultiHot
from training.inputs import id_columns
from training.reading.columns import Columns, read_columns
from training.reading.sharding import DataFile, Piece, ShardPlan, piece_order, row_positions

log = logging.getLogger("nightrank.training")

# Rows that are turned from columns into rows at a time: 4096 rows of 40 columns stay within a core's cache.
_CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Batch:
    """One rank's share of a global batch, L rows.

    Attributes:
        dense: (L, D) float32.
        categorical: (L, W) int64, ids as training/inputs.py lays them out.
        labels: (L,) float32, 0 or 1.
        weights: (L,) float32, 1 for a row and 0 for padding.
        global_weight: rows in the global batch, padding not counted; equal on all ranks.
    """

    dense: Tensor
    categorical: Tensor
    labels: Tensor
    weights: Tensor
    global_weight: int

    def to(self, device: torch.device) -> Batch:
        return replace(
            self,
            dense=self.dense.to(device),
            categorical=self.categorical.to(device),
            labels=self.labels.to(device),
            weights=self.weights.to(device),
        )


class Loader:
    """Reads one split for one rank.

    Args:
        files: the split's files in manifest order, the same on every rank.
        plan: the logical shards of these files.
        shards: the shards this rank owns.
        spec: the columns to read, in the model's order.
        seed: of the order of rows; None keeps the order of the files.
        multi_hot: how many ids of a list count.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        plan: ShardPlan,
        shards: Sequence[int],
        spec: FeatureSpec,
        seed: int | None,
        multi_hot: MultiHot | None = None,
    ) -> None:
        self.files = files
        self.plan = plan
        self.shards = shards
        self.spec = spec
        self.seed = seed
        self.multi_hot = multi_hot or MultiHot()
        self.id_columns = id_columns(spec, self.multi_hot)
        self.id_width = self.id_columns[-1][1].stop if self.id_columns else 0
        self._recent: tuple[int, Columns] | None = None
        self._told_cut: set[str] = set()

    def batches(self, epochs: int = 1, first_step: int = 0) -> Iterator[Batch]:
        """The batches of all epochs, one epoch after the other, without the first `first_step` of them.

        Raises:
            DataError: a file holds other rows or columns than its manifest and the spec say.
        """
        if not self.plan.steps:
            return
        first_epoch, first_step = divmod(first_step, self.plan.steps)
        for epoch in range(first_epoch, epochs):
            skipped = first_step if epoch == first_epoch else 0
            cursors = [_Cursor(self, shard, epoch, skipped * self.plan.shard_rows) for shard in self.shards]
            for step in range(skipped, self.plan.steps):
                yield self._assemble(cursors, self.plan.weight(step))

    def _assemble(self, cursors: Sequence[_Cursor], global_weight: int) -> Batch:
        rows = self.plan.shard_rows
        local_rows = rows * len(cursors)
        batch = Batch(
            torch.zeros(local_rows, len(self.spec.dense)),
            torch.full((local_rows, self.id_width), PAD_ID, dtype=torch.int64),
            torch.zeros(local_rows),
            torch.zeros(local_rows),
            global_weight,
        )
        for index, cursor in enumerate(cursors):
            cursor.fill(batch, index * rows, (index + 1) * rows)
        return batch

    def columns(self, file: int) -> Columns:
        """A file's columns; the file read last is at hand, for shards that share it."""
        if self._recent is None or self._recent[0] != file:
            self._recent = None  # lets go of the old columns before the new ones take memory
            self._recent = (file, read_columns(self.files[file], self.spec, self.multi_hot))
            self._tell_cut(self.files[file], self._recent[1].cut)
        return self._recent[1]

    def _tell_cut(self, file: DataFile, cut: Mapping[str, int]) -> None:
        """Warns once a feature that its lists are longer than what the model takes."""
        for name in cut.keys() - self._told_cut:
            log.warning(
                "%s: %d of the %d lists in %s are longer than model.multi_hot allows, and are cut",
                name,
                cut[name],
                file.rows,
                file.path,
            )
            self._told_cut.add(name)


class _Cursor:
    """A place in one shard's rows of one epoch, with the rows of the piece it stands in."""

    def __init__(self, loader: Loader, shard: int, epoch: int, skip_rows: int) -> None:
        self._loader = loader
        self._epoch = epoch
        pieces = list(loader.plan.shards[shard])
        if loader.seed is not None:
            pieces = piece_order(shard, pieces, loader.seed, epoch)
        most = max((piece.rows for piece in pieces), default=0)
        self._dense = np.empty((most, len(loader.spec.dense)), dtype=np.float32)
        self._categorical = np.empty((most, loader.id_width), dtype=np.int32)
        self._labels = np.empty(most, dtype=np.float32)
        self._next = 0
        self._rows = 0
        while pieces and skip_rows >= pieces[0].rows:
            skip_rows -= pieces.pop(0).rows
        self._pieces = iter(pieces)
        if skip_rows:
            self._load(next(self._pieces))
            self._next = skip_rows

    def fill(self, batch: Batch, start: int, stop: int) -> None:
        """Writes this shard's next rows into rows [start, stop) of a batch; leaves what it cannot fill as padding."""
        while start < stop:
            if self._next == self._rows:
                piece = next(self._pieces, None)
                if piece is None:
                    return
                self._load(piece)
            taken = min(stop - start, self._rows - self._next)
            here, there = slice(self._next, self._next + taken), slice(start, start + taken)
            batch.dense[there] = torch.from_numpy(self._dense[here])
            batch.categorical[there] = torch.from_numpy(self._categorical[here])
            batch.labels[there] = torch.from_numpy(self._labels[here])
            batch.weights[there] = 1
            self._next += taken
            start += taken

    def _load(self, piece: Piece) -> None:
        columns = self._loader.columns(piece.file)
        seed = self._loader.seed
        positions = np.arange(piece.rows) if seed is None else row_positions(piece, seed, self._epoch)
        _stack(columns.dense, piece.start, positions, self._dense)
        _stack(columns.categorical, piece.start, positions, self._categorical)
        self._labels[positions] = columns.label[piece.start : piece.stop]
        self._check_ids(piece)
        self._next, self._rows = 0, piece.rows

    def _check_ids(self, piece: Piece) -> None:
        """In the stacked table an id out of range would be a row of another column: nothing else would notice."""
        if not piece.rows:
            return
        ids = self._categorical[: piece.rows]
        lowest, highest = ids.min(axis=0), ids.max(axis=0)
        for feature, columns in self._loader.id_columns:
            low, high = lowest[columns].min(), highest[columns].max()
            if low < 0 or high >= int(feature.cardinality or 0):
                raise DataError(
                    f"{self._loader.files[piece.file].path}: {feature.name} holds ids from {low} to {high}, outside "
                    f"[0, {feature.cardinality})",
                    "run build_features again: features and workflow version do not belong together",
                )


def _stack(
    columns: Sequence[NDArray[np.generic]],
    start: int,
    positions: NDArray[np.int64],
    into: NDArray[np.generic],
) -> None:
    """Writes rows start, start + 1, … of the columns, (rows,) or (rows, several), to the given rows of `into`."""
    if not columns:
        return
    chunk = np.empty((min(_CHUNK_ROWS, len(positions)), into.shape[1]), dtype=into.dtype)
    for first in range(0, len(positions), _CHUNK_ROWS):
        rows = min(_CHUNK_ROWS, len(positions) - first)
        place = 0
        for column in columns:
            taken = column[start + first : start + first + rows]
            width = 1 if taken.ndim == 1 else taken.shape[1]
            chunk[:rows, place : place + width] = taken.reshape(rows, width)
            place += width
        into[positions[first : first + rows]] = chunk[:rows]
