"""Compares all files of a lake with what their manifests say, and prepares damaged partitions for a repair.

The bytes of each data file are compared with the digest in the manifest (storage.file_digests). The JSON
files with a format version are parsed. Files without a digest are counted as unverified. Such files are raw
logs, or files of earlier releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from conf.errors import DataError
from storage import file_io, format_versions
from storage.file_digests import BUILD_FEATURES, damaged_file, digest_of_file, job_of, partition_of
from storage.manifest import MANIFEST_NAME, FileEntry, Manifest, load_manifest
from storage.migration import partition_of_manifest, survey
from storage.paths import LakePaths, Partition

_THREADS = 8
_WORKFLOW = "workflow"
_OF_RUN_DATES = ("users", "items", "item_titles", "datasets")  # tables whose dates are run dates


@dataclass(frozen=True)
class Damage:
    """One damaged file of a lake.

    Attributes:
        table, date: the table and the date of the file; empty for a JSON file that belongs to no table.
        path: the full path of the file.
        difference: how the file differs from its manifest, or why it cannot be parsed.
        remedy: which job writes the file again, or what else the user should do.
        partition: the partition of the file; None if its manifest cannot be read, so that `repair` cannot
            record the damage there.
    """

    table: str
    date: str
    path: str
    difference: str
    remedy: str
    partition: Partition | None = None


@dataclass
class Findings:
    """The result of `check_lake`.

    Attributes:
        partitions, files, bytes: how many partitions, data files and bytes of data files were compared.
        unverified: number of data files without a digest; only their sizes were compared.
        damages: the damaged files, ordered by table, date and path.
    """

    partitions: int = 0
    files: int = 0
    bytes: int = 0
    unverified: int = 0
    damages: tuple[Damage, ...] = ()


def check_lake(lake: LakePaths, progress: Callable[[Findings], None] = lambda _: None) -> Findings:
    """Compares all data files of a lake with their manifests, and parses its JSON files. Changes nothing.

    Args:
        lake: the lake.
        progress: called after each partition, with the counts up to this partition.

    Raises:
        DataError: the root contains no file that jobs write in a lake, such as a manifest.
        OSError: the lake cannot be read.
    """
    known = survey(lake)
    damages = [_of_json(lake, error) for error in known.problems]
    findings = Findings()
    builds: list[_Build] = []
    for file in known.files:
        if file.kind is not format_versions.MANIFEST:
            continue
        partition = partition_of_manifest(lake, file.path)
        try:
            manifest = load_manifest(partition)
        except FileNotFoundError:  # another job has deleted the manifest
            continue
        except DataError as error:
            damages.append(_of_json(lake, error, partition))
            continue
        damages += check_partition(partition, manifest)
        if partition.table == lake.datasets.name and (build := _Build.of(manifest)) is not None:
            builds.append(build)
        findings.partitions += 1
        findings.files += sum(1 for entry in manifest.files if entry.digest)
        findings.bytes += sum(entry.bytes for entry in manifest.files if entry.digest)
        findings.unverified += sum(1 for entry in manifest.files if not entry.digest)
        progress(findings)
    damages = [_with_run(damage, builds) for damage in damages]
    findings.damages = tuple(sorted(damages, key=lambda one: (one.table, one.date, one.path)))
    return findings


@dataclass(frozen=True)
class _Build:
    """A run of build_features, from the manifest of its dataset.

    Attributes:
        run_date: the run date.
        version: the workflow version.
        mode: what the run did: `fit`, `extend` or `apply`.
        days: the days whose features the dataset has.
    """

    run_date: str
    version: str
    mode: str
    days: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest) -> _Build | None:
        """Returns the run of build_features that published a dataset; None if its manifest lacks a value."""
        facts = manifest.facts
        try:
            days = {str(member["dt"]) for members in facts["splits"].values() for member in members}
            return cls(
                manifest.partition, str(facts["workflow_version"]), str(facts["mode"]), frozenset(days)
            )
        except (KeyError, TypeError, AttributeError):
            return None


def _with_run(damage: Damage, builds: Sequence[_Build]) -> Damage:
    """Returns the damage. If build_features writes the damaged table, the remedy is a command.

    The command repeats the run that wrote the damaged file. A run with another run date or another mode would
    not write this file again, because it would have another workflow version, or other days.
    """
    if not damage.table or job_of(damage.table) != BUILD_FEATURES:
        return damage
    build = _run_that_writes(damage.table, damage.date, builds)
    if build is None:
        return damage
    command = f"{BUILD_FEATURES} --run-date {build.run_date} --set workflow.mode={build.mode}"
    return replace(damage, remedy=f"run `{command}` again, with the configuration of the lake")


def _run_that_writes(table: str, date: str, builds: Sequence[_Build]) -> _Build | None:
    """Returns the run of build_features to repeat if a date of a table is damaged; None without datasets."""
    kind, version = (*table.split("/"), "")[:2]
    versions = {build.version for build in builds}
    of_version = [build for build in builds if build.version == version] if version in versions else builds
    fits = [build for build in of_version if build.mode != "apply"]
    if kind == _WORKFLOW:
        wanted = [fits or of_version]
    elif kind in _OF_RUN_DATES:
        on_date = [build for build in builds if build.run_date == date]
        wanted = [[build for build in on_date if build in of_version], on_date]
    else:
        # A run also reads days before those of its dataset, for example for histories. So if no dataset has
        # the day, the first run on or after this day is chosen.
        later = sorted((build for build in builds if build.run_date >= date), key=lambda one: one.run_date)
        wanted = [[one for one in of_version if date in one.days], later[:1], of_version]
    return next((max(fitting, key=lambda one: one.run_date) for fitting in wanted if fitting), None)


def check_partition(partition: Partition, manifest: Manifest) -> list[Damage]:
    """Compares all data files of a partition with its manifest. Returns the damaged files.

    If a file disappears because another job replaces the partition meanwhile, it is not counted as damaged.
    """
    with ThreadPoolExecutor(min(_THREADS, max(1, len(manifest.files)))) as pool:
        differences = list(pool.map(lambda entry: difference_of(partition, entry), manifest.files))
    damaged = [
        (entry, difference)
        for entry, difference in zip(manifest.files, differences, strict=True)
        if difference is not None
    ]
    if damaged and not _is_current(partition, manifest):
        return []
    return [
        Damage(
            partition.table,
            partition.dt,
            partition.file(entry.path),
            difference,
            _remedy(partition),
            partition,
        )
        for entry, difference in damaged
    ]


def difference_of(partition: Partition, entry: FileEntry) -> str | None:
    """Returns how a data file differs from its entry in the manifest; None if it is equal."""
    path = partition.file(entry.path)
    [size] = file_io.sizes([path])
    if size is None:
        return "it is missing"
    if size != entry.bytes:
        return f"it has {size} bytes, but its manifest says {entry.bytes}"
    if entry.digest is None:
        return None
    actual = digest_of_file(path)
    if actual != entry.digest:
        return f"its bytes have the digest {actual}, but its manifest says {entry.digest}"
    return None


def require_intact_partition(partition: Partition, manifest: Manifest) -> None:
    """Raises DataError for the first file of a partition that differs from its manifest."""
    for damage in check_partition(partition, manifest)[:1]:
        raise damaged_file(damage.path, damage.difference)


def _is_current(partition: Partition, manifest: Manifest) -> bool:
    try:
        return load_manifest(partition).files == manifest.files
    except FileNotFoundError:
        return False


def _remedy(partition: Partition) -> str:
    """Returns the remedy that says which job writes a partition again."""
    if partition.table.split("/")[0] == _WORKFLOW:
        return f"run build_features again for the run date that fitted {partition.table}"
    return f"run {job_of(partition.table)} for {partition.dt} again"


def _of_json(lake: LakePaths, error: DataError, partition: Partition | None = None) -> Damage:
    """Returns the finding about a JSON file that cannot be parsed. `error` begins with the file's path."""
    root = lake.root.rstrip("/")
    path, _, difference = error.problem.removeprefix(f"{root}/").partition(" ")
    if partition is None and path.endswith(f"/{MANIFEST_NAME}"):
        partition = partition_of_manifest(lake, path)
    remedy = error.remedy if partition is None else _remedy(partition)
    table, date = (partition.table, partition.dt) if partition is not None else ("", "")
    return Damage(table, date, f"{root}/{path}", difference, remedy)


