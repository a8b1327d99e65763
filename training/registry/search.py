"""Searches settings with Optuna. Proposes trials, prunes bad trials, and stores pruned training runs.

A search stores no state. A rerun computes the same proposals in the same order. It reads the results of
finished trials from the lake instead of training them again: from `model.json`, or from `pruned.json`.

    models/<name>-experiments/<version>/pruned.json    the history of a training run that was pruned

The proposals depend only on the space, the seed and the results. So a search that was interrupted and then
rerun makes the same proposals as a search without interruption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from conf.experiments import Measure, Search, SearchedValues
from storage import file_io, format_versions
from training.registry.comparison import TrainingOutcome, cost
from training.registry.model_json import is_complete, read_description

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

PRUNED_JSON = "pruned.json"
_RANDOM_TRIALS = 10
_COMPLETE_TRIALS = 5
_PARTS_OF_EPOCH = 1000
_SEEDS = 2**32  # Optuna needs seeds below this number


@dataclass(frozen=True)
class PruningRule:
    """A rule that prunes a training run: ends it early if other training runs have better evaluations.

    A training run is pruned after an evaluation if the training's best value so far is worse than the limit
    for this point of the training. The rule depends only on the history of a training run. So all ranks and
    resumed training runs make the same decision.

    Attributes:
        measure: the measure on the validation split.
        limits: maps points of a training run to the limits. A point is the number of epochs done, times 1000
            and rounded.
    """

    measure: Measure
    limits: Mapping[int, float]

    def step(self, history: Iterable[Mapping[str, Any]], steps_per_epoch: int, end: int) -> int | None:
        """Returns the step after which a training run with this history is pruned; None if it is not.

        Args:
            history: the entries, ascending by step. An entry with an evaluation has the measures by name
                under the key `validation`. Evaluations in which the measure is undefined are ignored.
            steps_per_epoch: number of global batches in an epoch.
            end: the last step of the training. A training run with an evaluation at this step is complete.
        """
        best = None
        for entry in history:
            value = entry.get("validation", {}).get(self.measure)
            if value is None or entry["step"] >= end:
                continue
            best = cost(self.measure, value) if best is None else min(best, cost(self.measure, value))
            limit = self.limits.get(_position(entry["step"] / steps_per_epoch))
            if limit is not None and best > cost(self.measure, limit):
                return int(entry["step"])
        return None


def _position(epoch: float) -> int:
    return round(_PARTS_OF_EPOCH * epoch)


class Proposals:
    """Optuna's TPE sampler for a space. Call `ask` and `tell` in turn, once for each trial.

    Equal arguments and equal results give equal proposals.

    Args:
        search: the section `search`.
        choose_by: the measure on the validation split that the search optimizes.
        seed: the seed of the proposals.
    """

    def __init__(self, search: Search, choose_by: Measure, seed: int) -> None:
        import optuna  # imported only for a search, because the import takes half a second

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=seed % _SEEDS, n_startup_trials=_RANDOM_TRIALS, multivariate=True, constant_liar=False
        )
        self._study: Study = optuna.create_study(
            sampler=sampler, direction="maximize" if cost(choose_by, 1.0) < 0 else "minimize"
        )
        self._measure = choose_by
        self._space = search.space
        # The keys are sorted, so that their order in the file has no influence.
        self._distributions = {key: _distribution(search.space[key]) for key in sorted(search.space)}
        self._trial: Trial | None = None

    def ask(self) -> dict[str, Any]:
        """Returns a value of each searched setting for the next trial."""
        self._trial = self._study.ask(self._distributions)
        proposed = self._trial.params
        return {key: _value(values, proposed[key]) for key, values in self._space.items()}

    def tell(self, outcome: TrainingOutcome) -> None:
        """Reports the outcome of the trial that `ask` began."""
        from optuna.trial import TrialState

        trial, self._trial = self._trial, None
        if trial is None:
            raise ValueError("internal error, please report: a trial has a result before it has settings")
        for position, value in _measured(outcome, self._measure).items():
            trial.report(value, position)
        final = outcome.validation.get(self._measure)
        if outcome.pruned is not None:
            # Optuna then uses the value of the last evaluation as the value of the trial.
            self._study.tell(trial, state=TrialState.PRUNED)
        elif final is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, final)

    def pruning_rule(self) -> PruningRule | None:
        """Returns the rule for the next training run; None while fewer than five trials are complete.

        The limits are medians of the complete trials, as in Optuna's MedianPruner. Optuna's class needs all
        trials to decide. The ranks do not have them, so this rule contains the limits.
        """
        from optuna.trial import TrialState

        complete = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(complete) < _COMPLETE_TRIALS:
            return None
        values: dict[int, list[float]] = {}
        for trial in complete:
            for position, value in trial.intermediate_values.items():
                values.setdefault(position, []).append(value)
        return PruningRule(
            self._measure, {position: float(np.percentile(of, 50)) for position, of in values.items()}
        )


def _distribution(values: SearchedValues) -> BaseDistribution:
    """Returns Optuna's distribution of a searched setting. For `choices`, Optuna searches their indices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if values.choices is not None:
        return CategoricalDistribution(list(range(len(values.choices))))
    low, high = values.low or 0, values.high or 0
    if values.is_whole:
        return IntDistribution(int(low), int(high), log=values.log)
    return FloatDistribution(low, high, log=values.log)


