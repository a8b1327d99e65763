"""Users, items and a small model to score them with, and the same probabilities computed by NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from conf.types import ModelConfig
from scoring.model.predictor import load_predictor
from scoring.ranking.recommender import ListRanker, load_recommender
from scoring.requests import ListRequest, ModelRequest
from storage.feature_spec import NUM_RESERVED_IDS, OOV_ID, Feature, FeatureSpec
from training.checkpoints import save_model
from training.models import build_model
from training.registry.model_json import read_description

# Scopes interleave, so that a wrong column order fails. There are more users than ids of `who`.
SPEC = FeatureSpec(
    features=(
        Feature("price", "dense", "float32", "item"),
        Feature("who", "categorical", "int32", "user", cardinality=30),
        Feature("age", "dense", "float32", "user"),
        Feature("what", "categorical", "int32", "item", cardinality=40),
        Feature("hour", "dense", "float32", "context"),
        Feature("device", "categorical", "int32", "context", cardinality=6),
        Feature("kind", "categorical", "int32", "item", cardinality=7),
    ),
    key_columns=("row_id", "user_key", "item_key"),
    workflow_version="w1",
)
CONTEXT = {"hour": 0.25, "device": 4}


@dataclass(frozen=True)
class ReferenceScores:
    """Users, items, the request to score them, and every probability as NumPy computes it.

    Attributes:
        request: for the 5 best items of a user, by the model on the CPU.
        users, items: keys and features; items in the order of their index.
        probabilities: (U, N).
    """

    request: ListRequest
    users: pd.DataFrame
    items: pd.DataFrame
    probabilities: np.ndarray

    def expected(self, k: int, candidates: dict[str, list[int]] | None = None) -> pd.DataFrame:
        """Top-k rows by sorting in pandas; `candidates` restricts the items of each user by index."""
        pairs = self.users[["user_key"]].merge(self.items[["item_index", "item_key"]], how="cross")
        pairs["score"] = self.probabilities.ravel().astype(np.float32)
        if candidates is not None:
            allowed = {(user, item) for user, actual in candidates.items() for item in actual}
            kept = [pair in allowed for pair in zip(pairs.user_key, pairs.item_index, strict=True)]
            pairs = pairs[kept]
        ranked = pairs.sort_values(["user_key", "score", "item_key"], ascending=[True, False, True])
        ranked["position"] = ranked.groupby("user_key").cumcount() + 1
        return ranked[ranked.position <= k][["user_key", "position", "item_key", "score"]].reset_index(
            drop=True
        )


def write_model(
    folder: Path,
    architecture: str = "logistic_regression",
    version: str = "m1",
    sign: float = 1.0,
    spec: FeatureSpec = SPEC,
    factors: Mapping[str, float] | None = None,
) -> str:
    """A model folder; weights come from a seed, times `sign`.

    `factors` multiplies the weights of some features of a logistic regression.
    """
    layers = {"embedding_dim": 4, "bottom_mlp": [8, 4], "top_mlp": [8]} if architecture == "dlrm" else {}
    config = ModelConfig.model_validate({"architecture": architecture, **layers})
    model = build_model(config, spec)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5 * sign)
        for name, factor in (factors or {}).items():
            _weights_of(model.state_dict(), name).mul_(factor)
    description = {
        "name": "toy",
        "version": version,
        "architecture": architecture,
        "model": config.model_dump(),
        "feature_spec": spec.to_json(),
        "workflow_version": spec.workflow_version,
        "baselines": {"logistic_regression": {"test": {"auc": 0.5}}},
    }
    save_model(str(folder), model, description)
    return str(folder)


def _weights_of(weights: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The weights of one feature of SPEC in a logistic regression, as a view."""
    dense = [feature.name for feature in SPEC.dense]
    if name in dense:
        position = dense.index(name)
        return weights["weights"][position : position + 1]
    categorical = [feature.name for feature in SPEC.categorical]
    start, position = np.cumsum([0, *SPEC.cardinalities]), categorical.index(name)
    return weights["embedding.weight"][int(start[position]) : int(start[position + 1])]


def logistic_probabilities(model_path: str, users: pd.DataFrame, items: pd.DataFrame) -> np.ndarray:
    """(U, N) probabilities of the logistic regression, by NumPy from the saved weights."""
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = {}
    for name in read_description(model_path)["weights"]:
        weights |= load_file(f"{model_path}/{name}")
    cardinalities = SPEC.cardinalities
    start = dict(
        zip((feature.name for feature in SPEC.categorical), np.cumsum([0, *cardinalities[:-1]]), strict=True)
    )
    column = weights["embedding.weight"][:, 0].astype(np.float64)
    dense = dict(
        zip((feature.name for feature in SPEC.dense), weights["weights"].astype(np.float64), strict=True)
    )
    of_user = column[start["who"] + users.who] + dense["age"] * users.age.to_numpy(np.float64)
    of_item = (
        column[start["what"] + items.what]
        + column[start["kind"] + items.kind]
        + dense["price"] * items.price.to_numpy(np.float64)
    )
    of_context = column[start["device"] + CONTEXT["device"]] + dense["hour"] * CONTEXT["hour"]
    logits = float(weights["bias"]) + of_user[:, None] + of_item[None, :] + of_context
    return 1 / (1 + np.exp(-logits))


def make_users(count: int = 37) -> pd.DataFrame:
    """Users with keys in order; those beyond the vocabulary carry the id of unknown values."""
    draw = np.random.default_rng(1)
    ids = np.arange(NUM_RESERVED_IDS, NUM_RESERVED_IDS + count)
    who = np.where(ids < int(SPEC.features[1].cardinality or 0), ids, OOV_ID).astype(np.int32)
    return pd.DataFrame(
        {
            "user_key": [f"u{index:03d}" for index in range(count)],
            "who": who,
            "age": draw.normal(size=count).astype(np.float32),
        }
    )


def make_items(count: int = 23) -> pd.DataFrame:
    """Items by index, which is key order; items 4, 5 and 11 have equal features and so equal scores."""
    draw = np.random.default_rng(2)
    items = pd.DataFrame(
        {
            "item_index": np.arange(count, dtype=np.int32),
            "item_key": [f"i{index:03d}" for index in range(count)],
            "what": (NUM_RESERVED_IDS + np.arange(count)).astype(np.int32),
            "kind": draw.integers(NUM_RESERVED_IDS, 7, count).astype(np.int32),
            "price": draw.normal(size=count).astype(np.float32),
        }
    )
    for column in ("what", "kind", "price"):
        items.loc[[5, 11], column] = items.loc[4, column]
    return items.astype({"what": np.int32, "kind": np.int32, "price": np.float32})


def make_recommender(request: ListRequest) -> ListRanker:
    """A recommender on the CPU with one thread, loaded anew in each call."""
    return load_recommender(request, load_predictor(request.model, None, 1))


def make_reference(folder: Path) -> ReferenceScores:
    """37 users, 23 items in two files and a logistic regression with weights from a seed."""
    model = write_model(folder / "model")
    users, items = make_users(), make_items()
    files = []
    for number, part in enumerate((items[:10], items[10:])):
        path = str(folder / f"items-{number}.parquet")
        pq.write_table(pa.Table.from_pandas(part, preserve_index=False), path)
        files.append(path)
    request = ListRequest(ModelRequest(model, "cpu", None), tuple(files), tuple(CONTEXT.items()), 5)
    return ReferenceScores(request, users, items, logistic_probabilities(model, users, items))
