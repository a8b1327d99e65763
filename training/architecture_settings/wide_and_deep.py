"""The settings of training/architectures/wide_and_deep.py."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from conf.errors import ConfigError
from conf.types import Names, PositiveInt, Strict
from training.settings.shared_settings import DropShare, Features, FtrlSettings, HiddenWidths

# The logit does not depend on the scopes of features (user, item, context or pair), so a training run can
# start from a model whose features had other scopes.
READS_SCOPES = False


class Crosses(Strict):
    """Crosses every feature of `left` with every feature of `right`, for the wide part.

    A cross of two features has a weight for each pair of their ids. A hash of both ids selects the weight, so
    a pair of ids keeps its weight when vocabularies grow.
    """

    left: Names = Field(
        description="Names of features with one id per row. `C{1..3}` stands for `C1`, `C2` and `C3`."
    )
    right: Names = Field(
        description="Names of features with one id per row. `C{1..3}` stands for `C1`, `C2` and `C3`."
    )
    buckets: PositiveInt = Field(
        default=2048,
        description="Number of weights of each cross. Pairs of ids with equal hashes share a weight.",
    )


class Settings(Strict):
    """Wide & Deep: a linear model over ids and pairs of ids, and an MLP (Cheng et al. 2016)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    deep: HiddenWidths = Field(
        default=[1024, 1024, 1024, 1024, 1024],
        description="Widths of the hidden layers of the deep part, in order. The last layer, whose only "
        "output is the logit, is not listed.",
    )
    dropout: DropShare = Field(
        default=0.0,
        description="Dropout rate: the share of the outputs of hidden layers that is set to 0 in training.",
    )
    wide_ftrl: FtrlSettings | None = Field(
        default=FtrlSettings(),
        description="Settings of FTRL, which trains the wide part with its own learning rate, as in section "
        "3.3 of the paper. If null, the wide part is trained with the optimizers and learning rates of the "
        "section `train`.",
    )
    crosses: list[Crosses] = Field(
        default=[],
        description="Features to cross in the wide part, which then has a weight for each pair of their ids.",
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError if `crosses` names a feature that does not have one id per row."""
    require_known(settings.crosses, features.ids)


def require_known(crosses: Sequence[Crosses], single: Sequence[str]) -> None:
    """Raises ConfigError if `crosses` names a feature that is not in the list `single`.

    `single` contains the names of the features with one id per row.
    """
    unknown = sorted({name for cross in crosses for name in (*cross.left, *cross.right)} - set(single))
    if unknown:
        raise ConfigError(
            f"model.crosses names {unknown}, but it can only name features with one id per row; "
            f"these features are {list(single)}",
            "use only these names in model.crosses, or remove model.crosses",
        )
