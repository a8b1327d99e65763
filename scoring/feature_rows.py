"""Reads the feature rows of the given splits of a dataset from published partitions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from conf.errors import DataError
from conf.types import SPLITS, Split
from scoring.requests import FEATURES_DT
from spark.rows import ReadableRows, read_in_pieces, union_all, with_value
from storage import file_io
from storage.dataset import Dataset, split_partitions
from storage.manifest import Manifest, is_published, read_manifest
from storage.paths import LakePaths, Partition
from storage.run_context import RunContext


def read_split(
    context: RunContext, dataset: Dataset, splits: Sequence[Split], columns: Sequence[str] | None = None
) -> ReadableRows:
    """Returns the feature rows of the given splits. This function does not read them yet.

    The result has the columns `columns` and also features_dt, the date of the partition. If `columns` is
    None, the result has all columns.

    Raises:
        DataError: a partition is missing or was replaced after the dataset was published, or none of the
            splits has a partition.
    """
    parts = [
        with_value(read_in_pieces(context, partition, manifest, label, columns), FEATURES_DT, partition.dt)
        for split in splits
        for partition, manifest, label in split_partitions(context.lake, dataset, split)
    ]
    if not parts:
        raise DataError(
            f"the dataset of {dataset.run_date} has no partition for the splits {list(splits)}, "
            f"only for {sorted(dataset.splits)}",
            "run build_features for that date, or configure only splits that have a partition",
        )
    return union_all(parts)


def count_rows(lake: LakePaths, dataset: Dataset, splits: Sequence[Split] = SPLITS) -> int:
    """Returns the number of feature rows in the given splits of a dataset, read from the manifests.

    Partitions that no longer exist count as empty. If a partition was replaced after the dataset was
    published, its present rows are counted. The manifests that this function reads are not recorded as inputs
    of the run.
    """
    table = LakePaths(lake.root).features(dataset.workflow_version)
    members = [member for split in splits for member in dataset.splits.get(split, ())]
    published = [
        (read_manifest(table.partition(member.dt)), member.label)
        for member in members
        if is_published(table.partition(member.dt))
    ]
    return sum(entry.rows for manifest, label in published for entry in manifest.split_files(label))


# The code below finds the tables from which the lists of a run date are made, and the last published lists.


def list_manifests(
    lake: LakePaths, workflow_version: str, run_date: str
) -> tuple[Manifest, Manifest, Manifest]:
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


def last_published(lake: LakePaths, run_date: str) -> Partition | None:
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
