"""Reads the batches of one rank, with Petastorm or from memory.

An epoch has every row of the rank's shards once. Threads read row groups ahead of the steps. The rows of the
rank's shards are written to a buffer pool in the order of the batches (sharding.py), and a batch is a slice
of the pool. The order depends only on the shard plan, the seed and the epoch. So an epoch can begin at any
step without reading the earlier files, and two runs get the same batches.

Pools are made on the host (pool_writer.py) and copied to the device, or made on the device (device_pools.py).
The rows are the same in both cases.

A rank needs memory for one row group of each of its shards, for the row groups that are read ahead, and for
three or four pools. The row groups that are read ahead have up to `reading.read_ahead_mib` MiB. They include
at least one row group of each shard, because a pool may need a new row group of each shard. In addition, each
of the `reading.threads` threads holds one row group. Each rank fills its own pools. The size of a pool, added
up over all ranks, is `reading.pool_rows` rows, or the rows of 4 global batches if that is more. A row takes 4
bytes for its label, 4 bytes for its weight if it has one, and 4 bytes for each dense feature and each id.
Example: one rank has 16 shards and row groups of 200,000 rows and 40 columns. Then the current row group of
each shard takes 32 MB, so all of them take 16 × 32 MB. The row groups that are read ahead take another 16 ×
32 MB, and the pools take 4 × 21 MB. If pools are made on the device, the current row groups and the pools are
in its memory.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeVar

import torch
from numpy.typing import NDArray

from conf.errors import ConfigError, DataError
from conf.types import MultiHot, Reading
from storage import file_io
from storage.feature_spec import FeatureSpec
from storage.read_parquet import require_all_intact
from training.data.batch import Batch, Pool, Pools, Transfer
from training.data.columns import Columns, has_petastorm, read_columns, scalar_columns
from training.data.device_pools import DevicePoolWriter, GroupColumns
from training.data.pool_writer import PoolContents, PoolWriter
from training.data.prefetch import Prefetch, in_threads
from training.data.row_keys import ROW_KEY_COLUMNS, order_by_user, read_row_keys
from training.data.sharding import DataFile, RowGroup, RowOrder, ShardPlan, ShardStream, row_groups
from training.data.staging import Staged, stage, staging_folder

log = logging.getLogger("nightrank.training")

_CPU = torch.device("cpu")
_MIB = 2**20
Read = TypeVar("Read")


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


SizedRead = TypeVar("SizedRead", bound=_Sized)
_READ_AHEAD_MIB, _GPU_THREADS = 256, 4
# At most this number of buffer pools exist at a time. Some are being written, some wait, and the training
# steps use the batches of one.
_POOLS = 5
# Minimum number of steps per pool. With fewer, a batch would have too many neighbouring rows of a file.
_MIN_POOL_STEPS = 4
# One reader of Petastorm reads up to _GROUPS_TOGETHER row groups, if none of them has more than
# _SMALL_GROUP_ROWS rows.
_GROUPS_TOGETHER, _SMALL_GROUP_ROWS = 64, 100_000


class Loader:
    """Reads one split for one rank.

    The constructor has eleven parameters, because callers choose files, order, columns and device
    independently.

    Args:
        files: the split's files in manifest order, the same on every rank. Files of an object store are
            copied to local disk before they are read. Either all files are in memory, or none.
        plan: the logical shards of the files' rows.
        shards: the shards of this rank.
        spec: the columns to read, in the model's order.
        seed: seed of the random row order; None keeps the order of the files.
        multi_hot: the number of ids of each list that are used.
        device: the device of the training. If it is a GPU, pools are copied to it ahead of time.
        reading: settings for the size of the pools, for where they are made, and for how far ahead row groups
            are read.
        with_row_keys: whether batches have `row_keys`.
        kernel: whether Triton's kernels run on the device, so that one of them can make pools there.
        by_user: whether rows of a user stay next to each other (`train.shuffle=users`).

    Raises:
        ConfigError: `reading` requires pools on the device, but they need more memory than `reading` allows.
        DataError: a file differs from its manifest.
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
        kernel: bool = False,
        by_user: bool = False,
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
        self._kernel = kernel
        self.by_user = by_user
        self._on_device = self._makes_pools_on_device()
        self._require_intact_files()
        if any(file.table is None for file in files) and has_petastorm():
            # This imports Petastorm here, so that the time of the import is not part of a step.
            import_module("training.data.row_groups")

    def _require_intact_files(self) -> None:
        """Checks this rank's share of the files against their manifests.

        A rank checks the files whose first row belongs to it. So exactly one rank reads each file completely,
        before the first step. A file with one row group on an object store is not checked here: each rank
        that reads such a file checks its copy on local disk (staging.py).
        """
        first = {piece.group for shard in self.shards for piece in self.plan.shards[shard] if not piece.start}
        groups = (self._groups[index] for index in sorted(first))
        require_all_intact(
            group.file.path
            for group in groups
            if group.index == 0
            and group.file.table is None
            and (group.count > 1 or file_io.is_local(group.file.path))
        )

    def batches(self, epochs: int = 1, first_step: int = 0) -> Iterator[Batch]:
        """Yields the batches of all epochs in order, but skips the first `first_step` batches.

        Raises:
            DataError: the rows or columns of a file do not match its manifest or the spec.
        """
        if first_step >= epochs * self.plan.steps:
            return
        epoch, step = divmod(first_step, self.plan.steps)
        window, skipped = divmod(step, self._pool_steps)
        with closing(self._pools_of(epochs, epoch, window)) as pools:
            for contents, pool, ready in pools:
                first = contents.window * self._pool_steps
                weights = self.plan.weights[first : first + self._pool_steps]
                # A pool is reused when nothing refers to its batches. So this generator must not keep a
                # reference to a batch that it has yielded.
                batches = deque(_batches(pool, weights, ready))
                del pool
                for _ in range(skipped):
                    batches.popleft()
                while batches:
                    yield self._keyed(batches.popleft(), contents.order.epoch)
                skipped = 0

    def _pools_of(
        self, epochs: int, epoch: int, window: int
    ) -> Generator[tuple[PoolContents, Pool, torch.cuda.Event | None], None, None]:
        """Yields each pool in order, with its contents and an event that marks its arrival on the device."""
        groups = self._row_groups_of(self._pool_contents(epochs, epoch, window))
        if self._on_device:
            pinned = self._device.type == "cuda"
            with closing(self._reads(groups, lambda read: GroupColumns.of(read, pinned=pinned))) as matrices:
                on_device = self._device_writer(matrices)
                for contents in self._pool_contents(epochs, epoch, window):
                    yield contents, *on_device.write(contents)
            return
        with closing(self._reads(groups, lambda read: read)) as columns, Transfer(self._device) as transfer:
            writer = self._writer(columns)
            for contents in self._pool_contents(epochs, epoch, window):
                yield contents, *transfer.copy(writer.write(contents))

    def _makes_pools_on_device(self) -> bool:
        reading = self._reading
        if reading.pools == "host" or (reading.pools == "auto" and self._device.type != "cuda"):
            return False
        needed = -(-self._device_bytes // _MIB)
        if needed <= reading.device_mib:
            return True
        message = (
            f"pools on the device need {needed} MiB, but train.reading.device_mib is {reading.device_mib}"
        )
        if reading.pools == "device":
            raise ConfigError(
                message, f"pass --set train.reading.device_mib={needed}, or --set train.reading.pools=auto"
            )
        log.info("%s, so they are made on the host", message)
        return False

    @property
    def _device_bytes(self) -> int:
        """An upper bound of the device memory, in bytes, for the pools and their row groups.

        In one pool, a shard has complete row groups, plus a part of a row group at each end.
        """
        largest = max((group.rows for group in self._groups), default=0)
        num_dense, id_width = self._widths
        rows = len(self.shards) * (2 * largest + self._pool_steps * self.plan.shard_rows)
        rows = min(rows, sum(group.rows for group in self._groups))
        pool_rows = self._pool_steps * self.plan.shard_rows * len(self.shards)
        return 4 * (rows * (1 + num_dense + id_width) + _POOLS * pool_rows * (2 + num_dense + id_width))

    @property
    def _widths(self) -> tuple[int, int]:
        """The number of dense columns in a pool, and the number of columns of ids."""
        num_ids = len(self.spec.categorical) + sum(self.spec.list_lengths(self._multi_hot))
        return len(self.spec.dense) + self._has_weights, num_ids + self._key_columns

    def _writer(self, arriving: Iterator[Columns]) -> PoolWriter:
        rows = self.plan.shard_rows * len(self.shards)
        pools = Pools(self._pool_steps, rows, *self._widths, pinned=self._device.type == "cuda")
        return PoolWriter(pools, len(self.shards), arriving, torch.get_num_threads())

    def _device_writer(self, arriving: Iterator[GroupColumns]) -> DevicePoolWriter:
        lengths = [1] * len(self.spec.categorical) + self.spec.list_lengths(self._multi_hot)
        cardinalities = [
            int(feature.cardinality or 0)
            for feature, length in zip(self.spec.embedded, lengths, strict=True)
            for _ in range(length)
        ]
        num_dense, id_width = self._widths
        return DevicePoolWriter(
            *(self._pool_steps, self.plan.shard_rows * len(self.shards), num_dense, cardinalities, id_width),
            *(len(self.shards), arriving, self._device),
            kernel=self._kernel,
            refuse=self._refuse_ids,
        )

    def _refuse_ids(self, index: int) -> None:
        """Checks the ids of a row group again on the host, so that the error names the file and the ids."""
        group = self._groups[index]
        local = group.file.table is not None or file_io.is_local(group.file.path)
        checked = partial(self._read, checked=True)
        list(read_groups(iter([group]), checked, self._reading, local=local))
        raise DataError(
            f"{group.file.path} had an id that is not below the cardinality of its feature, but a second "
            "read of the file found none: the file was replaced in between",
            "run build_features again for the day of this file",
        )

    def _pool_contents(self, epochs: int, first_epoch: int, first_window: int) -> Iterator[PoolContents]:
        """Yields the contents of all pools in order, from pool `first_window` of epoch `first_epoch` on."""
        rows = self._pool_steps * self.plan.shard_rows
        for epoch in range(first_epoch, epochs):
            order = RowOrder(self._seed, epoch, self.by_user)
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

    def _reads(
        self, groups: Iterator[RowGroup], convert: Callable[[Columns], SizedRead]
    ) -> Generator[SizedRead, None, None]:
        """Yields the result of `convert` for the columns of each row group, in the order of the row groups.

        Threads read row groups ahead.
        """
        threads = self._reading.threads or (_GPU_THREADS if self._device.type == "cuda" else 1)

        def in_turn(
            work: Callable[[Iterator[Read]], Iterator[Columns]], items: Iterator[Read]
        ) -> Generator[SizedRead, None, None]:
            def converted(items: Iterator[Read]) -> Iterator[SizedRead]:
                read = work(items)
                try:
                    yield from map(convert, read)
                finally:
                    if isinstance(read, Generator):
                        read.close()  # this runs in the thread that reads the row groups

            return in_threads(items, converted, threads, self._ahead_bytes, lambda read: read.size_bytes)

        if all(group.file.table is not None for group in self._groups):
            yield from in_turn(lambda items: map(self._read, items), groups)
        elif all(file_io.is_local(group.file.path) for group in self._groups):
            yield from in_turn(self._read_local, groups)
        else:
            with _staged_ahead(groups, self._reading) as staged:
                yield from in_turn(lambda items: _read_staged(items, self._read), staged)

    @property
    def _ahead_bytes(self) -> int:
        if self._reading.read_ahead_mib is not None:
            return self._reading.read_ahead_mib * _MIB
        if self._device.type != "cuda":
            return _READ_AHEAD_MIB * _MIB
        largest = max((group.rows for group in self._groups), default=0)
        return max(_READ_AHEAD_MIB * _MIB, 4 * (1 + sum(self._widths)) * largest * len(self.shards))

    def _read_local(self, groups: Iterator[RowGroup]) -> Iterator[Columns]:
        """Yields the columns of row groups on local disk, in their order.

        With Petastorm, some row groups are read together.
        """
        if not has_petastorm():
            yield from map(self._read, groups)
            return
        from training.data.row_groups import read_together  # this import also imports Petastorm

        names = list(scalar_columns(self.spec))
        for run in _runs(groups):
            with closing(read_together(run if len(run) > 1 else [], names)) as read:
                for group in run:
                    yield self._read(group, next(read, None))

    def _keyed(self, batch: Batch, epoch: int) -> Batch:
        """Moves the columns with row keys and weights, if there are any, out of a batch's features."""
        if self._has_weights:
            batch = _separate_weights(batch, self._device)
        if not self._key_columns:
            return batch
        ids, row_keys = batch.categorical.tensor_split([-self._key_columns], dim=1)
        return replace(batch, categorical=ids, row_keys=row_keys, epoch=epoch)

    def _read(
        self, group: RowGroup, read: Mapping[str, NDArray[Any]] | None = None, *, checked: bool = False
    ) -> Columns:
        checked = checked or not self._on_device  # the device itself checks the ids of its pools
        columns = read_columns(group, self.spec, self._multi_hot, read, check_ids=checked)
        for name in columns.cut.keys() - self._warned_cut:
            log.warning(
                "%s: %d of the %d lists in %s are longer than model.multi_hot allows, and are cut",
                name,
                columns.cut[name],
                group.rows,
                group.file.path,
            )
            self._warned_cut.add(name)
        if columns.weight is not None:  # a pool stores the weights as its last dense column
            columns = replace(columns, dense=[*columns.dense, columns.weight])
        if self._key_columns:
            columns = replace(columns, categorical=[*columns.categorical, read_row_keys(group)])
        return columns.in_order(order_by_user(group)) if self.by_user else columns


def _separate_weights(batch: Batch, device: torch.device) -> Batch:
    """Moves the last dense column of a batch to its weights. The weight of padding is 0."""
    written = batch.to(device)  # on a GPU, `to` makes the current stream wait until the pool is written
    dense, weights = written.dense[:, :-1].contiguous(), written.dense[:, -1].contiguous()
    ready = None
    if batch.ready is not None:
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(device))
    return replace(written, dense=dense, weights=weights, weighted=True, ready=ready)


