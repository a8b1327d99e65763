"""Reads the feature rows of some splits of a dataset from published partitions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from conf.errors import DataError
from conf.types import Split
from scoring.inputs.requests import FEATURES_DT
from storage.dataset import Dataset, split_partitions
from storage.paths import Lake
from storage.publish import rows_of


def read_split(
    spark: SparkSession,
    lake: Lake,
    dataset: Dataset,
    splits: Sequence[Split],
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Returns the feature rows of some splits.

    The result has the columns `columns` and also features_dt, the date of the partition. If `columns` is
    None, it has all columns.

    Raises:
        DataError: a partition is missing or was replaced after the dataset was published, or none of the
            splits has a partition.
    """
    frames = [
        rows_of(spark, partition, manifest, label, columns).withColumn(FEATURES_DT, F.lit(partition.dt))
        for split in splits
        for partition, manifest, label in split_partitions(lake, dataset, split)
    ]
    if not frames:
        raise DataError(
            f"the dataset of {dataset.run_date} has no partition for the splits {list(splits)}, "
            f"only for {sorted(dataset.splits)}",
            "run build_features for that date, or configure only splits that have a partition",
        )
    return reduce(DataFrame.unionByName, frames)
