"""Restores a training from its latest checkpoint, and saves new checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from training.checkpoints import Checkpoints, Position
from training.loop.best_step import Metric, best_evaluation
from training.loop.training_loop import Callback, TrainingState, is_due

log = logging.getLogger("nightrank.training")


class SaveCheckpoints(Callback):
    """Saves a checkpoint every `every_steps` steps, and after each evaluation with a new best value.

    All ranks must use this callback, because saving is a collective. The checkpoint of the best evaluation so
    far is not deleted. If there is no space for a checkpoint, a warning is logged, and the training
    continues.

    Args:
        checkpoints: the checkpoints of this training.
        every_steps: steps between two checkpoints; 0 for none.
        before_save: called before each checkpoint. If it raises an error, the checkpoint is not saved.
        after_save: called when the state has been copied and is being written. If it raises an error, the
            training ends, but the checkpoint is still completed.
        best_of: the metric of the validation split that decides which evaluation is the best; None if no
            checkpoint is saved for the best evaluation.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        every_steps: int,
        before_save: Callable[[], None],
        after_save: Callable[[], None] | None = None,
        best_of: Metric | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._every_steps = every_steps
        self._before_save = before_save
        self._after_save = after_save
        self._best_of = best_of
        self._warned = False

    def on_train_start(self, state: TrainingState) -> None:
        """Restores the latest checkpoint, if there is one."""
        position = self._checkpoints.restore(state.trainer)
        if position is not None:
            state.step = position.step
            state.history = list(position.history)
            state.earlier_s = position.seconds
        state.started_at = perf_counter()

    def on_step_complete(self, state: TrainingState) -> None:
        """Saves a checkpoint if one is due, or if this step has the best evaluation so far."""
        best = best_evaluation(state.history, self._best_of) if self._best_of else None
        best_step = None if best is None else int(best["step"])
        if not is_due(state.step, self._every_steps) and not self._is_worth_saving(state, best_step):
            return
        self._before_save()
        position = Position(state.step, state.seconds, state.history)
        self._checkpoints.save(state.trainer, position, best_step)
        if self._after_save:
            self._after_save()

    def _is_worth_saving(self, state: TrainingState, best_step: int | None) -> bool:
        """Returns whether this step is the best so far, the training continues, and there is space."""
        if best_step != state.step or state.stopped:
            return False
        problem = self._checkpoints.space_problem(state.trainer)
        if problem and not self._warned:
            self._warned = True
            log.warning(
                "step %d is the best one so far, but no copy of its weights is kept: %s", state.step, problem
            )
        return problem is None
