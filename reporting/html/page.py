"""Builds the HTML files of the report, and of a comparison of models and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from conf.messages import counted
from conf.types import Config
from etl.latest.item_titles import titles_of
from reporting.elements import numbers
from reporting.elements.charts import (
    Axis,
    Series,
    Span,
    axis,
    column_axis,
    dot_chart,
    line_chart,
    log_axis,
    span_rows,
)
from reporting.elements.comparison_rows import (
    DETAIL_HEADERS,
    MEASURE_WORDS,
    detail_rows,
    measure_headers,
    measure_rows,
    measured,
    setting_text,
    settings_text,
)
from reporting.elements.markup import Html, Section, contents, figure, grid, join, lead, section, table, tag
from reporting.facts.recent_runs import open_failure, read_history, served_lists
from reporting.facts.run_facts import RunFacts, count_items, read_run_facts, sample_lists
from reporting.html.sections import (
    data,
    headline,
    last_thirty_days,
    list_sections,
    model_sections,
    production,
    stages,
)
from storage import file_io
from storage.dataset import read_dataset
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import is_published
from storage.paths import LakePaths
from training.registry.comparison import Comparison, ExperimentOutcome, SearchResult, cost

_SAMPLE_USERS = 4


def build(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> tuple[RunFacts, Html]:
    """Returns the results of a run, and the complete HTML page that reports them.

    Args:
        config: the configuration.
        run_date: the run date.
        recorder: records the tables that are read, for lineage.
    """
    lake = LakePaths(config.lake, recorder)
    run = read_run_facts(config, run_date, recorder)
    counts, lists = None, []
    if run.recommendations is not None:
        partition = lake.recommendations.partition(run_date)
        dataset = read_dataset(lake, run_date) if is_published(lake.datasets.partition(run_date)) else None
        counts = count_items(partition, run.recommendations)
        lists = sample_lists(lake, partition, run.recommendations, dataset, _SAMPLE_USERS, config.negatives)
    items = [*list_sections.most_recommended(counts), *(item for one in lists for item in one.items)]
    titles = titles_of(lake, run_date, items)
    listed = run.recommendations.facts if run.recommendations is not None else {}
    sections = [
        list_sections.render_sample(lists, run.list_scores, titles, listed.get("context")),
        last_thirty_days.render(read_history(config, run_date), run_date, config.quality.psi_warn),
        last_thirty_days.render_runs(config, run_date, recorder),
        data.render(run),
        data.render_quality(run.quality, run.of_choices, with_charts=not run.days),
        model_sections.render_training(run),
        model_sections.render_gate(run),
        model_sections.render_scores(run),
        list_sections.render_quality(run),
        production.render_experiment(run),
        production.render_impressions(run),
        list_sections.render_changes(run),
        list_sections.render_coverage(run, counts, titles),
        stages.render(stages.read_stage_times(lake, run_date, config.name)),
    ]
    failure = open_failure(config, run_date)
    head = headline.render(run, failure, served_lists(config, run_date) if failure else None)
    return run, document(f"Nightrank {config.name} {run_date}", head, sections)


def document(title: str, head: Html, sections: Iterable[Section | None]) -> Html:
    """Returns a page as one file. Its content security policy forbids all network requests."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    present = [part for part in sections if part is not None]
    meta = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(CSS)),
    ]
    footer = tag(
        "footer", f"Written {file_io.utc_now()} by Nightrank. This file contains everything on the page."
    )
    body = tag("body", tag("main", head, contents(present), *present, footer))
    return join([Html("<!doctype html>\n"), tag("html", tag("head", *meta), body, lang="en")])


# Functions that build the HTML page of a comparison of models and settings.

_MOST_CURVES = 8  # the style sheet has 8 colours
_MOST_ROWS = 20


