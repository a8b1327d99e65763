"""Runs all steps of the gate in order: measures both models, compares them, checks for drift, and decides."""

from __future__ import annotations

from scoring.evaluation.gate import STANDING, Check, decide
from scoring.evaluation.gate_drift import drift_checks
from scoring.evaluation.gate_measures import compare, measure_models
from scoring.evaluation.gate_record import Evaluation
from scoring.model.model_info import ModelInfo
from storage.dataset import Dataset
from storage.run_context import RunContext


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
        DataError: the champion and the challenger were not measured on the same rows, or the test split lacks
            clicks or non-clicks.
    """
    models = [challenger] if champion is None else [challenger, champion]
    measurement = measure_models(context.spark, context, dataset, models)
    challenger_measures, champion_measures, comparison = measurement.models[challenger.version], None, None
    if champion is not None:
        champion_measures = measurement.models[champion.version]
        comparison = compare(
            context.config.gate.confidence, challenger_measures, champion_measures, measurement.users
        )
    checks, drift = drift_checks(context, challenger_measures, champion_measures)
    if barred_because is not None:
        checks.insert(0, Check(STANDING, "hold", barred_because))
    verdict = decide(context.config.gate, challenger_measures.figures, comparison, checks)
    return Evaluation(challenger, challenger_measures, champion_measures, comparison, drift, verdict)
