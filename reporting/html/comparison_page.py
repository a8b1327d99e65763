"""Builds the HTML page of a comparison of models and settings."""

from __future__ import annotations

from conf.counted import counted
from reporting.elements.comparison_rows import (
    HEADERS,
    MEASURE_WORDS,
    TEXT_COLUMNS,
    comparison_rows,
    measured,
)
from reporting.elements.markup import Html, figure, grid, lead, section, table, tag
from reporting.html.charts.line import Series, line_chart
from reporting.html.page import document
from training.registry.comparison import Comparison

_MOST_CURVES = 8  # the style sheet has as many colours


def comparison_page(comparison: Comparison, run_date: str, command: str) -> Html:
    """Returns the complete page: the best experiment, curves over epochs, the table, and failures.

    Args:
        comparison: the result.
        run_date: the run date of the dataset.
        command: the command that trains the best experiment for the nightly run.
    """
    sections = [_curves(comparison), _table(comparison), _failures(comparison), _command(command)]
    title = f"Nightrank comparison {comparison.name} {run_date}"
    return document(title, _head(comparison, run_date), sections)


def _head(comparison: Comparison, run_date: str) -> Html:
    best, words = comparison.best, MEASURE_WORDS[comparison.choose_by]
    return tag(
        "header",
        tag("p", f"Nightrank · comparison {comparison.name}", class_="overline"),
        tag("h1", f"Experiments on the dataset of {run_date}"),
        tag(
            "p",
            f"The best of {counted(len(comparison.experiments), 'experiment')} is ",
            tag("strong", best.name),
            f", with {words} {measured(best, 'validation', comparison.choose_by)} on the validation split. "
            "The test split was not used for this choice.",
            class_="lead",
        ),
    )


def _curves(comparison: Comparison) -> Html:
    """Returns the section with a chart of log loss and a chart of AUC over epochs."""
    shown = comparison.ranked[:_MOST_CURVES]
    charts = []
    for measure in ("log_loss", "auc"):
        words = MEASURE_WORDS[measure]
        series = [Series(experiment.name, experiment.curve(measure)) for experiment in shown]
        if measure == "log_loss" and not any(line.drawable() for line in series):
            continue  # the loss of the training gives no probabilities
        chart = line_chart(f"Validation {words}", series, x_label="epoch", y_label=words)
        charts.append(figure(chart, f"Validation {words}", "mean over the seeds, at each evaluation."))
    sentence = "Measures on the validation split during the training; the last point is the final model."
    if len(comparison.ranked) > len(shown):
        sentence += (
            f" The charts show the {len(shown)} best of {counted(len(comparison.ranked), 'experiment')}."
        )
    return section("curves", "Curves", lead(sentence), grid(*charts))


def _table(comparison: Comparison) -> Html:
    words = MEASURE_WORDS[comparison.choose_by]
    sentence = (
        f"Experiments are ordered by {words} on the validation split. Measures are means over the seeds ± "
        "the standard deviation. Measures on the test split are only reported."
    )
    rows = comparison_rows(comparison)
    return section(
        "experiments", "Experiments", lead(sentence), table(HEADERS, rows, "All experiments", TEXT_COLUMNS)
    )


def _failures(comparison: Comparison) -> Html | None:
    """Returns the section with the errors of failed trainings; None if no training failed."""
    rows = [
        (experiment.name, training.seed, training.failure)
        for experiment in comparison.experiments
        for training in experiment.trainings
        if training.failure
    ]
    if not rows:
        return None
    sentence = "If a training of an experiment failed, the experiment has no place."
    cells = table(("Experiment", "Seed", "Error"), rows, "Failed trainings", (0, 2))
    return section("failures", "Failures", lead(sentence), cells)


def _command(command: str) -> Html:
    sentence = lead("This command trains the best experiment in the nightly run, followed by the gate:")
    return section("use", "Use the best experiment", sentence, tag("p", tag("code", command)))
