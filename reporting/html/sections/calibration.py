"""The section about scores: histograms, and the calibration of scores that are click probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conf.train_types import ScoreKind
from reporting.elements import numbers
from reporting.elements.charts import histogram, percent, scatter
from reporting.elements.markup import Html, Section, figure, grid, lead, missing, section, table, tag
from reporting.facts.run_facts import RunFacts

# Maps each kind of scores to the reason why there is no calibration.
_WITHOUT_CALIBRATION: Mapping[ScoreKind, str] = {
    "probability": "Negatives were drawn for the positive rows, so the size of a score depends on their "
    "number. Scores order items; they are not click probabilities, and there is no calibration.",
    "ranking": "The loss of the training compares items, so a score only orders the items of a user. Scores "
    "are not click probabilities, and there is no calibration.",
}


def render(run: RunFacts) -> Section:
    """Returns the section about the model that serves after the gate's decision.

    It shows histograms of the scores of test rows and of list entries. If the scores are click probabilities,
    it also shows the reliability diagram.
    """
    name, title = "calibration", "Calibration and scores"
    sentence, shown = missing("Calibration", "evaluate_model"), []
    if run.judged_scores != "click_probability":
        title, sentence = "Scores", lead(_WITHOUT_CALIBRATION[run.judged_scores])
    elif run.judged is not None:
        bins = [bin_ for bin_ in run.judged["calibration"] if bin_["rows"]]
        sentence = _lead(bins)
        caption = "each dot is a bin of test rows; its area shows their number. The diagonal is perfect."
        points = [(bin_["mean_probability"], bin_["click_rate"], bin_["rows"]) for bin_ in bins]
        drawn = scatter("Reliability", points, x_label="predicted click rate", y_label="observed click rate")
        shown += [figure(drawn, "Reliability", caption), _bins(bins)]
    if run.judged is not None:
        scores = run.judged["histogram"]
        shown.append(_histogram("Test rows", "of every test row", scores, "rows", run.judged_scores))
    if run.recommendations is not None and "score_histogram" in run.recommendations.facts:
        of = "of the entries of this run's lists"
        scores = run.recommendations.facts["score_histogram"]
        shown.append(_histogram("Recommended", of, scores, "list entries", run.list_scores))
    return section(name, title, sentence, grid(*shown))


def _histogram(title: str, of: str, scores: Mapping[str, Any], unit: str, kind: ScoreKind) -> Html:
    """Returns a histogram of scores, with its caption. Only click probabilities are called probabilities."""
    is_rate = kind == "click_probability"
    name = "predicted probability" if is_rate else "score"
    drawn = histogram(
        title,
        scores["edges"],
        scores["counts"],
        x_label=name,
        y_label=unit,
        x_written=percent if is_rate else None,
    )
    return figure(drawn, title, f"{name} {of}.")


def _lead(bins: Sequence[Mapping[str, Any]]) -> Html:
    """Returns the introductory sentence.

    It contains the expected calibration error, and the ratio of predicted clicks to observed clicks.
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
