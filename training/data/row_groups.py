"""One row group through Petastorm.

Petastorm's reader plans and counts, a worker of ours reads: Petastorm's own sends every table through `take`, even where
rows keep their order, which costs as much as decoding it, and `make_batch_reader` opens each file once more to find out
that it holds plain Parquet, which our manifest has said.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from petastorm.arrow_reader_worker import ArrowReaderWorker
from petastorm.errors import NoDataAvailableError
from petastorm.fs_utils import get_filesystem_and_path_or_paths
from petastorm.reader import Reader
from petastorm.workers_pool.dummy_pool import DummyPool

from conf.errors import DataError
from training.data.sharding import RowGroup


class _Worker(ArrowReaderWorker):
    """Reads a row group as it stands, its columns decoded by several threads."""

    def _read_with_shuffle_row_drop(
        self, piece: Any, pq_file: pq.ParquetFile, column_names: Collection[str], _: object
    ) -> pa.Table:
        return pq_file.read_row_group(piece.row_group, columns=sorted(column_names))


def read_row_group(group: RowGroup, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The columns of these names that the group's file has: (rows,) each, in the order of the rows.

    Raises:
        DataError: the file is not Parquet, or has fewer row groups than its manifest says.
    """
    # Petastorm works on an interface that pyarrow 14 still has and warns about. The filter stays: this runs in a
    # background thread, and warnings.catch_warnings() is not made for threads.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"petastorm\.")
    try:
        reader = _open(group, names)
    except (pa.ArrowInvalid, NoDataAvailableError) as error:
        raise DataError(
            f"{group.file.path} is no Parquet file of {group.count} row groups: {error}",
            "run build_features again for the day of this file",
        ) from error
    try:
        tables = [table._asdict() for table in reader]
    finally:
        # Reader.__exit__ would print a line to standard output, so it is closed by hand.
        reader.stop()
        reader.join()
    if len(tables) == 1:
        return dict(tables[0])
    held = tables[0] if tables else ()
    return {name: np.concatenate([table[name] for table in tables]) for name in held}


def _open(group: RowGroup, names: Sequence[str]) -> Reader:
    """A reader of one row group of a file, or of all in order where they count as one, in this thread.

    The `dummy` pool is the one that neither reorders row groups nor, with a finite number of epochs, loses any. Shard i of
    as many shards as there are row groups is the row group i.
    """
    # Petastorm takes the path as it stands: no percent-encoding.
    files, paths = get_filesystem_and_path_or_paths([f"file://{group.file.on_disk}"])
    return Reader(
        files,
        paths,
        # One pattern: the time Petastorm takes to match grows with patterns times columns.
        schema_fields=["|".join(re.escape(name) for name in names)],
        worker_class=_Worker,
        reader_pool=DummyPool(),
        shuffle_row_groups=False,
        num_epochs=1,
        cur_shard=group.index,
        shard_count=group.count,
        is_batched_reader=True,
    )
