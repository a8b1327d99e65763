"""The record of an erasure, `erasures/<run date>-<digest>.json`, for auditors and for a later attempt.

It names users by their salted digests, never by their ids. It is written before anything changes, with the
status `started`. So after a kill, the next attempt knows the changed digests and what was planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from etl.erasure.plan import Plan
from etl.erasure.table_rules import Users
from storage import file_io, format_versions
from storage.manifest import digest_of
from storage.paths import Lake

Change = Literal["rows removed", "values replaced", "emptied, to be computed again"]
_USERS = "users.json"


@dataclass(frozen=True)
class TableChange:
    """What an erasure removes from one partition.

    Attributes:
        table, partition: the table, and the date or the name of the partition.
        change: what happens to the users' rows.
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
        through: the last day whose rows are left out when a raw log is read again: the run date, or the last
            day with rows of the users in the lake.
        users: the salted digests of the users.
        status: whether the erasure is complete.
        started_at, completed_at: times in UTC.
        tables: what is removed, by partition.
        digests: maps old digests of partitions to new ones; empty when the erasure is complete.
        files_deleted: number of data files that no manifest named, and that were deleted.
        sinks: for each sink: name, kind, removed rows, and a remark.
        remains: what still has data of the users, by kind: raw files, models, texts.
        notes: sentences for the reader.
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


def planned(record: Record, plan: Plan) -> Record:
    """Returns the record with what a plan will change.

    After an attempt that was killed, what is already listed stays. Changes in a complete record are followed
    by those of the new plan.
    """
    listed = {(change.table, change.partition) for change in record.tables}
    new = [change for change in _changes(plan) if _is_new(record, change, listed)]
    return replace(
        record, status="started", tables=(*record.tables, *new), digests={**record.digests, **plan.digests}
    )


def _is_new(record: Record, change: TableChange, listed: set[tuple[str, str]]) -> bool:
    return record.status == "complete" or (change.table, change.partition) not in listed


def _changes(plan: Plan) -> list[TableChange]:
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


def read_record(lake: Lake, run_date: str, users: Users) -> Record:
    """Returns the record of these users and this date, or a new one, which is not written yet.

    Raises:
        DataError: the record is damaged, or a newer release wrote it.
    """
    new = Record(run_date, tuple(sorted(users.digests.digests)), started_at=file_io.utc_now())
    path = record_path(lake, new)
    return _read(path) if file_io.exists(path) else new


def read_records(lake: Lake) -> list[Record]:
    """Returns all records of a lake, by date."""
    names = [info.base_name for info in file_io.list_files(lake.erasures) if info.is_file]
    return [_read(f"{lake.erasures}/{name}") for name in names if name != _USERS and name.endswith(".json")]


def write_record(lake: Lake, record: Record) -> None:
    """Writes a record, and replaces that of an earlier attempt."""
    file_io.replace_json(record_path(lake, record), format_versions.ERASURE.stamp(asdict(record)))


def record_path(lake: Lake, record: Record) -> str:
    """Returns the path of a record."""
    return f"{lake.erasures}/{record.name}.json"


def _read(path: str) -> Record:
    values = format_versions.ERASURE.check(file_io.read_json(path), path)
    tables = tuple(TableChange(**change) for change in values["tables"])
    sequences = {name: tuple(values[name]) for name in ("users", "sinks", "notes")}
    return Record(**{**values, "tables": tables, **sequences})
