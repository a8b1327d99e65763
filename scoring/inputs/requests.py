"""What driver and workers of scoring agree on: column names, requests, and which features a model may be given.

Knows neither Spark nor torch: a driver that only plans and publishes never loads torch.
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

# What a feature holds for one row: a number, an id, or a list of ids.
Encoded = int | float | tuple[int, ...]
DeviceKind = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
EmbeddingForm = Literal["stored", "int8"]


@dataclass(frozen=True)
class ModelRequest:
    """Which model to run and how: paths and numbers only, so that it travels to any process and serves as a cache key.

    Attributes:
        path: the model's folder.
        device: where to run it.
        step_rows: rows that go through the model at once; None lets the device decide.
        precision: of the products of matrices.
        embeddings: `int8` makes bytes of the embedding rows when the model is loaded.
        kernels: as `score.kernels`.
    """

    path: str
    device: DeviceKind
    step_rows: int | None
    precision: Precision = "fp32"
    embeddings: EmbeddingForm = "stored"
    kernels: Kernels = "auto"


@dataclass(frozen=True)
class ListRequest:
    """What a worker needs to make top-k lists.

    Attributes:
        item_files: Parquet files of candidate_items, in the order of their manifest.
        context: encoded value of each feature of scope `context`, by name.
        k: how many items a user gets at most.
        rules: business rules after ranking; None leaves the ranking as it is.
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
        n: how many items a user gets at most.
    """

    model: ModelRequest
    item_files: tuple[str, ...]
    context: tuple[tuple[str, Encoded], ...]
    n: int


def require_listable(spec: FeatureSpec) -> None:
    """Raises ConfigError where a feature belongs to a pair alone: lists are assembled from users, items and context."""
    require_no_pairs([each.name for each in spec.scoped("pair")])


def require_no_pairs(pairs: Sequence[str]) -> None:
    """Raises ConfigError where there are features of scope `pair`."""
    if pairs:
        raise ConfigError(
            f"top-k lists cannot be scored with features of scope pair: {list(pairs)}",
            "give each of them a scope under `scopes`, or leave it out of `features` and train again; "
            "score_rows scores rows that hold such features",
        )


def require_context(columns: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raises ConfigError unless `values` gives exactly these columns, of which the features of scope `context` are made."""
    wanted = set(columns)
    missing, unknown = sorted(wanted - set(values)), sorted(set(values) - wanted)
    if missing or unknown:
        raise ConfigError(
            f"score.context must give a value for each column that features of scope context are made of: missing {missing}, "
            f"of another scope or unknown {unknown}",
            "give the raw values that hold for tonight under score.context",
        )
