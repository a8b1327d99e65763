"""The settings of training/architectures/sasrec.py."""

from __future__ import annotations

from training.settings.shared_settings import Features, SequenceSettings, check_features

# The model is a VectorModel (training/models/factorization.py), so losses over item vectors can train it.
VECTORS = True


class Settings(SequenceSettings):
    """SASRec: self-attention over the items that the user clicked before (Kang and McAuley, ICDM 2018)."""


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if the item or the history is not a feature, or a feature has scope `pair`."""
    check_features("sasrec", settings, features)