# Repairs


def repair(lake: LakePaths, findings: Findings) -> Iterator[str]:
    """Changes manifests so that jobs rewrite the damaged partitions. Yields a message for each change.

    No data file is deleted or changed. A manifest that cannot be parsed is renamed, so that its partition is
    not published any more. A run after `output.grace_hours` deletes the data files that the manifest named.

    Raises:
        InfrastructureError, OSError: the lake cannot be written.
    """
    by_partition: dict[str, tuple[Partition, list[str]]] = {}
    for damage in findings.damages:
        if damage.partition is not None:
            of_partition = by_partition.setdefault(damage.partition.path, (damage.partition, []))
            of_partition[1].append(damage.path)
        elif damage.path.endswith(f"/{MANIFEST_NAME}"):
            yield _set_aside(damage.path)
    for partition, paths in by_partition.values():
        if mark_damaged(partition, paths):
            yield f"{partition.path}: marked as damaged. The next run of its job rewrites this partition"


def mark_damaged(partition: Partition, paths: Sequence[str]) -> bool:
    """Records in the manifest of a partition that files are damaged, so that the partition is not up to date.

    When the job that writes the partition runs next, it rewrites the partition, even if no input has changed.

    Returns:
        Whether the manifest has been changed. The manifest is not changed if another job has replaced it, or
        if it has the record already.

    Raises:
        DataError: the manifest is damaged.
        InfrastructureError: the manifest cannot be written.
    """
    try:
        manifest = load_manifest(partition)
    except FileNotFoundError:
        return False
    of_manifest = {partition.file(entry.path): entry.path for entry in manifest.files}
    newly_damaged = {of_manifest[path] for path in paths if path in of_manifest}
    damaged = tuple(sorted({*manifest.damaged, *newly_damaged}))
    if damaged == manifest.damaged:
        return False
    changed = replace(manifest, damaged=damaged)
    # The data files are still the same, so their hard links and the Delta log need no change.
    file_io.replace_json(partition.file(MANIFEST_NAME), format_versions.MANIFEST.stamp(changed.to_json()))
    return True


def mark_file(path: str) -> bool:
    """Marks one data file as damaged in the manifest of its partition, as `mark_damaged` does."""
    partition = partition_of(path)
    return partition is not None and mark_damaged(partition, [path])


def _set_aside(path: str) -> str:
    """Renames a manifest that cannot be parsed, so that its partition counts as not published."""
    kept = f"{path.removesuffix('.json')}.damaged"
    files, inner = file_io.filesystem(path)
    files.move(inner, file_io.filesystem(kept)[1])
    return (
        f"{path}: renamed to {kept.rpartition('/')[2]}. The partition of this manifest is not published "
        "any more; a later run deletes the data files that the manifest listed"
    )
