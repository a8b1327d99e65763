"""Keeps the weights of the best step (`train.keep`), and ends a training run early (`train.stop_at`).

The module also saves the checkpoints of a training run, and restores a training run from the latest
checkpoint.

The best step is the step with the best value of a metric on the validation split.

During a training run, each new best evaluation is followed by a checkpoint. This checkpoint is kept until the
checkpoint of a better evaluation is complete (`SaveCheckpoints`). After the last step, the state of this
checkpoint is loaded. The best step depends only on the history, so all ranks and resumed training runs find
the same step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal, assert_never

from conf.types import StopAt, Train
from training.checkpoints import Checkpoints, Position
from training.checkpoints.blocks import Stateful
from training.loop.training_loop import Callback, TrainingState, is_due
from training.registry.search import PruningRule

log = logging.getLogger("nightrank.training")
Metric = Literal["auc", "log_loss", "normalized_entropy"]


def sign_of(metric: Metric) -> int:
    """Returns 1 if a higher value of a metric is better, otherwise -1."""
    if metric == "auc":
        return 1
    if metric == "log_loss" or metric == "normalized_entropy":
        return -1
    assert_never(metric)


def metric_of(train: Train) -> Metric:
    """Returns the metric that decides which step is the best: the metric of `stop_at`, or the AUC."""
    return train.stop_at.metric if train.stop_at else "auc"


def best_evaluation(history: Iterable[Mapping[str, Any]], metric: Metric) -> Mapping[str, Any] | None:
    """Returns the first history entry with the best value of a metric; None if there is no value.

    Args:
        history: the entries. An entry with a validation has the metrics by name under the key `validation`.
        metric: the metric. Evaluations in which the metric is undefined are ignored.
    """
    measured = [entry for entry in history if entry.get("validation", {}).get(metric) is not None]
    sign = sign_of(metric)
    return max(measured, key=lambda entry: sign * entry["validation"][metric], default=None)


def keep_best(
    trainer: Stateful,
    train: Train,
    history: Sequence[dict[str, Any]],
    evaluate: Callable[[], Mapping[str, Any]] | None,
    checkpoints: Checkpoints,
) -> dict[str, Any]:
    """Loads the state of the best evaluation after the last step. All ranks must call this function.

    The trainer is unchanged if the weights at the last step are the best, or if no evaluation was made during
    the training. If there is no checkpoint of the best step, the trainer is unchanged too, and this function
    logs a warning.

    Args:
        trainer: the trainer after the last step.
        train: the section `train`.
        history: the entries of the training. The last entry belongs to the last step. This function adds the
            metrics of an evaluation to it.
        evaluate: returns the metrics of the model on the validation split; None if the last step is always
            kept.
        checkpoints: the checkpoints of the training, all of which are complete.

    Returns:
        The entry `kept` of model.json: `step` and `epoch` (from 1) of the weights that are kept, the name of
        the `metric` and its `value`, and the `best_step`. `metric`, `value` and `best_step` are None if the
        last step is always kept, or if no evaluation was made during the training.
    """
    last = history[-1]
    if evaluate is None or not any("validation" in entry for entry in history):
        return _kept(last, None, None)
    metric = metric_of(train)
    if "validation" not in last:
        last["validation"] = dict(evaluate())
    best = best_evaluation(history, metric)
    if best is None or best["step"] == last["step"]:
        return _kept(last, metric, best)
    if checkpoints.load(trainer, best["step"]):
        log.info(
            "the model has the weights of step %d (epoch %d), where the %s of the validation split was best: "
            "%.5f; after step %d, the last one, it was %s",
            best["step"],
            best["epoch"] + 1,
            metric,
            best["validation"][metric],
            last["step"],
            _shown(last["validation"][metric]),
        )
        return _kept(best, metric, best)
    log.warning(
        "the model has the weights of the last step (%d), although the %s of the validation split was best "
        "after step %d: %.5f. There is no checkpoint of that step. Set train.epochs or train.stop_at so that "
        "the training ends there, or give the ranks more memory and disk space",
        last["step"],
        metric,
        best["step"],
        best["validation"][metric],
    )
    return _kept(last, metric, best)


def _kept(entry: Mapping[str, Any], metric: Metric | None, best: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "step": entry["step"],
        "epoch": entry["epoch"] + 1,
        "metric": metric,
        "value": entry["validation"][metric] if metric else None,
        "best_step": best["step"] if best else None,
    }


def _shown(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.5f}"


# The code below ends a training run when a metric has reached its target or no longer improves, or after a
# number of steps.
#
# The decision depends only on history and step, so all ranks and resumed training runs make the same
# decision.


class EarlyStopping(Callback):
    """Ends a training run by the rule `train.stop_at`. If the rule is None, training never ends early."""

    def __init__(self, rule: StopAt | None) -> None:
        self._rule = rule

    def on_train_start(self, state: TrainingState) -> None:
        """Checks a restored history, whose last entry may already require that the training ends."""
        state.stopped = stop_reason(state.history, self._rule)

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """After an evaluation, ends the training if the rule `train.stop_at` requires it."""
        if "validation" in entry:
            state.stopped = stop_reason(state.history, self._rule)


class Prune(Callback):
    """Ends a training run that is a bad trial of a search. If the rule is None, the training is never pruned.

    Use this callback after `EarlyStopping`: a training run that `train.stop_at` has ended is complete, so it
    is not pruned.
    """

    def __init__(self, rule: PruningRule | None) -> None:
        self._rule = rule

    def on_train_start(self, state: TrainingState) -> None:
        """Checks a restored history, whose last entry may already require that the training is pruned."""
        self._check(state)

    def on_entry(self, state: TrainingState, entry: Mapping[str, Any]) -> None:
        """After an evaluation, ends the training if the pruning rule requires it."""
        if "validation" in entry:
            self._check(state)

    def _check(self, state: TrainingState) -> None:
        if self._rule is None or state.stopped:
            return
        step = self._rule.step(state.history, state.steps_per_epoch, state.total_steps)
        if step is not None:
            state.pruned = True
            state.stopped = (
                f"pruned, because its best {self._rule.measure} up to step {step} is worse than the median "
                "of the complete trials"
            )


class StopAtStep(Callback):
    """Ends a training run after a number of steps. If `last_step` is None, training does not end early."""

    def __init__(self, last_step: int | None) -> None:
        self._last_step = last_step

    def is_entry_due(self, state: TrainingState) -> bool:
        """Returns True after the last step, so that the history contains the loss of this step."""
        return state.step == self._last_step

    def on_train_start(self, state: TrainingState) -> None:
        """Checks the restored step, which may already be the last one."""
        self._check(state)

    def on_step_complete(self, state: TrainingState) -> None:
        """Ends the training after the last step."""
        self._check(state)

    def _check(self, state: TrainingState) -> None:
        if self._last_step is not None and state.step >= self._last_step:
            state.stopped = f"step {self._last_step} is the last step of the training plan"


def stop_reason(history: Iterable[Mapping[str, Any]], rule: StopAt | None) -> str | None:
    """Returns why a training run with this history ends now; None if it continues.

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


