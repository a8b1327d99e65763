"""One task of score_rows: scores its rows, and writes Parquet files of the table `scores`."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from scoring.model.predictor import Predictor
from scoring.requests import FEATURES_DT
from scoring.rows.file_splits import RowGroupRange
from scoring.rows.pipeline import scored_blocks
from scoring.rows.score_batch import SCORES, score_pieces
from storage.feature_spec import ROW_ID
from storage.file_digests import new_file

_MOST_READERS, _MOST_WRITERS = 8, 4


def write_scores(
    predictor: Predictor, pieces: Sequence[RowGroupRange], folder: str, cores: int, file_rows: int
) -> list[str]:
    """Scores some rows, writes the scores to new files, and returns the names of the files in their order.

    The files are not published. Each call writes new files. So a task that Spark repeats or runs twice does
    not overwrite a file. Each file has one row group. On a CPU there is one file. On a GPU, threads write the
    files while later rows are scored. A file has at most `file_rows` rows, or one larger row group of the
    features. Without rows, there is one empty file.

    Args:
        predictor: the loaded model.
        pieces: the rows to score. A piece is a range of rows of one row group.
        folder: the folder of a partition of the table `scores`.
        cores: number of CPU cores of the task. For a GPU, half of them read, at most 8, and a quarter write,
            at most 4.
        file_rows: maximum number of rows of a file of a task on a GPU.

    Raises:
        DataError: an error of `score_pieces`.
        InfrastructureError: a file could not be written.
    """
    if predictor.device.type == "cpu":
        return [write_file(pa.Table.from_batches(score_pieces(predictor, pieces, cores), SCORES), folder)]
    readers, writers = (max(min(cores // 2, _MOST_READERS), 1), max(min(cores // 4, _MOST_WRITERS), 1))
    with closing(scored_blocks(predictor, pieces, readers, file_rows)) as blocks:
        return _write_in_threads(_tables(blocks, file_rows), folder, writers)


def _tables(blocks: Iterator[pa.Table], most_rows: int) -> Iterator[pa.Table]:
    """Yields consecutive blocks as tables of one block, or of several blocks with at most `most_rows` rows.

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
    return file.name.rsplit("/", 1)[1]
