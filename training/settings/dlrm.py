"""The settings of training/models/dlrm.py."""

from __future__ import annotations

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings import Features


class Settings(Strict):
    """Layer lists name widths in order. `bottom_mlp` ends in `embedding_dim`; of `top_mlp` the layer to one logit is implied."""

    embedding_dim: PositiveInt = 16
    bottom_mlp: list[PositiveInt] = []
    top_mlp: list[PositiveInt] = []


def check(settings: Settings, features: Features) -> None:
    require_bottom(settings, len(features.dense))


def require_bottom(settings: Settings, num_dense: int) -> None:
    """Raises ConfigError unless the bottom MLP of dense features ends in embedding_dim."""
    bottom, dim = settings.bottom_mlp, settings.embedding_dim
    if num_dense and (not bottom or bottom[-1] != dim):
        raise ConfigError(
            f"model.bottom_mlp={bottom} must end in embedding_dim={dim}: "
            "the dense features' vector meets the embeddings in dot products",
            "set the last number of bottom_mlp to embedding_dim",
        )
