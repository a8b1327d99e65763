"""Do predicted probabilities mean what they say? Predicted against observed click rates, and how they spread."""

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
    """The reliability diagram and the scores, of the model that serves after the night's gate."""
    sentence, shown = missing("Calibration", "evaluate_model"), []
    if run.judged is not None:
        filled = [each for each in run.judged["calibration"] if each["rows"]]
        sentence = _lead(filled)
        caption = "a dot is a bin of test rows, its area their number; the diagonal is perfect."
        points = [(each["mean_probability"], each["click_rate"], each["rows"]) for each in filled]
        drawn = scatter("Reliability", points, x_label="predicted click rate", y_label="observed click rate")
        shown += [figure(drawn, "Reliability", caption), _bins(filled)]
        caption = "predicted probability of every test row."
        shown.append(_histogram("Test rows", caption, run.judged["histogram"], "rows"))
    if run.recommendations is not None and "score_histogram" in run.recommendations.facts:
        caption = "predicted probability of what stands in tonight's lists."
        found = run.recommendations.facts["score_histogram"]
        shown.append(_histogram("Recommended", caption, found, "list entries"))
    return section("calibration", "Calibration and scores", sentence, grid(*shown))


def _histogram(title: str, caption: str, found: Mapping[str, Any], unit: str) -> Html:
    drawn = histogram(
        title,
        found["edges"],
        found["counts"],
        x_label="predicted probability",
        y_label=unit,
        x_written=percent,
    )
    return figure(drawn, title, caption)


def _lead(filled: Sequence[Mapping[str, Any]]) -> Html:
    rows = sum(each["rows"] for each in filled)
    if not rows:
        return lead("The test day has no rows.")
    error = sum(each["rows"] * abs(each["mean_probability"] - each["click_rate"]) for each in filled) / rows
    predicted = sum(each["rows"] * each["mean_probability"] for each in filled)
    observed = sum(each["rows"] * each["click_rate"] for each in filled)
    ratio = predicted / observed if observed else None
    return lead(
        f"Expected calibration error {numbers.percent(error, 2)} on the test day: the mean distance between predicted and "
        f"observed click rate. Predicted over observed clicks: {numbers.decimal(ratio, 3)}."
    )


def _bins(filled: Sequence[Mapping[str, Any]]) -> Html:
    rows = [
        [
            f"{numbers.percent(each['low'])} to {numbers.percent(each['high'])}",
            numbers.count(each["rows"]),
            numbers.percent(each["mean_probability"]),
            numbers.percent(each["click_rate"]),
        ]
        for each in filled
    ]
    shown = table(["Predicted", "Rows", "Mean", "Observed"], rows, "Bins of the reliability diagram")
    return tag("div", shown, class_="compact")
