"""Carries out a planned erasure: rewrites files, publishes partitions, and deletes the old files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from etl.erasure.lake_tables import (
    COMPUTED_AGAIN,
    FEATURES,
    PROFILES,
    QUARANTINE,
    SCORES,
    WORKFLOW,
    PublishedPartition,
    all_partitions,
    read_unrecorded,
    refresh_workflow,
)
from etl.erasure.plan import ErasurePlan, UserRows
from etl.raw.files import COPIES
from storage import file_io
from storage.file_digests import named, new_file, open_file
from storage.manifest import Manifest, data_files, replace_manifest
from storage.other_tools import LOCK_NAME
from storage.paths import DATA, LakePaths, Partition
from storage.publish import new_attempt, own_path, publish_files
from storage.read_parquet import errors_of_file
from storage.remove import delete_leftovers

log = logging.getLogger("nightrank.erase")

# Tables with ids of users, whose old files this module deletes. Old files of any other table are deleted by
# the job that writes the table.
_WITH_USERS = frozenset(
    {
        *(*COMPUTED_AGAIN, FEATURES, SCORES, QUARANTINE, WORKFLOW, PROFILES),
        *(COPIES, "users", "candidates", "recommendations", "last_clicks"),
    }
)
_DELTA_LOG = "_delta_log"
_KEEP_ALL_HOURS = 24.0 * 365


def carry_out(lake: LakePaths, plan: ErasurePlan) -> int:
    """Publishes all changed partitions of a plan.

    After publishing a partition, deletes its old files at once. Returns the number of deleted files.

    Raises:
        DataError: a file is damaged.
        InfrastructureError: a file cannot be read or written, or another job has replaced a partition.
    """
    deleted = 0
    for published in plan.changed:
        rows, manifest = plan.rows.get(published.path), plan.manifests[published.path]
        _require_unchanged(published)
        if published.path in plan.emptied:
            replace_manifest(published.partition, _emptied(published.manifest))
        elif rows is None:
            replace_manifest(published.partition, manifest)
        else:
            _publish(rows, manifest)
        deleted += delete_leftovers(published.partition, [read_unrecorded(published.partition)], 0)
        log.info("%s is published without the users", published.path)
    for version in sorted({one.version for one in plan.partitions if one.kind == WORKFLOW}):
        if version in plan.workflows:
            refresh_workflow(lake, version, plan.workflows[version])
    return deleted


def delete_old_files(lake: LakePaths) -> int:
    """Deletes the data files that no manifest lists, in all tables that may contain ids of users.

    Returns the number of deleted files.
    """
    named = {
        file_io.filesystem(path)[1]
        for one in all_partitions(lake)
        for path in data_files(one.partition, one.manifest)
    }
    deleted = 0
    for path in _files_below(f"{lake.root.rstrip('/')}/{DATA}"):
        if path not in named:
            file_io.filesystem(lake.root)[0].delete_file(path)
            deleted += 1
    return deleted


def _files_below(folder: str) -> Iterator[str]:
    """Yields the paths of the data files of tables that may contain ids of users."""
    _, inner = file_io.filesystem(folder)
    for info in file_io.list_files(folder, recursive=True):
        table, *parts = info.path.removeprefix(f"{inner}/").split("/")
        is_data = info.is_file and info.base_name != LOCK_NAME and _DELTA_LOG not in parts
        if is_data and table in _WITH_USERS:
            yield info.path


def _require_unchanged(published: PublishedPartition) -> None:
    """Raises InfrastructureError if another job has replaced the partition since it was read."""
    if read_unrecorded(published.partition) != published.manifest:
        raise InfrastructureError(
            f"another job has replaced {published.path} during the erasure",
            "wait until no other job uses the lake, then run erase_user again: it continues",
        )


def _emptied(manifest: Manifest) -> Manifest:
    """Returns a manifest without rows and inputs, so that a later job computes the partition again."""
    now = file_io.utc_now()
    return replace(manifest, files=(), inputs={}, rows_in=0, dropped={}, facts={}, created_at=now, lineage={})


def _publish(rows: UserRows, manifest: Manifest) -> None:
    """Writes the changed files under new names, and publishes them with the unchanged files."""
    partition, attempt = rows.published.partition, new_attempt(rows.published.partition)
    labels: dict[str, str | None] = {}
    for entry in rows.published.manifest.files:
        path = entry.path
        # Early releases wrote data files into the folder of the partition. Publishing deletes such files.
        if path in rows.files or not path.startswith(f"{partition.data}/"):
            path = own_path(f"{attempt}/{path.rsplit('/', 1)[1]}")
            path = named(path, _rewrite(partition, entry.path, path, rows))
        else:
            path = named(path, entry.digest)
        labels[path] = entry.split
    written = publish_files(
        partition,
        labels,
        inputs=manifest.inputs,
        expected_rows=manifest.rows,
        rows_in=manifest.rows_in,
        dropped=manifest.dropped,
        facts=manifest.facts,
        grace_hours=_KEEP_ALL_HOURS,
    )
    if written.digest != manifest.digest:
        raise InfrastructureError(
            f"internal error: {partition.path} has the digest {written.digest} instead of {manifest.digest}",
            "please report it",
        )


def _rewrite(partition: Partition, source: str, target: str, rows: UserRows) -> str:
    """Copies a file without the users' rows, row group by row group, with the same schema and metadata.

    Returns the digest of the new file.
    """
    old, new = partition.file(source), partition.file(target)
    with (
        errors_of_file(old, "run the job that writes this table again"),
        open_file(old) as opened,
    ):
        parquet = pq.ParquetFile(opened)
        with (
            new_file(new) as file,
            pq.ParquetWriter(file.sink, parquet.schema_arrow, compression="zstd") as writer,
        ):
            for group in range(parquet.metadata.num_row_groups):
                kept = rows.rule.applied(parquet.read_row_group(group, use_threads=False))
                if len(kept):
                    writer.write_table(kept, row_group_size=len(kept))
    return file.digest
