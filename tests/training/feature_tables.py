"""Makes small published feature tables, the way build_features leaves them, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from conf.types import Config, Split
from storage import feature_spec, file_io
from storage.dataset import Dataset, Member, publish_dataset
from storage.feature_spec import FeatureSpec
from storage.manifest import FileEntry, Manifest, replace_manifest
from storage.paths import LakePaths
from storage.publish import new_attempt
from tests.training.feature_rows import Rows


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
    lake: LakePaths, spec: FeatureSpec, dt: str, rows: Rows, file_rows: int, digest: str = ""
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
    lake: LakePaths,
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


def make_config(lake: LakePaths, **sections: object) -> Config:
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
