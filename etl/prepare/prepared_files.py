"""Writes and reads the files of the table `prepared`: rows of a day with everything that features read.

A file has rows of one split, with row_id, keys, label, event_time and the raw columns that features read.
Texts and lists of texts have dictionaries in the files, and are read with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from etl.ops.row_groups import whole
from etl.raw.file_splits import FileSplit
from etl.text.parse_block import ParsedBlock
from storage import file_io
from storage.feature_spec import EVENT_TIME, GROUP_KEY, ITEM_KEY, LABEL, ROW_ID, USER_KEY, WEIGHT
from storage.parquet_files import errors_of_file
from storage.publish import own_path

# Rows of a row group: a task reads one at a time. A history may have 50 values in each row.
ROW_GROUP_ROWS = 131_072
_FIXED = (ROW_ID, USER_KEY, ITEM_KEY, GROUP_KEY, EVENT_TIME, LABEL, WEIGHT)
_REPAIR = "delete the partition of the table `prepared`; build_features computes it again"


def write_prepared(rows: pa.Table, path: str) -> str:
    """Writes rows to a new file, and returns its path, which has other digits in each attempt."""
    path = own_path(path)
    files, inner = file_io.filesystem(path)
    if file_io.is_local(path):
        files.create_dir(inner.rsplit("/", 1)[0], recursive=True)
    with files.open_output_stream(inner) as sink:
        pq.write_table(
            rows,
            sink,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=[path for path in _parquet_paths(rows.schema) if path != ROW_ID],
            column_encoding={ROW_ID: "DELTA_BINARY_PACKED"},
            write_statistics=False,
            store_schema=False,  # the columns are texts for other readers
        )
    return path


def _parquet_paths(schema: pa.Schema) -> list[str]:
    return [f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in schema]


@dataclass(frozen=True)
class PreparedRows:
    """The rows of prepared files: a source of rows for the passes (etl.text.row_source)."""

    def blocks(self, file_split: FileSplit, features: Sequence[str]) -> Iterator[ParsedBlock]:
        """Yields the rows of a file, row group by row group. `row_lines` are the row_ids.

        Raises:
            DataError: the file is missing or damaged.
        """
        files, inner = file_io.filesystem(file_split.path)
        with errors_of_file(file_split.path, _REPAIR), files.open_input_file(inner) as source:
            texts = _text_columns(pq.read_schema(source))
            source.seek(0)
            parquet = pq.ParquetFile(source, read_dictionary=texts)
            names = [name for name in parquet.schema_arrow.names if name in (*_FIXED, *features)]
            for group in range(parquet.num_row_groups):
                yield _block(parquet.read_row_group(group, columns=names, use_threads=False))


def _text_columns(schema: pa.Schema) -> list[str]:
    """Returns the paths of the columns of texts, also in lists, in a Parquet file."""
    paths = []
    for field in schema:
        kind = field.type.value_type if pa.types.is_list(field.type) else field.type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_string(kind):
            paths.append(f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name)
    return paths


def _block(rows: pa.Table) -> ParsedBlock:
    columns = {name: whole(rows.column(name)) for name in rows.column_names}
    row_ids = np.asarray(columns.pop(ROW_ID))
    return ParsedBlock(rows.nbytes, len(rows), row_ids, columns, {}, ())
