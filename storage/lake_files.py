"""Lists the files of a lake, and the files of each date of a table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from storage import file_io
from storage.hard_links import LOCK_NAME
from storage.manifest import MANIFEST_NAME
from storage.paths import DATA, Lake

_DATED = re.compile(rf"({DATA}/)?((?!{DATA}/).+?)/dt=(\d{{4}}-\d\d-\d\d)/(.*)")


@dataclass(frozen=True)
class LakeFile:
    """A file of a lake.

    Attributes:
        path: path below the root of the lake. That of a folder ends with a `/`.
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
        others: number of other files in the folder of the date, such as hard links.
        has_data_folder: whether there is a folder of data files.
        modified: time of the last change of a folder of the date, in seconds since 1970.
    """

    manifest: LakeFile | None = None
    data: list[LakeFile] = field(default_factory=list)
    others: int = 0
    has_data_folder: bool = False
    modified: float = 0.0

    @property
    def is_of_job(self) -> bool:
        """Returns whether a job wrote the date. Otherwise the folder has files of somebody else."""
        return self.manifest is not None or self.has_data_folder or not self.others


def list_lake(lake: Lake) -> list[LakeFile]:
    """Lists all files and folders of a lake, by path."""
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
        elif not is_data and name == MANIFEST_NAME:
            of_date.manifest = file
        # Release 0.1.0 kept the data files of an attempt in a folder beside the manifest.
        elif is_data or "/" in name:
            of_date.data.append(file)
        else:
            of_date.others += 1
    return dates