def comparison_page(comparison: Comparison, run_date: str, command: str) -> Html:
    """Returns the page: the best experiment, how to use it, a table of all experiments, curves and failures.

    Args:
        comparison: the result.
        run_date: the run date of the dataset.
        command: the command that starts the nightly run with the settings of the best experiment.
    """
    sections = [
        _experiments(comparison),
        _search(comparison, comparison.search) if comparison.search else None,
        _failures(comparison),
        _command(command),
        _curves(comparison),
        _details(comparison),
    ]
    title = f"Nightrank comparison {comparison.name} {run_date}"
    return document(title, _head(comparison, run_date), sections)


def _head(comparison: Comparison, run_date: str) -> Html:
    best, words = comparison.best, MEASURE_WORDS[comparison.choose_by]
    noun = "trial" if comparison.search else "experiment"
    settings = f" ({settings_text(best.changes)})" if comparison.search else ""
    return tag(
        "header",
        tag("p", f"Nightrank · comparison {comparison.name}", class_="overline"),
        tag("h1", f"{noun.capitalize()}s on the dataset of {run_date}"),
        tag(
            "p",
            f"The best of {counted(len(comparison.experiments), noun)} is ",
            tag("strong", best.name),
            f"{settings}, with {words} {measured(best, 'validation', comparison.choose_by)} on the "
            "validation split. ",
            _lead_over_second(comparison),
            "The test split was not used for this choice.",
            class_="lead",
        ),
    )


def _lead_over_second(comparison: Comparison) -> str:
    """Returns a sentence about the lead over the second-best experiment; empty if there is no second one."""
    if len(comparison.ranked) < 2:
        return ""
    best, second = comparison.ranked[:2]
    means = [experiment.mean("validation", comparison.choose_by) for experiment in (best, second)]
    difference = abs((means[0] or 0.0) - (means[1] or 0.0))
    spread = [experiment.deviation("validation", comparison.choose_by) for experiment in (best, second)]
    sentence = f"The second, {second.name}, is {numbers.decimal(difference)} away"
    largest = max((deviation for deviation in spread if deviation is not None), default=None)
    if largest is None:
        return f"{sentence}. "
    relation = "more" if difference > largest else "not more"
    return f"{sentence}, {relation} than the standard deviation over seeds ({numbers.decimal(largest)}). "


def _experiments(comparison: Comparison) -> Section:
    """Returns the section with a chart and a table of the measures of all experiments."""
    words, chosen = MEASURE_WORDS[comparison.choose_by], comparison.choose_by
    title = "Trials" if comparison.search else "Experiments"
    sentence = f"{title} are ordered by {words} on the validation split. "
    if not comparison.search:  # a trial of a search has only one seed
        sentence += "Measures are means over the seeds ± the standard deviation. "
    sentence += "Measures on the test split are only reported."
    shown = comparison.ranked[:_MOST_ROWS]
    chart = span_rows(
        f"Validation {words}", [_span(experiment, chosen) for experiment in shown], x_label=words
    )
    caption = (
        "one dot for each complete trial."
        if comparison.search
        else "mean over the seeds (large dot), standard deviation (line) and each seed (small dots)."
    )
    if len(comparison.ranked) > len(shown):
        caption += f" The chart shows the {len(shown)} best of {len(comparison.ranked)}."
    measures = [chosen, *(measure for measure in ("auc", "log_loss") if measure != chosen)]
    cells = table(measure_headers(measures), measure_rows(comparison, measures), f"All {title.lower()}", (1,))
    return section(
        "experiments",
        title,
        lead(sentence),
        tag("div", figure(chart, f"Validation {words}", caption), class_="narrow"),
        tag("div", cells, class_="measures"),
    )


def _span(experiment: ExperimentOutcome, measure: str) -> Span:
    """Returns the values of a measure on the validation split, for the chart."""
    mean = experiment.mean("validation", measure)
    deviation = experiment.deviation("validation", measure) or 0.0
    values = experiment.values("validation", measure)
    value = math.nan if mean is None else mean
    return Span(
        experiment.name, value, value - deviation, value + deviation, values if len(values) > 1 else ()
    )


