"""Whether a training has reached what it was to reach. A function of its history alone: all ranks, and resumed ones, agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conf.types import StopAt

_RISING = {"auc"}  # the better the higher


def stop_reason(history: Iterable[Mapping[str, Any]], rule: StopAt | None) -> str | None:
    """Why a training of this history ends now; None when it goes on.

    An evaluation that left the metric undefined is no evaluation. A value that equals the best is no improvement.

    Args:
        history: entries; `validation` of those where the model was measured has the metrics by name.
    """
    if rule is None:
        return None
    measured = [each["validation"][rule.metric] for each in history if "validation" in each]
    values = [each for each in measured if each is not None]
    if not values:
        return None
    sign = 1 if rule.metric in _RISING else -1
    scores = [sign * each for each in values]
    if rule.value is not None and scores[-1] >= sign * rule.value:
        return f"{rule.metric} {values[-1]:.5f} has reached the target of {rule.value:g}"
    since_best = len(scores) - 1 - scores.index(max(scores))
    if rule.patience is not None and since_best >= rule.patience:
        return f"{rule.metric} has not improved on {sign * max(scores):.5f} in {since_best} evaluations"
    return None
