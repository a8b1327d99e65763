"""Which raw files make up one day (or one undated table), and the digest that identifies them."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, field

from pyarrow import fs

from conf.errors import DataError
from conf.names import scheme_of
from conf.types import Config, RawTable
from storage import file_io
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import data_files, digest_of, is_published, read_manifest
from storage.paths import Partition

_WILDCARD = re.compile(r"[*?\[]")
# Ends of names of compressed text that no engine reads; what is read says etl.raw.compressed.
_UNREADABLE = (".zip", ".7z", ".xz", ".lzma", ".lz4", ".lzo", ".snappy", ".zstd", ".Z")


@dataclass(frozen=True)
class RawFiles:
    """The raw files of one table and day, in name order, which is time order within the day.

    Attributes:
        dt: the day; for a log that is one undated table, the run date.
        digest: of the raw manifest where there is one, otherwise of names (below the part of the path that holds no
            wildcard), sizes and modification times. A file that arrives late or is replaced changes it.
        recorder: receives what is read together with these files, such as tables of attributes.
    """

    dt: str
    paths: tuple[str, ...]
    bytes: int
    digest: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)


def raw_path(config: Config, table: RawTable, dt: str) -> str:
    """The table's path or glob for one day."""
    return table.path.replace("{lake}", config.lake).replace("{data}", config.data).replace("{date}", dt)


def find_raw(
    config: Config, table: RawTable, dt: str, recorder: LineageRecorder = NOT_RECORDED
) -> RawFiles | None:
    """The raw files of one day; None when there is none. `recorder` notes them as an input of the run.

    A folder with a manifest is read by it: files of an interrupted or superseded delivery are not seen. Otherwise all
    files count that match the path, whose folders may hold wildcards too, but none that begins with a dot or underscore.

    Raises:
        DataError: a file is compressed in a way that nothing here reads.
    """
    pattern = raw_path(config, table, dt)
    folder = Partition("raw", dt, pattern.rsplit("/", 1)[0], recorder=recorder)
    if is_published(folder):
        manifest = read_manifest(folder)
        size = sum(each.bytes for each in manifest.files)
        paths = tuple(_absolute(path) for path in data_files(folder, manifest))
        return RawFiles(dt, paths, size, manifest.digest, recorder)
    found = _listed(pattern)
    if not found:
        return None
    unreadable = [path for path, _, _ in found if path.endswith(_UNREADABLE) and table.format != "parquet"]
    if unreadable:
        raise DataError(
            f"{unreadable[0]} is compressed in a way that is not read", "deliver it as .gz, .bz2 or .zst"
        )
    digest = digest_of([[below, info.size, info.mtime_ns] for _, below, info in found])
    size = sum(info.size for _, _, info in found)
    recorder.record_read(pattern, digest, size_bytes=size)
    return RawFiles(dt, tuple(path for path, _, _ in found), size, digest, recorder)


def require_raw(
    config: Config,
    table: RawTable,
    dt: str,
    key: str = "log.path",
    recorder: LineageRecorder = NOT_RECORDED,
) -> RawFiles:
    """The raw files of one day.

    Raises:
        DataError: there is none, or all are empty; names the key of the config that says where they should be.
    """
    found = find_raw(config, table, dt, recorder)
    pattern = raw_path(config, table, dt)
    if found is None:
        raise DataError(
            f"no raw file at {pattern} (from {key})", f"deliver the log of {dt}, or correct {key} with --set"
        )
    if found.bytes == 0:
        raise DataError(f"the raw files at {pattern} are empty (0 bytes)", f"deliver the log of {dt} again")
    return found


def _listed(pattern: str) -> list[tuple[str, str, fs.FileInfo]]:
    """(path, path below the part without wildcards, info) of the files that match, by path."""
    remote = "" if file_io.is_local(pattern) else f"{scheme_of(pattern)}://"
    *folders, name = file_io.filesystem(pattern)[1].split("/")
    fixed = next((place for place, each in enumerate(folders) if _WILDCARD.search(each)), len(folders))
    bases = ["/".join(folders[:fixed])]
    for wanted in folders[fixed:]:
        bases = [
            info.path
            for base in bases
            for info in file_io.list_files(remote + (base or "/"))
            if info.type == fs.FileType.Directory and _matches(info, wanted)
        ]
    found = [
        info
        for base in bases
        for info in file_io.list_files(remote + (base or "/"))
        if info.is_file and _matches(info, name)
    ]
    listed = [(remote + info.path, "/".join(info.path.split("/")[fixed:]), info) for info in found]
    return sorted(listed, key=lambda each: each[0])


def _matches(info: fs.FileInfo, wanted: str) -> bool:
    hidden = info.base_name.startswith((".", "_"))
    return info.base_name == wanted or (not hidden and fnmatch.fnmatchcase(info.base_name, wanted))


def _absolute(path: str) -> str:
    """A local path as Spark will name it: the JVM may have started in another folder."""
    return file_io.filesystem(path)[1] if file_io.is_local(path) else path
