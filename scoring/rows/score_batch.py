"""Scores feature rows in batches, from an Arrow batch or from pieces of Parquet files.

A piece is a range of rows of one row group. Its rows are checked against the manifest and against the spec of
the features. On a CPU, this code is the fastest way to score pieces. On a GPU, task.py scores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from conf.errors import DataError
from conf.types import MultiHot
from scoring.model.predictor import Predictor, model_inputs
from scoring.requests import FEATURES_DT, PROBABILITY
from scoring.rows.file_splits import FileRowGroup, RowGroupRange
from storage.feature_spec import ROW_ID, Feature, FeatureSpec, pad_lists
from storage.file_digests import open_file
from storage.read_parquet import errors_of_file
from training.models.inputs import id_columns

# The columns of the table `scores` in memory. In files, dates are strings.
SCORES = pa.schema(
    [(ROW_ID, pa.int64()), (FEATURES_DT, pa.dictionary(pa.int32(), pa.string())), (PROBABILITY, pa.float32())]
)

# Minimum and maximum number of rows of a batch: each batch has a fixed cost, and two batches must fit into
# memory.
_MIN_BATCH_ROWS, _MAX_BATCH_ROWS = 8_192, 131_072


@torch.inference_mode()
def score_batch(
    predictor: Predictor,
    batch: pa.RecordBatch,
    keep: Sequence[str],
    dtype: torch.dtype = torch.float32,
) -> pa.RecordBatch:
    """Scores the rows of a batch. Returns the columns `keep` and the click probability of each row.

    The rows keep their order. `dtype` is the dtype of the probabilities.

    Raises:
        DataError: a probability is NaN. The message shows the row's values in the columns `keep`.
    """
    table = pa.Table.from_batches([batch])
    columns = {feature.name: table.column(feature.name) for feature in predictor.spec.features}
    build_inputs = model_inputs if predictor.device.type == "cpu" else inputs_by_column
    dense, categorical = (
        tensor.to(predictor.device).contiguous()
        for tensor in build_inputs(columns, predictor.spec, predictor.multi_hot, batch.num_rows)
    )
    probabilities = predictor.probabilities(dense, categorical, dtype).cpu()
    wrong = probabilities.isnan()
    if wrong.any():
        row = {name: batch.column(name)[int(wrong.nonzero()[0])].as_py() for name in keep}
        raise DataError(
            f"model {predictor.version} scores the row {row} as NaN "
            f"({int(wrong.sum())} of the {batch.num_rows} rows of this batch are NaN)",
            "look for NaN or infinite features in this row; if there are none, train the model again",
        )
    kept = [batch.column(name) for name in keep]
    return pa.RecordBatch.from_arrays([*kept, pa.array(probabilities.numpy())], names=[*keep, PROBABILITY])


def inputs_by_column(
    columns: Mapping[str, pa.ChunkedArray], spec: FeatureSpec, multi_hot: MultiHot, rows: int
) -> tuple[Tensor, Tensor]:
    """Builds the inputs of a model in column-major order, for a GPU.

    The columns are copied unchanged, ids stay int32, and the GPU transposes the matrices. This is faster than
    `model_inputs`, which transposes the columns on one CPU core.

    Returns:
        Two tensors on the CPU: the dense inputs (rows, D) float32, and the categorical inputs (rows, W)
        int32. Both are transposed views of contiguous memory.
    """
    layout = id_columns(spec, multi_hot)
    dense = np.empty((len(spec.dense), rows), dtype=np.float32)
    ids = np.empty((layout[-1][1].stop if layout else 0, rows), dtype=np.int32)
    for index, feature in enumerate(spec.dense):
        dense[index] = columns[feature.name].to_numpy()
    for feature, span in layout:
        column = columns[feature.name]
        if feature.kind == "multi_hot":
            ids[span] = pad_lists(column.combine_chunks(), span.stop - span.start).T
        else:
            ids[span.start] = column.to_numpy()
    return torch.from_numpy(dense).t(), torch.from_numpy(ids).t()


def score_pieces(
    predictor: Predictor, pieces: Sequence[RowGroupRange], threads: int
) -> Iterator[pa.RecordBatch]:
    """Yields the scores of the pieces' rows as batches with the schema SCORES, in the order of the rows.

    Args:
        predictor: the loaded model.
        pieces: the rows to score. A piece is a range of rows of one row group.
        threads: number of CPU threads for reading.

    Raises:
        DataError: `read_piece` raised it, or a probability is NaN. A message about NaN names the row.
    """
    batch_rows = min(max(predictor.micro_batch.rows, _MIN_BATCH_ROWS), _MAX_BATCH_ROWS)
    read = (
        _dated(batch, piece.group.dt)
        for piece in pieces
        for batch in read_piece(piece, predictor.spec, [ROW_ID], batch_rows, threads)
    )
    for batch in read_ahead(read):
        yield score_batch(predictor, batch, SCORES.names[:2])


def constant_dates(dt: str, rows: int) -> pa.DictionaryArray:
    """Returns the column FEATURES_DT for rows that all have the date `dt`."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([dt]))


