"""One task of score_rows: reads its rows, scores them, and writes one Parquet file of the table `scores`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from scoring.inputs.requests import FEATURES_DT, PROBABILITY
from scoring.model.predictor import Predictor
from scoring.rows.batch import score_batch
from scoring.rows.file_splits import Piece
from scoring.rows.reader import read_ahead, read_piece
from storage import file_io
from storage.feature_spec import ROW_ID

SCORES = pa.schema([(ROW_ID, pa.int64()), (FEATURES_DT, pa.string()), (PROBABILITY, pa.float32())])

# Bounds of the rows of a batch: a batch has a fixed cost, and two batches are in memory.
_MIN_BATCH_ROWS, _MAX_BATCH_ROWS = 8_192, 131_072


def score_pieces(predictor: Predictor, pieces: Sequence[Piece], threads: int) -> Iterator[pa.RecordBatch]:
    """Batches of SCORES: a row for each row of the pieces, in their order.

    Raises:
        DataError: as `read_piece` does, or a probability is NaN; names the row.
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
    """Writes the scores of the pieces to a new file with one row group, and returns its name.

    Nothing is published. Each call writes another file, so a task that is repeated or runs twice overwrites
    nothing.

    Args:
        predictor: the model.
        pieces: rows to score.
        folder: of a partition of `scores`.
        threads: CPU threads for reading.

    Raises:
        DataError: as `score_pieces`.
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
            # Dictionary encoding of numbers that hardly repeat would take most of the writing time.
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
    """Adds the column FEATURES_DT."""
    columns = [*batch.columns, pa.repeat(pa.scalar(dt), batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, FEATURES_DT])
