"""Replaces a date partition by the rows of an Arrow table or of a Spark frame, sorted by one column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.file_digests import named, new_file
from storage.manifest import Manifest
from storage.paths import Partition
from storage.publish import Rules, new_attempt, own_path, publish, publish_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish_rows(
    rows: pa.Table | DataFrame,
    partition: Partition,
    *,
    inputs: Mapping[str, str],
    row_group_rows: int,
    sort_by: str | Sequence[str] = (),
    expected_rows: int | None = None,
    rows_in: int | None = None,
    dropped: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    grace_hours: float = 24.0,
) -> Manifest:
    """Replaces one partition by `rows`. A table and a frame with the same rows give the same partition.

    This process writes the rows of an Arrow table; Spark tasks write the rows of a frame. Rows are sorted
    over all files and distributed evenly over as few files as `row_group_rows` allows.

    Args:
        rows: the new rows.
        partition: where to publish the rows.
        inputs: maps the name of each input from which the rows were computed to the digest of the input.
        row_group_rows: largest number of rows of a file.
        sort_by: the column or columns to sort by. If `sort_by` is empty, rows keep their order.
        expected_rows: the required number of rows, if the caller knows it. Otherwise a frame is persisted and
            counted.
        rows_in, dropped, facts, rules, grace_hours: as in storage.publish.publish.

    Raises:
        DataError: the written rows break a rule; the previous rows remain published.
    """
    order = [sort_by] if isinstance(sort_by, str) else list(sort_by)
    if isinstance(rows, pa.Table):
        keys = [(name, "ascending") for name in order]
        in_order = rows.take(pc.sort_indices(rows, sort_keys=keys)) if keys else rows
        files = write_table(in_order, partition, row_group_rows)
        return publish_files(
            partition,
            dict.fromkeys(files),
            inputs=inputs,
            expected_rows=len(rows) if expected_rows is None else expected_rows,
            rows_in=rows_in,
            dropped=dropped,
            facts=facts,
            rules=rules,
            grace_hours=grace_hours,
        )
    kept = rows.persist() if expected_rows is None else rows
    published = publish(
        kept,
        partition,
        inputs=inputs,
        row_group_rows=row_group_rows,
        expected_rows=kept.count() if expected_rows is None else expected_rows,
        rows_in=rows_in,
        dropped=dropped,
        facts=facts,
        rules=rules,
        sort_by=order,
        grace_hours=grace_hours,
    )
    if expected_rows is None:
        kept.unpersist()
    return published


def write_table(rows: pa.Table, partition: Partition, row_group_rows: int) -> list[str]:
    """Writes the rows in order to files of at most `row_group_rows` rows, which are not published yet.

    Returns the names of the files (storage.file_digests.named), relative to the partition. A table without
    rows gives one file.
    """
    number = max(1, -(-len(rows) // row_group_rows))
    attempt, written = new_attempt(partition), []
    for index in range(number):
        first, last = len(rows) * index // number, len(rows) * (index + 1) // number
        name = own_path(f"{attempt}/part-{index:05d}.parquet")
        with new_file(partition.file(name)) as file:
            pq.write_table(
                rows.slice(first, last - first), file.sink, compression="zstd", row_group_size=row_group_rows
            )
        written.append(named(name, file.digest))
    return written