def _value(values: SearchedValues, proposed: Any) -> Any:
    return proposed if values.choices is None else values.choices[proposed]


def _measured(outcome: TrainingOutcome, measure: str) -> dict[int, float]:
    """Maps points of a training run (see `PruningRule`) to the measure in the first evaluation there."""
    measured: dict[int, float] = {}
    for evaluation in outcome.curve:
        value = evaluation.measures[measure]
        if value is not None:
            measured.setdefault(_position(evaluation.epoch), value)
    return measured


# The code below stores the records of pruned training runs, and reads the outcomes of finished training runs.


def write_pruned(path: str, record: Mapping[str, Any]) -> None:
    """Writes the record of a pruned training run: the entries of model.json that do not need a model.

    Args:
        path: the folder of the model.
        record: has at least the keys `version`, `history`, `steps` and `seconds`.
    """
    file_io.replace_json(f"{path}/{PRUNED_JSON}", format_versions.PRUNED_TRAINING.stamp(record))


def read_pruned(path: str) -> dict[str, Any] | None:
    """Returns the record of a pruned training run; None if there is none.

    Raises:
        DataError: the record is damaged, or a newer release wrote it.
    """
    try:
        return format_versions.PRUNED_TRAINING.load(f"{path}/{PRUNED_JSON}", _checked)
    except FileNotFoundError:
        return None


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    format_versions.typed(record, version=str, history=list, steps=int, seconds=(int, float))
    return record


def finished_training(
    path: str, seed: int, steps_per_epoch: int, rule: PruningRule | None
) -> TrainingOutcome | None:
    """Returns the outcome of a training run that need not be repeated; None if it must be run.

    A search with another rule may have pruned the same training run earlier than `rule` does. Then the record
    lacks evaluations that `rule` needs, and the result is None.

    Args:
        path: the folder of the model.
        seed, steps_per_epoch, rule: see `outcome_of`.
    """
    if is_complete(path, checksums=True):
        return outcome_of(read_description(path), seed, steps_per_epoch, rule)
    record = read_pruned(path)
    if record is None or rule is None:
        return None
    if rule.step(record["history"], steps_per_epoch, record["steps"] + 1) is None:
        return None
    return outcome_of(record, seed, steps_per_epoch, rule)


def outcome_of(
    description: Mapping[str, Any], seed: int, steps_per_epoch: int, rule: PruningRule | None
) -> TrainingOutcome:
    """Returns the outcome of a training run from its model.json, or from the record of a pruned training run.

    If `rule` would have pruned the training of a complete model, the model counts as a pruned trial. So the
    result of a search does not depend on the training runs of other comparisons.

    Args:
        description: the file's content. The record of a pruned training run has no metrics.
        seed: the seed of the training run.
        steps_per_epoch: number of global batches in an epoch of the training.
        rule: the rule that prunes the training; None if it may not be pruned.
    """
    end = description["steps"]
    step = rule.step(description["history"], steps_per_epoch, end) if rule else None
    if step is None and "metrics" in description:
        return TrainingOutcome.of(seed, description, steps_per_epoch)
    return TrainingOutcome.of_pruned(seed, description, steps_per_epoch, end if step is None else step)
