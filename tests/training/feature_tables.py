"""Makes small published feature tables, the way build_features leaves them, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from conf.types import Config, Scope, Split
from storage import feature_spec, file_io
from storage.dataset import Dataset, Member, publish_dataset
from storage.feature_spec import Feature, FeatureSpec
from storage.manifest import FileEntry, Manifest, replace_manifest
from storage.paths import Lake
from storage.publish import new_attempt

SCOPES: tuple[Scope, ...] = ("user", "item", "context")


def make_spec(
    num_dense: int, cardinalities: list[int], workflow_version: str = "w1", lists: Sequence[int] = ()
) -> FeatureSpec:
    """A spec with I0…, C0… of these cardinalities, and L0…, lists of ids; scopes alternate."""
    dense = [Feature(f"I{i}", "dense", "float32", SCOPES[i % 3]) for i in range(num_dense)]
    categorical = [
        Feature(f"C{i}", "categorical", "int32", SCOPES[i % 3], n) for i, n in enumerate(cardinalities)
    ]
    multi_hot = [Feature(f"L{i}", "multi_hot", "list<int32>", SCOPES[i % 3], n) for i, n in enumerate(lists)]
    return FeatureSpec((*multi_hot, *dense, *categorical), ("row_id",), workflow_version)


@dataclass(frozen=True)
class Rows:
    """Feature rows: labels (N,), dense (N, D), categorical (N, C), and N lists of ids a list feature.

    keys: the users and the items of the rows, as strings; empty for a table without keys. row_id begins at
    first_row.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    categorical: NDArray[np.int32]
    lists: tuple[list[list[int]], ...] = ()
    keys: tuple[list[str], ...] = ()
    first_row: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, first: int, count: int) -> Rows:
        chosen = slice(first, first + count)
        lists = tuple(lists[chosen] for lists in self.lists)
        keys = tuple(values[chosen] for values in self.keys)
        first_row = self.first_row + first
        return Rows(self.labels[chosen], self.dense[chosen], self.categorical[chosen], lists, keys, first_row)

    def ids(self, row: int, length: int) -> list[list[int]]:
        """The ids of every feature made of ids, in one row: a list each, its first `length` ids."""
        return [[int(value)] for value in self.categorical[row]] + [ids[row][:length] for ids in self.lists]

    def tensors(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Model inputs, lists padded to `length` columns of ids."""
        single = self.categorical.shape[1]
        padded = []
        for row in range(len(self)):
            ids = self.ids(row, length)
            padded.append([value for values in ids[:single] for value in values])
            for values in ids[single:]:
                padded[row] += [*values, *[0] * (length - len(values))]
        width = self.categorical.shape[1] + length * len(self.lists)
        return torch.from_numpy(self.dense), torch.tensor(padded, dtype=torch.int64).view(len(self), width)


def random_rows(spec: FeatureSpec, rows: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    ids = [rng.integers(0, feature.cardinality, rows) for feature in spec.categorical]
    lists = [
        [rng.integers(1, feature.cardinality, rng.integers(0, 6)).tolist() for _ in range(rows)]
        for feature in spec.multi_hot
    ]
    return Rows(
        rng.integers(0, 2, rows).astype(np.float32),
        rng.normal(size=(rows, len(spec.dense))).astype(np.float32),
        np.stack(ids, axis=1).astype(np.int32) if ids else np.zeros((rows, 0), np.int32),
        tuple(lists),
    )


def segment_rows(rows: int, seed: int, size: int = 8) -> tuple[FeatureSpec, Rows]:
    """Clicks that depend only on segment × category, each with `size` values; and two columns of noise.

    Each segment likes half of the categories and each category is liked by half of the segments, so that
    neither says anything by itself: no linear model can rank these rows. The best AUC is that of the true
    probabilities.
    """
    spec = make_spec(2, [size + 3, size + 3, 50])
    rng = np.random.default_rng(seed)
    segment, category = rng.integers(0, size, rows), rng.integers(0, size, rows)
    likes = (segment + category) % size < size // 2
    labels = (rng.random(rows) < np.where(likes, 0.8, 0.2)).astype(np.float32)
    categorical = np.stack([segment + 3, category + 3, rng.integers(3, 50, rows)], axis=1).astype(np.int32)
    return spec, Rows(labels, rng.normal(size=(rows, 2)).astype(np.float32), categorical)


def wish_rows(rows: int, seed: int, size: int = 8) -> tuple[FeatureSpec, Rows]:
    """Clicks that depend on whether a row's list of 2 to 4 wishes has its category; and two columns of noise.

    Neither the category nor a wish says anything by itself: no linear model can rank these rows.
    """
    spec = make_spec(2, [size + 3], lists=[size + 3])
    rng = np.random.default_rng(seed)
    category = rng.integers(0, size, rows)
    wishes = [(3 + rng.choice(size, rng.integers(2, 5), replace=False)).tolist() for _ in range(rows)]
    wanted = np.array([value + 3 in liked for value, liked in zip(category, wishes, strict=True)])
    labels = (rng.random(rows) < np.where(wanted, 0.85, 0.15)).astype(np.float32)
    dense = rng.normal(size=(rows, 2)).astype(np.float32)
    return spec, Rows(labels, dense, (category[:, None] + 3).astype(np.int32), (wishes,))


def write_file(path: Path, spec: FeatureSpec, rows: Rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    row_ids = rows.first_row + np.arange(len(rows), dtype=np.int64)
    columns: dict[str, Any] = {"row_id": row_ids, "label": rows.labels}
    columns |= dict(zip(("user_key", "item_key"), rows.keys, strict=False))
    columns |= {feature.name: rows.dense[:, i] for i, feature in enumerate(spec.dense)}
    columns |= {feature.name: rows.categorical[:, i] for i, feature in enumerate(spec.categorical)}
    columns |= {
        feature.name: pa.array(rows.lists[i], pa.list_(pa.int32()))
        for i, feature in enumerate(spec.multi_hot)
    }
    table = pa.table({name: columns[name] for name in spec.table_columns})
    pq.write_table(table, path, row_group_size=max(len(rows), 1))


def publish_day(
    lake: Lake, spec: FeatureSpec, dt: str, rows: Rows, file_rows: int, digest: str = ""
) -> Member:
    """Publishes `features/<workflow>/dt=…` in files of `file_rows` rows."""
    partition = lake.features(spec.workflow_version).partition(dt)
    attempt, entries = new_attempt(partition), []
    for index, first in enumerate(range(0, len(rows), file_rows)):
        part = rows.part(first, file_rows)
        name = f"{attempt}/part-{index:05d}.parquet"
        path = Path(partition.file(name))
        write_file(path, spec, part)
        entries.append(FileEntry(name, len(part), path.stat().st_size, (len(part),)))
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
    file_io.replace_text(lake.feature_spec(spec.workflow_version), feature_spec.dumps(spec))
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
