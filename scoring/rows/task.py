"""One task of score_rows: scores its rows, and writes Parquet files of the table `scores`.

On a GPU, other threads meanwhile read later rows and write earlier rows.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from conf.errors import DataError, InfrastructureError
from scoring.model.launch_ahead import ResultCopy, host_tensor, launch_ahead, to_device
from scoring.model.predictor import Predictor
from scoring.requests import FEATURES_DT
from scoring.rows.file_splits import RowGroupRange
from scoring.rows.score_batch import SCORES, constant_dates, read_piece, score_pieces
from storage.feature_spec import ROW_ID, pad_lists
from storage.file_digests import new_file
from storage.publish import with_footer
from training.data.prefetch import in_threads
from training.data.sharding import BLOCK_ROWS
from training.device import side_stream
from training.models.inputs import id_columns

_MOST_READERS, _MOST_WRITERS = 8, 4


def write_scores(
    predictor: Predictor, pieces: Sequence[RowGroupRange], folder: str, cores: int, file_rows: int
) -> list[str]:
    """Scores the rows of a task, writes the scores to new files, and returns the files' names in row order.

    The files are not published. Each call writes new files. So a task that Spark repeats or runs twice does
    not overwrite a file. Each file has one row group. On a CPU there is one file. On a GPU, threads write the
    files while later rows are scored. There, a file has at most `file_rows` rows, except if a single row
    group of the features has more. Without rows, there is one empty file.

    Args:
        predictor: the loaded model.
        pieces: the rows to score. A piece is a range of rows of one row group.
        folder: the folder of a partition of the table `scores`.
        cores: number of CPU cores of the task. With a GPU, half of the cores read (at most 8), and a quarter
            write (at most 4).
        file_rows: maximum number of rows of a file of a task on a GPU.

    Raises:
        DataError: see `score_pieces`.
        InfrastructureError: a file could not be written.
    """
    if predictor.device.type == "cpu":
        return [write_file(pa.Table.from_batches(score_pieces(predictor, pieces, cores), SCORES), folder)]
    readers, writers = (max(min(cores // 2, _MOST_READERS), 1), max(min(cores // 4, _MOST_WRITERS), 1))
    with closing(scored_blocks(predictor, pieces, readers, file_rows)) as blocks:
        return _write_in_threads(_tables(blocks, file_rows), folder, writers)


def _tables(blocks: Iterator[pa.Table], most_rows: int) -> Iterator[pa.Table]:
    """Concatenates consecutive blocks into tables of at most `most_rows` rows. A larger block is one table.

    Without blocks, yields an empty table.
    """
    parts: list[pa.Table] = []
    for block in blocks:
        if parts and sum(map(len, parts)) + len(block) > most_rows:
            yield pa.concat_tables(parts)
            parts = []
        parts.append(block)
    yield pa.concat_tables(parts) if parts else SCORES.empty_table()


def _write_in_threads(tables: Iterator[pa.Table], folder: str, threads: int) -> list[str]:
    """Writes each table to a file. At most `threads` + 2 tables are in memory at a time."""
    names: list[str] = []
    waiting: deque[Future[str]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for table in tables:
                waiting.append(pool.submit(write_file, table, folder))
                if len(waiting) > threads:
                    names.append(waiting.popleft().result())
            names += [written.result() for written in waiting]
        finally:
            for written in waiting:
                written.cancel()
    return names


def write_file(scores: pa.Table, folder: str) -> str:
    """Writes rows with the columns SCORES to a new file with one row group, and returns its name.

    Raises:
        InfrastructureError: the file could not be written.
    """
    name = f"part-{uuid.uuid4().hex[:16]}.parquet"
    path = f"{folder}/{name}"
    try:
        with new_file(path) as file:
            # Probabilities rarely repeat, so a dictionary would only take time. Row ids are consecutive, so
            # delta encoding saves space and time. Without Arrow's schema, readers get the dates as strings.
            pq.write_table(
                scores.unify_dictionaries(),
                file.sink,
                compression="zstd",
                use_dictionary=[FEATURES_DT],
                column_encoding={ROW_ID: "DELTA_BINARY_PACKED"},
                store_schema=False,
                row_group_size=max(len(scores), 1),
            )
    except OSError as error:
        raise InfrastructureError(
            f"{path} could not be written: {error}", "check disk space and permissions, then rerun"
        ) from error
    return with_footer(file.name).rsplit("/", 1)[1]


# The code below scores the rows of a task on a GPU, while other threads read later rows and write earlier
# rows.
#
#     threads    read and decode row groups, and copy their columns to pinned memory
#     a stream   copies the columns to the GPU, transposes them and checks their ids
#     a stream   runs the model, and copies the probabilities to pinned memory
#     threads    write files
#
# Only one process uses the GPU. The thread that takes the results starts the work on the GPU. Before it waits
# for a block, it starts the work for the next two blocks. A block is one row group, or several small ones. If
# an id or a probability is wrong, the block is read and scored again by `score_pieces`, which raises the
# error.
#
# Notation: a block has R rows and C = D + W columns: D dense features, and W columns of ids.

Block = tuple[RowGroupRange, ...]

# Maximum number of bytes of a block's columns. Only a block of a single row group may have more. Scoring a
# block must take longer than a millisecond, the time that the host needs to start the work.
_BLOCK_BYTES = 64 * 2**20
# Number of blocks that the GPU has yet to finish while the host reads the probabilities of an earlier block.
_AHEAD = 2


def scored_blocks(
    predictor: Predictor, pieces: Sequence[RowGroupRange], readers: int, most_rows: int
) -> Generator[pa.Table, None, None]:
    """Yields the scores of each block as a table with the columns SCORES, in the order of the rows.

    Memory contains the columns of up to 2 · `readers` + 3 blocks, 4 bytes for each number. The device's
    memory contains the columns and the inputs of up to 3 blocks. The size of a model's activations depends on
    its micro-batch.

    Args:
        predictor: the loaded model.
        pieces: the rows to score. A piece is a range of rows of one row group.
        readers: number of threads that read row groups.
        most_rows: maximum number of rows of a block. A block of a single row group may have more.

    Raises:
        DataError, InfrastructureError: see `score_pieces`.
    """
    rows = _DeviceRows(predictor)
    blocks = _blocks(pieces, min(most_rows, rows.block_rows))
    with closing(in_threads(blocks, partial(map, rows.read), readers, readers)) as reads:
        yield from launch_ahead(reads, rows.launch, rows.finish, _AHEAD)


def _blocks(pieces: Sequence[RowGroupRange], most_rows: int) -> Iterator[Block]:
    """Combines consecutive ranges of rows into blocks: one range, or some with at most `most_rows` rows."""
    block: Block = ()
    for piece in pieces:
        if block and sum(part.rows for part in block) + piece.rows > most_rows:
            yield block
            block = ()
        block = (*block, piece)
    if block:
        yield block


@dataclass(frozen=True)
class _ReadBlock:
    """The rows of a block on the host.

    Attributes:
        block: the rows.
        row_ids: the column row_id, in parts.
        columns: (C, R) int32, the bits of the dense features, then the ids. For a GPU, the memory is pinned,
            and torch reuses it after the copies from it have ended.
    """

    block: Block
    row_ids: list[pa.Array]
    columns: Tensor


@dataclass(frozen=True)
class _Refused:
    """A block that could not be read.

    Attributes:
        block: the rows.
        error: the reason.
    """

    block: Block
    error: DataError


@dataclass(frozen=True)
class _Launched:
    """A block that the device works on.

    Attributes:
        block, row_ids: as in _ReadBlock.
        scored: (R + 2,) float32: the probabilities, followed by two flags: whether an id is outside its
            cardinality, and whether a probability is NaN.
    """

    block: Block
    row_ids: list[pa.Array]
    scored: ResultCopy


class _DeviceRows:
    """Reads blocks and scores them on the predictor's device."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._device = predictor.device
        self._dense = predictor.spec.dense
        self._layout = id_columns(predictor.spec, predictor.multi_hot)
        self._id_width = self._layout[-1][1].stop if self._layout else 0
        largest = [
            int(feature.cardinality or 0) - 1
            for feature, span in self._layout
            for _ in range(span.start, span.stop)
        ]
        self._copies = side_stream(self._device, "scoring")
        with self._on_copies():
            self._largest = to_device(torch.tensor(largest, dtype=torch.int64), self._device)

    @property
    def block_rows(self) -> int:
        """Returns the maximum number of rows of a block. A block of a single row group may have more."""
        return max(_BLOCK_BYTES // (4 * max(len(self._dense) + self._id_width, 1)), 1)

    def _on_copies(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._copies) if self._copies else nullcontext()

    def read(self, block: Block) -> _ReadBlock | _Refused:
        """Reads a block of rows. Its ids are checked later, on the device."""
        try:
            return self._read(block)
        except DataError as error:
            return _Refused(block, error)  # `score_pieces` reports the first error of the block

    def _read(self, block: Block) -> _ReadBlock:
        spec, num_dense = self._predictor.spec, len(self._dense)
        rows = sum(piece.rows for piece in block)
        columns = host_tensor((num_dense + self._id_width, rows), torch.int32, self._device)
        values, row_ids, first = columns.numpy(), [], 0
        for piece in block:
            for batch in read_piece(piece, spec, [ROW_ID], piece.group.rows, check_ids=False):
                here = slice(first, first + batch.num_rows)
                for index, feature in enumerate(self._dense):
                    values[index, here] = batch.column(feature.name).to_numpy().view(np.int32)
                for feature, span in self._layout:
                    column = batch.column(feature.name)
                    into = values[num_dense + span.start : num_dense + span.stop, here]
                    if feature.kind == "multi_hot":
                        into[:] = pad_lists(column, len(into)).T
                    else:
                        into[0] = column.to_numpy()
                row_ids.append(batch.column(ROW_ID))
                first = here.stop
        return _ReadBlock(block, row_ids, columns)

    @torch.inference_mode()
    def launch(self, read: _ReadBlock | _Refused) -> _Launched | _Refused:
        """Starts the scoring of a block of rows on the device, without waiting for the result."""
        if isinstance(read, _Refused):
            return read
        dense, ids, wrong = self._predictor.micro_batch.within_memory(lambda _: self._inputs(read.columns))
        probabilities = self._predictor.probabilities(dense, ids)
        flags = torch.stack([wrong, probabilities.isnan().any()])
        return _Launched(read.block, read.row_ids, ResultCopy(torch.cat([probabilities, flags.float()])))

    def finish(self, launched: _Launched | _Refused) -> pa.Table:
        """Waits for a block, and returns its scores.

        Raises:
            DataError: the block could not be read, an id is outside its cardinality, or a probability is NaN.
        """
        if isinstance(launched, _Refused):
            raise self._error(launched.block) or launched.error
        scored = launched.scored.read().numpy()
        if scored[-2:].any():
            raise self._error(launched.block) or _replaced(launched.block)
        dates = [constant_dates(piece.group.dt, piece.rows) for piece in launched.block]
        columns = [
            pa.chunked_array(launched.row_ids, SCORES.types[0]),
            pa.chunked_array(dates, SCORES.types[1]),
            pa.array(scored[:-2]),
        ]
        return pa.Table.from_arrays(columns, schema=SCORES)

    def _inputs(self, columns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the inputs of a model for the columns (C, R) of a block.

        Returns:
            The dense inputs (R, D) float32; the ids (R, W) int32; and a bool tensor of shape (): whether an
            id is outside its cardinality. If this is true, all ids are replaced by 0. With such an id, the
            lookup of the embedding vectors would fail, and then the process could no longer use the GPU.
        """
        with self._on_copies():
            # The kernel expects labels in the first column. Rows to score have no labels, so the numbers in
            # this column are undefined.
            shape = (1 + columns.shape[0], columns.shape[1])
            on_device = torch.empty(shape, dtype=torch.int32, device=self._device)
            on_device[1:].copy_(columns, non_blocking=True)
            ids_by_column = on_device[1 + len(self._dense) :]
            wrong = ((ids_by_column < 0) | (ids_by_column > self._largest[:, None])).any()
            dense, ids = self._transposed(on_device)
            ids.masked_fill_(wrong, 0)
        if self._copies is not None:
            scoring = torch.cuda.current_stream(self._device)
            scoring.wait_stream(self._copies)
            for tensor in (dense, ids, wrong):
                tensor.record_stream(scoring)  # torch waits for this stream before it reuses the memory
        return dense, ids, wrong

    def _transposed(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Converts columns (1 + C, R) to rows: dense features (R, D) float32, and ids (R, W) int32."""
        num_dense, rows, device = len(self._dense), columns.shape[1], self._device
        if not self._predictor.kernels:
            dense, ids = columns[1:].split([num_dense, self._id_width])
            return dense.T.contiguous().view(torch.float32), ids.T.contiguous()
        from training.kernels.pool_rows import write_rows  # imports Triton

        dense = torch.empty(rows, num_dense, dtype=torch.int32, device=device)
        ids = torch.empty(rows, self._id_width, dtype=torch.int32, device=device)
        labels = torch.empty(rows, dtype=torch.int32, device=device)
        weights = torch.empty(rows, dtype=torch.float32, device=device)
        # One range contains all rows, in their order.
        ranges = torch.tensor([[columns.data_ptr(), rows, 0, 0, 0, 0, rows, 0]])
        blocks = torch.arange(-(-rows // BLOCK_ROWS), dtype=torch.int32, device=device)
        tiles = torch.stack([torch.zeros_like(blocks), blocks], dim=1)
        targets = torch.arange(rows, dtype=torch.int32, device=device)
        write_rows(to_device(ranges, device), tiles, targets, labels, dense, ids, weights, BLOCK_ROWS)
        return dense.view(torch.float32), ids

    def _error(self, block: Block) -> DataError | None:
        """Returns the error that `score_pieces` raises for a block.

        The error names the row, or the file and its ids.
        """
        try:
            for _ in score_pieces(self._predictor, block, 1):
                pass
        except DataError as error:
            return error
        return None


def _replaced(block: Block) -> DataError:
    paths = list(dict.fromkeys(piece.group.path for piece in block))
    return DataError(
        f"an id in {paths} was not below the cardinality of its feature, or a probability was NaN; the "
        "files have been replaced since then",
        "rerun the job",
    )
