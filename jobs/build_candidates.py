"""Publishes the items that may be recommended (`candidate_items`), and users' candidates (`candidates`)."""

from __future__ import annotations

from jobs.runner import run_job
from scoring.candidates.build import publish_candidates, publish_items
from scoring.candidates.candidate_tables import frames_needed, read_candidate_tables
from scoring.candidates.lists_in_spark import release, vector_store
from scoring.candidates.unite_sources import places_by_source
from scoring.feature_rows import count_rows
from scoring.requests import SOURCES
from spark.choose_workers import stay_in_process
from spark.rows import read_rows
from storage.dataset import read_dataset
from storage.job_summary import JobSummary
from storage.run_context import RunContext, require

DESCRIPTION = (
    "Selects the items that are scored for each user, from the tables of users and items and from past "
    "clicks. Publishes `candidate_items` and `candidates`."
)


def run(context: RunContext) -> JobSummary:
    """Assigns indices to the items of the run date, and publishes one list of candidates per user."""
    require(context.config, "keys")
    dataset = read_dataset(context.lake, context.run_date)
    if not frames_needed(context.config):
        stay_in_process(context, count_rows(context.lake, dataset))
    with context.phase("tables"):
        tables = read_candidate_tables(context, dataset.workflow_version)
    with context.phase("candidate_items"):
        items = publish_items(context, dataset, tables)
    with context.phase("candidates"):
        store = vector_store(context, dataset, items, tables.retriever)
        try:
            candidates = publish_candidates(context, dataset, items, tables, store)
        finally:
            release(store)
    partition = context.lake.candidates(dataset.workflow_version).partition(context.run_date)
    places = {}
    if not any(source.every_item for source in context.config.candidates.sources):
        with context.phase("places"):
            listed = read_rows(context, partition, candidates, columns=[SOURCES])
            places = {"places_by_source": places_by_source(listed, candidates.facts["sources"])}
    return JobSummary(
        output=partition.path,
        rows_in=tables.users.rows,
        rows_out=candidates.rows,
        dropped=items.dropped,
        facts={
            "items": items.rows,
            **candidates.facts,
            **places,
            "workflow_version": dataset.workflow_version,
        },
    )


if __name__ == "__main__":
    run_job("build_candidates", DESCRIPTION, run)
