"""The settings of training/models/wide_and_deep.py."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from conf.errors import ConfigError
from conf.types import Names, PositiveInt, Strict
from training.settings.field_types import DropShare, Features, HiddenWidths
from training.settings.ftrl import FtrlSettings


class Crosses(Strict):
    """The products of every feature of `left` with every feature of `right`, for the wide part.

    The weight of a pair of ids is found by a hash of both ids, so that an id keeps its weights when its
    vocabulary grows.
    """

    left: Names = Field(
        description="Features of one id each, by name. Ranges such as `C{1..3}` are expanded."
    )
    right: Names = Field(
        description="Features of one id each, by name. Ranges such as `C{1..3}` are expanded."
    )
    buckets: PositiveInt = Field(default=2048, description="Number of weights of each product.")


class Settings(Strict):
    """Wide & Deep: a linear model over ids and products of ids, and an MLP (Cheng et al. 2016)."""

    embedding_dim: PositiveInt = Field(default=16, description="Width of an embedding vector.")
    deep: HiddenWidths = Field(
        default=[1024, 1024, 1024, 1024, 1024],
        description="Widths of the hidden layers of the deep part, in order. The layer to one logit is "
        "added.",
    )
    dropout: DropShare = Field(
        default=0.0, description="Share of the outputs of the hidden layers that training sets to 0."
    )
    wide_ftrl: FtrlSettings | None = Field(
        default=FtrlSettings(),
        description="FTRL for the wide part, with learning rates of its own, as in section 3.3 of the "
        "paper. Null: the optimizers and the learning rates of the section `train`.",
    )
    crosses: list[Crosses] = Field(
        default=[], description="Products of features in the wide part. Empty: none."
    )


def check(settings: Settings, features: Features) -> None:
    """Raises ConfigError unless all products are of features with one id."""
    require_known(settings.crosses, features.ids)


def require_known(crosses: Sequence[Crosses], single: Sequence[str]) -> None:
    """Raises ConfigError if a product names something that is not a feature with one id."""
    unknown = sorted({name for cross in crosses for name in (*cross.left, *cross.right)} - set(single))
    if unknown:
        raise ConfigError(
            f"model.crosses names {unknown}; the features of one id are {list(single)}",
            "name some of these, or leave out the crosses",
        )
