"""Validates the model during a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from training.loop.callback import Callback, TrainingState, is_due

_METRICS = ("auc", "log_loss", "normalized_entropy")


class Validation(Callback):
    """Adds the metrics of the validation split to history entries.

    It does so every `every_steps` steps, and at the end of each epoch if `at_epoch_ends`. No metrics are
    added after the last step.

    Args:
        evaluate: a function that returns the metrics of the model on the validation split. All ranks must
            call it, and it returns the same result on all ranks.
        every_steps: steps between two validations; 0 for none.
        at_epoch_ends: whether the model is also validated at the end of each epoch.
    """

    def __init__(
        self, evaluate: Callable[[], Mapping[str, Any]], every_steps: int, *, at_epoch_ends: bool = False
    ) -> None:
        self._evaluate = evaluate
        self._every_steps = every_steps
        self._at_epoch_ends = at_epoch_ends

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True every `every_steps` steps and at the end of an epoch, but not after the last step.

        After the last step, `run_plan` measures the model on all splits.
        """
        epoch_ends = self._at_epoch_ends and is_due(state.step, state.steps_per_epoch)
        return (epoch_ends or is_due(state.step, self._every_steps)) and state.step < state.total_steps

    def fill_entry(self, state: TrainingState, entry: dict[str, Any]) -> None:
        """Evaluates the model if a validation is due.

        A validation need not be due, because another callback may have requested the entry.
        """
        if self.is_entry_due(state):
            entry["validation"] = chosen_metrics(self._evaluate())


def chosen_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those metrics of an evaluation that a history entry has."""
    return {name: metrics[name] for name in _METRICS}
