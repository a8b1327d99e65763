"""Carries out a planned erasure: rewrites files, publishes partitions, deletes old files, writes a record.

Auditors and later attempts read the record of an erasure, `erasures/<run date>-<digest>.json`. The
record contains the salted digests of the users, never their ids. The job writes the record with the status
`started` before it changes the lake. So if the job is killed, the next attempt finds the plan and the changed
digests in the record.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, Literal

import pyarrow.parquet as pq

from conf.errors import InfrastructureError
from conf.types import Config
from etl.erasure.lake_tables import (
    COMPUTED_AGAIN,
    FEATURES,
    PROFILES,
    QUARANTINE,
    SCORES,
    WORKFLOW,
    PublishedPartition,
    UsersToErase,
    all_partitions,
    read_unrecorded,
    refresh_workflow,
)
from etl.erasure.plan import ErasurePlan, UserRows
from etl.raw.files import COPIES, find_raw, raw_path
from storage import file_io, format_versions
from storage.file_digests import named, new_file, open_file
from storage.manifest import Manifest, data_files, digest_of, replace_manifest
from storage.other_tools import LOCK_NAME
from storage.paths import DATA, LakePaths, Partition
from storage.publish import new_attempt, own_path, publish_files
from storage.read_parquet import errors_of_file
from storage.remove import delete_leftovers

Change = Literal["rows removed", "values replaced", "emptied, to be computed again"]
_USERS = "users.json"


@dataclass(frozen=True)
class TableChange:
    """The rows that an erasure removes or changes in one partition.

    Attributes:
        table, partition: name of the table, and date or name of the partition.
        change: what happens to the users' rows, for example `rows removed`.
        rows: the number of these rows.
    """

    table: str
    partition: str
    change: Change
    rows: int


@dataclass(frozen=True)
class Record:
    """The record of an erasure.

    Attributes:
        run_date: the run date of the job.
        through: the last day whose raw log jobs read without the users' rows. This is the run date or, if it
            is later, the last day with rows of the users in the lake.
        users: the salted digests of the users' ids.
        status: whether the erasure is complete.
        started_at, completed_at: times in UTC.
        tables: the number of rows removed or changed in each partition.
        digests: maps old digests of partitions to new digests; empty when the erasure is complete.
        files_deleted: number of deleted data files, which no manifest listed.
        sinks: for each sink: name, kind, number of removed rows, and a remark.
        remains: the data that may still contain ids of the users, or weights learned from their rows. The
            keys are `raw_files`, `models` and `texts` (run records, reports and logs).
        notes: explanations of `remains`, and the remarks of sinks.
    """

    run_date: str
    users: tuple[str, ...]
    through: str = ""
    status: Literal["started", "complete"] = "started"
    started_at: str = ""
    completed_at: str | None = None
    tables: tuple[TableChange, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    files_deleted: int = 0
    sinks: tuple[Mapping[str, Any], ...] = ()
    remains: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Returns the name of the record. It depends only on the run date and the users."""
        return f"{self.run_date}-{digest_of(list(self.users))[:12]}"

    @property
    def rows(self) -> int:
        """Returns the number of removed rows and replaced values."""
        return sum(change.rows for change in self.tables)


def planned(record: Record, plan: ErasurePlan) -> Record:
    """Returns the record with the changes of a plan added to it.

    The changes that an earlier, killed attempt listed stay in the record. If the record is complete, the
    changes of the new plan are appended to the changes in the record.
    """
    listed = {(change.table, change.partition) for change in record.tables}
    new = [change for change in _changes(plan) if _is_new(record, change, listed)]
    return replace(
        record, status="started", tables=(*record.tables, *new), digests={**record.digests, **plan.digests}
    )


def _is_new(record: Record, change: TableChange, listed: set[tuple[str, str]]) -> bool:
    return record.status == "complete" or (change.table, change.partition) not in listed


def _changes(plan: ErasurePlan) -> list[TableChange]:
    changes = []
    for published in plan.partitions:
        rows, partition = plan.rows.get(published.path), published.partition
        count = sum(rows.files.values()) if rows else 0
        if published.path in plan.emptied:
            changes.append(TableChange(partition.table, partition.dt, "emptied, to be computed again", count))
        elif rows is not None:
            change: Change = "values replaced" if rows.rule.keeps_rows else "rows removed"
            changes.append(TableChange(partition.table, partition.dt, change, count))
    return changes


