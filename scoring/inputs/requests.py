"""What the driver and the workers of scoring share: column names, requests, and checks of the features.

This module imports neither Spark nor torch, so that a driver does not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from conf.errors import ConfigError
from conf.train_types import Kernels
from scoring.rules.request import RulesRequest
from storage.feature_spec import FeatureSpec

ITEM_INDEX = "item_index"
CANDIDATES = "candidates"
EXCLUDED = "excluded"
SOURCES = "sources"
PROBABILITY = "probability"
FEATURES_DT = "features_dt"

# The encoded value of one feature: a number, an id, or a list of ids.
Encoded = int | float | tuple[int, ...]
DeviceKind = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
EmbeddingForm = Literal["stored", "int8"]


@dataclass(frozen=True)
class ModelRequest:
    """Which model to run and how. It can be pickled and hashed, because it holds only paths and numbers.

    Attributes:
        path: the model's folder.
        device: the device to run it on.
        step_rows: number of rows that go through the model at once; None chooses a number that suits the
            device.
        precision: precision of the matrix products.
        embeddings: `int8` quantizes the embedding tables when the model is loaded.
        kernels: the value of `score.kernels`.
    """

    path: str
    device: DeviceKind
    step_rows: int | None
    precision: Precision = "fp32"
    embeddings: EmbeddingForm = "stored"
    kernels: Kernels = "auto"


@dataclass(frozen=True)
class ListRequest:
    """What a worker needs to compute top-k lists.

    Attributes:
        model: the model that scores.
        item_files: Parquet files of candidate_items, in the order of their manifest.
        context: (name, encoded value) of each feature of scope `context`.
        k: largest number of items in a list.
        rules: business rules that change the ranking; None applies none.
    """

    model: ModelRequest
    item_files: tuple[str, ...]
    context: tuple[tuple[str, Encoded], ...]
    k: int
    rules: RulesRequest | None = None


@dataclass(frozen=True)
class RetrievalRequest:
    """What a worker needs to retrieve items.

    Attributes:
        model: a two-tower model.
        item_files: Parquet files of candidate_items, in the order of their manifest.
        context: encoded value of each feature of scope `context`, by name.
        n: maximum number of items per user.
    """

    model: ModelRequest
    item_files: tuple[str, ...]
    context: tuple[tuple[str, Encoded], ...]
    n: int


def require_listable(spec: FeatureSpec) -> None:
    """Checks that top-k lists can be scored with these features: each must come from user, item or context.

    Raises:
        ConfigError: a feature has scope `pair`.
    """
    require_no_pairs([feature.name for feature in spec.scoped("pair")])


def require_no_pairs(pairs: Sequence[str]) -> None:
    """Raises ConfigError if there are features of scope `pair`.

    Args:
        pairs: the names of the features of scope `pair`.
    """
    if pairs:
        raise ConfigError(
            f"top-k lists cannot be scored with features of scope pair: {list(pairs)}",
            "give each of them a scope under `scopes`, or leave it out of `features` and train again; "
            "only score_rows can use such features",
        )


def require_context(columns: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raises ConfigError unless `values` has exactly `columns`, the raw columns of the context features."""
    expected = set(columns)
    missing, unknown = sorted(expected - set(values)), sorted(set(values) - expected)
    if missing or unknown:
        raise ConfigError(
            "score.context must have a value for each raw column that context features are computed from: "
            f"missing {missing}, of another scope or unknown {unknown}",
            "write the raw values of this run under score.context",
        )
