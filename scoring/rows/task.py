"""One task of score_rows: reads and scores its rows, and writes one Parquet file of the table `scores`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from scoring.inputs.requests import FEATURES_DT, PROBABILITY
from scoring.model.predictor import Predictor
from scoring.rows.file_splits import Piece
from scoring.rows.reader import read_ahead, read_piece
from scoring.rows.score_batch import score_batch
from storage import file_io
from storage.feature_spec import ROW_ID

SCORES = pa.schema([(ROW_ID, pa.int64()), (FEATURES_DT, pa.string()), (PROBABILITY, pa.float32())])

# Minimum and maximum number of rows of a batch: each batch has a fixed cost, and memory must hold two
# batches.
_MIN_BATCH_ROWS, _MAX_BATCH_ROWS = 8_192, 131_072


def score_pieces(predictor: Predictor, pieces: Sequence[Piece], threads: int) -> Iterator[pa.RecordBatch]:
    """Yields the scores of some rows as batches with the schema SCORES, in the order of the rows.

    Args:
        predictor: the loaded model.
        pieces: the rows to score. A piece is a range of rows of one row group.
        threads: number of CPU threads for reading.

    Raises:
        DataError: an error of `read_piece`, or a probability is NaN. In the second case, the message names
            the row.
    """
    batch_rows = min(max(predictor.micro_batch.rows, _MIN_BATCH_ROWS), _MAX_BATCH_ROWS)
    read = (
        _dated(batch, piece.group.dt)
        for piece in pieces
        for batch in read_piece(piece, predictor.spec, [ROW_ID], batch_rows, threads)
    )
    for batch in read_ahead(read):
        yield score_batch(predictor, batch, SCORES.names[:2])


def write_scores(predictor: Predictor, pieces: Sequence[Piece], folder: str, threads: int) -> str:
    """Scores some rows, writes the scores to a new file with one row group, and returns the name of the file.

    The file is not published. Each call writes a new file. So a task that Spark repeats or runs twice does
    not overwrite a file.

    Args:
        predictor: the loaded model.
        pieces: the rows to score. A piece is a range of rows of one row group.
        folder: the folder of a partition of the table `scores`.
        threads: number of CPU threads for reading.

    Raises:
        DataError: an error of `score_pieces`.
        InfrastructureError: the file could not be written.
    """
    name = f"part-{uuid.uuid4().hex[:16]}.parquet"
    scored = pa.Table.from_batches(score_pieces(predictor, pieces, threads), SCORES)
    path = f"{folder}/{name}"
    files, inner = file_io.filesystem(path)
    try:
        if file_io.is_local(path):
            files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
        with files.open_output_stream(inner) as sink:
            # No dictionary encoding: the numbers hardly repeat, and encoding them would take most of the
            # writing time.
            pq.write_table(
                scored,
                sink,
                compression="zstd",
                use_dictionary=[FEATURES_DT],
                row_group_size=max(scored.num_rows, 1),
            )
    except OSError as error:
        raise InfrastructureError(
            f"{path} could not be written: {error}", "check disk space and permissions, then rerun"
        ) from error
    return name


def _dated(batch: pa.RecordBatch, dt: str) -> pa.RecordBatch:
    """Adds the column FEATURES_DT with the date `dt` in each row."""
    columns = [*batch.columns, pa.repeat(pa.scalar(dt), batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, FEATURES_DT])
