"""The sections about models: the training, the gate, and the scores of the model that serves.

The section about training shows loss, learning rate and rows per second at each step. The section about the
gate shows its decision, the confidence intervals of the gains, and all checks. The section about scores shows
histograms, and the calibration of scores that are click probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from conf.messages import counted
from conf.train_types import ScoreKind
from reporting.elements import numbers
from reporting.elements.charts import (
    Reference,
    Series,
    Span,
    histogram,
    interval_chart,
    line_chart,
    percent,
    scatter,
)
from reporting.elements.markup import (
    Child,
    Html,
    Section,
    facts_list,
    figure,
    grid,
    lead,
    missing,
    section,
    table,
    tag,
)
from reporting.facts.run_facts import RunFacts

_WITHOUT_LISTS = {"architecture", "multi_hot"}


def render_training(run: RunFacts) -> Section:
    """Returns the section about training, from the model.json of the challenger.

    For a run without training, the section shows the model that made the lists.
    """
    if run.model is None:
        return section("training", "Training", missing("The training curve", "train_model"))
    model = run.model
    trained = "in this run" if model.get("run_date") == run.run_date else f"on {model.get('run_date')}"
    rows, steps, ranks = (
        numbers.counted(model.get(key), noun)
        for key, noun in (("train_rows", "row"), ("steps", "step"), ("num_ranks", "rank"))
    )
    sentence = lead(
        "Model ",
        tag("code", model["version"]),
        f" was trained {trained} on {rows} in {steps} by {ranks}.",
    )
    return section(
        "training",
        "Training",
        sentence,
        grid(*_charts(model, run.model_scores), _facts(model, run.model_scores)),
    )


def _charts(model: Mapping[str, Any], scores: ScoreKind) -> list[Html]:
    """Returns the charts of loss, learning rate and throughput by step."""
    name, validation = "loss", None
    if scores != "ranking":
        name, validation = "log loss", model.get("metrics", {}).get("validation", {}).get("log_loss")
    references = [] if validation is None else [Reference("validation, after training", validation)]
    loss = line_chart(
        "Training loss",
        [Series("training", _points(model, "loss"))],
        x_label="step",
        y_label=name,
        references=references,
    )
    rate = line_chart(
        "Learning rate",
        [Series("learning rate", _points(model, "learning_rate"))],
        x_label="step",
        y_label="learning rate",
        from_zero=True,
    )
    speed = line_chart(
        "Rows per second",
        [Series("rows per second", _points(model, "rows_per_s"))],
        x_label="step",
        y_label="rows/s, all ranks",
        from_zero=True,
    )
    return [
        figure(loss, "Training loss", f"mean {name} since the previous point."),
        figure(rate, "Learning rate", "of the dense parameters."),
        figure(speed, "Throughput", "rows per second over all ranks."),
    ]


def _points(model: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    """Returns points (step, value) from the training log.

    There is one point for each entry of the log with a value for `key`.
    """
    return [(entry["step"], entry[key]) for entry in model.get("history", []) if entry.get(key) is not None]


def _facts(model: Mapping[str, Any], scores: ScoreKind) -> Html:
    """Returns the description of the training: architecture, initial model and validation measures.

    Measures that are undefined for the kind of scores `scores` are left out.
    """
    validation = model.get("metrics", {}).get("validation", {})
    losses = (("Validation log loss", "log_loss"), ("Validation normalised entropy", "normalized_entropy"))
    ratio = (validation.get("calibration") or {}).get("ratio")
    waits = [
        entry["loader_wait_share"]
        for entry in model.get("history", [])
        if entry.get("loader_wait_share") is not None
    ]
    parent = model.get("parent")
    return facts_list(
        [
            ("Architecture", _architecture(model)),
            ("Started from", f"model {parent}" if parent else "random values"),
            ("Workflow", model.get("workflow_version")),
            ("Training took", numbers.seconds(model.get("seconds"))),
            ("Ended early", model.get("stopped")),
            ("Weights of", _kept(model)),
            ("Waiting for data", numbers.percent(sum(waits) / len(waits)) if waits else None),
            ("Validation AUC", numbers.decimal(validation.get("auc"))),
            *((text, numbers.decimal(validation.get(key))) for text, key in losses if scores != "ranking"),
            *(
                [("Predicted over observed clicks", numbers.decimal(ratio))]
                if scores == "click_probability"
                else []
            ),
        ]
    )


def _kept(model: Mapping[str, Any]) -> str | None:
    """Returns a text about the step whose weights the model has; None if no measure chose the step."""
    kept = model.get("kept") or {}
    if kept.get("metric") is None:
        return None
    measure = f"{kept['metric'].replace('_', ' ')} {numbers.decimal(kept['value'])}"
    text = f"step {numbers.count(kept['step'])} (epoch {kept['epoch']}), validation {measure}"
    if kept["best_step"] in (None, kept["step"]):
        return text
    return f"{text}; step {numbers.count(kept['best_step'])} was better, but its weights were not saved"


def _architecture(model: Mapping[str, Any]) -> str:
    """Returns the name of the architecture and its settings, as text.

    Empty settings are left out. The setting `multi_hot` is shown only if a feature is a list of ids.
    """
    features = model.get("feature_spec", {}).get("features", [])
    hidden = (
        {"architecture"} if any(feature["kind"] == "multi_hot" for feature in features) else _WITHOUT_LISTS
    )
    sizes = [
        f"{name.replace('_', ' ').replace('mlp', 'MLP')} {_setting(value)}"
        for name, value in sorted(model.get("model", {}).items())
        if name not in hidden and value
    ]
    return ", ".join([str(model.get("architecture", numbers.NONE)), *sizes])


def _setting(value: Any) -> str:
    """Returns the value of one setting as text."""
    if isinstance(value, list):
        return "–".join(map(str, value))
    if isinstance(value, Mapping):
        inner = [f"{name.replace('_', ' ')} {_setting(item)}" for name, item in value.items() if item]
        return f"({', '.join(inner)})"
    return str(value)


_CHECK_NAMES = {
    "auc": "AUC",
    "log_loss": "Log loss",
    "rows": "Rows",
    "users": "Users",
    "calibration": "Calibration",
    "list_ndcg": "NDCG of lists",
    "list_hit_rate": "Hit rate of lists",
    "score_psi": "Drift of scores",
    "feature_psi": "Drift of columns",
    "click_rate_change": "Click rate",
    "oov_share": "Unknown ids",
    "standing": "Decided by people",
    "held_out": "Test days",
}
_MARKS = {"hold": "stop", "warn": "warn"}


def render_gate(run: RunFacts) -> Section:
    """Returns the section about the gate's decision, from the results of evaluate_model."""
    if run.evaluation is None:
        return section("gate", "Gate", missing("The gate's decision", "evaluate_model"))
    evaluation = run.evaluation
    checks = evaluation.get("checks") or []
    return section(
        "gate",
        "Gate",
        _gate_lead(evaluation),
        _checks(checks) if checks else None,
        grid(
            *_interval(evaluation),
            *_list_interval(evaluation),
            *_lists(evaluation.get("lists") or {}),
            *_drift(evaluation.get("drift") or {}),
        ),
    )


