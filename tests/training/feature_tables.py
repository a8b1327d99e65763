"""Makes small published feature tables, the way build_features leaves them, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from conf import feature_spec, storage
from conf.dataset import Dataset, Member, publish_dataset
from conf.feature_spec import Feature, FeatureSpec
from conf.lake import Lake
from conf.manifest import FileEntry, Manifest, replace_manifest
from conf.types import Config, Split


def make_spec(num_dense: int, cardinalities: list[int], workflow_version: str = "w1") -> FeatureSpec:
    dense = [Feature(f"I{i}", "dense", "float32", "pair") for i in range(num_dense)]
    categorical = [Feature(f"C{i}", "categorical", "int32", "pair", n) for i, n in enumerate(cardinalities)]
    return FeatureSpec((*dense, *categorical), ("row_id",), workflow_version)


@dataclass(frozen=True)
class Rows:
    """Feature rows: labels (N,), dense (N, D), categorical (N, C)."""

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    categorical: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


def random_rows(spec: FeatureSpec, rows: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, n, rows) for n in spec.cardinalities]
    return Rows(
        rng.integers(0, 2, rows).astype(np.float32),
        rng.normal(size=(rows, len(spec.dense))).astype(np.float32),
        np.stack(ids, axis=1).astype(np.int32) if ids else np.zeros((rows, 0), np.int32),
    )


def segment_rows(rows: int, seed: int, size: int = 8) -> tuple[FeatureSpec, Rows]:
    """Clicks that hang on segment × category alone, each of `size` values; two columns of noise beside.

    Each segment likes half of the categories and each category is liked by half of the segments, so that neither
    says anything by itself: no linear model can rank these rows. The best AUC is that of the true probabilities.
    """
    spec = make_spec(2, [size + 3, size + 3, 50])
    rng = np.random.default_rng(seed)
    segment, category = rng.integers(0, size, rows), rng.integers(0, size, rows)
    likes = (segment + category) % size < size // 2
    labels = (rng.random(rows) < np.where(likes, 0.8, 0.2)).astype(np.float32)
    categorical = np.stack([segment + 3, category + 3, rng.integers(3, 50, rows)], axis=1).astype(np.int32)
    return spec, Rows(labels, rng.normal(size=(rows, 2)).astype(np.float32), categorical)


def write_file(path: Path, spec: FeatureSpec, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, NDArray] = {"row_id": np.arange(len(rows), dtype=np.int64), "label": rows.labels}
    columns |= {each.name: rows.dense[:, i] for i, each in enumerate(spec.dense)}
    columns |= {each.name: rows.categorical[:, i] for i, each in enumerate(spec.categorical)}
    table = pa.table({name: columns[name] for name in spec.table_columns})
    pq.write_table(table, path, row_group_size=max(len(rows), 1))


def publish_day(
    lake: Lake, spec: FeatureSpec, dt: str, rows: Rows, file_rows: int, digest: str = ""
) -> Member:
    """Publishes `features/<workflow>/dt=…` in files of `file_rows` rows."""
    partition = lake.features(spec.workflow_version).partition(dt)
    entries = []
    for index, first in enumerate(range(0, len(rows), file_rows)):
        part = Rows(
            *(each[first : first + file_rows] for each in (rows.labels, rows.dense, rows.categorical))
        )
        path = Path(partition.path) / f"part-{index:05d}.parquet"
        write_file(path, spec, part)
        entries.append(FileEntry(path.name, len(part), path.stat().st_size, (len(part),)))
    schema = tuple((name, "any") for name in spec.table_columns)
    manifest = Manifest(partition.table, dt, tuple(entries), schema, {"raw": digest or dt}, rows_in=len(rows))
    replace_manifest(partition, manifest)
    return Member(dt, manifest.digest, None)


def publish_all(
    lake: Lake,
    run_date: str,
    spec: FeatureSpec,
    splits: Mapping[Split, Mapping[str, Rows]],
    *,
    file_rows: int = 1000,
    mode: str = "fit",
    parent_workflow: str | None = None,
) -> Dataset:
    """Publishes days of features (split → date → rows), the spec, and the dataset of a run date."""
    storage.replace_text(lake.feature_spec(spec.workflow_version), feature_spec.dumps(spec))
    members = {
        split: tuple(publish_day(lake, spec, dt, rows, file_rows) for dt, rows in days.items())
        for split, days in splits.items()
    }
    dataset = Dataset(run_date, spec.workflow_version, members, mode, parent_workflow)
    publish_dataset(lake, dataset, "2026-01-01T00:00:00Z")
    return dataset


def make_config(lake: Lake, **sections: object) -> Config:
    """A configuration for training on a lake; `sections` replaces model and train."""
    columns = [{"name": "label", "type": "int"}, {"name": "I0", "type": "int"}]
    return Config.model_validate(
        {
            "name": "tiny",
            "lake": lake.root,
            "log": {
                "path": "{lake}/raw/{date}",
                "format": "tsv",
                "columns": columns,
                "label": {"column": "label"},
            },
            "features": [{"columns": ["I0"], "kind": "dense", "ops": []}],
            "split": {"by": "day"},
            **sections,
        }
    )