def _runs(groups: Iterator[RowGroup]) -> Iterator[list[RowGroup]]:
    """Yields lists of consecutive row groups to read together: several small groups, or one large group."""
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
    """Yields the result of `read` for each row group, in the order of `groups`.

    Row groups of an object store are first copied to local disk. At most `staging_mib` MiB of copies wait to
    be read.

    Args:
        groups: the row groups.
        read: reads a row group that is on local disk.
        reading: the settings, with the folder of the copies and the largest total size of the copies that
            wait.
        local: whether the files of all row groups are on local disk.
    """
    if local:
        yield from map(read, groups)
        return
    with _staged_ahead(groups, reading) as ahead:
        yield from _read_staged(ahead, read)


@contextmanager
def _staged_ahead(groups: Iterator[RowGroup], reading: Reading) -> Iterator[Iterator[Staged]]:
    """Copies row groups to local disk ahead of the consumer, who deletes each copy after reading it."""
    with (
        staging_folder(reading.staging_folder) as folder,
        Prefetch(
            stage(groups, folder), reading.staging_mib * _MIB, lambda staged: staged.size_bytes
        ) as ahead,
    ):
        yield ahead


def _read_staged(ahead: Iterator[Staged], read: Callable[[RowGroup], Read]) -> Iterator[Read]:
    for staged in ahead:
        result = read(staged.group)
        staged.discard()
        yield result


def _batches(pool: Pool, weights: Sequence[int], ready: torch.cuda.Event | None) -> Iterator[Batch]:
    """Yields a batch of the pool for each of `weights`; the weight becomes the batch's `global_weight`."""
    parts = (part.unbind() for part in (pool.dense, pool.categorical, pool.labels, pool.weights))
    for dense, categorical, labels, row_weights, weight in zip(*parts, weights, strict=False):
        yield Batch(dense, categorical, labels, row_weights, weight, ready)
