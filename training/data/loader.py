"""Reads the batches of one rank through Petastorm or from memory: every row of its shards once per epoch.

A thread reads row groups ahead. The rows of the rank's shards are written to a buffer pool in the order of
the batches (sharding.py), and a batch is a slice of the pool. The order depends only on the shard plan, the
seed and the epoch. So an epoch can begin at any step without reading the earlier files, and two runs get the
same batches.

A rank needs memory for one row group of each of its shards, for the row groups that are read ahead, and for
three or four pools. The thread reads up to `reading.read_ahead_mib` MiB and one more row group ahead. The
pools of all ranks, one of each rank, have `reading.pool_rows` rows together, or 4 global batches if that is
more. A row takes 4 bytes for its label, 4 bytes for its weight if it has one, and 4 bytes for each dense
feature and each id. With row groups of 200,000 rows, 40 columns, and 16 shards on one rank, the memory is 16
× 32 MB + 256 MiB + 4 × 21 MB.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray

from conf.types import MultiHot, Reading
from storage import file_io
from storage.feature_spec import FeatureSpec
from training.data.batch import Batch, Pool, Pools, Transfer
from training.data.columns import Columns, read_columns, scalar_columns
from training.data.pool_writer import PoolContents, PoolWriter
from training.data.prefetch import Prefetch
from training.data.row_keys import ROW_KEY_COLUMNS, read_row_keys
from training.data.sharding import DataFile, RowGroup, RowOrder, ShardPlan, ShardStream, row_groups
from training.data.staging import stage, staging_folder

log = logging.getLogger("nightrank.training")

_CPU = torch.device("cpu")
_MIB = 2**20
Read = TypeVar("Read")
# With fewer steps per pool, too many neighbouring rows of a file would be in the same batch.
_MIN_POOL_STEPS = 4
# Up to this many row groups are read by one reader of Petastorm, if none of them has more rows than this.
_GROUPS_TOGETHER, _SMALL_GROUP_ROWS = 64, 100_000


class Loader:
    """Reads one split for one rank.

    The constructor has nine parameters because files, order, columns and device vary independently of each
    other.

    Args:
        files: the split's files in manifest order, the same on every rank. Files of an object store are
            copied to local disk before they are read. Either all of them are in memory, or none is.
        plan: the logical shards of the files' rows.
        shards: the shards of this rank.
        spec: the columns to read, in the model's order.
        seed: seed of the random row order; None keeps the order of the files.
        multi_hot: how many ids of each list are used.
        device: the device of the training. If it is a GPU, pools are copied to it ahead of time.
        reading: settings for the size of the pools and for how far ahead row groups are read.
        with_row_keys: whether batches have `row_keys`.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        plan: ShardPlan,
        shards: Sequence[int],
        spec: FeatureSpec,
        seed: int | None,
        multi_hot: MultiHot | None = None,
        device: torch.device = _CPU,
        reading: Reading | None = None,
        *,
        with_row_keys: bool = False,
    ) -> None:
        self.plan = plan
        self.shards = shards
        self.spec = spec
        self._groups = row_groups(files)
        self._seed = seed
        self._multi_hot = multi_hot or MultiHot()
        self._device = device
        self._reading = reading or Reading()
        self._key_columns = ROW_KEY_COLUMNS if with_row_keys else 0
        self._has_weights = spec.weight is not None
        global_rows = plan.shard_rows * len(plan.shards)
        wanted = max(self._reading.pool_rows // global_rows, _MIN_POOL_STEPS)
        self._pool_steps = max(min(wanted, plan.steps), 1)
        self._warned_cut: set[str] = set()
        if any(file.table is None for file in files):
            import_module("training.data.row_groups")  # Petastorm, before the time of a step is measured

    def batches(self, epochs: int = 1, first_step: int = 0) -> Iterator[Batch]:
        """Yields the batches of all epochs in order, but skips the first `first_step` batches.

        Raises:
            DataError: the rows or columns of a file do not match its manifest or the spec.
        """
        if first_step >= epochs * self.plan.steps:
            return
        epoch, step = divmod(first_step, self.plan.steps)
        window, skipped = divmod(step, self._pool_steps)
        reads = self._reads(self._row_groups_of(self._pool_contents(epochs, epoch, window)))
        ahead_bytes = self._reading.read_ahead_mib * _MIB
        with (
            Prefetch(reads, ahead_bytes, lambda columns: columns.size_bytes) as arriving,
            Transfer(self._device) as transfer,
        ):
            writer = self._writer(arriving)
            for contents in self._pool_contents(epochs, epoch, window):
                pool, ready = transfer.copy(writer.write(contents))
                first = contents.window * self._pool_steps
                weights = self.plan.weights[first : first + self._pool_steps]
                # A pool is reused when its batches are gone, so no variable may refer to a batch.
                batches = deque(_batches(pool, weights, ready))
                del pool
                for _ in range(skipped):
                    batches.popleft()
                while batches:
                    yield self._keyed(batches.popleft(), contents.order.epoch)
                skipped = 0

    def _writer(self, arriving: Iterator[Columns]) -> PoolWriter:
        rows = self.plan.shard_rows * len(self.shards)
        lengths = self.spec.list_lengths(self._multi_hot)
        num_dense, num_ids = len(self.spec.dense) + self._has_weights, len(self.spec.categorical)
        pools = Pools(
            self._pool_steps,
            rows,
            num_dense,
            num_ids + sum(lengths) + self._key_columns,
            pinned=self._device.type == "cuda",
        )
        return PoolWriter(pools, len(self.shards), arriving, torch.get_num_threads())

    def _pool_contents(self, epochs: int, first_epoch: int, first_window: int) -> Iterator[PoolContents]:
        """Yields the contents of all pools in order, from pool `first_window` of epoch `first_epoch` on."""
        rows = self._pool_steps * self.plan.shard_rows
        for epoch in range(first_epoch, epochs):
            order = RowOrder(self._seed, epoch)
            streams = [ShardStream(order.pieces(shard, self.plan.shards[shard])) for shard in self.shards]
            for window in range(first_window, -(-self.plan.steps // self._pool_steps)):
                ranges = [stream.ranges(window * rows, (window + 1) * rows) for stream in streams]
                yield PoolContents(order, window, self.shards, ranges)
            first_window = 0

    def _row_groups_of(self, pools: Iterator[PoolContents]) -> Iterator[RowGroup]:
        """Yields the row groups in the order in which pools need them.

        A row group that consecutive pools need is yielded once.
        """
        present: Collection[int] = ()
        for contents in pools:
            for group in contents.groups:
                if group not in present:
                    yield self._groups[group]
            present = contents.groups

    def _reads(self, groups: Iterator[RowGroup]) -> Iterator[Columns]:
        if all(group.file.table is not None for group in self._groups):
            return (self._read(group) for group in groups)
        if all(file_io.is_local(group.file.path) for group in self._groups):
            return self._read_local(groups)
        return read_groups(groups, self._read, self._reading, local=False)

    def _read_local(self, groups: Iterator[RowGroup]) -> Iterator[Columns]:
        """Yields the columns of row groups on local disk, in order. Small ones are read together."""
        from training.data.row_groups import read_together  # imports Petastorm

        names = list(scalar_columns(self.spec))
        for run in _runs(groups):
            with closing(read_together(run if len(run) > 1 else [], names)) as read:
                for group in run:
                    yield self._read(group, next(read, None))

    def _keyed(self, batch: Batch, epoch: int) -> Batch:
        """Moves keys out of the ids of a batch, and weights out of its dense features, if there are any."""
        if self._has_weights:
            dense, weights = batch.dense[:, :-1].contiguous(), batch.dense[:, -1].contiguous()
            batch = replace(batch, dense=dense, weights=weights, weighted=True)  # padding has the weight 0
        if not self._key_columns:
            return batch
        ids, row_keys = batch.categorical.tensor_split([-self._key_columns], dim=1)
        return replace(batch, categorical=ids, row_keys=row_keys, epoch=epoch)

    def _read(self, group: RowGroup, read: Mapping[str, NDArray[Any]] | None = None) -> Columns:
        columns = read_columns(group, self.spec, self._multi_hot, read)
        for name in columns.cut.keys() - self._warned_cut:
            log.warning(
                "%s: %d of the %d lists in %s are longer than model.multi_hot allows, and are cut",
                name,
                columns.cut[name],
                group.rows,
                group.file.path,
            )
            self._warned_cut.add(name)
        if columns.weight is not None:  # the last dense column of a pool
            columns = replace(columns, dense=[*columns.dense, columns.weight])
        if self._key_columns:
            return replace(columns, categorical=[*columns.categorical, read_row_keys(group)])
        return columns


def _runs(groups: Iterator[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yields lists of consecutive row groups to read together: small ones, or a large one alone."""
    run: list[RowGroup] = []
    for group in groups:
        if run and (group.rows > _SMALL_GROUP_ROWS or len(run) == _GROUPS_TOGETHER):
            yield run
            run = []
        run.append(group)
        if group.rows > _SMALL_GROUP_ROWS:
            yield run
            run = []
    if run:
        yield run


def read_groups(
    groups: Iterator[RowGroup], read: Callable[[RowGroup], Read], reading: Reading, *, local: bool
) -> Iterator[Read]:
    """Yields what `read` returns for each row group, in order.

    Row groups of an object store are copied to local disk before they are read, up to `staging_mib` ahead.

    Args:
        groups: the row groups.
        read: reads a row group that is on local disk.
        reading: names the folder of the copies and their largest size.
        local: whether the files of all row groups are on local disk.
    """
    if local:
        for group in groups:
            yield read(group)
        return
    with (
        staging_folder(reading.staging_folder) as folder,
        Prefetch(
            stage(groups, folder), reading.staging_mib * _MIB, lambda staged: staged.size_bytes
        ) as ahead,
    ):
        for staged in ahead:
            result = read(staged.group)
            staged.discard()
            yield result


def _batches(pool: Pool, weights: Sequence[int], ready: torch.cuda.Event | None) -> Iterator[Batch]:
    """Yields the first batches of a pool: one for each of `weights`, the weights of the global batches."""
    parts = (part.unbind() for part in (pool.dense, pool.categorical, pool.labels, pool.weights))
    for dense, categorical, labels, row_weights, weight in zip(*parts, weights, strict=False):
        yield Batch(dense, categorical, labels, row_weights, weight, ready)