def read_record(lake: LakePaths, run_date: str, users: UsersToErase) -> Record:
    """Returns the record of the users for a run date, or a new record, which is not written yet.

    Raises:
        DataError: the record is damaged, or a newer release wrote it.
    """
    new = Record(run_date, tuple(sorted(users.digests.digests)), started_at=file_io.utc_now())
    path = record_path(lake, new)
    return _read(path) if file_io.exists(path) else new


def read_records(lake: LakePaths) -> list[Record]:
    """Returns the records of all erasures in a lake, by run date."""
    names = [info.base_name for info in file_io.list_files(lake.erasures) if info.is_file]
    return [_read(f"{lake.erasures}/{name}") for name in names if name != _USERS and name.endswith(".json")]


def write_record(lake: LakePaths, record: Record) -> None:
    """Writes the record of an erasure, and replaces the record of an earlier attempt."""
    file_io.replace_json(record_path(lake, record), format_versions.ERASURE.stamp(asdict(record)))


def record_path(lake: LakePaths, record: Record) -> str:
    """Returns the path of the file with the record of an erasure."""
    return f"{lake.erasures}/{record.name}.json"


def _read(path: str) -> Record:
    return format_versions.ERASURE.load(path, _parsed)


def _parsed(values: Mapping[str, Any]) -> Record:
    tables = tuple(TableChange(**change) for change in values["tables"])
    sequences = {name: tuple(values[name]) for name in ("users", "sinks", "notes")}
    return Record(**{**values, "tables": tables, **sequences})


# The functions below find data that the erasure does not change, but that may contain ids of the users or
# weights learned from their rows: raw files, models, and text files such as logs and reports.

# Text files are not searched for shorter ids, because these would match unrelated numbers.
SHORTEST_ID = 6
_TEXT_FOLDERS = ("runs", "reports", "logs")


def raw_files(config: Config, plan: ErasurePlan) -> list[str]:
    """Returns the paths of the raw logs of the days on which the users have rows or quarantined lines.

    A path may be a pattern with wildcards. Days whose raw log no longer exists are left out.
    """
    days = {
        rows.published.partition.dt
        for rows in plan.rows.values()
        if rows.published.kind in (FEATURES, QUARANTINE)
    }
    existing = [day for day in sorted(days) if find_raw(config, config.log, day) is not None]
    return [raw_path(config, config.log, day) for day in existing]


def texts_with_ids(lake: LakePaths, users: UsersToErase) -> list[str]:
    """Returns the run records, reports and logs that contain the id of a user as a whole word.

    Ids of fewer than SHORTEST_ID characters are not searched for. Ids are also found in the escaped form that
    reports (HTML) and run records (JSON) contain.
    """
    long_ids = {user for user in users.ids | users.of_lists if len(user) >= SHORTEST_ID}
    if not long_ids:
        return []
    texts = {text for user in long_ids for text in (user, escape(user), json.dumps(user)[1:-1])}
    word = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(texts)))})(?!\w)".encode())
    return [path for path in _texts(lake) if word.search(_bytes(lake, path))]


def models_with_users(models: Iterable[Mapping[str, str]], plan: ErasurePlan) -> list[dict[str, object]]:
    """Returns the models that have weights for the ids of the users.

    Args:
        models: `name`, `version` and `workflow_version` of each model.
        plan: the plan of the erasure.
    """
    replaced = {rows.published.version for rows in plan.rows.values() if rows.rule.keeps_rows}
    return [
        {**model, "features": list(plan.workflows[model["workflow_version"]].features)}
        for model in models
        if model["workflow_version"] in replaced
    ]


def _texts(lake: LakePaths) -> list[str]:
    root = lake.root.rstrip("/")
    entries = [
        info for folder in _TEXT_FOLDERS for info in file_io.list_files(f"{root}/{folder}", recursive=True)
    ]
    return [info.path for info in entries if info.is_file]


def _bytes(lake: LakePaths, path: str) -> bytes:
    with file_io.filesystem(lake.root)[0].open_input_stream(path, compression=None) as source:
        return bytes(source.read())


# The code below carries out a planned erasure: it rewrites files, publishes partitions and deletes old files.

log = logging.getLogger("nightrank.erase")

# Tables that may contain ids of users. This module deletes their old files. Old files of any other table are
# deleted by the job that writes the table.
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

    The old files of each partition are deleted right after the partition is published. Returns the number of
    deleted files.

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
        log.info("%s is published without the erased users", published.path)
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
    """Writes the files that the erasure changes under new names, and publishes them with the other files."""
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
