"""The section about calibration: predicted and observed click rates, and histograms of probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reporting.elements import numbers
from reporting.elements.markup import Html, figure, grid, lead, missing, section, table, tag
from reporting.facts.run_facts import RunFacts
from reporting.html.charts.axis import percent
from reporting.html.charts.bars import histogram
from reporting.html.charts.scatter import scatter


def render(run: RunFacts) -> Html:
    """Returns the section about the model that serves after the gate's decision.

    It shows the reliability diagram, and histograms of the probabilities of test rows and of list entries.
    """
    sentence, shown = missing("Calibration", "evaluate_model"), []
    if run.judged is not None:
        bins = [bin_ for bin_ in run.judged["calibration"] if bin_["rows"]]
        sentence = _lead(bins)
        caption = "a dot is a bin of test rows; its area shows how many. The diagonal is perfect."
        points = [(bin_["mean_probability"], bin_["click_rate"], bin_["rows"]) for bin_ in bins]
        drawn = scatter("Reliability", points, x_label="predicted click rate", y_label="observed click rate")
        shown += [figure(drawn, "Reliability", caption), _bins(bins)]
        caption = "predicted probability of every test row."
        shown.append(_histogram("Test rows", caption, run.judged["histogram"], "rows"))
    if run.recommendations is not None and "score_histogram" in run.recommendations.facts:
        caption = "predicted probability of the entries of this run's lists."
        scores = run.recommendations.facts["score_histogram"]
        shown.append(_histogram("Recommended", caption, scores, "list entries"))
    return section("calibration", "Calibration and scores", sentence, grid(*shown))


def _histogram(title: str, caption: str, scores: Mapping[str, Any], unit: str) -> Html:
    """Returns a histogram of probabilities, with its caption."""
    drawn = histogram(
        title,
        scores["edges"],
        scores["counts"],
        x_label="predicted probability",
        y_label=unit,
        x_written=percent,
    )
    return figure(drawn, title, caption)


def _lead(bins: Sequence[Mapping[str, Any]]) -> Html:
    """Returns the introductory sentence.

    It says how large the expected calibration error is, and what the ratio of predicted to observed clicks
    is.
    """
    rows = sum(bin_["rows"] for bin_ in bins)
    if not rows:
        return lead("The test day has no rows.")
    error = sum(bin_["rows"] * abs(bin_["mean_probability"] - bin_["click_rate"]) for bin_ in bins) / rows
    predicted = sum(bin_["rows"] * bin_["mean_probability"] for bin_ in bins)
    observed = sum(bin_["rows"] * bin_["click_rate"] for bin_ in bins)
    ratio = predicted / observed if observed else None
    return lead(
        f"Expected calibration error {numbers.percent(error, 2)} on the test day: the mean distance between "
        f"predicted and observed click rate. Predicted over observed clicks: {numbers.decimal(ratio, 3)}."
    )


def _bins(bins: Sequence[Mapping[str, Any]]) -> Html:
    """Returns a table of the bins of the reliability diagram."""
    rows = [
        [
            f"{numbers.percent(bin_['low'])} to {numbers.percent(bin_['high'])}",
            numbers.count(bin_["rows"]),
            numbers.percent(bin_["mean_probability"]),
            numbers.percent(bin_["click_rate"]),
        ]
        for bin_ in bins
    ]
    shown = table(["Predicted", "Rows", "Mean", "Observed"], rows, "Bins of the reliability diagram")
    return tag("div", shown, class_="compact")
