"""The settings of training/architectures/bert4rec.py."""

from __future__ import annotations

from pydantic import Field

from conf.types import PositiveInt
from training.settings.shared_settings import Features, SequenceSettings, check_features

# The model is a VectorModel (training/models/factorization.py), so losses over item vectors can train it.
VECTORS = True


class Settings(SequenceSettings):
    """BERT4Rec: bidirectional attention over the user's items and a mask (Sun et al., CIKM 2019)."""

    heads: PositiveInt = Field(
        default=2, description="Number of attention heads of a block; a divisor of `embedding_dim`."
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if the item or the history is not a feature, or a feature has scope `pair`."""
    check_features("bert4rec", settings, features)
