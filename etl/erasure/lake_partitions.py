"""Lists the published partitions of a lake, also those of workflow versions."""

from __future__ import annotations

from dataclasses import dataclass

from conf.types import Config
from etl.raw.files import raw_path
from etl.raw.table_copies import COPIES
from storage import file_io, format_versions
from storage.manifest import MANIFEST_NAME, Manifest
from storage.paths import DATA, Lake, Partition

TYPED, PREPARED = "typed", "prepared"
_RAW = "raw"


@dataclass(frozen=True)
class Published:
    """A published partition.

    Attributes:
        partition: the partition. Its recorder is that of the lake.
        manifest: its manifest.
    """

    partition: Partition
    manifest: Manifest

    @property
    def path(self) -> str:
        """Returns the folder of the partition, which identifies it."""
        return self.partition.path

    @property
    def kind(self) -> str:
        """Returns the first part of the name of the table, such as `features`."""
        return self.partition.table.split("/")[0]

    @property
    def version(self) -> str:
        """Returns the second part of the name of the table, such as a workflow version; empty if none."""
        return self.partition.table.partition("/")[2].split("/")[0]


def published_partitions(lake: Lake, config: Config) -> list[Published]:
    """Returns all published partitions, ordered by path, without raw logs.

    Raises:
        DataError: a manifest is damaged, or a newer release wrote it.
    """
    return [
        one
        for one in all_partitions(lake)
        if one.kind != _RAW and one.path != _folder(raw_path(config, config.log, one.partition.dt))
    ]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def all_partitions(lake: Lake) -> list[Published]:
    """Returns all published partitions, also raw logs whose folder in the lake has a manifest.

    Raises:
        DataError: a manifest is damaged, or a newer release wrote it.
    """
    root = lake.root.rstrip("/")
    _, inner = file_io.filesystem(root)
    partitions = []
    for info in file_io.list_files(root, recursive=True):
        path = info.path.removeprefix(f"{inner}/")
        table, _, name = path.removesuffix(f"/{MANIFEST_NAME}").rpartition("/")
        if info.base_name != MANIFEST_NAME or path.split("/")[0] == DATA or not table:
            continue
        depth = table.count("/") + 2
        dt = name.removeprefix("dt=")
        folder = f"{root}/{table}/{name}"
        internal = table.split("/")[0] in (TYPED, PREPARED, COPIES)
        partition = Partition(table, dt, folder, depth, lake.recorder, internal=internal)
        partitions.append(Published(partition, read_unrecorded(partition)))
    return partitions


def read_unrecorded(partition: Partition) -> Manifest:
    """Reads a manifest without recording it as an input of the run.

    Raises:
        DataError: the manifest is damaged, or a newer release wrote it.
    """
    path = partition.file(MANIFEST_NAME)
    return Manifest.from_json(format_versions.MANIFEST.check(file_io.read_json(path), path))
