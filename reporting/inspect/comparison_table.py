"""Shows a comparison of models and settings as text for a terminal."""

from __future__ import annotations

from reporting.elements.comparison_rows import (
    HEADERS,
    MEASURE_WORDS,
    TEXT_COLUMNS,
    comparison_rows,
    measured,
)
from reporting.terminal.text_table import text_table
from training.registry.comparison import Comparison


def comparison_text(comparison: Comparison, run_date: str, command: str) -> str:
    """Returns the table of a comparison, the failures, the best experiment and the command that uses it.

    Args:
        comparison: the result.
        run_date: the run date of the dataset.
        command: the command that trains the best experiment for the nightly run.
    """
    right = [index for index in range(len(HEADERS)) if index not in TEXT_COLUMNS]
    best, measure = comparison.best, comparison.choose_by
    failures = [
        f"  {experiment.name} failed: {experiment.failure.splitlines()[0]}"
        for experiment in comparison.experiments
        if experiment.failure
    ]
    return "\n".join(
        [
            f"\n  {comparison.name}: experiments on the dataset of {run_date}, "
            f"ordered by {MEASURE_WORDS[measure]} on the validation split. "
            "The test split is only reported.\n",
            text_table(HEADERS, comparison_rows(comparison), right=right),
            *(["", *failures] if failures else []),
            f"\n  Best: {best.name}, with validation {MEASURE_WORDS[measure]} "
            f"{measured(best, 'validation', measure)}. To train it in the nightly run:\n\n    {command}\n",
        ]
    )
