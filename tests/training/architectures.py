"""A small configuration of every variant of every architecture, for tests of all of them."""

from __future__ import annotations

from typing import Any

from conf.types import ModelConfig
from storage.feature_spec import FeatureSpec
from tests.training.feature_rows import make_spec

_DCN = {"embedding_dim": 8, "cross_layers": 2, "deep": [16]}
_TOWERS = {"embedding_dim": 8, "user_tower": [16], "item_tower": [12], "output_dim": 6}
_WIDE = {"embedding_dim": 8, "deep": [16, 8]}

VARIANTS: dict[str, dict[str, Any]] = {
    "logistic_regression": {"architecture": "logistic_regression"},
    "dlrm": {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16, 8]},
    "wide_and_deep": {
        "architecture": "wide_and_deep",
        **_WIDE,
        "wide_ftrl": {"learning_rate": 0.1, "beta": 0.1, "l1": 1e-5, "l2": 1e-5},
    },
    "wide_and_deep_without_ftrl": {"architecture": "wide_and_deep", **_WIDE, "wide_ftrl": None},
    "dcn_v2_full": {"architecture": "dcn_v2", **_DCN},
    "dcn_v2_low_rank": {"architecture": "dcn_v2", **_DCN, "cross_rank": 5, "bottom_mlp": [6, 3]},
    "dcn_v2_parallel": {"architecture": "dcn_v2", **_DCN, "structure": "parallel"},
    "deepfm": {"architecture": "deepfm", "embedding_dim": 8, "deep": [16, 8]},
    "deepfm_dropout": {"architecture": "deepfm", "embedding_dim": 8, "deep": [32, 16], "dropout": 0.3},
    "deepfm_weighted": {"architecture": "deepfm", "embedding_dim": 8, "deep": [16, 8], "field_weights": True},
    "neumf": {"architecture": "neumf", "gmf_dim": 4, "mlp_dim": 6, "deep": [16, 8], "dropout": 0.1},
    "two_tower": {"architecture": "two_tower", **_TOWERS, "user_tower": [16, 8]},
    "two_tower_dropout": {"architecture": "two_tower", **_TOWERS, "dropout": 0.2},
}

# Models that need certain features: the item is the feature C1, and the history is the feature L0.
_HISTORY = {"item": "C1", "history": "L0", "embedding_dim": 8}
_SEQUENCE = {**_HISTORY, "heads": 2}
SEQUENCE_VARIANTS: dict[str, dict[str, Any]] = {
    "sasrec": {"architecture": "sasrec", **_SEQUENCE, "dropout": 0.0},
    "sasrec_dropout": {"architecture": "sasrec", **_SEQUENCE, "blocks": 1, "dropout": 0.3},
    "hstu": {"architecture": "hstu", **_SEQUENCE, "blocks": 1, "dropout": 0.0},
    "hstu_dropout": {"architecture": "hstu", **_SEQUENCE, "blocks": 1, "dropout": 0.2},
    "bert4rec": {"architecture": "bert4rec", **_SEQUENCE, "blocks": 1, "dropout": 0.3},
    "din": {"architecture": "din", **_HISTORY, "attention": [6, 5], "deep": [12, 8]},
    "din_dropout": {"architecture": "din", **_HISTORY, "attention": [6], "deep": [16], "dropout": 0.3},
    # The tests of all variants use the loss bce, which has one item per row.
    "mult_vae": {
        "architecture": "mult_vae",
        "item": "C1",
        "history": "L0",
        "hidden": [8, 6],
        "latent_dim": 4,
        "dropout": 0.3,
        "beta": 0.2,
        "history_weight": 0.0,
    },
}


def variant(name: str, **changed: Any) -> ModelConfig:
    return ModelConfig.model_validate({**{**VARIANTS, **SEQUENCE_VARIANTS}[name], **changed})


def small_spec(name: str, ids: int = 9) -> FeatureSpec:
    """Features that fit the variant. `ids` is the cardinality of the items, or of the only id feature."""
    if name in SEQUENCE_VARIANTS:
        return make_spec(2, [5, ids], lists=[ids])
    return make_spec(2, [ids], lists=[7])