def _gate_lead(evaluation: Mapping[str, Any]) -> Html:
    """Returns the introductory sentence, which says how the interval of the gain in AUC was computed."""
    by = evaluation.get("resampled")
    between = (evaluation.get("intervals") or {}).get("auc")
    if by is None or between is None:
        if reason := evaluation["challenger"].get("unmeasured"):
            return lead(f"The two models were not compared: {reason}.")
        return lead("There was no champion to compare with, or too few rows for a comparison.")
    return lead(
        "Both models scored the same test rows. The interval contains the true difference with "
        f"{between['confidence']:.0%} confidence: it comes from {numbers.count(between['replicates'])} "
        f"resamples of {counted(by['count'], by['by'])}. "
        "The challenger serves if the lower end of the interval is not below minus ",
        tag("code", "gate.margin"),
        f", {evaluation['margin']:g}.",
    )


def _interval(evaluation: Mapping[str, Any]) -> list[Html]:
    """Returns a chart of the challenger's gain in AUC and the confidence interval of the gain.

    The result is a list of one element; an empty list if there is no interval.
    """
    between = (evaluation.get("intervals") or {}).get("auc")
    if between is None:
        return []
    span = Span("challenger minus champion", between["difference"], between["low"], between["high"])
    chart = interval_chart(
        "Gain in AUC",
        span,
        -evaluation["margin"],
        x_label="AUC of the challenger minus that of the champion",
        limit_name="minus gate.margin",
    )
    return [figure(chart, "Gain in AUC", "and its interval, on the test day.")]


