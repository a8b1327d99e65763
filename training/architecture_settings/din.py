"""The settings of training/architectures/din.py."""

from __future__ import annotations

from pydantic import Field

from conf.types import PositiveInt
from training.settings.shared_settings import (
    DropShare,
    Features,
    HiddenWidths,
    HistorySettings,
    check_history,
)

# The logit does not depend on the scopes of features (user, item, context or pair), so a training run can
# start from a model whose features had other scopes.
READS_SCOPES = False


class Settings(HistorySettings):
    """DIN: an MLP over the features and a history pooled by attention to the item (Zhou et al., KDD 2018)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    attention: HiddenWidths = Field(
        default=[36],
        description="Widths of the hidden layers of the activation unit, in order. The unit is an MLP that "
        "computes the weight of an item of the history. The last layer, whose only output is the weight, is "
        "not listed.",
    )
    deep: HiddenWidths = Field(
        default=[200, 80],
        description="Widths of the hidden layers of the MLP over all features, in order. The last layer, "
        "whose only output is the logit, is not listed.",
    )
    dropout: DropShare = Field(
        default=0.0,
        description="Dropout rate: the share of the outputs of the hidden layers of `deep` that is set to 0 "
        "in training.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if the item or the history is not a feature."""
    check_history(settings, features)
