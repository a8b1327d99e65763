"""Which raw files make up one day (or one undated table), and the digest that identifies them."""

from __future__ import annotations

import fnmatch
import glob
from dataclasses import dataclass

from pyarrow import fs

from conf import storage
from conf.errors import DataError
from conf.lake import Partition
from conf.manifest import data_files, digest_of, is_published, read_manifest
from conf.types import Config, RawTable


@dataclass(frozen=True)
class RawFiles:
    """The raw files of one table and day, in name order, which is time order within the day.

    Attributes:
        dt: the day; for a log that is one undated table, the run date.
        digest: of the raw manifest where there is one, otherwise of names, sizes and modification times.
    """

    dt: str
    paths: tuple[str, ...]
    bytes: int
    digest: str


def raw_path(config: Config, table: RawTable, dt: str) -> str:
    """The table's path or glob for one day."""
    return table.path.replace("{lake}", config.lake).replace("{data}", config.data).replace("{date}", dt)


def find_raw(config: Config, table: RawTable, dt: str) -> RawFiles | None:
    """The raw files of one day; None when there is none.

    A folder with a manifest is read by it: files of an interrupted or superseded delivery are not seen.
    """
    pattern = raw_path(config, table, dt)
    folder = Partition("raw", dt, pattern.rsplit("/", 1)[0])
    if is_published(folder):
        manifest = read_manifest(folder)
        size = sum(each.bytes for each in manifest.files)
        paths = tuple(_absolute(path) for path in data_files(folder, manifest))
        return RawFiles(dt, paths, size, manifest.digest)
    found = _listed(pattern)
    if not found:
        return None
    digest = digest_of([[info.base_name, info.size, info.mtime_ns] for _, info in found])
    return RawFiles(dt, tuple(path for path, _ in found), sum(info.size for _, info in found), digest)


def require_raw(config: Config, table: RawTable, dt: str, key: str = "log.path") -> RawFiles:
    """The raw files of one day.

    Raises:
        DataError: there is none, or all are empty; names the key of the config that says where they should be.
    """
    found = find_raw(config, table, dt)
    pattern = raw_path(config, table, dt)
    if found is None:
        raise DataError(
            f"no raw file at {pattern} (from {key})", f"deliver the log of {dt}, or correct {key} with --set"
        )
    if found.bytes == 0:
        raise DataError(f"the raw files at {pattern} are empty (0 bytes)", f"deliver the log of {dt} again")
    return found


def _listed(pattern: str) -> list[tuple[str, fs.FileInfo]]:
    if storage.is_local(pattern):
        files, inner = storage.filesystem(pattern)
        paths = sorted(glob.glob(inner))
        infos = zip(paths, files.get_file_info(paths), strict=True)
        return [(path, info) for path, info in infos if info.is_file and not _hidden(path)]
    scheme = pattern.split("://", 1)[0] + "://"
    folder, _, name = pattern.rpartition("/")
    inside = storage.list_files(folder)
    return [
        (scheme + info.path, info)
        for info in inside
        if info.is_file and fnmatch.fnmatch(info.base_name, name) and not _hidden(info.path)
    ]


def _absolute(path: str) -> str:
    """A local path as Spark will name it: the JVM may have started in another folder."""
    return storage.filesystem(path)[1] if storage.is_local(path) else path


def _hidden(path: str) -> bool:
    return path.rsplit("/", 1)[1].startswith((".", "_"))
