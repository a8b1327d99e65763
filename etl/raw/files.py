"""Finds the raw files of one day, or of a table without dates, and computes a digest of these files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyarrow import fs

from conf.errors import DataError
from conf.names import SPARK_TABLE, scheme_of, with_date
from conf.plugins import READER
from conf.raw_types import Format, format_settings
from conf.types import Config, RawTable
from etl.raw.delta_tables import files_at
from etl.raw.file_splits import read_blocks, split_files
from etl.raw.table_copies import copy_of
from storage import file_io
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import data_files, digest_of, is_published, read_manifest
from storage.paths import Partition

_WILDCARD = re.compile(r"[*?\[]")

# Suffixes of compressed text that no engine can read. etl.raw.file_splits has the supported suffixes.
_UNREADABLE = (".zip", ".7z", ".xz", ".lzma", ".lz4", ".lzo", ".snappy", ".zstd", ".Z")

# A compressed file whose text is empty has fewer bytes than this: gzip needs 20 bytes and the name of the
# file.
_EMPTY_BYTES = 512


@dataclass(frozen=True)
class RawFiles:
    """The raw files of one table and day. The names of the files must be in the order of the rows' times.

    Attributes:
        dt: the day as an ISO date. For a table without dates, it is the run date.
        paths: paths of the files, ordered by name.
        bytes: total size of the files.
        digest: if the folder of the files has a manifest, the digest in this manifest. Otherwise, a digest of
            the files' names, sizes and modification times, which changes if a file arrives late or is
            replaced. Here a name is a path relative to the last folder before a wildcard.
        recorder: records other inputs of the run that are read with these files, such as tables of
            attributes.
    """

    dt: str
    paths: tuple[str, ...]
    bytes: int
    digest: str
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)


def raw_path(config: Config, table: RawTable, dt: str) -> str:
    """Returns the table's path or glob pattern for one day."""
    return with_date(table.path.replace("{lake}", config.lake).replace("{data}", config.data), dt)


def find_raw(
    config: Config, table: RawTable, dt: str, recorder: LineageRecorder = NOT_RECORDED
) -> RawFiles | None:
    """Returns the raw files of one day; None if there are no files.

    `recorder` records the files as inputs of the run.

    If the folder of the raw files has a manifest, only files that the manifest lists are returned. This
    ignores the files of an interrupted or replaced delivery. Otherwise, all files that match the table's path
    are returned. Wildcards are also allowed in the folders of this path. A wildcard does not match names that
    begin with a dot or an underscore. For a table of Spark's catalogue, the files are the files of its copy.

    Raises:
        DataError: a file is compressed in a format that no engine can read.
    """
    pattern = raw_path(config, table, dt)
    if table.format == "delta":
        return _find_delta(pattern, dt, recorder)
    if table.format == SPARK_TABLE:
        copy = copy_of(config, table, dt, recorder)
        copied = _of_manifest(copy, dt) if is_published(copy) else None
        return copied if copied is not None and copied.paths else None
    folder = Partition("raw", dt, pattern.rsplit("/", 1)[0], recorder=recorder)
    if is_published(folder):
        return _of_manifest(folder, dt)
    matches = _list_matches(pattern)
    if not matches:
        return None
    _require_readable(matches, table.format)
    digest = digest_of([[below, info.size, info.mtime_ns] for _, below, info in matches])
    extension = READER.find_in_package(table.format)
    if extension is not None:  # the rows also depend on the version of the reader that a package adds
        digest = digest_of([digest, extension.digest()])
    size = sum(info.size for _, _, info in matches)
    recorder.record_read(pattern, digest, size_bytes=size)
    return RawFiles(dt, tuple(path for path, _, _ in matches), size, digest, recorder)


def _of_manifest(folder: Partition, dt: str) -> RawFiles:
    manifest = read_manifest(folder)
    paths = tuple(_absolute(path) for path in data_files(folder, manifest))
    return RawFiles(dt, paths, manifest.bytes, manifest.digest, folder.recorder)


def _find_delta(path: str, dt: str, recorder: LineageRecorder) -> RawFiles | None:
    """Does the same as `find_raw` for a Delta table.

    The files are in the order in which they were created.
    """
    files = files_at(path)
    if not files:
        return None
    digest = digest_of([[file.below, file.bytes] for file in files])
    size = sum(file.bytes for file in files)
    recorder.record_read(path, digest, size_bytes=size)
    return RawFiles(dt, tuple(_absolute(file.path) for file in files), size, digest, recorder)


def find_files(pattern: str, form: Format) -> tuple[str, ...]:
    """Returns the paths of the files of a format that match a path or glob pattern, ordered by name.

    Raises:
        DataError: a file is compressed in a format that no engine can read.
    """
    if form == "delta":
        return tuple(_absolute(file.path) for file in files_at(pattern))
    matches = _list_matches(pattern)
    _require_readable(matches, form)
    return tuple(path for path, _, _ in matches)


