"""Publishes the items to recommend from (`candidate_items`), and lists of them by user (`candidates`)."""

from __future__ import annotations

from conf.load import config_digest
from scoring.candidates.build import make_candidates
from scoring.candidates.candidate_tables import (
    CandidateTables,
    candidate_rows,
    exclusions,
    frames_needed,
    read_candidate_tables,
    table_digests,
)
from scoring.candidates.clicks import within
from scoring.candidates.items import available_items, number_items
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.retrieved import retrieve
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.unite_sources import places_by_source
from scoring.candidates.vector_tables import release, vector_store
from scoring.feature_rows import count_rows
from scoring.requests import ITEM_INDEX, SOURCES
from spark.choose_workers import stay_in_process
from spark.rows import read_rows
from storage.dataset import Dataset, read_dataset
from storage.feature_spec import ITEM_KEY, USER_KEY
from storage.job_summary import JobSummary
from storage.manifest import Manifest, read_manifest
from storage.publish import Rules
from storage.publish_rows import publish_rows
from storage.run_context import RunContext, require


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


def publish_items(context: RunContext, dataset: Dataset, tables: CandidateTables) -> Manifest:
    """Publishes `candidate_items`: the items that may be recommended, with indices in the order of keys."""
    config = context.config.candidates
    source = context.lake.items(dataset.workflow_version).partition(context.run_date)
    known = read_manifest(source)
    scalars = [name for name, kind in known.schema if not kind.startswith("list")]
    seen = None
    if config.active_days is not None:
        seen = within(candidate_rows(context, dataset, config.splits), config.active_days, context.run_date)
    items, dropped = available_items(read_rows(context, source, known), seen, tables.out_of_stock)
    left = known.rows - sum(dropped.values())
    chosen_by = {
        "dataset": dataset.digest,
        "config": config_digest(context.config, "candidates"),
        **table_digests(context),
    }
    return publish_rows(
        number_items(items),
        context.lake.candidate_items(dataset.workflow_version).partition(context.run_date),
        inputs={"items": known.digest, **(chosen_by if dropped else {})},
        row_group_rows=context.config.output.row_group_rows,
        expected_rows=left,
        rows_in=known.rows,
        dropped=dropped,
        sort_by=[ITEM_INDEX],
        rules=Rules(not_null=scalars, ranges={ITEM_INDEX: (0, left)}),
        grace_hours=context.config.output.grace_hours,
    )


def publish_candidates(
    context: RunContext,
    dataset: Dataset,
    numbered: Manifest,
    tables: CandidateTables,
    store: VectorStore,
) -> Manifest:
    """Publishes `candidates`, with one row per user.

    The facts in the manifest are the names of the sources, how the source `retrieval` searched, and for each
    filter, the number of excluded (user, item) pairs.
    """
    lake, config, version = context.lake, context.config.candidates, dataset.workflow_version
    with_scores = context.config.score.blend == "auto"
    published = lake.candidate_items(version).partition(context.run_date)
    items = read_rows(context, published, numbered, columns=[ITEM_INDEX, ITEM_KEY])
    excluding = exclusions(context, dataset, version, items, tables)
    retrieved = retrieve(context, version, tables, numbered, excluding, store)
    sources = SourceTables(
        excluding,
        items,
        candidate_rows(context, dataset, config.splits),
        context.run_date,
        tables.segments,
        retrieved.lists if retrieved else None,
        store,
    )
    candidates = make_candidates(config, sources, with_scores=with_scores)
    return publish_rows(
        candidates,
        lake.candidates(version).partition(context.run_date),
        inputs={
            **tables.inputs(context, dataset),
            "candidate_items": numbered.digest,
            **({"source_scores": "1"} if with_scores else {}),
        },
        row_group_rows=context.config.output.row_group_rows,
        expected_rows=tables.users.rows,
        facts={
            "sources": [source.name for source in config.sources],
            "excluded": dict(excluding.counts),
            **({"retrieval_search": retrieved.search} if retrieved else {}),
        },
        rules=Rules(not_null=[USER_KEY]),
        sort_by=[USER_KEY] if context.in_process else (),
        grace_hours=context.config.output.grace_hours,
    )
