"""Finds the latest row of each user or item in Parquet files, with Arrow and without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from etl.workflow.fitted_chains import FEATURE_ARROW_TYPES
from storage.feature_spec import ROW_ID, FeatureSpec
from storage.parquet_files import read_file


def latest_schema(key: str, columns: Sequence[str], spec: FeatureSpec) -> pa.Schema:
    """Returns the schema of the rows that the functions below return: key, row_id and features.

    Args:
        key: the column of the key (string), such as user_key.
        columns: names of features of `spec`.
        spec: the features of the files.
    """
    dtypes = {feature.name: FEATURE_ARROW_TYPES[feature.dtype] for feature in spec.features}
    fields = {key: pa.string(), ROW_ID: pa.int64(), **{name: dtypes[name] for name in columns}}
    return pa.schema(list(fields.items()))


def latest_in_days(days: Sequence[Sequence[str]], key: str, schema: pa.Schema) -> pa.Table:
    """Returns the latest row of each key, sorted by key: the row with the largest row_id on the latest day.

    Only one day is in memory at a time, apart from the result.

    Args:
        days: the paths of the Parquet files of each day, from the earliest day to the latest.
        key: the column of the key.
        schema: the result of `latest_schema`.
    """
    return latest_of_days(
        (
            pa.concat_tables([schema.empty_table(), *(latest_in_file(path, key, schema) for path in files)])
            for files in reversed(days)
        ),
        key,
        schema,
    )


def latest_of_days(latest_first: Iterable[pa.Table], key: str, schema: pa.Schema) -> pa.Table:
    """Returns the latest row of each key, sorted by key.

    Args:
        latest_first: for each day, rows with the columns of `schema`, from the latest day to the earliest. A
            key may have several rows on a day.
        key: the column of the key.
        schema: the result of `latest_schema`.
    """
    found: list[pa.Table] = [schema.empty_table()]
    for of_day in latest_first:
        rows = _latest(of_day, key).cast(schema)
        known = pa.concat_tables(table.select([key]) for table in found)[key]
        found.append(rows.filter(pc.invert(pc.is_in(rows[key], value_set=known.combine_chunks()))))
    latest = pa.concat_tables(found).combine_chunks()
    return latest.take(pc.sort_indices(latest, sort_keys=[(key, "ascending")]))


def latest_in_file(path: str, key: str, schema: pa.Schema) -> pa.Table:
    """Returns the row with the largest row_id of each key in a Parquet file, with the columns of `schema`."""
    rows = read_file(path, schema.names)
    return _latest(rows.select(schema.names), key).cast(schema)


def _latest(rows: pa.Table, key: str) -> pa.Table:
    """Returns the row with the largest row_id of each key on one day. Each row_id occurs once."""
    largest = rows.select([key, ROW_ID]).group_by(key).aggregate([(ROW_ID, "max")])[f"{ROW_ID}_max"]
    return rows.filter(pc.is_in(rows[ROW_ID], value_set=largest.combine_chunks()))
