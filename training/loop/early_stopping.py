"""Ends a training when a metric has reached its target or no longer improves, or after a number of steps.

The decision depends only on history and step, so all ranks and resumed trainings decide the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conf.types import StopAt
from training.loop.best_step import sign_of
from training.loop.callback import Callback, TrainingState


class EarlyStopping(Callback):
    """Ends a training by the rule `train.stop_at`. If the rule is None, the training is never ended early."""

    def __init__(self, rule: StopAt | None) -> None:
        self._rule = rule

    def on_train_start(self, state: TrainingState) -> None:
        """Checks a restored history, because the training may have ended before it was killed."""
        state.stopped = stop_reason(state.history, self._rule)

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """Checks again with the new entry."""
        state.stopped = stop_reason(state.history, self._rule)


class StopAtStep(Callback):
    """Ends a training after a number of steps. If `last_step` is None, the training is not ended early."""

    def __init__(self, last_step: int | None) -> None:
        self._last_step = last_step

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True after the last step, so that its loss is in the history."""
        return state.step == self._last_step

    def on_train_start(self, state: TrainingState) -> None:
        """Checks a restored step, because the training may have ended before it was killed."""
        self._check(state)

    def on_step_complete(self, state: TrainingState) -> None:
        """Ends the training after the last step."""
        self._check(state)

    def _check(self, state: TrainingState) -> None:
        if self._last_step is not None and state.step >= self._last_step:
            state.stopped = f"step {self._last_step} is the last one of the plan"


def stop_reason(history: Iterable[Mapping[str, Any]], rule: StopAt | None) -> str | None:
    """Returns why a training with this history ends now; None if it continues.

    Evaluations in which the metric is undefined are ignored. A value equal to the best value is not an
    improvement.

    Args:
        history: the entries. An entry with a validation has the metrics by name under the key `validation`.
        rule: the metric, and its target or the allowed number of evaluations without improvement.
    """
    if rule is None:
        return None
    measured = [entry["validation"][rule.metric] for entry in history if "validation" in entry]
    values = [value for value in measured if value is not None]
    if not values:
        return None
    sign = sign_of(rule.metric)
    scores = [sign * value for value in values]
    if rule.value is not None and scores[-1] >= sign * rule.value:
        return f"{rule.metric} {values[-1]:.5f} has reached the target of {rule.value:g}"
    since_best = len(scores) - 1 - scores.index(max(scores))
    if rule.patience is not None and since_best >= rule.patience:
        return f"{rule.metric} has not improved on {sign * max(scores):.5f} in {since_best} evaluations"
    return None