def _search(comparison: Comparison, search: SearchResult) -> Section:
    """Returns the section with the progress of a search, and the measure by each searched setting.

    The value of a pruned trial is the value at its last evaluation.
    """
    words, measure = MEASURE_WORDS[comparison.choose_by], comparison.choose_by
    trials = [(trial, _value_of(trial, measure)) for trial in comparison.experiments]
    complete = [(trial, value) for trial, value in trials if value is not None and trial.pruned is None]
    pruned = [(trial, value) for trial, value in trials if value is not None and trial.pruned is not None]

    def chart(
        title: str, x: Axis, place: Callable[[ExperimentOutcome], float], *, line: bool = False
    ) -> Html:
        groups = [
            Series(name, [(place(trial), value) for trial, value in group])
            for name, group in (("complete", complete), ("pruned", pruned))
        ]
        best = best_so_far(groups[0].points, measure) if line else ()
        return dot_chart(title, *groups, x=x, y_label=f"validation {words}", line=best)

    title = f"Validation {words} by trial"
    by_trial = chart(
        title,
        axis([1, max(search.done, 2)], "trial", exact=True, whole=True),
        lambda trial: float(trial.trial or 0),
        line=True,
    )
    caption = "each trial (dots), and the best complete trial so far (line)."
    charts = [figure(by_trial, title, caption)]
    for key, values in search.space.items():
        x, place = _setting_axis(key, values)
        title = f"Validation {words} by {key}"
        charts.append(figure(chart(title, x, place), title, "one dot for each trial."))
    return section("search", "Search", lead(_search_sentence(comparison, search)), grid(*charts))


def best_so_far(points: Sequence[tuple[float, float]], measure: str) -> list[tuple[float, float]]:
    """Returns the points of a step line: for each trial, the best value so far.

    Args:
        points: pairs (trial, value), ascending by trial.
        measure: the measure of the values.
    """
    steps: list[tuple[float, float]] = []
    for trial, value in points:
        if not steps:
            steps.append((trial, value))
            continue
        before = steps[-1][1]
        steps += [(trial, before), (trial, min(before, value, key=lambda one: cost(measure, one)))]
    return steps


def _value_of(trial: ExperimentOutcome, measure: str) -> float | None:
    """Returns a trial's measure for the charts of a search; None for a failed trial."""
    if trial.pruned is not None:
        return trial.last_evaluation(measure)
    return trial.mean("validation", measure)


def _setting_axis(key: str, values: Mapping[str, Any]) -> tuple[Axis, Callable[[ExperimentOutcome], float]]:
    """Returns the axis of a searched setting, and a function that returns a trial's position on the axis."""
    choices = values.get("choices")
    if choices is not None:
        names = [setting_text(key, choice) for choice in choices]
        return column_axis(names, key), lambda trial: float(choices.index(trial.changes[key]))
    low, high = values["low"], values["high"]
    whole = isinstance(low, int) and isinstance(high, int)
    shown = log_axis(low, high, key) if values["log"] else axis([low, high], key, exact=True, whole=whole)
    return shown, lambda trial: float(trial.changes[key])


def _search_sentence(comparison: Comparison, search: SearchResult) -> str:
    """Returns the sentences that count the trials of a search."""
    pruned = sum(trial.pruned is not None for trial in comparison.experiments)
    failed = sum(trial.failure is not None for trial in comparison.experiments)
    done = f"{search.done} of {search.planned}" if search.done < search.planned else f"All {search.planned}"
    over = ", because the search reached its time limit" if search.done < search.planned else ""
    sentences = [
        f"{done} trials were done{over}: {len(comparison.experiments) - pruned - failed} complete, "
        f"{pruned} pruned, {failed} failed."
    ]
    if search.repeated:
        repeated = counted(len(search.repeated), "other trial")
        sentences.append(f"{repeated} had the settings of an earlier trial, so no model was trained.")
    if pruned:
        sentences.append(
            "The value of a pruned trial is that of its last evaluation; pruned trials are not ranked."
        )
    return " ".join(sentences)


