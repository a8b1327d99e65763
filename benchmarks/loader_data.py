"""Makes the tables of the loader benchmark, as Parquet files and as binary files with the same rows.

A table has 13 dense columns, 26 columns of ids, the label, and `row_id`, which no contender reads. The
vocabularies have about as many ids as those of Criteo's columns with a frequency threshold of 15. Ids follow
Zipf's law (benchmarks/criteo_log.py). Dense values are log(1 + x) of log-normal integers x. The Parquet files
are like those that build_features writes with the engine `arrow` (etl/text/encode_pass.py): zstd, and one row
group per file.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contender import CATEGORICAL, DENSE, FIRST_ID, LABEL, OOV_ID
from benchmarks.criteo_log import CARDINALITIES, CLICK_SHARE, zipf_ranks
from storage.feature_spec import Feature, FeatureSpec

FORMAT = 2  # part of a table's name: raise it when the bytes change
FILES = 4
# One value in fifteen gets an id, about as many as a threshold of 15 occurrences leaves of Criteo's.
_KEPT = 15


@dataclass(frozen=True)
class FeatureTable:
    """A table on disk.

    Attributes:
        files: the Parquet files of the table, which have equal numbers of rows.
        rows: number of rows of all files together.
        labels: path of an .npy file with the labels of the same rows: (rows,) float32.
        dense: path of an .npy file with the dense columns in row layout: (rows, 13) float32.
        ids: path of an .npy file with the ids in row layout: (rows, 26) int32.
        id_sum: sum of all ids. The batches of an epoch must have the same sum.
        label_sum: sum of all labels. The batches of an epoch must have the same sum.
    """

    files: tuple[str, ...]
    rows: int
    labels: str
    dense: str
    ids: str
    id_sum: int
    label_sum: int

    @property
    def paths(self) -> list[str]:
        return [*self.files, self.labels, self.dense, self.ids]


def spec() -> FeatureSpec:
    dense = [Feature(name, "dense", "float32", "context") for name in DENSE]
    ids = [
        Feature(name, "categorical", "int32", "context", _kept(count) + FIRST_ID)
        for name, count in zip(CATEGORICAL, CARDINALITIES, strict=True)
    ]
    return FeatureSpec((*dense, *ids), ("row_id",), "benchmark")


def make_table(cache: Path, rows: int) -> FeatureTable:
    """Returns the table with `rows` rows, a multiple of FILES. Makes the table if it does not exist."""
    folder = cache / f"features-{FORMAT}-{rows}"
    index = folder / "index.json"
    if not index.exists():
        scratch = cache / f".{uuid.uuid4().hex}"
        scratch.mkdir(parents=True)
        facts = _write(scratch, rows)
        (scratch / "index.json").write_text(json.dumps(facts), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        scratch.rename(folder)
    facts = json.loads(index.read_text(encoding="utf-8"))
    return FeatureTable(
        tuple(str(folder / f"part-{place:05d}.parquet") for place in range(FILES)),
        rows,
        labels=str(folder / "labels.npy"),
        dense=str(folder / "dense.npy"),
        ids=str(folder / "ids.npy"),
        id_sum=facts["id_sum"],
        label_sum=facts["label_sum"],
    )


def _kept(count: int) -> int:
    return max(3, count // _KEPT)


def _write(folder: Path, rows: int) -> dict[str, int]:
    part_rows = rows // FILES
    parts = [_part(np.random.default_rng([FORMAT, place]), part_rows) for place in range(FILES)]
    for place, (labels, dense, ids) in enumerate(parts):
        row_id = np.arange(place * part_rows, (place + 1) * part_rows, dtype=np.int64)
        columns = {"row_id": row_id, LABEL: labels}
        columns |= {name: dense[:, at] for at, name in enumerate(DENSE)}
        columns |= {name: ids[:, at] for at, name in enumerate(CATEGORICAL)}
        table = pa.table(columns)
        table = table.cast(
            pa.schema([pa.field(field.name, field.type, nullable=False) for field in table.schema])
        )
        with pq.ParquetWriter(
            folder / f"part-{place:05d}.parquet", table.schema, compression="zstd"
        ) as writer:
            writer.write_table(table, row_group_size=len(table))
    for name, arrays in zip(("labels", "dense", "ids"), zip(*parts, strict=True), strict=True):
        np.save(folder / f"{name}.npy", np.concatenate(arrays))
    return {
        "id_sum": sum(int(ids.sum(dtype=np.int64)) for _, _, ids in parts),
        "label_sum": sum(int(labels.sum()) for labels, _, _ in parts),
    }


def _part(random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    labels = (random.random(rows) < CLICK_SHARE).astype(np.float32)
    dense = np.log1p(np.floor(random.lognormal(2, 2, (rows, len(DENSE))))).astype(np.float32)
    ids = np.empty((rows, len(CATEGORICAL)), dtype=np.int32)
    for at, count in enumerate(CARDINALITIES):
        ranks = zipf_ranks(random, rows, count)
        ids[:, at] = np.where(ranks <= _kept(count), ranks + FIRST_ID - 1, OOV_ID)
    return labels, dense, ids
