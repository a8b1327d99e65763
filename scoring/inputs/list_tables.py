"""The tables from which the lists of a run date are made, and the last published lists."""

from __future__ import annotations

from pathlib import Path

from conf.errors import DataError
from storage import file_io
from storage.manifest import Manifest, is_published, read_manifest
from storage.paths import Lake, Partition


def list_manifests(lake: Lake, workflow_version: str, run_date: str) -> tuple[Manifest, Manifest, Manifest]:
    """Returns the manifests of the tables `users`, `candidate_items` and `candidates` of the run date.

    Raises:
        DataError: a manifest is missing, or the candidates were built from different users or items.
    """
    tables = (
        lake.users(workflow_version),
        lake.candidate_items(workflow_version),
        lake.candidates(workflow_version),
    )
    users, items, candidates = (read_manifest(table.partition(run_date)) for table in tables)
    for name, manifest in (("users", users), ("candidate_items", items)):
        if candidates.inputs[name] != manifest.digest:
            raise DataError(
                f"{candidates.table} dt={run_date} was built from {name} with the digest "
                f"{candidates.inputs[name]}, but the digest of {name} is now {manifest.digest}",
                f"run build_candidates for {run_date} again",
            )
    return users, items, candidates


def last_published(lake: Lake, run_date: str) -> Partition | None:
    """Returns the partition with the published lists of the latest date before the run date.

    Returns None if there are no earlier lists.
    """
    names = (
        Path(entry.path).name.removeprefix("dt=") for entry in file_io.list_files(lake.recommendations.path)
    )
    for dt in sorted((name for name in names if name < run_date), reverse=True):
        partition = lake.recommendations.partition(dt)
        if is_published(partition):
            return partition
    return None
