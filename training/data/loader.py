"""Batches of one rank, read through Petastorm: every row of its shards exactly once an epoch.

A thread reads row groups ahead. The rows of all the rank's shards are written to a pool, shuffled, at their places in the
order of the batches (order.py says which), and a batch is a slice of the pool. The order depends on the plan, the seed and
the epoch alone, so an epoch may begin at any step, without a look at the files before it, and two runs see the same batches.

Memory, with k shards on this rank and b bytes a row (4 for each label, dense feature and id): the row groups that the k
shards stand in; read ahead, `reading.read_ahead_mib` and one row group; pools of `reading.pool_rows` rows (or of 4 batches,
where that is more) over the number of ranks, two being written and read, one or two waiting. With 1,000,000 rows a group, 40 columns
and 16 shards on one rank that is 16 × 160 MB + 1 GiB + 4 × 21 MB.
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
from training.data.pool_writer import Fill, Writer
from training.data.prefetch import Prefetch
from training.data.row_order import Order, Stream
from training.data.sharding import DataFile, RowGroup, ShardPlan, row_groups
from training.data.staging import own_folder, stage

log = logging.getLogger("nightrank.training")

_CPU = torch.device("cpu")
_MIB = 2**20
# Fewer steps a pool than this would leave neighbours of a file in one batch.
_MIN_POOL_STEPS = 4


class Loader:
    """Reads one split for one rank.

    Args:
        files: the split's files in manifest order, the same on every rank; those of an object store are staged (staging.py).
        plan: the logical shards of their row groups.
        shards: the shards this rank owns.
        spec: the columns to read, in the model's order.
        seed: of the order of rows; None keeps the order of the files.
        multi_hot: how many ids of a list count.
        device: where batches are wanted; they are copied ahead to a GPU.
        reading: how large pools are, and how far ahead row groups are read.
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
        self._told_cut: set[str] = set()

    def batches(self, epochs: int = 1, first_step: int = 0) -> Iterator[Batch]:
        """The batches of all epochs, one epoch after the other, without the first `first_step` of them.

        Raises:
            DataError: a file holds other rows or columns than its manifest and the spec say.
        """
        if first_step >= epochs * self.plan.steps:
            return
        epoch, step = divmod(first_step, self.plan.steps)
        window, skipped = divmod(step, self._pool_steps)
        reads = self._reads(self._needed(self._fills(epochs, epoch, window)))
        ahead_bytes = self._reading.read_ahead_mib * _MIB
        with (
            Prefetch(reads, ahead_bytes, lambda columns: columns.size_bytes) as arriving,
            Transfer(self._device) as transfer,
            self._writer(arriving) as writer,
        ):
            for fill in self._fills(epochs, epoch, window):
                pool, ready = transfer.copy(writer.write(fill))
                first = fill.window * self._pool_steps
                for step in range(first + skipped, min(first + self._pool_steps, self.plan.steps)):
                    yield _batch(pool, step - first, self.plan.weight(step), ready)
                skipped = 0
                del pool  # or it would be lent until the next one is written

    def _writer(self, arriving: Iterator[Columns]) -> Writer:
        rows = self.plan.shard_rows * len(self.shards)
        lengths = self.spec.list_lengths(self._multi_hot)
        num_dense, num_ids = len(self.spec.dense), len(self.spec.categorical)
        pools = Pools(
            self._pool_steps, rows, num_dense, num_ids + sum(lengths), pinned=self._device.type == "cuda"
        )
        return Writer(pools, len(self.shards), arriving, torch.get_num_threads())

    def _fills(self, epochs: int, epoch: int, window: int) -> Iterator[Fill]:
        """What the pools hold one after the other, from that window of that epoch on."""
        rows = self._pool_steps * self.plan.shard_rows
        for each in range(epoch, epochs):
            order = Order(self._seed, each)
            streams = [Stream(order.pieces(shard, self.plan.shards[shard])) for shard in self.shards]
            for place in range(window, -(-self.plan.steps // self._pool_steps)):
                found = [stream.runs(place * rows, (place + 1) * rows) for stream in streams]
                yield Fill(order, place, self.shards, found)
            window = 0

    def _needed(self, fills: Iterator[Fill]) -> Iterator[RowGroup]:
        """The row groups that a pool needs and the one before it did not, in the order in which pools need them."""
        held: Collection[int] = ()
        for fill in fills:
            for group in fill.groups:
                if group not in held:
                    yield self._groups[group]
            held = fill.groups

    def _reads(self, groups: Iterator[RowGroup]) -> Iterator[Columns]:
        if all(file_io.is_local(group.file.path) for group in self._groups):
            for group in groups:
                yield self._read(group)
            return
        with (
            own_folder(self._reading.staging_folder) as own,
            Prefetch(
                stage(groups, own), self._reading.staging_mib * _MIB, lambda each: each.size_bytes
            ) as ahead,
        ):
            for staged in ahead:
                columns = self._read(staged.group)
                staged.discard()
                yield columns

    def _read(self, group: RowGroup) -> Columns:
        columns = read_columns(group, self.spec, self._multi_hot)
        for name in columns.cut.keys() - self._told_cut:
            log.warning(
                "%s: %d of the %d lists in %s are longer than model.multi_hot allows, and are cut",
                name,
                columns.cut[name],
                group.rows,
                group.file.path,
            )
            self._told_cut.add(name)
        return columns


def _batch(pool: Pool, place: int, global_weight: int, ready: torch.cuda.Event | None) -> Batch:
    return Batch(
        pool.dense[place],
        pool.categorical[place],
        pool.labels[place],
        pool.weights[place],
        global_weight,
        ready,
    )
