"""Defines column names, requests and checks of features that the driver and the workers of scoring share.

A request tells a worker what to compute. This module does not import Spark or torch, so a driver that imports
it does not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from conf.errors import ConfigError
from conf.train_types import Kernels
from scoring.rules.request import RulesRequest
from storage.feature_spec import USER_KEY, FeatureSpec

ITEM_INDEX = "item_index"
CANDIDATES = "candidates"
EXCLUDED = "excluded"
SOURCES = "sources"
SCORES = "scores"
SOURCE_SCORES = "source_scores"
POSITIVES = "positives"
VECTOR: Final = "vector"
CLUSTER: Final = "cluster"
HISTORY: Final = "history"
NEIGHBOURS = "neighbours"
SIMILARITIES = "similarities"
SIMILARITY_UNITS = 1 << 30  # the integer that represents the similarity 1
PROBABILITY = "probability"
FEATURES_DT = "features_dt"
VARIANT, CONTROL, TREATMENT = "variant", "control", "treatment"

# Columns of the candidates that a source proposes: one row per user, with the items and their scores.
LISTED = pa.schema(
    [(USER_KEY, pa.string()), (CANDIDATES, pa.list_(pa.int32())), (SCORES, pa.list_(pa.float32()))]
)

# The columns of the candidates to which a blend is fitted (scoring/ranking/recommender.py).
MEASURED = pa.schema(
    [
        (USER_KEY, pa.string()),
        (POSITIVES, pa.int64()),
        ("items", pa.binary()),
        ("logits", pa.binary()),
        ("scores", pa.binary()),
        ("clicked", pa.binary()),
    ]
)

# The encoded value of one feature: a number, an id, or a list of ids.
Encoded = int | float | tuple[int, ...]
DeviceKind = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
EmbeddingForm = Literal["stored", "int8", "on_demand"]


@dataclass(frozen=True)
class ModelRequest:
    """A request to load a model with settings for scoring.

    The request contains only paths and settings, so it can be pickled and hashed.

    Attributes:
        path: the model's folder.
        device: the device to run the model on.
        step_rows: number of rows that go through the model in one call; None chooses a number that suits the
            device.
        precision: precision of the matrix products.
        embeddings: the value of `score.embeddings`.
        kernels: the value of `score.kernels`.
        rows_mib: the value of `score.rows_mib`.
    """

    path: str
    device: DeviceKind
    step_rows: int | None
    precision: Precision = "fp32"
    embeddings: EmbeddingForm = "stored"
    kernels: Kernels = "auto"
    rows_mib: int = 1024


@dataclass(frozen=True)
class BlendRequest:
    """The weights of a blend, which ranks candidates by the model's logit and the scores of the sources.

    The score of a candidate is intercept + logit · (the model's logit) + the sum over the sources. A source
    with the weight w and the score x contributes w · x. A source that did not propose the item contributes
    its element of `absent`.

    Attributes:
        intercept: a number that is added to every score.
        logit: the weight of the logit.
        weights: the weight of each source's score, in the order of candidates.sources.
        absent: the contribution of each source for an item that it did not propose.
    """

    intercept: float
    logit: float
    weights: tuple[float, ...]
    absent: tuple[float, ...]


@dataclass(frozen=True)
class ListRequest:
    """A request to compute top-k lists.

    Attributes:
        model: the model that scores.
        item_files: paths of the Parquet files of the table candidate_items, in the order of the manifest.
        context: pairs of name and encoded value: one pair for each feature of scope `context`.
        k: maximum number of items in a list.
        rules: business rules that change the ranking; None if there are none.
        blend: the weights of the blend that ranks; None ranks by the model's probabilities.
    """

    model: ModelRequest
    item_files: tuple[str, ...]
    context: tuple[tuple[str, Encoded], ...]
    k: int
    rules: RulesRequest | None = None
    blend: BlendRequest | None = None


@dataclass(frozen=True)
class RetrievalRequest:
    """A request to retrieve candidates of users.

    Attributes:
        model: a model with vectors of users and items.
        item_files: paths of the Parquet files of the table candidate_items, in the order of the manifest.
        context: pairs of name and encoded value: one pair for each feature of scope `context`.
        n: maximum number of items per user.
        cluster_files: paths of the Parquet files of the clustered item vectors, for approximate search; empty
            for exact search.
        probes: number of clusters that approximate search reads for a user.
    """

    model: ModelRequest
    item_files: tuple[str, ...]
    context: tuple[tuple[str, Encoded], ...]
    n: int
    cluster_files: tuple[str, ...] = ()
    probes: int = 1


@dataclass(frozen=True)
class ItemVectorsRequest:
    """A request to compute the candidates of users from a published table of item vectors.

    Attributes:
        files: paths of the Parquet files of the table, which has the columns item_index and vector.
        n: maximum number of items per user.
        device: the device on which scores are computed.
    """

    files: tuple[str, ...]
    n: int
    device: DeviceKind


def require_listable(spec: FeatureSpec) -> None:
    """Checks that a model with these features can make top-k lists.

    Each feature must depend only on the user, only on the item, or only on the context.

    Raises:
        ConfigError: a feature has scope `pair`, so it may differ for every (user, item) pair.
    """
    require_no_pairs([feature.name for feature in spec.scoped("pair")])


def require_no_pairs(pairs: Sequence[str]) -> None:
    """Raises ConfigError if there are features of scope `pair`.

    Args:
        pairs: the names of the features of scope `pair`.
    """
    if pairs:
        raise ConfigError(
            "top-k lists cannot be made, because these features may differ for every (user, item) pair: "
            f"{list(pairs)}. They are in none of scopes.user, scopes.item and scopes.context",
            "add features that depend only on the user, the item or the time to scopes.user, scopes.item or "
            "scopes.context; remove all others from `features`; then run build_features and train_model "
            "again (score_rows can use these features without this change)",
        )


def require_context(columns: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raises ConfigError if the keys of `values` are not exactly the names in `columns`.

    Args:
        columns: the raw columns that the features of scope `context` are computed from.
        values: maps the name of a raw column to its value (score.context).
    """
    expected = set(columns)
    missing, unknown = sorted(expected - set(values)), sorted(set(values) - expected)
    if missing or unknown:
        raise ConfigError(
            "score.context must have a value for each raw column that context features are computed from, "
            f"and no other keys; columns without a value: {missing or 'none'}; other names: "
            f"{unknown or 'none'}",
            "write one raw value for each of these columns under score.context (in Python: pass `context`, "
            "or the `config` of the lake to nightrank.open), and remove other names. A column has no default "
            "if it has lists, or no value in the train rows of the run date",
        )
