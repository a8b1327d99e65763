"""Reads the batches of one rank through Petastorm: every row of its shards exactly once an epoch.

A thread reads row groups ahead. The rows of the rank's shards are written to a pool in the order of the
batches (row_order.py), and a batch is a slice of the pool. The order depends only on plan, seed and epoch.
An epoch may thus begin at any step without reading the files before it, and two runs see the same batches.

A rank needs memory for the row group that each of its k shards is in, for the row groups read ahead, and for
three or four pools. `reading.read_ahead_mib` and one row group are read ahead. A pool has `reading.pool_rows`
rows, or 4 batches if that is more, divided by the number of ranks. A row takes 4 bytes for each label, dense
feature and id. With 1,000,000 rows a group, 40 columns and 16 shards on one rank that is
16 × 160 MB + 1 GiB + 4 × 21 MB.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence

import torch

from conf.types import MultiHot, Reading
from storage import file_io
from storage.feature_spec import FeatureSpec
from training.data.batch import Batch, Transfer
from training.data.buffer_pool import Pool, Pools
from training.data.columns import Columns, read_columns
from training.data.pool_writer import PoolContents, PoolWriter
from training.data.prefetch import Prefetch
from training.data.row_order import RowOrder, ShardStream
from training.data.sharding import DataFile, RowGroup, ShardPlan, row_groups
from training.data.staging import stage, staging_folder

log = logging.getLogger("nightrank.training")

_CPU = torch.device("cpu")
_MIB = 2**20
# With fewer steps a pool, too many neighbouring rows of a file would be in one batch.
_MIN_POOL_STEPS = 4


class Loader:
    """Reads one split for one rank.

    It has eight parameters because files, order, columns and device vary independently of each other.

    Args:
        files: the split's files in manifest order, the same on every rank; files of an object store are
            staged.
        plan: the logical shards of the files' rows.
        shards: the shards of this rank.
        spec: the columns to read, in the model's order.
        seed: of the order of rows; None keeps the order of the files.
        multi_hot: how many ids of a list are used.
        device: the device of the training; pools are copied ahead to a GPU.
        reading: size of the pools, and how far ahead row groups are read.
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
    ) -> None:
        self.plan = plan
        self.shards = shards
        self.spec = spec
        self._groups = row_groups(files)
        self._seed = seed
        self._multi_hot = multi_hot or MultiHot()
        self._device = device
        self._reading = reading or Reading()
        global_rows = plan.shard_rows * len(plan.shards)
        wanted = max(self._reading.pool_rows // global_rows, _MIN_POOL_STEPS)
        self._pool_steps = max(min(wanted, plan.steps), 1)
        self._warned_cut: set[str] = set()

    def batches(self, epochs: int = 1, first_step: int = 0) -> Iterator[Batch]:
        """The batches of all epochs, one epoch after the other, without the first `first_step` of them.

        Raises:
            DataError: a file holds other rows or columns than its manifest and the spec say.
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
            self._writer(arriving) as writer,
        ):
            for contents in self._pool_contents(epochs, epoch, window):
                pool, ready = transfer.copy(writer.write(contents))
                first = contents.window * self._pool_steps
                for step in range(first + skipped, min(first + self._pool_steps, self.plan.steps)):
                    yield _batch(pool, step - first, self.plan.weight(step), ready)
                skipped = 0
                del pool  # otherwise it could not be reused for the next one

    def _writer(self, arriving: Iterator[Columns]) -> PoolWriter:
        rows = self.plan.shard_rows * len(self.shards)
        lengths = self.spec.list_lengths(self._multi_hot)
        num_dense, num_ids = len(self.spec.dense), len(self.spec.categorical)
        pools = Pools(
            self._pool_steps, rows, num_dense, num_ids + sum(lengths), pinned=self._device.type == "cuda"
        )
        return PoolWriter(pools, len(self.shards), arriving, torch.get_num_threads())

    def _pool_contents(self, epochs: int, first_epoch: int, first_window: int) -> Iterator[PoolContents]:
        """The contents of all pools in order, from a window of an epoch on."""
        rows = self._pool_steps * self.plan.shard_rows
        for epoch in range(first_epoch, epochs):
            order = RowOrder(self._seed, epoch)
            streams = [ShardStream(order.pieces(shard, self.plan.shards[shard])) for shard in self.shards]
            for window in range(first_window, -(-self.plan.steps // self._pool_steps)):
                ranges = [stream.ranges(window * rows, (window + 1) * rows) for stream in streams]
                yield PoolContents(order, window, self.shards, ranges)
            first_window = 0

    def _row_groups_of(self, pools: Iterator[PoolContents]) -> Iterator[RowGroup]:
        """The row groups in the order in which pools need them, each once for consecutive pools."""
        present: Collection[int] = ()
        for contents in pools:
            for group in contents.groups:
                if group not in present:
                    yield self._groups[group]
            present = contents.groups

    def _reads(self, groups: Iterator[RowGroup]) -> Iterator[Columns]:
        if all(file_io.is_local(group.file.path) for group in self._groups):
            for group in groups:
                yield self._read(group)
            return
        with (
            staging_folder(self._reading.staging_folder) as folder,
            Prefetch(
                stage(groups, folder), self._reading.staging_mib * _MIB, lambda staged: staged.size_bytes
            ) as ahead,
        ):
            for staged in ahead:
                columns = self._read(staged.group)
                staged.discard()
                yield columns

    def _read(self, group: RowGroup) -> Columns:
        columns = read_columns(group, self.spec, self._multi_hot)
        for name in columns.cut.keys() - self._warned_cut:
            log.warning(
                "%s: %d of the %d lists in %s are longer than model.multi_hot allows, and are cut",
                name,
                columns.cut[name],
                group.rows,
                group.file.path,
            )
            self._warned_cut.add(name)
        return columns


def _batch(pool: Pool, step: int, global_weight: int, ready: torch.cuda.Event | None) -> Batch:
    return Batch(
        pool.dense[step],
        pool.categorical[step],
        pool.labels[step],
        pool.weights[step],
        global_weight,
        ready,
    )
