"""Hard links in a local partition's folder, for readers that list it: one link for each file of the manifest.

Links cannot be exchanged in one step. So a file that no reader can read lies in the folder while they change:
whoever lists the folder sees the files of one manifest or fails, also where the process was killed in
between. The next run then finds the links wrong.
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
# First in the order of names, since a reader that wants a few rows may look at the first file alone. Spark
# takes a line that is no JSON for a row, and fails where an archive is none.
STOP = "0-being-replaced"
_STOPS = {".parquet": (".parquet",), ".jsonl": (".jsonl", ".json.gz"), ".json.gz": (".json.gz",)}
_STOP_TEXT = (
    "This partition is being replaced. Read it again; if it stays like this, "
    "a job was killed: run it again.\n"
)
# What a file system answers that has no hard links, none between these folders, or no more of one file.
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def show(folder: str, data: str, wanted: Set[str], targets: Callable[[], Mapping[str, str]]) -> None:
    """Makes the links in a partition's folder exactly the wanted ones. Names that begin with `_` or `.` stay.

    Args:
        folder: of the partition, where its manifest is.
        data: the folder of its data files, which has the lock for changes of the links.
        wanted: names of the links. If exactly these exist, nothing changes.
        targets: reads the manifest and returns name of a link → path of its file.

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
    """Lets one process at a time change the links, so that a late one does not link replaced files."""
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
    """Deletes a link, or a folder of data files, which earlier releases kept in the partition's folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _link(folder: Path, targets: Mapping[str, str]) -> None:
    """Links all targets, or none if the file system has no hard links. Then the folder shows no files."""
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
                "%s cannot be linked into %s (%s): readers that list the folder find no file, "
                "those of the manifest all",
                target,
                folder,
                error.strerror,
            )
            return
