"""Validates the model during a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from training.loop.callback import Callback, TrainingState, is_due

_METRICS = ("auc", "log_loss", "normalized_entropy")


class Validation(Callback):
    """Adds the metrics of the validation split to a history entry every `every_steps` steps.

    No metrics are added after the last step.

    Args:
        evaluate: a function that returns the metrics of the model on the validation split. All ranks must
            call it, and it returns the same result on all ranks.
        every_steps: steps between two validations; 0 for none.
    """

    def __init__(self, evaluate: Callable[[], Mapping[str, Any]], every_steps: int) -> None:
        self._evaluate = evaluate
        self._every_steps = every_steps

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True every `every_steps` steps, but not after the last step.

        After the last step, `run_plan` measures the model on all splits.
        """
        return is_due(state.step, self._every_steps) and state.step < state.total_steps

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Evaluates the model if a validation is due.

        A validation need not be due, because another callback may have requested the entry.
        """
        if self.is_entry_due(state):
            metrics = self._evaluate()
            entry["validation"] = {name: metrics[name] for name in _METRICS}
