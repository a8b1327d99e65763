"""Hard links in a local partition's folder, for tools that list it: one link for each file of the manifest.

Several links cannot be replaced atomically. So while a job replaces the links, the folder also contains a
file that no tool can read. A tool that lists the folder therefore either reads the files of exactly one
manifest, or fails. If a process is killed while it changes the links, the unreadable file remains, and the
next run repairs the links.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

from conf.errors import InfrastructureError
from storage import file_io

log = logging.getLogger("nightrank.publish")

LOCK_NAME = ".lock"
# This name comes first in sorted order, because a tool that needs a few rows may read only the first file. A
# folder of JSON lines or CSV also gets a .gz file: Spark reads a line of any text as a row, but Spark fails
# on a .gz file that is not compressed.
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


def show(folder: str, data: str, wanted: Set[str], targets: Callable[[], Mapping[str, str]]) -> None:
    """Replaces the hard links in a partition's folder by links to the files of the manifest.

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
                "%s cannot be linked into %s (%s): tools that list the folder find no files, "
                "but readers of the manifest find all",
                target,
                folder,
                error.strerror,
            )
            return
