"""Reads row groups through Petastorm.

Petastorm's `Reader` plans the work, and a subclass of Petastorm's worker reads the rows. Petastorm's own
worker calls pyarrow's `take` on every table, even if rows keep their order. This call takes as long as
decoding the table. We do not use Petastorm's `make_batch_reader`. It would open each file once more to check
that the file is plain Parquet. This check is not needed, because every file in a manifest is plain Parquet.
"""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from petastorm.arrow_reader_worker import ArrowReaderWorker, ArrowReaderWorkerResultsQueueReader
from petastorm.errors import NoDataAvailableError
from petastorm.fs_utils import get_filesystem_and_path_or_paths
from petastorm.reader import Reader
from petastorm.workers_pool import EmptyResultError
from petastorm.workers_pool.dummy_pool import DummyPool

from conf.errors import DataError
from training.data.sharding import RowGroup

_POLL_S = 0.0002


class _Results(ArrowReaderWorkerResultsQueueReader):
    """Returns the columns of a row group as a map from their names to their values.

    Petastorm's own class returns a namedtuple, which refuses names such as `release year` or `class`.
    """

    def read_next(self, workers_pool: DummyPool, *_: object) -> dict[str, NDArray[Any]]:
        """Returns the columns of the next row group. Raises StopIteration after the last row group."""
        try:
            columns: dict[str, NDArray[Any]] = workers_pool.get_results()
        except EmptyResultError:
            raise StopIteration from None
        return columns


class _Worker(ArrowReaderWorker):
    """A Petastorm worker that keeps the order of rows. pyarrow decodes the columns of a row group in threads.

    Row groups of one file are read one after the other, and the file is opened once. Petastorm's own worker
    opens the file, and so parses its metadata, for each row group. It also reads the file through a Python
    object, and makes a pandas object of each column.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._path: str | None = None
        self._file: pq.ParquetFile | None = None

    @staticmethod
    def new_results_queue_reader() -> _Results:
        """Returns the object that passes the results of `process` to the reader."""
        return _Results()

    def process(self, piece_index: int, **_: object) -> None:
        """Reads a row group, and publishes its columns as a map from their names to their values."""
        piece = self._split_pieces[piece_index]
        if self._file is None or self._path != piece.path:
            self._path, self._file = piece.path, pq.ParquetFile(piece.path)  # this closes the previous file
        names = sorted(field.name for field in self._schema.fields.values())
        table = self._file.read_row_group(piece.row_group, columns=names)
        columns = zip(table.column_names, table.columns, strict=True)
        self.publish_func({name: _values(column) for name, column in columns})


def _values(column: pa.ChunkedArray) -> NDArray[Any]:
    """Returns the values of a column, without a copy if the column is one array without nulls."""
    if column.num_chunks == 1:
        return np.asarray(column.chunk(0).to_numpy(zero_copy_only=False))
    return np.asarray(column.to_numpy())


class _Pool(DummyPool):
    """Petastorm's pool `dummy`, with a queue that is long enough for all row groups.

    The pool reads row groups in the caller's thread, and a thread of Petastorm fills the queue. If the queue
    were short, each of the two would often wait for the other, for 10 or 100 ms at a time. Reading a small
    row group takes only 2 ms.
    """

    def __init__(self, row_groups: int) -> None:
        super().__init__()
        self.workers_count = row_groups  # Petastorm makes the queue at least this long

    def start(self, worker_class: type, worker_args: Any = None, ventilator: Any = None) -> None:
        """Starts the pool, and waits until the queue contains all row groups."""
        super().start(worker_class, worker_args, ventilator)
        while not ventilator.completed():
            time.sleep(_POLL_S)


class _Reader(Reader):
    """A reader of some row groups of some files, in a given order.

    Petastorm calls `_filter_row_groups` with all row groups of the files. In Petastorm's own class, this
    method returns the positions of a shard's row groups. Here it returns the positions of the row groups to
    read.

    Raises:
        NoDataAvailableError: a file's number of row groups differs from its manifest.
    """

    def __init__(self, groups: Sequence[RowGroup], *arguments: Any, **options: Any) -> None:
        self._groups = groups
        super().__init__(*arguments, **options)

    def _filter_row_groups(self, _: object, pieces: Sequence[Any], *__: object) -> tuple[list[int], None]:
        position = {(piece.path, piece.row_group): number for number, piece in enumerate(pieces)}
        counts = Counter(piece.path for piece in pieces)
        for group in self._groups:
            if counts[group.file.on_disk] != group.count:
                raise NoDataAvailableError(f"{group.file.path} does not have {group.count} row groups")
        return [position[group.file.on_disk, group.index] for group in self._groups], None


def read_together(
    groups: Sequence[RowGroup], names: Sequence[str]
) -> Generator[dict[str, NDArray[Any]], None, None]:
    """Yields the result of `read_row_group` for each row group, in order, but uses one reader for all.

    Starting a reader takes more time than reading a small row group. Yields nothing, or stops early, if a row
    group cannot be read in this way. The caller then reads this row group alone, and the error names the row
    group.
    """
    if not groups:
        return
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"petastorm\.")
    try:
        reader = _open(groups, names, partial(_Reader, groups))
    except (pa.ArrowInvalid, NoDataAvailableError, OSError):
        return
    try:
        yield from reader
    except (pa.ArrowInvalid, OSError):
        return
    finally:
        reader.stop()
        reader.join()


def read_row_group(group: RowGroup, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Reads the columns `names` of a row group. Columns that the file does not have are left out.

    The result maps the name of each column to the column's values, shape (rows,), in the order of the rows.

    Raises:
        DataError: the file is not a Parquet file, or it has fewer row groups than its manifest says.
    """
    # Petastorm uses an interface that pyarrow 14 has deprecated. This filter hides the warnings and is never
    # removed: the code runs in a background thread, where warnings.catch_warnings() is not safe.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"petastorm\.")
    try:
        # Petastorm reads one shard of a file. With `group.count` shards, each shard is one row group, and
        # shard i is row group i. If `group.count` is 1, the reader reads the complete file.
        reader = _open([group], names, partial(Reader, cur_shard=group.index, shard_count=group.count))
    except (pa.ArrowInvalid, NoDataAvailableError) as error:
        raise DataError(
            f"{group.file.path} is not a Parquet file with {group.count} row groups: {error}",
            "run build_features again for the day of this file",
        ) from error
    try:
        tables = list(reader)
    finally:
        # The reader is not used as a context manager, because Reader.__exit__ prints a line to standard
        # output.
        reader.stop()
        reader.join()
    if len(tables) == 1:
        return dict(tables[0])
    names_read = tables[0] if tables else ()
    return {name: np.concatenate([table[name] for table in tables]) for name in names_read}


def _open(groups: Sequence[RowGroup], names: Sequence[str], make: Callable[..., Reader]) -> Reader:
    """Returns a reader of the files of some row groups, which works in this thread.

    It uses Petastorm's worker pool `dummy`. The other pools change the order of row groups, or lose row
    groups if the number of epochs is finite.
    """
    # Petastorm would cut a path at # or ? if it were in the URL.
    files, _ = get_filesystem_and_path_or_paths("file:///")
    return make(
        pyarrow_filesystem=files,
        dataset_path=list(dict.fromkeys(group.file.on_disk for group in groups)),
        # One pattern matches all columns. With a pattern for each column, Petastorm would compare every
        # pattern with every column.
        schema_fields=["|".join(re.escape(name) for name in names)],
        worker_class=_Worker,
        reader_pool=_Pool(len(groups)),
        shuffle_row_groups=False,
        num_epochs=1,
        is_batched_reader=True,
    )
