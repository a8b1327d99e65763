"""The settings of training/models/dlrm.py."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings.field_types import Features


class Settings(Strict):
    """DLRM: dot products of pairs of embeddings and the vector of dense features (Naumov et al. 2019)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    bottom_mlp: list[PositiveInt] = Field(
        default=[],
        description="Widths of the layers over the dense features, in order. The last one must be "
        "`embedding_dim`. Empty: only for models without dense features.",
    )
    top_mlp: list[PositiveInt] = Field(
        default=[],
        description="Widths of the hidden layers over the dot products, in order. The layer to one logit is "
        "added.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError unless the settings fit the features."""
    require_bottom(settings, len(features.dense))


def require_bottom(settings: Settings, num_dense: int) -> None:
    """Raises ConfigError unless the last width of the bottom MLP is embedding_dim."""
    bottom, dim = settings.bottom_mlp, settings.embedding_dim
    if num_dense and (not bottom or bottom[-1] != dim):
        raise ConfigError(
            f"model.bottom_mlp={bottom} must end in embedding_dim={dim}: "
            "dot products need vectors of one width",
            "set the last number of bottom_mlp to embedding_dim",
        )
