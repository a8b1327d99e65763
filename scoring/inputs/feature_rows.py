"""Reads the feature rows of some splits of a dataset from published partitions."""

from __future__ import annotations

from collections.abc import Sequence

from conf.errors import DataError
from conf.types import SPLITS, Split
from scoring.inputs.requests import FEATURES_DT
from spark.rows import ReadableRows, read_in_pieces, union_all, with_value
from storage.dataset import Dataset, split_partitions
from storage.manifest import is_published, read_manifest
from storage.paths import Lake
from storage.run_context import RunContext


def read_split(
    context: RunContext, dataset: Dataset, splits: Sequence[Split], columns: Sequence[str] | None = None
) -> ReadableRows:
    """Returns the feature rows of some splits, which are not read yet.

    The result has the columns `columns` and also features_dt, the date of the partition. If `columns` is
    None, it has all columns.

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


def count_rows(lake: Lake, dataset: Dataset, splits: Sequence[Split] = SPLITS) -> int:
    """Returns the number of feature rows of some splits of a dataset, which manifests record.

    Partitions that do not exist any more count as empty, and rows may have been replaced. The lineage of the
    run does not contain what is read here.
    """
    table = Lake(lake.root).features(dataset.workflow_version)
    members = [member for split in splits for member in dataset.splits.get(split, ())]
    published = [
        (read_manifest(table.partition(member.dt)), member.label)
        for member in members
        if is_published(table.partition(member.dt))
    ]
    return sum(entry.rows for manifest, label in published for entry in manifest.split_files(label))