def _curves(comparison: Comparison) -> Section:
    """Returns the section with a chart of log loss and a chart of AUC over epochs."""
    shown = comparison.ranked[:_MOST_CURVES]
    charts = []
    for measure in ("log_loss", "auc"):
        words = MEASURE_WORDS[measure]
        series = [Series(experiment.name, experiment.curve(measure)) for experiment in shown]
        if measure == "log_loss" and not any(line.drawable() for line in series):
            continue  # no log loss is known if the model does not predict probabilities
        chart = line_chart(
            f"Validation {words}",
            series,
            x_label="epoch",
            y_label=words,
            x_whole=True,
            x_written=lambda epoch: f"{epoch:.4g}",
        )
        charts.append(figure(chart, f"Validation {words}", "mean over the seeds, at each evaluation."))
    sentence = "Measures on the validation split during the training; the last point is the final model."
    if len(comparison.ranked) > len(shown):
        sentence += (
            f" The charts show the {len(shown)} best of {counted(len(comparison.ranked), 'experiment')}."
        )
    return section("curves", "Curves", lead(sentence), grid(*charts))


def _details(comparison: Comparison) -> Section:
    """Returns the section with the changed settings, seeds, epochs, seconds and model versions."""
    sentence = lead("The best epoch of a seed is the epoch with the best value on the validation split.")
    rows, caption = detail_rows(comparison), "All trials" if comparison.search else "All experiments"
    return section(
        "details", "Settings and models", sentence, table(DETAIL_HEADERS, rows, caption, (0, 1, 5))
    )


def _failures(comparison: Comparison) -> Section | None:
    """Returns the section with the errors of failed training runs; None if no training run failed."""
    rows = [
        (experiment.name, training.seed, training.failure)
        for experiment in comparison.experiments
        for training in experiment.trainings
        if training.failure
    ]
    if not rows:
        return None
    sentence = "If a training run of an experiment failed, the experiment is not ranked."
    cells = table(("Experiment", "Seed", "Error"), rows, "Failed trainings", (0, 2))
    return section("failures", "Failures", lead(sentence), cells)


def _command(command: str) -> Section:
    sentence = lead(
        "The following command starts the nightly run, which trains a model with the settings of the best "
        "experiment. Then the gate decides whether this model serves."
    )
    return section("use", "Use the best experiment", sentence, tag("p", tag("code", command)))


# The CSS style sheet of the report, for light and dark screens, for phones, and for print.

