"""Converts the files of a lake to the format versions of this release.

Only manifests of version 1 must be migrated. Their data files are in the partition's own folder, so tools
that list the folder also see the files of replaced attempts. Migration moves the data files of such a
manifest. It links or copies them to a folder below `_data`. Then it writes a manifest with the new paths and
with digests of the files, and deletes the old files. This release reads all other older files unchanged.

No job may use the lake during a migration. If migration is killed, each partition is either unchanged or
migrated. Run the migration again to continue.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyarrow import fs

from conf.errors import DataError, InfrastructureError
from storage import file_io, format_versions
from storage.file_digests import digest_of_file
from storage.format_versions import Format
from storage.manifest import MANIFEST_NAME, data_files, is_whole, load_manifest, replace_manifest
from storage.paths import DATA, LakePaths, Partition

# Pairs of a pattern for paths below the lake's root, and the format of the files with these paths. The first
# pattern that matches is used.
_KINDS: tuple[tuple[re.Pattern[str], Format], ...] = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (rf"(?:.+/)?{MANIFEST_NAME}", format_versions.MANIFEST),
        (r"workflow/[^/]+/workflow\.json", format_versions.WORKFLOW),
        (r"(?:workflow|features)/[^/]+/feature_spec\.json", format_versions.FEATURE_SPEC),
        (r"models/[^/]+/promotions/dt=[^/]+\.json", format_versions.PROMOTION),
        (r"models/[^/]+/interventions/dt=[^/]+\.json", format_versions.INTERVENTION),
        (r"models/[^/]+/experiment_stops/dt=[^/]+\.json", format_versions.EXPERIMENT_STOP),
        (r"models/[^/]+/blends/dt=[^/]+\.json", format_versions.BLEND),
        (r"models/[^/]+/(?:runs|refits)/dt=[^/]+\.json", format_versions.TRAINED_VERSION),
        (r"models/[^/]+/[^/]+/model\.json", format_versions.MODEL),
        (r"checkpoints/[^/]+/step-\d+\.json", format_versions.CHECKPOINT),
        (r"runs/dt=[^/]+/[^/.][^/]*\.json", format_versions.RUN_RECORD),
        (r"erasures/users\.json", format_versions.ERASED_USERS),
        (r"erasures/\d{4}-\d\d-\d\d-[0-9a-f]+\.json", format_versions.ERASURE),
    )
)


@dataclass(frozen=True)
class FoundFile:
    """One file with a format version, as found in a lake.

    Attributes:
        path: path of the file below the root of the lake.
        kind, version: the format of the file, and the version that the file has.
        needs_work: whether migration would rewrite the file.
    """

    path: str
    kind: Format
    version: int
    needs_work: bool


@dataclass(frozen=True)
class Survey:
    """The files of a lake that have a format version.

    Attributes:
        files: every such file that can be read.
        problems: one error for each such file that is damaged or that a newer release wrote.
    """

    files: tuple[FoundFile, ...]
    problems: tuple[DataError, ...]

    @property
    def to_migrate(self) -> tuple[FoundFile, ...]:
        """Returns the files that migration would rewrite."""
        return tuple(file for file in self.files if file.needs_work)


def survey(lake: LakePaths) -> Survey:
    """Lists every file of a lake that has a format version. Changes nothing.

    Raises:
        DataError: the root contains no file that jobs write in a lake, such as a manifest.
    """
    root = lake.root.rstrip("/")
    paths = list(_paths(root))
    with_attempts = _folders_of_folders(paths)
    files: list[FoundFile] = []
    problems: list[DataError] = []
    for path in paths:
        kind = next((kind for pattern, kind in _KINDS if pattern.fullmatch(path)), None)
        if kind is None:
            continue
        try:
            values = file_io.read_json(f"{root}/{path}")
            kind.check(values, f"{root}/{path}")
            version = kind.version_of(values, f"{root}/{path}")
        except DataError as error:
            problems.append(error)
            continue
        needs_work = kind is format_versions.MANIFEST and path.rpartition("/")[0] in with_attempts
        files.append(FoundFile(path, kind, version, needs_work))
    if not files and not problems:
        raise DataError(
            f"{lake.root} is not a data lake: it contains no file that the jobs write, such as a manifest",
            "pass the value of the configuration's key `lake` as --lake",
        )
    return Survey(tuple(files), tuple(problems))


def migrate(lake: LakePaths, file: FoundFile) -> int:
    """Moves the data files of one partition to a folder below `_data`, and returns the number of files.

    Raises:
        DataError: a file of the manifest is missing or has a different size.
        InfrastructureError: a file could not be linked, copied or deleted.
    """
    partition = partition_of_manifest(lake, file.path)
    manifest = load_manifest(partition)
    if not is_whole(partition, manifest):
        raise DataError(
            f"{partition.file(MANIFEST_NAME)} names files that are missing or truncated",
            "rerun the job that writes this partition: it builds the partition again",
        )
    # A migration that was killed may have replaced the manifest already.
    moved = tuple(
        entry if entry.path.startswith("../") else replace(entry, path=f"{partition.data}/{entry.path}")
        for entry in manifest.files
    )
    new = [partition.file(entry.path) for entry in moved]
    try:
        for source, target in zip(data_files(partition, manifest), new, strict=True):
            if source != target:
                _copy(source, target)
        moved = tuple(
            replace(entry, digest=entry.digest or digest_of_file(path))
            for entry, path in zip(moved, new, strict=True)
        )
        file_io.make_durable(new, partition.root)
        replace_manifest(partition, replace(manifest, files=moved))
        _remove(partition)
    except OSError as error:
        raise InfrastructureError(
            f"cannot move the data files of {partition.path}: {error}",
            "check disk space and permissions, then run migrate again: it continues where it stopped",
        ) from error
    return len(new)


def _paths(root: str) -> Iterator[str]:
    """Yields the paths of the files in the lake, relative to its root.

    Data files of the current layout are left out.
    """
    _, inner = file_io.filesystem(root)
    for info in file_io.list_files(root, recursive=True):
        path = info.path.removeprefix(f"{inner}/")
        if info.is_file and not path.startswith(f"{DATA}/"):
            yield path


def _folders_of_folders(paths: Iterable[str]) -> frozenset[str]:
    """Returns the folders that have files in a subfolder. This shows which partitions to migrate.

    The folder of a partition of version 1 has a subfolder for each attempt to write the partition. The
    folders of newer partitions and of raw logs have no subfolders.
    """
    return frozenset(
        path[: match.start()]
        for path in paths
        for match in re.finditer("/", path)
        if "/" in path[match.end() :]
    )


def partition_of_manifest(lake: LakePaths, manifest_path: str) -> Partition:
    """Returns the partition to which a manifest belongs.

    The path of the manifest, below the lake's root, is `<table>/<partition>/_MANIFEST.json`.
    """
    table, _, name = manifest_path.removesuffix(f"/{MANIFEST_NAME}").rpartition("/")
    depth = table.count("/") + 2
    return Partition(
        table, name.removeprefix("dt="), f"{lake.root.rstrip('/')}/{table}/{name}", depth, lake.recorder
    )


def _copy(source: str, target: str) -> None:
    """Makes `target` a copy of `source`, or locally a hard link. Replaces an existing `target`."""
    files, inner = file_io.filesystem(target)
    if not file_io.is_local(target):
        files.copy_file(file_io.filesystem(source)[1], inner)
        return
    files.create_dir(os.path.dirname(inner), recursive=True)
    if os.path.lexists(inner):
        os.unlink(inner)
    os.link(file_io.filesystem(source)[1], inner)


def _remove(partition: Partition) -> None:
    """Deletes the subfolders of the partition's folder, in which earlier releases kept data files."""
    for info in file_io.list_files(partition.path):
        if info.type == fs.FileType.Directory:
            file_io.filesystem(partition.path)[0].delete_dir(info.path)