def _dated(batch: pa.RecordBatch, dt: str) -> pa.RecordBatch:
    """Adds the column FEATURES_DT with the date `dt` in each row."""
    columns = [*batch.columns, constant_dates(dt, batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, [*batch.schema.names, FEATURES_DT])


_TYPES = {"float32": "float", "int32": "int32"}
_REBUILD = "run build_features again for the day of this file"


def read_piece(
    piece: RowGroupRange,
    spec: FeatureSpec,
    keep: Sequence[str],
    batch_rows: int,
    threads: int = 1,
    *,
    check_ids: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a piece in batches, without changing their order.

    A batch has the columns `keep` and the features.

    At any time, memory contains the encoded columns of one row group, and one batch.

    Args:
        piece: the range of rows of one row group to read.
        spec: the features to read.
        keep: the names of other columns to read.
        batch_rows: maximum number of rows of a batch.
        threads: number of CPU threads that the caller may use. With 1, columns are decoded in the caller's
            thread.
        check_ids: whether single ids are checked against their cardinalities. Lists of ids are always
            checked.

    Raises:
        DataError: the file is missing or damaged, or its row groups differ from the manifest. Also raised if
            a column is missing, has the wrong type, or contains nulls or ids outside its cardinality. A null
            list counts as an empty list.
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
                    _check_values(group.path, feature, part.column(feature.name), check_ids=check_ids)
                yield part
            if done >= piece.stop:
                return
    raise DataError(
        f"row group {group.index} of {group.path} has {done} rows, but its manifest says {group.rows}",
        _REBUILD,
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
    """Checks that a Parquet file's footer fits the manifest (row groups) and the spec (columns)."""
    footer, schema = parquet.metadata, parquet.schema_arrow
    if footer.num_row_groups != group.count or footer.row_group(group.index).num_rows != group.rows:
        group_rows = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        raise DataError(
            f"{group.path} has row groups of {group_rows} rows, but its manifest says {group.count} row "
            f"groups with {group.rows} rows in row group {group.index}",
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


def _check_values(path: str, feature: Feature, column: pa.Array, *, check_ids: bool) -> None:
    """Checks that a column has no nulls and no ids out of range.

    Without `check_ids`, only ids in lists are checked.

    Several features share one embedding table. So a lookup of an id out of range would silently return a
    vector of another feature.
    """
    values = column.flatten() if feature.kind == "multi_hot" else column
    if values.null_count:
        raise DataError(f"{path}: column {feature.name} holds {values.null_count} nulls", _REBUILD)
    unchecked = feature.kind == "dense" or (feature.kind == "categorical" and not check_ids)
    if unchecked or not len(values):
        return
    ids = values.to_numpy()
    cardinality = int(feature.cardinality or 0)
    if int(ids.view(np.uint32).max()) >= cardinality:  # as uint32, a negative id is a large number
        raise DataError(
            f"{path}: {feature.name} has ids from {ids.min()} to {ids.max()}, but ids must be at least 0 "
            f"and below {cardinality}",
            "run build_features again: the features do not match the workflow version",
        )
