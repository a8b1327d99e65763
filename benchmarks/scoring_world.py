"""Makes the input of the scoring benchmarks: users, items, candidates, joined rows, and models.

The tables have as many feature columns as Criteo's log. Of the 26 columns of ids, C1 to C13 belong to the user
and C14 to C26 to the item. Ids follow the published power law (criteo_shapes.py), and the cardinalities are
limited. All 13 dense features belong to the user. Each user has the same number of candidates, drawn at
random without repeats.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.criteo_shapes import NUM_DENSE, capped, draw_ids, spec_of
from conf.types import ModelConfig
from scoring.requests import CANDIDATES, EXCLUDED, ITEM_INDEX
from scoring.rows.file_splits import FileRowGroup
from storage.feature_spec import ITEM_KEY, ROW_ID, USER_KEY, FeatureSpec
from training.checkpoints import save_model
from training.models import build_model

FILES = 8
USER_IDS = 13
BOTTOM = [512, 256, 128]
MODELS: dict[str, dict[str, Any]] = {
    "dlrm": {"architecture": "dlrm", "embedding_dim": 128, "bottom_mlp": BOTTOM, "top_mlp": [512, 256]},
    "published": {
        "architecture": "dlrm",
        "embedding_dim": 128,
        "bottom_mlp": BOTTOM,
        "top_mlp": [1024, 1024, 512, 256],
    },
    "null": {"architecture": "null"},
    "hash": {"architecture": "null", "returns": "hash"},
}


def make_spec(most_rows: int) -> FeatureSpec:
    """Returns the FeatureSpec of Criteo's columns. Each feature has the scope `user` or `item`."""
    spec = spec_of(capped(most_rows))
    item = {f"C{place}" for place in range(USER_IDS + 1, 27)}
    features = tuple(
        replace(feature, scope="item" if feature.name in item else "user") for feature in spec.features
    )
    return FeatureSpec(features, (ROW_ID, USER_KEY), "benchmark")


@dataclass(frozen=True)
class Data:
    """Files of users and of their pairs with candidate items.

    Attributes:
        num_users: number of users.
        candidates: number of candidates of each user.
        users: Parquet files with one row per user. The columns are user_key, the user's features, candidates
            and excluded.
        joined: row groups with one row per pair, sorted by user. The columns are row_id, user_key, item_index
            and all features. Empty if no contender reads joined rows.
    """

    num_users: int
    candidates: int
    users: tuple[str, ...]
    joined: tuple[FileRowGroup, ...] = ()

    @property
    def pairs(self) -> int:
        return self.num_users * self.candidates

    @property
    def joined_files(self) -> list[str]:
        return [file.path for file in self.joined]


def make_items(folder: Path, spec: FeatureSpec, count: int) -> str:
    """Returns the path of a file like those of the table `candidate_items` that build_candidates writes.

    Writes the file if it does not exist.
    """
    path = folder / f"items-{count}.parquet"
    if not path.exists():
        columns = _side(spec, "item", count, seed=1)
        index = pa.array(np.arange(count, dtype=np.int32))
        keys = pa.array([f"i{place:07d}" for place in range(count)])
        _write(path, pa.table({ITEM_INDEX: index, ITEM_KEY: keys, **columns}))
    return str(path)


def make_data(
    folder: Path, spec: FeatureSpec, items: str, users: int, candidates: int, *, joined: bool
) -> Data:
    """Returns files of `users` users with `candidates` candidates each. Writes files that do not exist."""
    known = pq.read_table(items)
    draw = np.random.default_rng(2)
    columns = _side(spec, "user", users, seed=3)
    keys = pa.array([f"u{place:08d}" for place in range(users)])
    chosen = np.stack([draw.permutation(len(known))[:candidates] for _ in range(users)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(users + 1, dtype=np.int32) * candidates), pa.array(chosen.ravel())
    )
    none = pa.nulls(users, pa.list_(pa.int32()))
    table = pa.table({USER_KEY: keys, **columns, CANDIDATES: lists, EXCLUDED: none})
    folder = folder / f"{users}-{candidates}-{len(known)}"
    paths, groups = [], []
    bounds = np.linspace(0, users, min(FILES, users) + 1).astype(int)
    for place, (first, last) in enumerate(itertools.pairwise(bounds)):
        path = folder / f"users-{place}.parquet"
        part = table.slice(first, last - first)
        if not path.exists():
            _write(path, part)
        paths.append(str(path))
        if joined:
            path = folder / f"joined-{place}.parquet"
            if not path.exists():
                _write(path, join(part, known, spec, first * candidates))
            groups.append(FileRowGroup(str(path), 0, 1, (last - first) * candidates, "2026-01-01"))
    return Data(users, candidates, tuple(paths), tuple(groups))


def join(users: pa.Table, items: pa.Table, spec: FeatureSpec, first_row: int) -> pa.Table:
    """Returns one row for each pair of a user and a candidate, with the features of both."""
    lists = users.column(CANDIDATES).combine_chunks()
    item = lists.flatten()
    lengths = lists.value_lengths().to_numpy()
    user = pa.array(np.repeat(np.arange(len(users)), lengths))
    columns = {
        ROW_ID: pa.array(np.arange(first_row, first_row + len(item))),
        USER_KEY: users.column(USER_KEY).take(user),
        ITEM_INDEX: item,
    }
    for feature in spec.features:
        side, index = (users, user) if feature.scope == "user" else (items, item)
        columns[feature.name] = side.column(feature.name).take(index)
    return pa.table(columns)


def make_model(folder: Path, name: str, spec: FeatureSpec) -> str:
    """Returns the folder of the model `name` of MODELS, with initial weights. Creates it if necessary."""
    path = folder / f"model-{name}-{sum(spec.cardinalities)}"
    if not (path / "model.json").exists():
        config = ModelConfig.model_validate(MODELS[name])
        model = build_model(config, spec, seed=5)
        description = {
            "version": name,
            "architecture": config.architecture,
            "model": config.model_dump(),
            "feature_spec": spec.to_json(),
        }
        save_model(str(path), model, json.loads(json.dumps(description)))
    return str(path)


def _side(spec: FeatureSpec, scope: str, rows: int, seed: int) -> dict[str, Any]:
    features = [feature for feature in spec.features if feature.scope == scope]
    generator = torch.Generator().manual_seed(seed)
    columns: dict[str, Any] = {}
    ids = draw_ids(
        rows, [int(feature.cardinality or 0) for feature in features if feature.cardinality], generator
    )
    dense = torch.randn(rows, NUM_DENSE, generator=generator).numpy()
    next_id = next_dense = 0
    for feature in features:
        if feature.kind == "dense":
            columns[feature.name], next_dense = pa.array(dense[:, next_dense]), next_dense + 1
        else:
            columns[feature.name], next_id = pa.array(ids[:, next_id].numpy().astype(np.int32)), next_id + 1
    return columns


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{uuid.uuid4().hex}")
    pq.write_table(table, scratch, compression="zstd", row_group_size=max(len(table), 1))
    scratch.rename(path)


def read_inputs(groups: Sequence[FileRowGroup], spec: FeatureSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads all P rows of the row groups as inputs of a model: dense (P, D) float32, ids (P, W) int64."""
    table = pa.concat_tables(pq.read_table(group.path) for group in groups)
    dense = np.stack([table.column(feature.name).to_numpy() for feature in spec.dense], axis=1)
    ids = np.stack([table.column(feature.name).to_numpy() for feature in spec.categorical], axis=1)
    return torch.from_numpy(dense), torch.from_numpy(ids.astype(np.int64))
