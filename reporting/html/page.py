"""Builds the HTML file of the report from its sections."""

from __future__ import annotations

from conf.types import Config
from reporting.elements.markup import Html, join, tag
from reporting.elements.style import CSS
from reporting.facts.list_facts import count_items, sample_lists
from reporting.facts.recent_runs import open_failure, read_history, served_lists
from reporting.facts.run_facts import RunFacts, read_run_facts
from reporting.html.sections import (
    calibration,
    coverage,
    data,
    data_quality,
    experiment,
    gate,
    headline,
    impressions,
    last_thirty_days,
    list_changes,
    list_quality,
    runs,
    sample,
    stages,
    training,
)
from storage import file_io
from storage.dataset import read_dataset
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import is_published
from storage.paths import Lake

_SAMPLE_USERS = 4


def build(config: Config, run_date: str, recorder: LineageRecorder = NOT_RECORDED) -> tuple[RunFacts, Html]:
    """Returns the facts of a run, and the complete HTML page of the report.

    Args:
        config: the configuration.
        run_date: the run date.
        recorder: records the tables that are read, for lineage.
    """
    lake = Lake(config.lake, recorder)
    run = read_run_facts(config, run_date, recorder)
    counts, lists = None, []
    if run.recommendations is not None:
        partition = lake.recommendations.partition(run_date)
        dataset = read_dataset(lake, run_date) if is_published(lake.datasets.partition(run_date)) else None
        counts = count_items(partition, run.recommendations)
        lists = sample_lists(lake, partition, run.recommendations, dataset, _SAMPLE_USERS, config.negatives)
    sections = [
        last_thirty_days.render(read_history(config, run_date), run_date, config.quality.psi_warn),
        runs.render(config, run_date, recorder),
        data.render(run),
        data_quality.render(run.quality, run.of_choices),
        training.render(run),
        gate.render(run),
        calibration.render(run),
        list_quality.render(run),
        experiment.render(run),
        impressions.render(run),
        list_changes.render(run),
        coverage.render(run, counts),
        sample.render(lists, run.list_scores),
        stages.render(stages.read_stage_times(lake, run_date, config.name)),
    ]
    failure = open_failure(config, run_date)
    head = headline.render(run, failure, served_lists(config, run_date) if failure else None)
    return run, document(f"Nightrank {config.name} {run_date}", head, sections)


def document(title: str, head: Html, sections: list[Html | None]) -> Html:
    """Returns a page as one file. Its content security policy forbids all network requests."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    meta = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(CSS)),
    ]
    footer = tag(
        "footer", f"Written {file_io.utc_now()} by Nightrank. Everything on this page is in the file itself."
    )
    body = tag("body", tag("main", head, *sections, footer))
    return join([Html("<!doctype html>\n"), tag("html", tag("head", *meta), body, lang="en")])
