"""The `arrow` engine of categorify: all columns of a batch are looked up in the Python worker, in one pass.

It gives the ids the joins of the `sql` engine give. A plan of one node replaces one join a column, and each distinct
value of a batch is looked up once. Vocabularies are read once per worker process, from the files of the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from conf import storage
from conf.feature_spec import NULL_ID, OOV_ID

Lookup = tuple[pd.Index, np.ndarray]


def encode_columns(rows: DataFrame, columns: Sequence[str], files: Sequence[str]) -> DataFrame:
    """The frame with the columns replaced by int ids: NULL_ID for null, OOV_ID for a value without an id.

    Args:
        files: Parquet files of (column, value, id, count) that workers can open.
    """
    texts = rows.withColumns({name: F.col(name).cast("string") for name in columns})
    schema = T.StructType(
        [
            T.StructField(f.name, T.IntegerType() if f.name in columns else f.dataType)
            for f in texts.schema.fields
        ]
    )
    return texts.mapInArrow(_encoder(tuple(columns), tuple(files)), schema)


def _encoder(
    columns: tuple[str, ...], files: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lookups = read_lookups(files)
        for batch in batches:
            arrays = [
                pa.array(look_up(batch.column(i), lookups.get(name)), pa.int32())
                if name in columns
                else batch.column(i)
                for i, name in enumerate(batch.schema.names)
            ]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    return encode


@lru_cache(maxsize=2)
def read_lookups(files: tuple[str, ...]) -> dict[str, Lookup]:
    """column → (hash index of its values, their ids); cached, as a worker process encodes many partitions."""
    tables = []
    for path in files:
        found, inner = storage.filesystem(path)
        tables.append(
            pq.read_table(inner, filesystem=found, columns=["column", "value", "id"], partitioning=None)
        )
    if not tables:
        return {}
    entries = pa.concat_tables(tables).to_pandas()
    return {
        str(column): (pd.Index(part["value"].to_numpy(dtype=object)), part["id"].to_numpy(np.int32))
        for column, part in entries.groupby("column", sort=False)
    }


def look_up(values: pa.Array, lookup: Lookup | None) -> np.ndarray:
    """(n,) int32 ids of n strings; a column without a vocabulary has only NULL_ID and OOV_ID."""
    coded = values.dictionary_encode()
    distinct = np.asarray(coded.dictionary.to_pylist(), dtype=object)
    of_distinct = np.full(len(distinct) + 1, OOV_ID, np.int32)
    of_distinct[-1] = NULL_ID  # the code of null, below
    if lookup is not None and len(distinct):
        positions = lookup[0].get_indexer(pd.Index(distinct))
        of_distinct[:-1] = np.where(positions >= 0, lookup[1][positions], OOV_ID)
    return of_distinct[coded.indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)]
