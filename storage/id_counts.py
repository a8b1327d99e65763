"""Reads how often each id of a feature occurred in the training days, from the vocabularies of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage import file_io, format_versions
from storage.manifest import data_files, is_published, read_manifest
from storage.paths import LakePaths, Partition
from storage.read_parquet import read_file

_WORKFLOW = "workflow.json"
_VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class IdCounts:
    """The paths of the files with the counts of ids. The method `read` reads the counts.

    Attributes:
        files: Parquet files with the columns `column` (the name of a vocabulary), `id` and `count`.
        vocabularies: maps each feature whose values are ids of a vocabulary to the name of the vocabulary.
    """

    files: tuple[str, ...] = ()
    vocabularies: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> dict[str, NDArray[np.int64]]:
        """Returns, for each feature with a vocabulary, how often each id occurred: (highest id + 1,) int64.

        Reserved ids have the count 0, because vocabularies do not contain them.

        Raises:
            DataError: a file does not exist, or is damaged.
        """
        of_vocabularies: dict[str, NDArray[np.int64]] = {}
        for path in self.files:
            entries = read_file(path, ["column", "id", "count"])
            for name in pc.unique(entries["column"]).to_pylist():
                of_name = entries.filter(pc.equal(entries["column"], name))
                ids, counts = of_name["id"].to_numpy(), of_name["count"].to_numpy()
                of_vocabularies[name] = _added(of_vocabularies.get(name), ids, counts)
        return {
            feature: of_vocabularies[vocabulary]
            for feature, vocabulary in self.vocabularies.items()
            if vocabulary in of_vocabularies
        }


def _added(
    sums: NDArray[np.int64] | None, ids: NDArray[np.int32], counts: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Adds the counts of one more file to the counts in `sums`, and returns the result, by id.

    The file may have ids that are missing in `sums`.
    """
    before = np.zeros(0, np.int64) if sums is None else sums
    longer = np.zeros(max(len(before), int(ids.max(initial=-1)) + 1), np.int64)
    longer[: len(before)] = before
    longer[ids] += counts
    return longer


def find_id_counts(lake: LakePaths, version: str) -> IdCounts:
    """Returns the files with the counts of a workflow version; no files if it has no vocabularies.

    A feature that is computed from ids without changing them, such as the first ids of a list, has the
    vocabulary of these ids. If an operator does change ids, the counts are wrong, but results are correct:
    counts decide only where the rows of embedding tables are stored.
    """
    path = f"{lake.workflow(version)}/{_WORKFLOW}"
    partition = Partition(
        f"workflow/{version}", _VOCABULARY, f"{lake.workflow(version)}/{_VOCABULARY}", 3, lake.recorder
    )
    if not file_io.exists(path) or not is_published(partition):
        return IdCounts()
    vocabularies = format_versions.WORKFLOW.load(
        path,
        lambda workflow: {
            feature: vocabulary
            for chain in workflow.get("chains", ())
            for feature in chain["outputs"]
            if (vocabulary := _vocabulary_of(feature, chain["steps"])) is not None
        },
    )
    return IdCounts(tuple(data_files(partition, read_manifest(partition))), vocabularies)


def _vocabulary_of(feature: str, steps: list[dict[str, Any]]) -> str | None:
    """Returns the name of the vocabulary with the ids of a feature; None if there is none."""
    name = feature
    for step in reversed(steps):
        if name not in step["outputs"]:
            continue
        if step["op"] == "categorify":
            return str(step["state"]["vocabulary"])
        name = step["inputs"][0]
    return None