CSS = """
:root {
  --paper: #ffffff; --panel: #f6f7f9; --ink: #1b2430; --muted: #566273; --rule: #dde2e8;
  --accent: #2a5db0; --second: #b4540a; --third: #2f7d4f; --good: #1d6b40; --warn: #9a4a00; --stop: #a3231b;
  --fourth: #7a3fa0; --fifth: #0b7a85; --sixth: #b0246b; --seventh: #7a6a12; --eighth: #566273;
  --stack-0: #1f4e9c; --stack-1: #e39a2d; --stack-2: #8cc3ea; --stack-3: #7a8594;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --panel: #1a2029; --ink: #e4e8ee; --muted: #9ba7b6; --rule: #2d3643;
    --accent: #7fb0ff; --second: #f0a35e; --third: #74c795; --good: #74c795; --warn: #f0a35e;
  --stop: #ff8f85;
  --fourth: #c79bf0; --fifth: #5fc9d4; --sixth: #f58ab8; --seventh: #d3c15c; --eighth: #9ba7b6;
    --stack-0: #4c86e0; --stack-1: #f2b45a; --stack-2: #b9dcf6; --stack-3: #8d98a7;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans",
  sans-serif;
}
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.015em; }
h2 { font-size: 1.3rem; margin: 0 0 .4rem; letter-spacing: -.005em; }
h3 { font-size: .875rem; font-weight: 600; margin: 0; }
p { margin: 0 0 .75rem; }
code { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  overflow-wrap: anywhere; }
a { color: var(--accent); }
.title { white-space: normal; }
section { margin-top: 2.75rem; padding-top: 1.5rem; border-top: 1px solid var(--rule); }
footer { margin-top: 3rem; color: var(--muted); font-size: .8125rem; }
.contents ul { display: flex; flex-wrap: wrap; gap: .15rem 1rem; list-style: none; margin: 1.5rem 0 0;
  padding: 0; font-size: .8125rem; }
.contents a { color: var(--accent); text-decoration: none; }
.contents a:hover, .contents a:focus-visible { text-decoration: underline; }
.overline { color: var(--muted); font-size: .875rem; margin-bottom: .25rem; }
.lead { max-width: 46rem; color: var(--muted); text-wrap: pretty; }
.lead strong, .lead code { color: var(--ink); }
.lead strong.good { color: var(--good); }
.lead strong.warn { color: var(--warn); }
.failure { border-left: 4px solid var(--stop); background: var(--panel); border-radius: 0 6px 6px 0;
  padding: .9rem 1rem; margin: .75rem 0 1rem; max-width: 46rem; }
.failure p { margin: 0 0 .5rem; }
.failure p:last-child { margin: 0; }
.failure strong.stop { color: var(--stop); }
.failure pre { margin: 0 0 .5rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font: .875rem/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace; }
.note { color: var(--muted); font-size: .8125rem; line-height: 1.4; margin: 0; }
.missing { color: var(--muted); font-style: italic; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem;
  margin-top: 1.5rem; }
.tile { min-width: 0; overflow-wrap: anywhere; background: var(--panel); border-radius: 6px;
  padding: .9rem 1rem 1rem; }
.tile h3 { color: var(--muted); }
.tile .value { font-size: 1.75rem; font-weight: 600; line-height: 1.25; margin: .15rem 0 .35rem;
  font-variant-numeric: tabular-nums; letter-spacing: -.01em; }
.meter { height: 4px; border-radius: 2px; background: var(--rule); margin: 0 0 .5rem; }
.meter i { display: block; height: 100%; border-radius: 2px; background: var(--accent); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 1.75rem 2rem;
  align-items: start; margin: 1.25rem 0; }
.grid > * { min-width: 0; margin: 0; }
figure { margin: 0; }
figcaption { font-size: .875rem; color: var(--muted); margin-bottom: .5rem; }
figcaption strong { display: block; color: var(--ink); }
.chart { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, "Segoe UI", Roboto,
  "Liberation Sans", sans-serif; font-variant-numeric: tabular-nums; }
.chart text { fill: var(--muted); }
.chart .value { fill: var(--ink); }
.chart .axis { stroke: var(--muted); }
.chart .gridline { stroke: var(--rule); }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .bar { opacity: .9; }
.chart .bubble { fill-opacity: .55; stroke-width: 1.5; }
.chart .hollow { fill: var(--paper); stroke: var(--series); stroke-width: 1.5; }
.chart .diagonal { stroke: var(--muted); stroke-dasharray: 4 4; }
.chart .reference { stroke: var(--muted); stroke-dasharray: 5 4; stroke-width: 1.5; }
.chart .reference-name { fill: var(--ink); stroke: var(--paper); stroke-width: 4; paint-order: stroke; }
.stack-0 { --series: var(--stack-0); }
.stack-1 { --series: var(--stack-1); }
.stack-2 { --series: var(--stack-2); }
.stack-3 { --series: var(--stack-3); }
.series-0 { --series: var(--accent); }
.series-1 { --series: var(--second); }
.series-2 { --series: var(--third); }
.series-3 { --series: var(--fourth); }
.series-4 { --series: var(--fifth); }
.series-5 { --series: var(--sixth); }
.series-6 { --series: var(--seventh); }
.series-7 { --series: var(--eighth); }
.chart .line, .chart .bubble { stroke: var(--series); }
.chart .line.series-1 { stroke-dasharray: 6 3; }
.chart .line.series-2 { stroke-dasharray: 2 3; }
.chart .line.series-4 { stroke-dasharray: 6 3; }
.chart .line.series-5 { stroke-dasharray: 2 3; }
.chart .line.series-7 { stroke-dasharray: 6 3; }
.chart .point { fill: var(--ink); opacity: .55; }
.chart .bar, .chart .part, .chart .dot, .chart .bubble { fill: var(--series); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .8125rem; color: var(--muted);
  margin-bottom: .35rem; }
.swatch { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  background: var(--series); margin-right: .4rem; }
.scroll { overflow-x: auto; }
section > .scroll + .scroll { margin-top: 1.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { padding: .32rem .75rem .32rem 0; border-bottom: 1px solid var(--rule); text-align: left;
  vertical-align: top; }
th { color: var(--muted); font-weight: 600; font-size: .8125rem; vertical-align: bottom; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
td:first-child { white-space: nowrap; }
td code { white-space: nowrap; }
.narrow { max-width: 34rem; margin: 1.25rem 0 1.75rem; }
.measures td:nth-child(2) { overflow-wrap: anywhere; min-width: 6rem; }
.measures tbody tr:first-child td { font-weight: 600; }
td strong.warn { color: var(--warn); }
td strong.stop, .lead strong.stop { color: var(--stop); }
details { margin-top: 1rem; }
summary { cursor: pointer; font-size: .875rem; font-weight: 600; margin-bottom: .5rem; }
.compact td { padding-top: .12rem; padding-bottom: .12rem; }
dl { margin: 0; font-size: .875rem; }
dl div { display: flex; gap: 1rem; justify-content: space-between; padding: .32rem 0;
  border-bottom: 1px solid var(--rule); }
dt { color: var(--muted); flex: none; }
dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.card { background: var(--panel); border-radius: 6px; padding: 1rem; }
.card table { margin-top: .5rem; }
.card caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
.chips { display: flex; flex-wrap: wrap; gap: .35rem; list-style: none; margin: .3rem 0 0; padding: 0;
  font-size: .8125rem; }
.chips li { border: 1px solid var(--rule); border-radius: 4px; padding: .05rem .45rem;
  color: var(--muted); }
.chips code { color: var(--ink); }
@media screen and (min-width: 78rem) {
  main { margin-left: max(15rem, calc(50% - 31rem)); }
  .contents { position: fixed; top: 2.5rem; left: calc(max(15rem, 50% - 31rem) - 12.5rem); width: 11.5rem;
    max-height: calc(100vh - 5rem); overflow-y: auto; }
  .contents ul { display: block; margin: 0; }
  .contents li { padding: .18rem 0; }
}
@media screen and (max-width: 40rem) {
  main { padding-top: 1.5rem; }
  h1 { font-size: 1.6rem; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .chart { font-size: 14px; }
}
@media print {
  :root { --paper: #fff; --panel: #fff; --ink: #000; --muted: #444; --rule: #ccc; --accent: #2a5db0;
  --second: #b4540a;
    --third: #2f7d4f; --good: #1d6b40; --warn: #9a4a00; --stop: #a3231b; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  section { margin-top: 1.5rem; padding-top: 1rem; }
  .grid { grid-template-columns: 1fr 1fr; gap: 1rem 1.5rem; }
  .tiles { grid-template-columns: repeat(5, 1fr); }
  .tile .value { font-size: 1.4rem; }
  .scroll { overflow: visible; }
  .contents { display: none; }
  table, th, dl, figcaption, .note, .chips { font-size: 8pt; }
  th, td, dl div { padding-top: .15rem; padding-bottom: .15rem; }
  .tile, .card { border: 1px solid var(--rule); }
  section, figure, .tile, .card, table, dl, .lead { break-inside: avoid; }
  h2, .lead { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
