"""Runs all steps of the gate in order: measures both models, checks lists and drift, and decides."""

from __future__ import annotations

from conf.errors import DataError
from scoring.evaluation.gate import STANDING, Check, decide, keep_champion
from scoring.evaluation.gate_drift import drift_checks
from scoring.evaluation.gate_list_checks import compare_lists, list_checks
from scoring.evaluation.gate_lists import measure_lists_of
from scoring.evaluation.gate_measures import compare, measure_models
from scoring.evaluation.gate_record import Evaluation
from scoring.model.model_info import ModelInfo
from storage.dataset import Dataset
from storage.run_context import RunContext

# What to change if the test split lacks clicks or non-clicks, by `split.by`.
_MORE_TEST_ROWS = {
    "day": "choose a run date whose test days have both, or set more test days (split.test_days)",
    "fraction": "lower split.train or split.validation, so that more rows are in the test split",
    "leave_last_out": "deliver a log with more users, or add the section `negatives`",
}


def run_gate(
    context: RunContext,
    dataset: Dataset,
    challenger: ModelInfo,
    champion: ModelInfo | None,
    barred_because: str | None = None,
) -> Evaluation:
    """Evaluates a challenger on the test rows of a dataset. This function publishes nothing.

    Args:
        context: the context of the run.
        dataset: the dataset of the run date.
        challenger: the model to decide on.
        champion: the model that serves before the decision; None if there is none.
        barred_because: the reason that a person gave against promoting the challenger; None if nobody decided
            against the challenger.

    Raises:
        DataError: the champion and the challenger were not measured on the same rows, or there is no champion
            and the test split lacks clicks or non-clicks.
    """
    gate = context.config.gate
    models = [challenger] if champion is None else [challenger, champion]
    measurement = measure_models(context, dataset, models)
    challenger_measures, champion_measures, comparison = measurement.models[challenger.version], None, None
    unmeasured = challenger_measures.quality.unmeasured
    if champion is None and unmeasured is not None:
        raise DataError(
            f"{unmeasured}, so {challenger.version} cannot become the first champion",
            _MORE_TEST_ROWS[context.config.split.by],
        )
    if champion is not None:
        champion_measures = measurement.models[champion.version]
        comparison = compare(gate.confidence, challenger_measures, champion_measures, measurement.users)
    measured_lists = measure_lists_of(context, dataset, models)
    champion_version = champion.version if champion else None
    lists = compare_lists(gate.confidence, measured_lists, challenger.version, champion_version)
    drift_found, drift = drift_checks(context, challenger_measures, champion_measures)
    checks = [*list_checks(gate, lists), *drift_found]
    if barred_because is not None:
        checks.insert(0, Check(STANDING, "hold", barred_because))
    figures = challenger_measures.figures
    verdict = (
        keep_champion(unmeasured, checks) if figures is None else decide(gate, figures, comparison, checks)
    )
    return Evaluation(challenger, challenger_measures, champion_measures, comparison, lists, drift, verdict)
