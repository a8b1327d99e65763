"""Reads the feature rows of a task from Parquet, a batch at a time, held against the manifest and the spec."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conf.errors import DataError, InfrastructureError
from scoring.rows.file_splits import Piece, RowGroup
from storage import file_io
from storage.feature_spec import Feature, FeatureSpec

_TYPES = {"float32": "float", "int32": "int32"}
_REBUILD = "run build_features again for the day of this file"


def read_piece(
    piece: Piece, spec: FeatureSpec, keep: Sequence[str], batch_rows: int, threads: int = 1
) -> Iterator[pa.RecordBatch]:
    """The columns `keep` and the features of a piece, in the order of its rows.

    Memory holds the bytes of one row group's columns, as the file has them, and one batch of `batch_rows` rows.

    Args:
        threads: CPU threads the caller may use; with one, columns are decoded in the caller's.

    Raises:
        DataError: the file is missing or damaged, has other row groups than its manifest says, lacks a column, or has
            one of another type, with nulls, or with ids outside their cardinality. A null list is an empty one.
        InfrastructureError: the file could not be read.
    """
    group = piece.group
    names = [*keep, *(each.name for each in spec.features)]
    files, inner = file_io.filesystem(group.path)
    done = 0
    try:
        with files.open_input_file(inner) as source, pq.ParquetFile(source, pre_buffer=True) as parquet:
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
    except FileNotFoundError as error:
        raise DataError(f"{group.path} does not exist although a manifest names it", _REBUILD) from error
    except pa.ArrowInvalid as error:
        raise DataError(f"{group.path} is no whole Parquet file: {error}", _REBUILD) from error
    except OSError as error:
        raise InfrastructureError(
            f"{group.path} could not be read: {error}", "check the storage, then run the job again"
        ) from error
    raise DataError(
        f"row group {group.index} of {group.path} gave {done} rows, its manifest says {group.rows}", _REBUILD
    )


def read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each read in a thread of its own while its receiver works on the one before."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reader.submit(next, batches, None)
            yield batch


def _check_footer(parquet: pq.ParquetFile, group: RowGroup, spec: FeatureSpec, keep: Sequence[str]) -> None:
    footer, schema = parquet.metadata, parquet.schema_arrow
    if footer.num_row_groups != group.count or footer.row_group(group.index).num_rows != group.rows:
        held = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        raise DataError(
            f"{group.path} has row groups of {held} rows; its manifest says {group.count} row groups, of {group.rows} "
            f"rows in number {group.index}",
            _REBUILD,
        )
    missing = [name for name in (*keep, *(each.name for each in spec.features)) if name not in schema.names]
    if missing:
        raise DataError(f"{group.path} lacks the columns {missing}", _REBUILD)
    for feature in spec.features:
        found = schema.field(feature.name).type
        listed = feature.kind == "multi_hot" and pa.types.is_list(found) and found.value_type == pa.int32()
        if not listed and str(found) != _TYPES.get(feature.dtype):
            raise DataError(f"{group.path}: column {feature.name} is {found}, not {feature.dtype}", _REBUILD)


def _check_values(path: str, feature: Feature, column: pa.Array) -> None:
    """In a stacked table an id out of range would be a row of another column: nothing else would notice."""
    values = column.flatten() if feature.kind == "multi_hot" else column
    if values.null_count:
        raise DataError(f"{path}: column {feature.name} holds {values.null_count} nulls", _REBUILD)
    if feature.kind == "dense" or not len(values):
        return
    ids = values.to_numpy()
    cardinality = int(feature.cardinality or 0)
    if int(ids.view(np.uint32).max()) >= cardinality:  # a negative one is huge without its sign
        raise DataError(
            f"{path}: {feature.name} holds ids from {ids.min()} to {ids.max()}, outside [0, {cardinality})",
            "run build_features again: features and workflow version do not belong together",
        )