# The code below restores a training run from its latest checkpoint, and saves new checkpoints.


class SaveCheckpoints(Callback):
    """Saves a checkpoint every `every_steps` steps, and after each evaluation with a new best value.

    All ranks must use this callback, because saving is a collective. The checkpoint of the best evaluation so
    far is not deleted. If there is no space for a checkpoint, a warning is logged, and the training
    continues.

    Args:
        checkpoints: the checkpoints of this training run.
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
        self._best: Mapping[str, Any] | None = None  # best evaluation of the first `_compared` entries
        self._compared = 0
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
        best_step = self._best_step(state.history)
        if not is_due(state.step, self._every_steps) and not self._is_worth_saving(state, best_step):
            return
        self._before_save()
        position = Position(state.step, state.seconds, state.history)
        self._checkpoints.save(state.trainer, position, best_step)
        if self._after_save:
            self._after_save()

    def _best_step(self, history: Sequence[Mapping[str, Any]]) -> int | None:
        """Returns the step of the best evaluation so far; None if there is none.

        It reads only new entries, so that steps do not take longer as the history grows.
        """
        if self._best_of and self._compared < len(history):
            new = history[self._compared :]
            self._best = best_evaluation(new if self._best is None else [self._best, *new], self._best_of)
            self._compared = len(history)
        return None if self._best is None else int(self._best["step"])

    def _is_worth_saving(self, state: TrainingState, best_step: int | None) -> bool:
        """Returns whether to save this step: it is the best so far, not the last, and there is space."""
        if best_step != state.step or state.stopped:
            return False
        problem = self._checkpoints.space_problem(state.trainer)
        if problem and not self._warned:
            self._warned = True
            log.warning(
                "step %d is the best one so far, but its weights are not saved: %s", state.step, problem
            )
        return problem is None