def has_no_text(table: RawTable, raw: RawFiles) -> bool:
    """Returns whether all files are empty. A compressed file is empty if its decompressed text is empty."""
    if raw.bytes == 0:
        return True
    if not format_settings(table.format).is_text or raw.bytes > _EMPTY_BYTES * len(raw.paths):
        return False
    return not any(len(block) for part in split_files(raw.paths) for block in read_blocks(part))


def require_raw(
    config: Config,
    table: RawTable,
    dt: str,
    key: str = "log.path",
    recorder: LineageRecorder = NOT_RECORDED,
) -> RawFiles:
    """Returns the raw files of one day. There must be at least one file that is not empty.

    Raises:
        DataError: there are no files, or all are empty. The message contains `key`, the configuration key of
            the path.
    """
    raw = find_raw(config, table, dt, recorder)
    pattern = raw_path(config, table, dt)
    if raw is None and table.format == SPARK_TABLE:
        raise DataError(
            f"the lake has no copy of the rows of {dt} of Spark's table {pattern} (from {key})",
            "run build_features, which copies them; if it has run, the table has no such rows: load them, "
            f"or correct {key}",
        )
    if raw is None:
        raise DataError(
            f"no raw file at {pattern} (from {key})",
            f"deliver the raw files of {dt}, or correct {key} in the configuration or with --set; {{date}} "
            "stands for YYYY-MM-DD, and {date:%Y%m%d} for YYYYMMDD",
        )
    if raw.bytes == 0:
        raise DataError(
            f"the raw files at {pattern} are empty (0 bytes)", f"deliver the raw files of {dt} again"
        )
    return raw


def _require_readable(matches: Sequence[tuple[str, str, fs.FileInfo]], form: Format) -> None:
    """Raises DataError if a file of text is compressed in a format that no engine can read."""
    unreadable = [path for path, _, _ in matches if path.endswith(_UNREADABLE)]
    if unreadable and format_settings(form).is_text:
        raise DataError(
            f"{unreadable[0]} is compressed in a format that is not supported",
            "deliver it as .gz, .bz2 or .zst",
        )


def _list_matches(pattern: str) -> list[tuple[str, str, fs.FileInfo]]:
    """Returns the path, the relative path and the file information of each matching file, ordered by path.

    The relative path begins with the first folder that a wildcard matches, or with the file name.
    """
    remote = "" if file_io.is_local(pattern) else f"{scheme_of(pattern)}://"
    *folders, name = file_io.filesystem(pattern)[1].split("/")
    fixed = next((index for index, folder in enumerate(folders) if _WILDCARD.search(folder)), len(folders))
    bases = ["/".join(folders[:fixed])]
    for folder_pattern in folders[fixed:]:
        bases = [
            info.path
            for base in bases
            for info in file_io.list_files(remote + (base or "/"))
            if info.type == fs.FileType.Directory and _matches(info, folder_pattern)
        ]
    infos = [
        info
        for base in bases
        for info in file_io.list_files(remote + (base or "/"))
        if info.is_file and _matches(info, name)
    ]
    matches = [(remote + info.path, "/".join(info.path.split("/")[fixed:]), info) for info in infos]
    return sorted(matches, key=lambda match: match[0])


def _matches(info: fs.FileInfo, pattern: str) -> bool:
    hidden = info.base_name.startswith((".", "_"))
    return info.base_name == pattern or (not hidden and fnmatch.fnmatchcase(info.base_name, pattern))


def _absolute(path: str) -> str:
    """Makes a local path absolute, because the JVM may run in another folder."""
    return file_io.filesystem(path)[1] if file_io.is_local(path) else path


# Finds the log of the items that were shown to users on one day (`serving.impressions`).
#
# build_features adds positions of this log to the rows of the click log if `row_column` is set. In this case,
# the log of impressions is an input of everything that is computed from these rows.
# etl/readers/impressions.py reads the log.


def impressions_of(config: Config, raw: RawFiles) -> RawFiles | None:
    """Returns the files with the impressions of the day of a click log.

    Returns None if there are no such files, or if the configuration does not add positions to the rows
    (`row_column`).

    Args:
        config: the configuration, whose section `serving.impressions` has the path.
        raw: the files of the click log. Its recorder records the impressions as an input of the run.
    """
    settings = config.serving.row_positions
    return find_raw(config, settings, raw.dt, raw.recorder) if settings else None


def impression_inputs(config: Config, raw: RawFiles) -> dict[str, str]:
    """Returns the input `impressions` of everything that is computed from the prepared rows of a day.

    The input is the digest of the day's impressions, or `none` without a file. The result is empty if the
    configuration does not add positions to the rows.
    """
    if config.serving.row_column is None:
        return {}
    logged = impressions_of(config, raw)
    return {"impressions": logged.digest if logged else "none"}


def rows_digest(config: Config, raw: RawFiles) -> str:
    """Returns a digest of the files from which the prepared rows of a day are computed.

    It is the digest of the click log if the configuration does not add positions to the rows.
    """
    inputs = impression_inputs(config, raw)
    return digest_of([raw.digest, inputs]) if inputs else raw.digest
