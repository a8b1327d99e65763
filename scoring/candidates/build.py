"""Builds the candidates of every user from the configured sources, and publishes them with their items."""

from __future__ import annotations

from conf.list_types import SourceSettings, window_days
from conf.load import config_digest
from conf.types import Candidates
from scoring.candidates.candidate_items import available_items, number_items
from scoring.candidates.candidate_tables import (
    CandidateTables,
    candidate_rows,
    exclusions,
    last_counted_days,
    require_clicks_in_windows,
    table_digests,
)
from scoring.candidates.clicks import within
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.retrieved import retrieve
from scoring.candidates.source_settings import read_source
from scoring.candidates.source_tables import SourceInputs, SourceTables, proposed_items
from scoring.candidates.unite_sources import unite
from scoring.requests import ITEM_INDEX
from spark.rows import Rows, read_rows, select
from storage.dataset import Dataset
from storage.feature_spec import ITEM_KEY, USER_KEY
from storage.manifest import Manifest, read_manifest
from storage.publish import Rules, publish_rows
from storage.run_context import RunContext


def publish_items(context: RunContext, dataset: Dataset, tables: CandidateTables) -> Manifest:
    """Publishes `candidate_items`: the items that may be recommended, numbered in the order of their keys."""
    config = context.config.candidates
    source = context.lake.items(dataset.workflow_version).partition(context.run_date)
    known = read_manifest(source)
    scalars = [name for name, kind in known.schema if not kind.startswith("list")]
    seen = None
    if config.active_days is not None:
        rows, time_zone = candidate_rows(context, dataset, config.splits), context.config.log.time_zone
        last_day, _ = last_counted_days(context, dataset, config.splits)
        seen = within(rows, config.active_days, last_day, time_zone)
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

    The `facts` of the manifest are the names of the sources, the kind of search of the source `retrieval`
    (exact or approximate), and the number of (user, item) pairs that each filter excluded.
    """
    lake, config, version = context.lake, context.config.candidates, dataset.workflow_version
    with_scores = context.config.score.blend == "auto"
    published = lake.candidate_items(version).partition(context.run_date)
    items = read_rows(context, published, numbered, columns=[ITEM_INDEX, ITEM_KEY])
    excluding = exclusions(context, dataset, version, items, tables)
    retrieved = retrieve(context, version, tables, numbered, excluding, store)
    last_day = context.run_date
    if config.counts_days:
        last_day, last_click = last_counted_days(context, dataset, config.splits)
        require_clicks_in_windows(config, last_day, last_click)
    sources = SourceTables(
        excluding,
        items,
        candidate_rows(context, dataset, config.splits),
        last_day,
        tables.segments,
        retrieved.lists if retrieved else None,
        store,
        context.config.log.time_zone,
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


def make_candidates(config: Candidates, tables: SourceTables, *, with_scores: bool = False) -> Rows:
    """Returns the candidates of all configured sources, one row per user.

    The columns are user_key, candidates array<int>, excluded array<int> and sources array<tinyint>. With
    `with_scores`, there is also source_scores array<float> (`unite_sources.add_source_scores`). The source
    `all_items` has no scores.

    Raises:
        ConfigError: the module of a plug-in does not fulfil the contract of scoring/candidates/sources.
    """
    lists = []
    for source in config.sources:
        rows = _candidates_of(source, tables)
        if source.every_item:
            return rows
        lists.append(rows)
    return unite(select(tables.exclusions.users, [USER_KEY]), lists, config.max, with_scores=with_scores)


def _candidates_of(source: SourceSettings, tables: SourceTables) -> Rows:
    """Returns the candidates of one source: rows with the columns user_key, candidates and scores.

    `scores` is an array<float> as long as `candidates`, in descending order.
    """
    plugin, settings = read_source(source)
    if hasattr(plugin.load(), "candidates"):
        candidates: Rows = plugin.member("candidates")(settings, tables)
        return candidates
    users, items = tables.exclusions.users, tables.items
    n = getattr(source, "n", 0)
    rows = tables.shown(window_days(source))
    inputs = SourceInputs(
        rows, users.select(USER_KEY), items.select(ITEM_INDEX, ITEM_KEY), tables.last_day, n
    )
    return proposed_items(plugin, settings, inputs, users)
