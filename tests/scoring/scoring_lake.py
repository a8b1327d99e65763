"""A small lake for the users and items of reference_scores.py: features, dataset, models, the day after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from conf.types import Config
from storage import file_io
from storage.dataset import Dataset, Member, publish_dataset
from storage.feature_spec import dumps
from storage.manifest import FileEntry, Manifest, digest_of, replace_manifest
from storage.paths import LakePaths, Partition
from storage.publish import new_attempt
from tests.scoring.reference_scores import CONTEXT, SPEC, ReferenceScores, write_model
from training.registry.versions import record_run

DAYS = ["2026-01-02", "2026-01-03", "2026-01-04", "2026-01-05"]
RUN_DATE = DAYS[-1]
DAY_AFTER = "2026-01-06"
WORKFLOW = SPEC.workflow_version
LOG = ["clicked", "user", "item", *(feature.name for feature in SPEC.features)]
TYPES = {
    **{feature.name: "string" for feature in SPEC.categorical},
    "user": "string",
    "item": "string",
    "device": "int",
}


def make_config(root: Path, **sections: Any) -> Config:
    """The configuration of this lake; `sections` replaces whole sections."""
    values = {
        "name": "toy",
        "lake": str(root),
        "log": {
            "path": "{lake}/raw/dt={date}/clicks.tsv",
            "format": "tsv",
            "columns": [{"name": name, "type": TYPES.get(name, "float")} for name in LOG],
            "label": {"column": "clicked"},
        },
        "keys": {"user": "user", "item": "item"},
        "features": [
            {"columns": [feature.name for feature in SPEC.dense], "kind": "dense", "ops": ["normalize"]},
            {
                "columns": [feature.name for feature in SPEC.categorical],
                "kind": "categorical",
                "ops": ["categorify"],
            },
        ],
        "scopes": {
            scope: [feature.name for feature in SPEC.scoped(scope)] for scope in ("user", "item", "context")
        },
        "split": {"by": "day", "train_days": 2},
        "output": {"row_group_rows": 60},
        "model": {"architecture": "logistic_regression"},
        "gate": {"min_rows": 100, "min_users": 20, "replicates": 200},
        "candidates": {"exclude_clicked": ["train", "validation"]},
        "score": {"k": 5, "context": CONTEXT, "device": "cpu"},
    }
    return Config.model_validate({**values, **sections})


class EncodedContext:
    """Replaces a workflow: the context values of this lake are encoded already."""

    def raw_types(self, features: list[str]) -> dict[str, str]:
        """The features themselves."""
        return dict.fromkeys(features, "string")

    def encode_values(self, raw: dict[str, Any], features: list[str]) -> dict[str, Any]:
        """The raw values."""
        return {name: raw[name] for name in features}


def write_table(partition: Partition, rows: pa.Table) -> Manifest:
    """Publishes rows as two files of equal size."""
    attempt = new_attempt(partition)
    Path(partition.file(attempt)).mkdir(parents=True)
    half, entries = rows.num_rows // 2, []
    for number, part in enumerate((rows.slice(0, half), rows.slice(half))):
        name = f"{attempt}/part-{number}.parquet"
        path = Path(partition.file(name))
        pq.write_table(part, path)
        entries.append(FileEntry(name, part.num_rows, path.stat().st_size, (part.num_rows,)))
    schema = tuple((field.name, str(field.type)) for field in rows.schema)
    content = {"rows": digest_of(rows.to_pydict())}
    manifest = Manifest(partition.table, partition.dt, tuple(entries), schema, content)
    replace_manifest(partition, manifest)
    return manifest


def feature_rows(reference: ReferenceScores, day: int, rows: int = 150) -> pa.Table:
    """Impressions of one day, clicked as the model says. The last three users appear only on the last day."""
    draw = np.random.default_rng(100 + day)
    users = len(reference.users) if day == len(DAYS) - 1 else len(reference.users) - 3
    user, item = draw.integers(0, users, rows), draw.integers(0, len(reference.items), rows)
    frame = pd.concat(
        [
            reference.users.iloc[user].reset_index(drop=True),
            reference.items.iloc[item].reset_index(drop=True),
        ],
        axis=1,
    ).assign(
        **CONTEXT,
        row_id=np.arange(rows),
        label=(draw.random(rows) < reference.probabilities[user, item]).astype(np.float32),
    )
    types = [
        ("row_id", pa.int64()),
        ("user_key", pa.string()),
        ("item_key", pa.string()),
        ("label", pa.float32()),
    ]
    features = [
        (feature.name, pa.float32() if feature.kind == "dense" else pa.int32()) for feature in SPEC.features
    ]
    schema = pa.schema([*types, *features])
    return pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False)


def next_day(reference: ReferenceScores) -> pd.DataFrame:
    """Rows of the day after: (clicked, user, item); one user is unknown."""
    draw = np.random.default_rng(55)
    user, item = draw.integers(0, 37, 200), draw.integers(0, 23, 200)
    clicked = (draw.random(200) < reference.probabilities[user, item]).astype(int)
    users, items = reference.users.user_key.to_numpy(), reference.items.item_key.to_numpy()
    rows = pd.DataFrame({"clicked": clicked, "user": users[user], "item": items[item]})
    return pd.concat(
        [rows, pd.DataFrame({"clicked": [1], "user": ["stranger"], "item": ["i001"]})], ignore_index=True
    )


def publish_lake(root: Path, reference: ReferenceScores) -> Config:
    """Publishes the tables of build_features and train_model for RUN_DATE, and the raw log of the day after.

    Models: `m1` draws the clicks of the log and is the challenger of RUN_DATE; `m2` contradicts it and is the
    challenger of DAY_AFTER, whose dataset is the same.
    """
    config = make_config(root)
    lake = LakePaths(config.lake)
    file_io.replace_text(lake.feature_spec(WORKFLOW), dumps(SPEC))
    features = [
        write_table(lake.features(WORKFLOW).partition(dt), feature_rows(reference, day))
        for day, dt in enumerate(DAYS)
    ]
    members = [Member(dt, manifest.digest, None) for dt, manifest in zip(DAYS, features, strict=True)]
    splits = {"train": tuple(members[:2]), "validation": (members[2],), "test": (members[3],)}
    users = pa.Table.from_pandas(reference.users, preserve_index=False)
    items = pa.Table.from_pandas(reference.items.drop(columns="item_index"), preserve_index=False)
    for run_date in (RUN_DATE, DAY_AFTER):
        publish_dataset(lake, Dataset(run_date, WORKFLOW, splits, "fit"), "")
        write_table(lake.users(WORKFLOW).partition(run_date), users)
        write_table(lake.items(WORKFLOW).partition(run_date), items)
    for version, dt, sign in (("m1", RUN_DATE, 1.0), ("m2", DAY_AFTER, -1.0)):
        write_model(Path(lake.models("toy")) / version, version=version, sign=sign)
        record_run(lake, "toy", dt, version)
    raw = Path(lake.raw.partition(DAY_AFTER).path) / "clicks.tsv"
    raw.parent.mkdir(parents=True)
    lines = next_day(reference).assign(**{feature.name: 1.0 for feature in SPEC.features})
    lines[LOG].to_csv(raw, sep="\t", header=False, index=False)
    return config
