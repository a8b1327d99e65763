"""Lists the files of a lake, and deletes dates of tables and files that no manifest lists."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyarrow import fs

from conf.errors import DataError
from storage import file_io
from storage.manifest import MANIFEST_NAME, Manifest, is_published, load_manifest, read_manifest, withdraw
from storage.other_tools import LOCK_NAME
from storage.paths import DATA, LakePaths, Partition, Table

# Name of a file that is written to a folder of data files before the folder's manifest is deleted.
WITHDRAWN_NAME = "_WITHDRAWN"
_WITHDRAWN_TEXT = (
    "No manifest lists the files of this folder any more. A job deletes them after output.grace_hours.\n"
)


def written_dates(table: Table) -> list[str]:
    """Returns the dates of a table that have data files, published or not, in ascending order."""
    partition = table.partition("")
    folder = partition.file(partition.data).rpartition("/")[0]
    names = (info.base_name for info in file_io.list_files(folder))
    return sorted(name.removeprefix("dt=") for name in names if name.startswith("dt="))


def is_younger(partition: Partition, hours: float) -> bool:
    """Returns whether a partition is published, and was published less than `hours` hours ago."""
    if not is_published(partition):
        return False
    return _is_recent(read_manifest(partition), hours)


def _is_recent(manifest: Manifest, hours: float) -> bool:
    """Returns whether a manifest was published less than `hours` hours ago."""
    if not manifest.created_at:  # an early release wrote the manifest
        return False
    return datetime.now(UTC) - datetime.fromisoformat(manifest.created_at) < timedelta(hours=hours)


def remove(partition: Partition, grace_hours: float) -> None:
    """Deletes a partition: its manifest and, after `grace_hours`, its data files.

    The manifest is deleted first, so no job uses an incomplete partition. Hard links or Delta log entries are
    deleted next, so other tools do not find files that are deleted later. A program that has read the
    manifest may still read the data files. So they stay, and the first removal after `grace_hours` deletes
    them. If a removal is killed, the next removal continues it: `written_dates` lists each date that still
    has a folder of data files. Data files of another job that is writing this date are younger, and remain.
    """
    if grace_hours > 0 and _has_files(partition):
        record_withdrawal(partition.file(partition.data))
    withdraw(partition)
    if is_published(partition):
        return  # another job has published the partition again
    delete_leftovers(partition, [], grace_hours)
    if not file_io.is_local(partition.path):  # release 0.1.0 kept data files beside the manifest
        for info in file_io.list_files(partition.path, recursive=True):
            if info.is_file:
                file_io.filesystem(partition.path)[0].delete_file(info.path)
    for folder in (partition.path, partition.file(partition.data)):
        delete_empty_folders(folder)


def record_withdrawal(folder: str) -> None:
    """Writes the file WITHDRAWN_NAME into a folder of data files. Call this before the manifest is deleted.

    The time of this file is the time at which the manifest was deleted. So later removals can compute for how
    long no manifest has listed the data files.

    Raises:
        InfrastructureError: the file cannot be written.
    """
    file_io.replace_text(f"{folder}/{WITHDRAWN_NAME}", _WITHDRAWN_TEXT)


def _has_files(partition: Partition) -> bool:
    """Returns whether a partition is published with data files, or with a damaged manifest."""
    try:
        return bool(load_manifest(partition).files)
    except FileNotFoundError:
        return False
    except DataError:
        return True


# The functions below delete files that no manifest lists, such as those of killed jobs and of replaced dates.


def delete_leftovers(
    partition: Partition,
    manifests: Sequence[Manifest | None],
    grace_hours: float,
    replaced: Manifest | None = None,
) -> int:
    """Deletes the data files of a partition that no manifest lists, if they are older than `grace_hours`.

    A program may still read files that an earlier manifest listed. So a file stays until `grace_hours` have
    passed since a manifest last listed it. If the manifest was deleted, this time is the time of the file
    WITHDRAWN_NAME.

    Args:
        partition: the partition.
        manifests: the manifests whose files stay.
        grace_hours: for how many hours a file stays after a manifest last listed it.
        replaced: the manifest that was replaced just now, if any. The files of still earlier manifests were
            listed until `replaced` was published.

    Returns:
        The number of deleted files.
    """
    if replaced is not None and _is_recent(replaced, grace_hours):
        return 0
    named = {partition.file(entry.path) for manifest in manifests if manifest for entry in manifest.files}
    kept = {file_io.filesystem(path)[1] for path in named}
    limit = time.time() - grace_hours * 3600
    deleted = 0
    folder = partition.file(partition.data)
    infos = file_io.list_files(folder, recursive=True)
    if grace_hours > 0 and any(
        info.base_name == WITHDRAWN_NAME and info.mtime is not None and info.mtime.timestamp() >= limit
        for info in infos
    ):
        return 0
    for info in infos:
        if (
            info.is_file
            and info.path not in kept
            and info.base_name != LOCK_NAME
            and info.mtime is not None
            and info.mtime.timestamp() < limit
        ):
            with suppress(FileNotFoundError):  # another job has deleted the file
                file_io.filesystem(folder)[0].delete_file(info.path)
                deleted += 1
    return deleted


def delete_empty_folders(folder: str) -> None:
    """Deletes a folder and its subfolders if none of them contains a file. The folder may be missing.

    The file LOCK_NAME does not count as a file. A file that another job writes meanwhile is not deleted,
    except on S3, where pyarrow's client can delete a folder only together with all its files.
    """
    files, inner = file_io.filesystem(folder)
    entries = file_io.list_files(folder, recursive=True)
    if any(entry.is_file and entry.base_name != LOCK_NAME for entry in entries):
        return
    for lock in (entry for entry in entries if entry.is_file):
        with suppress(FileNotFoundError):
            files.delete_file(lock.path)
    below = [entry.path.removeprefix(f"{inner}/") for entry in entries if not entry.is_file]
    for path in [*(f"{folder}/{name}" for name in reversed(below)), folder]:
        file_io.delete_empty_folder(path)
    if isinstance(files, fs.S3FileSystem) and file_io.exists(folder):
        files.delete_dir(inner)


# The code below lists the files of a lake, and the files of each date of a table.

_DATED = re.compile(rf"({DATA}/)?((?!{DATA}/).+?)/dt=(\d{{4}}-\d\d-\d\d)/(.*)")


@dataclass(frozen=True)
class LakeFile:
    """A file of a lake.

    Attributes:
        path: path below the root of the lake. The path of a folder ends with a `/`.
        bytes: number of bytes.
        modified: time of the last change, in seconds since 1970.
    """

    path: str
    bytes: int
    modified: float

    @property
    def parts(self) -> list[str]:
        """Returns the parts of the path without the leading `_data`: the name of the table comes first."""
        return self.path.removeprefix(f"{DATA}/").split("/")


@dataclass
class DateFiles:
    """The files of one date of a table.

    Attributes:
        manifest: the manifest; None if the date is not published.
        data: the data files, published or not.
        withdrawn: the file WITHDRAWN_NAME, if the manifest was deleted.
        others: number of other files in the folder of the date, such as hard links.
        has_data_folder: whether there is a folder of data files.
        modified: time of the last change of a folder of the date, in seconds since 1970.
    """

    manifest: LakeFile | None = None
    data: list[LakeFile] = field(default_factory=list)
    withdrawn: LakeFile | None = None
    others: int = 0
    has_data_folder: bool = False
    modified: float = 0.0

    @property
    def is_of_job(self) -> bool:
        """Returns whether a job wrote the files of the date.

        If not, a user or another program wrote the files of the folder.
        """
        return self.manifest is not None or self.has_data_folder or not self.others


def list_lake(lake: LakePaths) -> list[LakeFile]:
    """Lists all files and folders of a lake, sorted by path."""
    _, inner = file_io.filesystem(lake.root)
    return [
        LakeFile(
            info.path.removeprefix(f"{inner}/") + ("" if info.is_file else "/"),
            info.size or 0,
            info.mtime.timestamp() if info.mtime is not None else 0.0,
        )
        for info in file_io.list_files(lake.root, recursive=True)
    ]


def dates_of_tables(files: Iterable[LakeFile]) -> dict[tuple[str, str], DateFiles]:
    """Groups files by table and date: the keys are (path of the table below the root, ISO date).

    Hard links are left out, because they have the same bytes as the data files.
    """
    dates: dict[tuple[str, str], DateFiles] = {}
    for file in files:
        match = _DATED.fullmatch(file.path)
        if match is None:
            continue
        is_data, table, dt, name = match.groups()
        of_date = dates.setdefault((table, dt), DateFiles())
        of_date.has_data_folder = of_date.has_data_folder or bool(is_data)
        if file.path.endswith("/"):
            of_date.modified = max(of_date.modified, file.modified)
        elif name == LOCK_NAME:
            continue
        elif is_data and name == WITHDRAWN_NAME:
            of_date.withdrawn = file
        elif not is_data and name == MANIFEST_NAME:
            of_date.manifest = file
        # Release 0.1.0 kept the data files of an attempt in a folder beside the manifest.
        elif is_data or "/" in name:
            of_date.data.append(file)
        else:
            of_date.others += 1
    return dates
