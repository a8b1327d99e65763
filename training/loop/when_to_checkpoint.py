"""Restores a training from its latest checkpoint, and saves new checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from training.checkpoints import Checkpoints, Position
from training.loop.callback import Callback, TrainingState, is_due


class SaveCheckpoints(Callback):
    """Saves a checkpoint every `every_steps` steps. All ranks must use it, because saving is a collective.

    Args:
        checkpoints: the checkpoints of this training.
        every_steps: steps between two checkpoints; 0 for none.
        before_save: called before each checkpoint. If it raises an error, the checkpoint is not saved.
        after_save: called when the state has been copied and is being written. If it raises an error, the
            training ends, but the checkpoint is still completed.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        every_steps: int,
        before_save: Callable[[], None],
        after_save: Callable[[], None] | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._every_steps = every_steps
        self._before_save = before_save
        self._after_save = after_save

    def on_train_start(self, state: TrainingState) -> None:
        """Restores the latest checkpoint, if there is one."""
        position = self._checkpoints.restore(state.trainer)
        if position is not None:
            state.step = position.step
            state.history = list(position.history)
            state.earlier_s = position.seconds
        state.started_at = perf_counter()

    def on_step_complete(self, state: TrainingState) -> None:
        """Saves a checkpoint if one is due."""
        if not is_due(state.step, self._every_steps):
            return
        self._before_save()
        self._checkpoints.save(state.trainer, Position(state.step, state.seconds, state.history))
        if self._after_save:
            self._after_save()
