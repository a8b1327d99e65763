"""Formats a comparison of models and settings as table rows whose cells are strings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reporting.elements import numbers
from training.registry.comparison import Comparison, ExperimentOutcome, HeldOut

# The name of each measure as it is written inside a sentence.
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
DETAIL_HEADERS = ("Experiment", "Changed settings", "Seeds", "Best epoch", "Seconds", "Model versions")


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the cells of each experiment, the best experiment first.

    The order depends only on the measure `choose_by` on the validation split. Experiments without a value of
    this measure come last. Measures are means over the seeds. If there are several seeds, the sample standard
    deviation is added. The best epoch of a seed is the epoch with the best value of `choose_by` on the
    validation split.
    """
    return [[place, *_cells(experiment, comparison.choose_by)] for place, experiment in _placed(comparison)]


def measure_headers(measures: Sequence[str]) -> list[str]:
    """Returns the headers of the columns of `measure_rows`."""
    named = [f"Validation {MEASURE_WORDS[measure]}" for measure in measures]
    return ["", "Experiment", *named, *(f"Test {MEASURE_WORDS[measure]}" for measure in measures)]


def measure_rows(comparison: Comparison, measures: Sequence[str]) -> list[list[str]]:
    """Returns the rank, the name and the measures of each experiment, in the order of `comparison_rows`.

    The measures on the validation split come first, then those on the test split.
    """
    return [
        [
            place,
            shown_name(experiment),
            *(measured(experiment, "validation", measure) for measure in measures),
            *(measured(experiment, "test", measure) for measure in measures),
        ]
        for place, experiment in _placed(comparison)
    ]


def detail_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the cells of DETAIL_HEADERS of each experiment, in the order of `comparison_rows`."""
    places = [HEADERS.index(header) for header in DETAIL_HEADERS]
    return [[row[place] for place in places] for row in comparison_rows(comparison)]


def _placed(comparison: Comparison) -> list[tuple[str, ExperimentOutcome]]:
    """Returns pairs of rank and experiment, the best first.

    Experiments without a value have no rank. Among them, pruned trials come before failed experiments.
    """
    ranked = comparison.ranked
    names = {experiment.name for experiment in ranked}
    others = [experiment for experiment in comparison.experiments if experiment.name not in names]
    others.sort(key=lambda experiment: experiment.pruned is None)
    return [
        *((str(place), experiment) for place, experiment in enumerate(ranked, 1)),
        *((numbers.NONE, experiment) for experiment in others),
    ]


def shown_name(experiment: ExperimentOutcome) -> str:
    """Returns the name of an experiment.

    For a pruned trial, also names the epochs after which it was pruned.
    """
    if experiment.pruned is None:
        return experiment.name
    epochs = "1 epoch" if experiment.pruned == 1 else f"{experiment.pruned:.4g} epochs"
    return f"{experiment.name} (pruned after {epochs})"


def measured(experiment: ExperimentOutcome, split: HeldOut, measure: str) -> str:
    """Returns a measure as text: its mean over the seeds, and the standard deviation if it is known."""
    text = numbers.decimal(experiment.mean(split, measure))
    deviation = experiment.deviation(split, measure)
    return text if deviation is None else f"{text} ± {numbers.decimal(deviation)}"


def settings_text(changes: Mapping[str, Any]) -> str:
    """Returns the changed settings of an experiment as text. A model file is shown by its name only."""
    if not changes:
        return "none"
    return ", ".join(f"{key}={setting_text(key, value)}" for key, value in changes.items())


def setting_text(key: str, value: Any) -> str:
    """Returns the value of a setting as text. A model file is shown by its name only."""
    if isinstance(value, str):
        return Path(value).name if key == "model" else value
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


def _cells(experiment: ExperimentOutcome, choose_by: str) -> list[str]:
    epochs = [
        numbers.NONE if epoch is None else f"{epoch:.4g}" for epoch in experiment.best_epochs(choose_by)
    ]
    return [
        shown_name(experiment),
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
