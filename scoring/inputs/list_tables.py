"""The tables from which the lists of a run date are made."""

from __future__ import annotations

from conf.errors import DataError
from storage.manifest import Manifest, read_manifest
from storage.paths import Lake


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
