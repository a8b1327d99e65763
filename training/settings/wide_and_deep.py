"""The settings of training/models/wide_and_deep.py."""

from __future__ import annotations

from collections.abc import Sequence

from conf.errors import ConfigError
from conf.types import Names, PositiveInt, Strict
from training.settings import DropShare, Features, HiddenWidths
from training.settings.ftrl import FtrlSettings


class Crosses(Strict):
    """The products of every feature of `left` with every one of `right`: features of one id, by name.

    `buckets`: weights of a product. The weight of a pair of ids is found by a hash of both, so that an id keeps its weights
    when its vocabulary grows.
    """

    left: Names
    right: Names
    buckets: PositiveInt = 2048


class Settings(Strict):
    """`deep` names the hidden widths in order; the layer to one logit is implied. `dropout`: share of their outputs dropped.

    `wide_ftrl` trains the wide part by FTRL, as the paper does (section 3.3), at rates of its own; null trains it by the
    optimisers of the deep part, at the rates of the section `train`. `crosses` are the products of features that it has.
    """

    embedding_dim: PositiveInt = 16
    deep: HiddenWidths = [1024, 1024, 1024, 1024, 1024]
    dropout: DropShare = 0.0
    wide_ftrl: FtrlSettings | None = FtrlSettings()
    crosses: list[Crosses] = []


def check(settings: Settings, features: Features) -> None:
    require_known(settings.crosses, features.ids)


def require_known(crosses: Sequence[Crosses], single: Sequence[str]) -> None:
    """Raises ConfigError where a product names something else than a feature of one id."""
    unknown = sorted({name for each in crosses for name in (*each.left, *each.right)} - set(single))
    if unknown:
        raise ConfigError(
            f"model.crosses names {unknown}; the features of one id are {list(single)}",
            "name some of these, or leave out the crosses",
        )
