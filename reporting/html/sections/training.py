"""The section about training: loss, learning rate and rows per second at each step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conf.train_types import ScoreKind
from reporting.elements import numbers
from reporting.elements.charts import Reference, Series, line_chart
from reporting.elements.markup import Html, Section, facts_list, figure, grid, lead, missing, section, tag
from reporting.facts.run_facts import RunFacts

_WITHOUT_LISTS = {"architecture", "multi_hot"}


def render(run: RunFacts) -> Section:
    """Returns the section, from the model.json of the challenger.

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
    """Returns the facts of the training: its architecture, its initial model and its validation measures.

    Figures that are undefined for this kind of scores are left out.
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
    """Returns the step of the model's weights; None if no measure chose a step."""
    kept = model.get("kept") or {}
    if kept.get("metric") is None:
        return None
    measure = f"{kept['metric'].replace('_', ' ')} {numbers.decimal(kept['value'])}"
    text = f"step {numbers.count(kept['step'])} (epoch {kept['epoch']}), validation {measure}"
    if kept["best_step"] in (None, kept["step"]):
        return text
    return f"{text}; step {numbers.count(kept['best_step'])} was better, but no copy of it was kept"


def _architecture(model: Mapping[str, Any]) -> str:
    """Returns the name of the architecture and its settings, as text.

    Empty settings are left out. The setting `multi_hot` is shown only if the model has lists of ids.
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
