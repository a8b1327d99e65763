"""Small features, inputs and weights for tests of models over histories."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from conf.types import ModelConfig
from storage.feature_spec import PAD_ID, Feature, FeatureSpec
from tests.training.feature_rows import Rows
from training.models import build_model, complete

ITEMS, PLACES = 12, 6
PLAIN = FeatureSpec(
    (
        Feature("item_id", "categorical", "int32", "item", ITEMS),
        Feature("history", "multi_hot", "list<int32>", "user", ITEMS),
    ),
    ("row_id",),
    "w1",
)
RICH = FeatureSpec(
    (
        Feature("age", "dense", "float32", "user"),
        Feature("price", "dense", "float32", "item"),
        Feature("hour", "dense", "float32", "context"),
        Feature("user_id", "categorical", "int32", "user", 7),
        Feature("item_id", "categorical", "int32", "item", ITEMS),
        Feature("genres", "multi_hot", "list<int32>", "item", 9),
        Feature("history", "multi_hot", "list<int32>", "user", ITEMS),
    ),
    ("row_id",),
    "w1",
)


def config(architecture: str, **changed: Any) -> ModelConfig:
    lists = {"lengths": {"history": PLACES}, "max_length": 3}
    of_architecture = {
        "din": {"embedding_dim": 8, "attention": [6, 5], "deep": [12, 7]},
        "mult_vae": {"hidden": [8, 6], "latent_dim": 5},
    }
    layers = of_architecture.get(architecture, {"embedding_dim": 8, "blocks": 2, "heads": 2})
    settings = {**layers, "dropout": 0.0, **changed}
    return complete(
        ModelConfig.model_validate({"architecture": architecture, "multi_hot": lists, **settings})
    )


def randomised(architecture: str, spec: FeatureSpec, seed: int = 3, **changed: Any) -> Any:
    """A model in evaluation mode with random weights, also of biases and norms."""
    model = build_model(config(architecture, **changed), spec, seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def inputs_of(spec: FeatureSpec, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, f.cardinality, (rows, 1)) for f in spec.categorical]
    for feature in spec.multi_hot:
        width = PLACES if feature.name == "history" else 3
        ids = rng.integers(1, feature.cardinality, (rows, width))
        ids[np.arange(width) >= rng.integers(0, width + 1, rows)[:, None]] = PAD_ID
        columns.append(ids)
    dense = rng.normal(size=(rows, len(spec.dense))).astype(np.float32)
    return torch.from_numpy(dense), torch.from_numpy(np.concatenate(columns, axis=1))


def norm(x: NDArray, state: dict[str, NDArray], name: str) -> NDArray:
    centred = x - x.mean()
    scaled = centred / np.sqrt((centred**2).mean() + 1e-5)
    return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]


def markov_rows(count: int, seed: int) -> Rows:
    """Half of the rows are clicks: the next item is the successor of the last one. The others are random."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, PLACES, count)
    histories = [rng.integers(3, ITEMS, length).tolist() for length in lengths]
    labels = rng.integers(0, 2, count)
    successors = np.array([3 + (history[0] - 3 + 1) % (ITEMS - 3) for history in histories])
    items = np.where(labels == 1, successors, rng.integers(3, ITEMS, count))
    no_dense = np.zeros((count, 0), np.float32)
    return Rows(labels.astype(np.float32), no_dense, items[:, None].astype(np.int32), (histories,))