def _list_interval(evaluation: Mapping[str, Any]) -> list[Html]:
    """Returns a chart of the challenger's gain in NDCG of lists and the confidence interval of the gain.

    The result is a list of one element. It is empty if there is no interval, or if `gate.lists_margin`, with
    which the interval is compared, is not set.
    """
    between = (evaluation.get("intervals") or {}).get("ndcg")
    margin = evaluation.get("lists_margin")
    if between is None or margin is None:
        return []
    title = f"Gain in NDCG@{evaluation['lists']['k']} of lists"
    span = Span("challenger minus champion", between["difference"], between["low"], between["high"])
    chart = interval_chart(
        title,
        span,
        -margin,
        x_label="NDCG of the challenger's lists minus that of the champion's",
        limit_name="minus gate.lists_margin",
    )
    users = counted(evaluation["lists"]["users"], "user")
    return [figure(chart, title, f"and its interval, for {users} with a click in the test split.")]


def _lists(lists: Mapping[str, Any]) -> list[Html]:
    """Returns a table of hit rate and NDCG of both models' lists.

    The result is a list of one element. It is empty if evaluate_model has not measured lists; for example,
    early releases did not measure them.
    """
    rows: list[list[Child]] = [
        [
            model,
            numbers.decimal(lists[model]["hit_rate"], 4),
            numbers.decimal(lists[model]["ndcg"], 4),
            numbers.count(lists[model]["items"]),
        ]
        for model in ("challenger", "champion")
        if lists.get(model)
    ]
    if not rows:
        return []
    k = lists["k"]
    caption = f"Lists of {counted(lists['users'], 'user')}"
    return [tag("div", table(["Model", f"HR@{k}", f"NDCG@{k}", "Items"], rows, caption), class_="compact")]


def _checks(checks: list[Mapping[str, Any]]) -> Html:
    """Returns a table of the results of the checks, with one row per check."""
    rows: list[list[Child]] = [
        [
            _CHECK_NAMES.get(check["name"], check["name"]),
            tag("strong", check["level"], class_=_MARKS[check["level"]])
            if check["level"] in _MARKS
            else "ok",
            check["said"],
            tag("code", check["setting"]) if check["setting"] else None,
        ]
        for check in checks
    ]
    shown = table(
        ["Check", "Level", "What was found", "Set by"], rows, "The checks of the gate", text=(0, 1, 2, 3)
    )
    return tag("div", shown, class_="compact")


def _drift(drift: Mapping[str, Any]) -> list[Html]:
    """Returns two tables: the columns that drifted most, and the features with the most unknown ids.

    A table is left out if it has no rows.
    """
    tables = (
        (
            "Drift of columns, PSI",
            "Column",
            drift.get("feature_psi"),
            lambda value: numbers.decimal(value, 3),
        ),
        (
            "Ids unknown to the new vocabulary",
            "Feature",
            drift.get("oov_share"),
            lambda value: numbers.percent(value, 2),
        ),
    )
    shown = []
    for caption, header, values, written in tables:
        if values:
            rows: list[list[Child]] = [
                [tag("code", name), written(value)]
                for name, value in sorted(values.items(), key=lambda item: -item[1])
            ]
            shown.append(tag("div", table([header, "Value"], rows, caption), class_="compact"))
    return shown


# Maps each kind of scores to the reason why there is no calibration.
_WITHOUT_CALIBRATION: Mapping[ScoreKind, str] = {
    "probability": "Negatives were drawn for the positive rows, so the size of a score depends on the "
    "number of negatives. Scores order items; they are not click probabilities, and there is no calibration.",
    "ranking": "The loss of the training compares items, so a score only orders the items of a user. Scores "
    "are not click probabilities, and there is no calibration.",
}


def render_scores(run: RunFacts) -> Section:
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
        sentence = _calibration_lead(bins)
        caption = (
            "each dot is a bin of test rows; its area shows their number. On the diagonal, predicted and "
            "observed click rates are equal."
        )
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


def _calibration_lead(bins: Sequence[Mapping[str, Any]]) -> Html:
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
