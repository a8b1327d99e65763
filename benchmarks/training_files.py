"""Writes feature files with Criteo's columns for the loader, and selects the batches that are timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.criteo_shapes import make_batches, spec_of
from training.data.batch import Batch
from training.data.sharding import DataFile


def write_files(
    folder: Path,
    rows: int,
    files: int,
    cardinalities: Sequence[int],
    *,
    row_ids: bool = False,
    processes: int = 1,
) -> list[DataFile]:
    """Returns feature files like those of build_features. Writes the files that do not exist.

    Args:
        folder: folder of the files.
        rows: number of rows of all files together.
        files: number of files.
        cardinalities: cardinality of each categorical feature.
        row_ids: True if each file has a column `row_id` and is one row group.
        processes: number of processes that write files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{place}.parquet" for place in range(files)]
    missing = [(place, path) for place, path in enumerate(paths) if not path.exists()]
    write = partial(_write_file, rows // files, tuple(cardinalities), row_ids)
    if processes > 1 and len(missing) > 1:
        with ProcessPoolExecutor(min(processes, len(missing)), get_context("spawn")) as pool:
            list(pool.map(write, missing))
    else:
        list(map(write, missing))
    return [DataFile(str(path), rows // files) for path in paths]


def _write_file(rows: int, cardinalities: Sequence[int], row_ids: bool, target: tuple[int, Path]) -> None:
    place, path = target
    spec = spec_of(cardinalities)
    (batch,) = make_batches(1, rows, cardinalities, seed=place)
    columns: dict[str, Any] = {"label": batch.labels.numpy()}
    columns |= {feature.name: batch.dense[:, i].numpy() for i, feature in enumerate(spec.dense)}
    ids = batch.categorical.numpy().astype(np.int32)
    columns |= {feature.name: ids[:, i] for i, feature in enumerate(spec.categorical)}
    if row_ids:
        columns["row_id"] = np.arange(len(ids), dtype=np.int64)
    fresh = path.with_suffix(".partial")
    pq.write_table(
        pa.table(columns),
        fresh,
        compression="zstd",
        row_group_size=len(ids) if row_ids else None,
        data_page_size=64 * 2**10,
    )
    fresh.rename(path)


def full_batches(batches: Iterator[Batch], rows: int) -> Iterator[Batch]:
    """Yields only batches without padding.

    If the last batch of an epoch has too few rows, it is padded. Its step takes as long as any other, so it
    would make the measured rate too low.
    """
    return (batch for batch in batches if batch.global_weight == rows)
