"""Lets other tools find a table's files: by hard links on a local disk, or a Delta log on an object store.

Other tools do not read manifests. On a local disk, the folder of a partition has one hard link for each file
of the manifest. Several links cannot be replaced atomically. So while a job replaces the links, the folder
also contains a file that no tool can read. A tool that lists the folder therefore either reads the files of
exactly one manifest, or fails. If a process is killed while it changes the links, the unreadable file
remains, and the next run repairs the links.

An object store has no hard links, and a listing of a folder shows the files of every attempt to write a
table. So `<lake>/_data/<table>` is a Delta table with the partition column `dt`. One transaction replaces a
date: it removes the old files of the date and adds the new ones. The manifest is replaced before this
transaction. If a job is killed between the two steps, other tools still see the old files until the next run
of the job repairs the Delta log.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from conf.errors import DataError, InfrastructureError
from conf.names import scheme_of
from storage import file_io
from storage.remote import azure, google

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema

log = logging.getLogger("nightrank.publish")

LOCK_NAME = ".lock"
# The name of the unreadable file that a folder contains while its links are replaced. The name comes first in
# sorted order, because a tool that needs a few rows may read only the first file. A folder of JSON lines or
# CSV also gets a .gz file: Spark would read the lines of a text file as rows, but it fails on a .gz file that
# is not compressed.
STOP = "0-being-replaced"
_STOPS = {
    ".parquet": (".parquet",),
    ".jsonl": (".jsonl", ".json.gz"),
    ".json.gz": (".json.gz",),
    ".csv": (".csv", ".csv.gz"),
    ".csv.gz": (".csv.gz",),
}
_STOP_TEXT = (
    "This partition is being replaced. Read it again later. If this file remains, "
    "a job was killed: run the job again.\n"
)
# Errors of a file system that has no hard links, that cannot link between these folders, or that allows no
# more links to a file.
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def show_links(folder: str, data: str, wanted: Set[str], targets: Callable[[], Mapping[str, str]]) -> None:
    """Replaces the hard links in a partition's folder with links to the files of the manifest.

    Files whose names begin with `_` or `.` are not changed.

    Args:
        folder: the folder of the partition, with its manifest.
        data: the folder of the partition's data files. A process locks this folder while it changes the
            links.
        wanted: names of the links that the manifest requires. If the folder has exactly these links, the
            function changes nothing.
        targets: reads the manifest and returns a mapping from the name of each link to the path of its file.

    Raises:
        InfrastructureError: the links could not be made.
    """
    if _listed(folder) == wanted:
        return
    try:
        with _exclusive(Path(data)):
            _exchange(Path(folder), targets())
    except OSError as error:
        raise InfrastructureError(
            f"cannot link the published files into {folder}: {error}",
            "check disk space and permissions, then rerun",
        ) from error


def _listed(folder: str) -> set[str]:
    return {name for name in os.listdir(folder) if not name.startswith(("_", "."))}


@contextmanager
def _exclusive(data: Path) -> Iterator[None]:
    """Lets only one process at a time change the links of a partition.

    Otherwise a slow process could link files that have been replaced in the meantime.
    """
    data.mkdir(parents=True, exist_ok=True)
    with (data / LOCK_NAME).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _exchange(folder: Path, wanted: Mapping[str, str]) -> None:
    listed = _listed(str(folder))
    names = {*listed, *wanted}
    endings = {
        end for ending, ends in _STOPS.items() if any(n.endswith(ending) for n in names) for end in ends
    }
    stops = [folder / f"{STOP}{ending}" for ending in sorted(endings)]
    for stop in stops:
        stop.write_text(_STOP_TEXT)
        file_io.flush(stop)
    file_io.flush(folder)
    for name in sorted(listed - wanted.keys() - {stop.name for stop in stops}):
        _remove(folder / name)
    _link(folder, {name: wanted[name] for name in sorted(wanted.keys() - listed)})
    file_io.flush(folder)
    for stop in stops:
        stop.unlink()


def _remove(path: Path) -> None:
    """Deletes a link, or a folder of data files that an earlier release kept in the partition's folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _link(folder: Path, targets: Mapping[str, str]) -> None:
    """Creates a link to each target, or no link if the file system has no hard links."""
    for name, target in targets.items():
        try:
            os.link(target, folder / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            for link in _listed(str(folder)):
                if not link.startswith(STOP):
                    (folder / link).unlink()
            log.warning(
                "%s cannot be linked into %s (%s): tools that list this folder find no files, but readers "
                "of the manifest find all of them",
                target,
                folder,
                error.strerror,
            )
            return


DATE = "dt"
# delta-rs itself resolves a conflict with a commit of another date. A concurrent commit of the same date, or
# a concurrent creation of the table, makes our commit fail. We then try it again.
_TRIES = 20
_WAIT_S = 0.2
_UNNAMEABLE = set(" ,;{}()\n\t=")
_ELEMENTS = {
    "bool": "boolean",
    "int8": "byte",
    "int32": "integer",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
}
_TYPES: dict[str, Any] = {
    **_ELEMENTS,
    "date32[day]": "date",
    **{
        f"list<element: {arrow}>": {"type": "array", "elementType": delta, "containsNull": True}
        for arrow, delta in _ELEMENTS.items()
    },
}

# The state of each table when this process last read its log; None for a table without a log.
_loaded: dict[str, DeltaTable | None] = {}


@dataclass(frozen=True)
class LogContent:
    """The files and columns of one date of a table.

    Attributes:
        files: (path below the table's folder, number of rows, number of bytes) of each file.
        schema: (name, Arrow type) of each column.
    """

    files: Sequence[tuple[str, int, int]]
    schema: Sequence[tuple[str, str]]

    @property
    def paths(self) -> set[str]:
        """Returns the paths of the data files, relative to the table's folder."""
        return {path for path, _, _ in self.files}


def log_can_hold(schema: Sequence[tuple[str, str]]) -> bool:
    """Returns whether a Delta table can have these columns.

    Logs a warning if only the name of a column prevents it.
    """
    if any(kind not in _TYPES for _, kind in schema):
        return False
    wrong = refused_names([name for name, _ in schema])
    if wrong:
        log.warning(
            "no Delta log is written for a table, so other tools cannot read the table: the names of the "
            "columns %s are not allowed in Delta tables",
            wrong,
        )
    return not wrong


def refused_names(names: Sequence[str]) -> list[str]:
    """Returns the names in `names` that a Delta table does not allow, in lower case.

    A column must not have the name of the partition column, `dt`. Two names must not differ only in case, and
    some characters are forbidden.
    """
    lower = [name.casefold() for name in names]
    return [name for name in lower if name == DATE or lower.count(name) > 1 or _UNNAMEABLE.intersection(name)]


def log_says(table: str, dt: str, wanted: LogContent) -> bool:
    """Returns whether a table's Delta log had exactly the files of `wanted` for a date.

    The result is based on the log that this process read last.

    Raises:
        InfrastructureError: the log cannot be read.
    """
    if table not in _loaded:
        with _infrastructure_errors(table, dt):
            _load(table)
    return _paths(_loaded[table], dt) == wanted.paths


def show_log(table: str, dt: str, now: Callable[[], LogContent]) -> None:
    """Replaces the files of a date in the table's Delta log with the files of the manifest.

    If the log already has exactly these files, nothing changes.

    Args:
        table: URI of the table's folder.
        dt: the date.
        now: a function that reads the manifest of the date, and returns the files and columns in it.

    Raises:
        DataError: the type of a column differs from its type in the table.
        InfrastructureError: the log cannot be read or written.
    """
    from deltalake.exceptions import CommitFailedError

    for attempt in range(_TRIES):
        with _infrastructure_errors(table, dt):
            # Load the table before `now` reads the manifest. If another job replaces the manifest after this
            # call of `now`, the commits of both jobs conflict. The job whose commit fails reads table and
            # manifest again.
            known = _load(table)
            wanted = now()
            if _paths(known, dt) == wanted.paths:
                return
            try:
                _commit(known or _create(table, wanted.schema), dt, wanted)
                return
            except CommitFailedError:
                time.sleep(random.uniform(0, _WAIT_S * (attempt + 1)))
    raise InfrastructureError(
        f"the Delta log of {table} cannot be updated: other jobs replaced dt={dt} during each of {_TRIES} "
        "tries",
        "run only one job per date at a time, then rerun",
    )


@contextmanager
def _infrastructure_errors(table: str, dt: str) -> Iterator[None]:
    """Converts errors of delta-rs to InfrastructureError."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise InfrastructureError(
            f"the Delta log of {table} cannot be updated for dt={dt}: {error}",
            "the new files are published, but other tools still see the previous ones: check the object "
            "store, then rerun",
        ) from error


def _load(table: str) -> DeltaTable | None:
    """Returns the newest state of a Delta table; None if the table has no Delta log."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        _loaded[table] = DeltaTable(table, storage_options=store_options(table))
    except TableNotFoundError:
        _loaded[table] = None
    return _loaded[table]


def _paths(table: DeltaTable | None, dt: str) -> set[str]:
    """Returns the paths of the files of a date, below the table's folder.

    The result is empty if the table has no Delta log.
    """
    if table is None:
        return set()
    paths = (str(path) for path in table.get_add_actions().column("path").to_pylist())
    return {path for path in paths if path.startswith(f"{DATE}={dt}/")}


def _create(table: str, columns: Sequence[tuple[str, str]]) -> DeltaTable:
    from deltalake import DeltaTable

    schema = schema_of([*columns, (DATE, "string")])
    return DeltaTable.create(
        table, schema, mode="ignore", partition_by=[DATE], storage_options=store_options(table)
    )


def _commit(table: DeltaTable, dt: str, wanted: LogContent) -> None:
    from deltalake.transaction import AddAction, CommitProperties, Transaction

    # All transactions of a date have the same application id, so concurrent transactions conflict. Otherwise
    # delta-rs would keep the files of both transactions.
    application = f"{DATE}={dt}"
    number = (table.transaction_version(application) or 0) + 1
    modified = int(time.time() * 1000)
    table.create_write_transaction(
        [
            AddAction(path, size, {DATE: dt}, modified, True, json.dumps({"numRecords": rows}))
            for path, rows, size in wanted.files
        ],
        "overwrite",
        _merged(table, wanted.schema),
        partition_by=[DATE],
        partition_filters=[(DATE, "=", dt)],
        commit_properties=CommitProperties(app_transactions=[Transaction(application, number)]),
    )
    table.update_incremental()


def _merged(table: DeltaTable, columns: Sequence[tuple[str, str]]) -> Schema:
    """Returns the columns of the table, followed by the new columns.

    New columns are those in `columns` that the table does not have yet.
    """
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    known = {field["name"]: field["type"] for field in fields}
    for column in columns:
        field = _field(*column)
        if known.setdefault(field["name"], field["type"]) != field["type"]:
            raise DataError(
                f"{table.table_uri}: the column {field['name']} has the type {field['type']}, "
                f"but the type {known[field['name']]} in the earlier dates of the Delta log",
                f"delete {table.table_uri}/_delta_log, then run the job again for each date that other tools "
                "read",
            )
    added = [_field(name, kind) for name, kind in columns if name not in {field["name"] for field in fields}]
    return _schema([*fields, *added])


def _field(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": _TYPES[kind], "nullable": True, "metadata": {}}


def schema_of(columns: Sequence[tuple[str, str]]) -> Schema:
    """Returns the schema of a Delta table. `columns` has a pair (name, Arrow type) for each column."""
    return _schema([_field(*column) for column in columns])


def _schema(fields: Sequence[dict[str, Any]]) -> Schema:
    from deltalake import Schema

    return Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))


def store_options(table: str) -> dict[str, str]:
    """Returns the settings of delta-rs for the store of a table: its endpoint, and on Azure its credentials.

    delta-rs itself finds the credentials of S3 and of Google by the rules of these stores. It finds Hadoop's
    configuration by Hadoop's environment variables.
    """
    scheme, authority = scheme_of(table), table.partition("://")[2].partition("/")[0]
    if scheme == "gs":
        return google.delta_options()
    if scheme in ("abfss", "abfs", "az"):
        return azure.delta_options(authority)
    if scheme not in ("s3", "s3a"):
        return {}
    endpoint, region = file_io.s3_place()
    if endpoint:
        plain = str(not endpoint.startswith("https://")).lower()
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": plain, "AWS_REGION": region or "us-east-1"}
    return {"AWS_REGION": region or fs.resolve_s3_region(authority)}
