"""Validates the model during a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from training.loop.callback import Callback, TrainingState, is_due

_METRICS = ("auc", "log_loss", "normalized_entropy")


class Validation(Callback):
    """Adds `validation` to an entry of the history every so many steps, but not after the last one.

    Args:
        evaluate: returns the metrics of the model on the validation split; a collective, with the same
            result on all ranks.
        every_steps: steps between two validations; 0 for none.
    """

    def __init__(self, evaluate: Callable[[], Mapping[str, Any]], every_steps: int) -> None:
        self._evaluate = evaluate
        self._every_steps = every_steps

    def is_entry_due(self, state: TrainingState) -> bool:
        """Every so many steps; after the last step the caller measures all splits."""
        return is_due(state.step, self._every_steps) and state.step < state.total_steps

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Evaluates the model if a validation is due; an entry may have another cause."""
        if self.is_entry_due(state):
            metrics = self._evaluate()
            entry["validation"] = {name: metrics[name] for name in _METRICS}
