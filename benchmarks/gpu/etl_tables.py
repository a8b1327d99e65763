"""Checks that two runs of build_features published equal feature tables and vocabularies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.util import hash_pandas_object

from benchmarks.agreement import Disagreement, Summary, compare, summarise
from benchmarks.contender import Outcome, Task
from etl.ops.tables import RARE, VOCABULARY, workflow_table
from storage.manifest import data_files, read_manifest
from storage.paths import LakePaths

_BATCH_ROWS = 1_000_000


@dataclass(frozen=True)
class Published:
    """What a run published. Equal tables have equal values, whatever the order of their rows and files.

    Attributes:
        features: checksums of the feature tables of all days.
        vocabularies: for each table of the workflow, its number of rows and a checksum of them.
        normalised: for each normalised column, its mean and standard deviation.
    """

    features: Summary
    vocabularies: Mapping[str, tuple[int, int]]
    normalised: Mapping[str, tuple[float, float]]


def read_published(task: Task, lake: str, outcome: Outcome) -> Published:
    """Reads all tables of a run.

    Raises:
        Disagreement: a feature table has other columns or types than build_features must write.
    """
    version = outcome.facts["workflow"]
    vocabularies = {}
    for name in (VOCABULARY, RARE):
        partition = workflow_table(LakePaths(lake), version, name)
        vocabularies[name] = _checksum(data_files(partition, read_manifest(partition)))
    return Published(summarise(task.days, outcome), vocabularies, outcome.normalised)


def differences(expected: Published, other: Published, name: str) -> list[str]:
    """Returns a sentence for each kind of table in which the run `name` differs from the expected run."""
    messages = []
    try:
        compare(expected.features, other.features, name)
    except Disagreement as error:
        messages.append(f"features of {error}")
    for table, content in expected.vocabularies.items():
        if other.vocabularies[table] != content:
            messages.append(
                f"{name}: the table {table} has {other.vocabularies[table]} (rows, checksum), not {content}"
            )
    wrong = [column for column, fit in expected.normalised.items() if other.normalised.get(column) != fit]
    if wrong:
        messages.append(
            f"{name}: means and deviations differ in {len(wrong)} columns: {wrong[0]} has "
            f"{other.normalised.get(wrong[0])}, not {expected.normalised[wrong[0]]}"
        )
    return messages


def _checksum(files: list[str]) -> tuple[int, int]:
    """Returns the number of rows, and the sum of their hashes modulo 2^64."""
    rows, total = 0, 0
    for path in files:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                frame = pa.Table.from_batches([batch]).to_pandas()
                hashes = hash_pandas_object(frame[sorted(frame.columns)], index=False).to_numpy()
                rows += len(frame)
                total = (total + int(hashes.sum(dtype=np.uint64))) % 2**64
    return rows, total
