"""The rows of the table of a comparison, as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reporting.elements import numbers
from training.registry.comparison import Comparison, ExperimentOutcome, HeldOut

# Words for the measures, as in a sentence.
MEASURE_WORDS = {"auc": "AUC", "log_loss": "log loss", "normalized_entropy": "normalised entropy"}
HEADERS = (
    "Place",
    "Experiment",
    "Changed settings",
    "Seeds",
    "Validation AUC",
    "Validation log loss",
    "Best epoch",
    "Seconds",
    "Test AUC",
    "Test log loss",
    "Model versions",
)
TEXT_COLUMNS = (1, 2, 10)  # all other columns are numbers


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the cells of each experiment, the best experiment first.

    The order depends only on the measure `choose_by` on the validation split. Experiments without a value of
    this measure come last. Measures are means over the seeds, with the sample
    standard deviation if there are several seeds. The best epoch of a seed is the epoch with the best value
    of `choose_by` on the validation split.
    """
    ranked = comparison.ranked
    names = {experiment.name for experiment in ranked}
    others = [experiment for experiment in comparison.experiments if experiment.name not in names]
    return [
        [str(place) if place else numbers.NONE, *_cells(experiment, comparison.choose_by)]
        for experiment, place in [
            *((experiment, place) for place, experiment in enumerate(ranked, 1)),
            *((experiment, None) for experiment in others),
        ]
    ]


def measured(experiment: ExperimentOutcome, split: HeldOut, measure: str) -> str:
    """Returns a measure as text: its mean over the seeds, and the standard deviation if it is known."""
    text = numbers.decimal(experiment.mean(split, measure))
    deviation = experiment.deviation(split, measure)
    return text if deviation is None else f"{text} ± {numbers.decimal(deviation)}"


def settings_text(changes: Mapping[str, Any]) -> str:
    """Returns the changed settings of an experiment as text. Of a model file, only the name is shown."""
    if not changes:
        return "none"
    return ", ".join(f"{key}={_value(key, value)}" for key, value in changes.items())


def _value(key: str, value: Any) -> str:
    if isinstance(value, str):
        return Path(value).name if key == "model" else value
    return json.dumps(value)


def _cells(experiment: ExperimentOutcome, choose_by: str) -> list[str]:
    epochs = [
        numbers.NONE if epoch is None else f"{epoch:.4g}" for epoch in experiment.best_epochs(choose_by)
    ]
    return [
        experiment.name,
        settings_text(experiment.changes),
        str(len(experiment.trainings)),
        measured(experiment, "validation", "auc"),
        measured(experiment, "validation", "log_loss"),
        ", ".join(epochs),
        f"{experiment.seconds:,.1f}",
        measured(experiment, "test", "auc"),
        measured(experiment, "test", "log_loss"),
        " ".join(training.version for training in experiment.trainings if not training.failure),
    ]
