"""The settings of training/architectures/dlrm.py."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from conf.types import PositiveInt, Strict
from training.settings.shared_settings import Features

# The logit does not depend on the scopes of features (user, item, context or pair), so a training run can
# start from a model whose features had other scopes.
READS_SCOPES = False


class Settings(Strict):
    """DLRM: an MLP over the dot products of all pairs of feature vectors (Naumov et al. 2019)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    bottom_mlp: list[PositiveInt] = Field(
        default=[],
        description="Widths of the layers of the MLP over the dense features, in order. The last width must "
        "be `embedding_dim`. The list may be empty only if the model has no dense features.",
    )
    top_mlp: list[PositiveInt] = Field(
        default=[],
        description="Widths of the hidden layers of the MLP over the dot products, in order. The last layer, "
        "whose only output is the logit, is not listed.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if the settings do not fit the features."""
    require_bottom(settings, len(features.dense))


def require_bottom(settings: Settings, num_dense: int) -> None:
    """Raises ConfigError if there are dense features and the bottom MLP's last width is not embedding_dim."""
    bottom, dim = settings.bottom_mlp, settings.embedding_dim
    if num_dense and (not bottom or bottom[-1] != dim):
        raise ConfigError(
            f"model.bottom_mlp={bottom} must end in embedding_dim={dim}, because "
            "dot products need vectors of equal width",
            f"set the last number of model.bottom_mlp to {dim}",
        )
