"""The settings of training/architectures/hstu.py."""

from __future__ import annotations

from pydantic import Field

from conf.errors import ConfigError
from training.settings.shared_settings import DropShare, Features, SequenceSettings, check_features

# The model is a VectorModel (training/models/factorization.py), so losses over item vectors can train it.
VECTORS = True


class Settings(SequenceSettings):
    """HSTU: gated attention without a softmax over the user's items (Zhai et al., ICML 2024)."""

    ages: str | None = Field(
        default=None,
        description="Name of the feature with the ages of the items of the history. The operator `bucketize` "
        "computes it from the column `history.ages`, and its kind is multi_hot. Its maximum length in "
        "`multi_hot` must equal that of the history. If null, the model uses the order of the items, but not "
        "their times.",
    )
    dropout: DropShare = Field(
        default=0.2,
        description="Dropout rate: the share of values that is set to 0 in training, in the inputs of the "
        "first block, and in the gated attention outputs of each block.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if item, history or ages is not a feature, or a feature has scope `pair`."""
    check_features("hstu", settings, features)
    if settings.ages is not None and settings.ages not in features.lists:
        raise ConfigError(
            f"model.ages={settings.ages!r} is not a feature of kind multi_hot; the features of this kind are "
            f"{list(features.lists)}",
            "set model.ages to the feature that is computed from the column `history.ages`, or to null",
        )
