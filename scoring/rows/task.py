"""One task of score_rows: reads and scores its rows, and writes one Parquet file of the table `scores`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError, InfrastructureError
from scoring.model.predictor import Predictor
from scoring.requests import FEATURES_DT, PROBABILITY
from scoring.rows.file_splits import FileRowGroup, RowGroupRange
from scoring.rows.score_batch import score_batch
from storage.feature_spec import ROW_ID, Feature, FeatureSpec
from storage.file_digests import new_file, open_file
from storage.parquet_files import errors_of_file

SCORES = pa.schema([(ROW_ID, pa.int64()), (FEATURES_DT, pa.string()), (PROBABILITY, pa.float32())])

# Minimum and maximum number of rows of a batch: each batch has a fixed cost, and memory must hold two
# batches.
_MIN_BATCH_ROWS, _MAX_BATCH_ROWS = 8_192, 131_072


def score_pieces(
    predictor: Predictor, pieces: Sequence[RowGroupRange], threads: int
) -> Iterator[pa.RecordBatch]:
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


def write_scores(predictor: Predictor, pieces: Sequence[RowGroupRange], folder: str, threads: int) -> str:
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
    try:
        with new_file(path) as file:
            # No dictionary encoding: the numbers hardly repeat, and encoding them would take most of the
            # writing time.
            pq.write_table(
                scored,
                file.sink,
                compression="zstd",
                use_dictionary=[FEATURES_DT],
                row_group_size=max(scored.num_rows, 1),
            )
    except OSError as error:
        raise InfrastructureError(
            f"{path} could not be written: {error}", "check disk space and permissions, then rerun"
        ) from error
    return file.name.rsplit("/", 1)[1]


def _dated(batch: pa.RecordBatch, dt: str) -> pa.RecordBatch:
    """Adds the column FEATURES_DT with the date `dt` in each row."""
    columns = [*batch.columns, pa.repeat(pa.scalar(dt), batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, FEATURES_DT])


# Reads the feature rows of a task from Parquet in batches.
#
# The rows are checked against the manifest and against the spec of the features.

_TYPES = {"float32": "float", "int32": "int32"}
_REBUILD = "run build_features again for the day of this file"


def read_piece(
    piece: RowGroupRange, spec: FeatureSpec, keep: Sequence[str], batch_rows: int, threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a piece in order, in batches. A piece is a range of rows of one row group.

    A batch has the columns `keep` and the features.

    At any time, memory contains the encoded columns of one row group, and one batch.

    Args:
        piece: the range of rows of one row group to read.
        spec: the features to read.
        keep: the names of other columns to read.
        batch_rows: maximum number of rows of a batch.
        threads: number of CPU threads that the caller may use. With 1, columns are decoded in the caller's
            thread.

    Raises:
        DataError: the file is missing or damaged, or its row groups differ from the manifest. Or a column is
            missing, has the wrong type, or has nulls or ids outside its cardinality. A null list is not an
            error: it is an empty list.
        InfrastructureError: the file could not be read.
    """
    group = piece.group
    names = [*keep, *(feature.name for feature in spec.features)]
    done = 0
    with (
        errors_of_file(group.path, _REBUILD),
        open_file(group.path) as source,
        pq.ParquetFile(source, pre_buffer=True) as parquet,
    ):
        _check_footer(parquet, group, spec, keep)
        batches = parquet.iter_batches(batch_rows, [group.index], names, use_threads=threads > 1)
        for batch in batches:
            first, last = max(piece.start - done, 0), min(piece.stop - done, batch.num_rows)
            done += batch.num_rows
            if last > first:
                part = batch.slice(first, last - first)
                for feature in spec.features:
                    _check_values(group.path, feature, part.column(feature.name))
                yield part
            if done >= piece.stop:
                return
    raise DataError(
        f"row group {group.index} of {group.path} has {done} rows, its manifest says {group.rows}", _REBUILD
    )


def read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches. A thread reads the next batch while the caller processes the current batch."""
    with ThreadPoolExecutor(1) as reader:
        next_batch = reader.submit(next, batches, None)
        while (batch := next_batch.result()) is not None:
            next_batch = reader.submit(next, batches, None)
            yield batch


def _check_footer(
    parquet: pq.ParquetFile, group: FileRowGroup, spec: FeatureSpec, keep: Sequence[str]
) -> None:
    """Checks a file by its footer: its row groups against the manifest, and its columns against the spec."""
    footer, schema = parquet.metadata, parquet.schema_arrow
    if footer.num_row_groups != group.count or footer.row_group(group.index).num_rows != group.rows:
        group_rows = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        raise DataError(
            f"{group.path} has row groups of {group_rows} rows; "
            f"its manifest says {group.count} row groups, and {group.rows} rows in row group {group.index}",
            _REBUILD,
        )
    names = [*keep, *(feature.name for feature in spec.features)]
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise DataError(f"{group.path} lacks the columns {missing}", _REBUILD)
    for feature in spec.features:
        kind = schema.field(feature.name).type
        is_id_list = feature.kind == "multi_hot" and pa.types.is_list(kind) and kind.value_type == pa.int32()
        if not is_id_list and str(kind) != _TYPES.get(feature.dtype):
            raise DataError(
                f"{group.path}: column {feature.name} has type {kind}, not {feature.dtype}", _REBUILD
            )


def _check_values(path: str, feature: Feature, column: pa.Array) -> None:
    """Checks that a column has no nulls and no ids out of range.

    Several features share one embedding table. So the lookup of an id that is out of range would return a
    vector of another feature, without any error.
    """
    values = column.flatten() if feature.kind == "multi_hot" else column
    if values.null_count:
        raise DataError(f"{path}: column {feature.name} holds {values.null_count} nulls", _REBUILD)
    if feature.kind == "dense" or not len(values):
        return
    ids = values.to_numpy()
    cardinality = int(feature.cardinality or 0)
    if int(ids.view(np.uint32).max()) >= cardinality:  # as uint32, a negative id is too large
        raise DataError(
            f"{path}: {feature.name} holds ids from {ids.min()} to {ids.max()}, outside [0, {cardinality})",
            "run build_features again: features and workflow version do not belong together",
        )
