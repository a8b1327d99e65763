"""The check of features for `train.unknown_share`, without torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from conf.errors import ConfigError


def require_oov_ids(names: Collection[str], features: Sequence[str]) -> None:
    """Raises ConfigError unless unknown values of each named feature have the id OOV_ID.

    Args:
        names: the features that `train.unknown_share` names.
        features: the features in which unknown values have the id OOV_ID.
    """
    wrong = sorted(set(names) - set(features))
    if wrong:
        raise ConfigError(
            f"train.unknown_share names {wrong}, but ids can be replaced only in features whose ids come "
            f"from categorify with oov_buckets=1; these are {list(features)}",
            "name only such features in train.unknown_share",
        )
