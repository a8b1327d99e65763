"""Builds the candidates of every user from the configured sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from conf.package_source_types import PackageSource
from conf.source_types import ItemKnn
from conf.types import AllItems, Als, Candidates, Covisitation, Ease, Popular, Retrieval
from scoring.candidates.all_items import all_items
from scoring.candidates.als import als_items
from scoring.candidates.clicks import within
from scoring.candidates.covisitation import covisited_items
from scoring.candidates.ease import ease_items
from scoring.candidates.filters import Exclusions
from scoring.candidates.item_knn import item_knn_items
from scoring.candidates.lists_in_spark import VectorStore
from scoring.candidates.package_sources import package_items
from scoring.candidates.popular import popular_in_segment, popular_items, popularity
from scoring.candidates.quotas import unite
from spark.rows import ReadableRows, Rows, query, select
from spark.stored_rows import StoredRows
from storage.feature_spec import USER_KEY


@dataclass(frozen=True)
class SourceTables:
    """The tables that the sources of candidates read.

    Attributes:
        exclusions: the items that no source may propose for a user.
        items: rows with the columns item_index and item_key, one row per item.
        rows: the feature rows of the configured splits. The columns are user_key, item_key, label and
            features_dt, and also event_time if the log has it, and weight if rows have weights.
        run_date: the last day whose clicks a source counts.
        segments: maps the name of each segment that a source uses to rows with the columns user_key and
            segment.
        retrieved: rows with the columns user_key, candidates and scores from the source `retrieval`; None
            if this source is not configured.
        store: publishes what the sources `covisitation`, `item_knn`, `ease` and `als` computed for each item.
            It may be None if none of them is configured.
    """

    exclusions: Exclusions
    items: Rows
    rows: ReadableRows
    run_date: str
    segments: Mapping[str, Rows] = field(default_factory=dict)
    retrieved: Rows | None = None
    store: VectorStore | None = None


def make_candidates(config: Candidates, tables: SourceTables, *, with_scores: bool = False) -> Rows:
    """Returns the candidates of all configured sources, one row per user.

    The columns are user_key, candidates array<int>, excluded array<int> and sources array<tinyint>. With
    `with_scores`, there is also source_scores array<float> (`source_scores.add_source_scores`). The source
    `all_items` has no scores.
    """
    lists = []
    for source in config.sources:
        if isinstance(source, AllItems):
            return all_items(tables.exclusions)
        lists.append(_candidates_of(source, tables))
    return unite(select(tables.exclusions.users, [USER_KEY]), lists, config.max, with_scores=with_scores)


def _candidates_of(
    source: Popular | Covisitation | ItemKnn | Ease | Als | Retrieval | PackageSource, tables: SourceTables
) -> Rows:
    """Returns the candidates of one source: rows with the columns user_key, candidates and scores.

    `scores` is an array<float> as long as `candidates`. Within a user's list, it does not increase.
    """
    if isinstance(source, Retrieval):
        if tables.retrieved is None:
            raise ValueError("internal error, please report: the source `retrieval` has no candidates")
        return tables.retrieved
    rows = _rows_of(source, tables)
    if isinstance(source, Covisitation | ItemKnn | Ease | Als):
        return _stored_candidates_of(source, tables, rows)
    if isinstance(source, Popular):
        if source.segment is not None:
            segments = tables.segments[source.segment]
            return popular_in_segment(tables.exclusions, rows, tables.items, segments, source.n)
        return popular_items(tables.exclusions, popularity(rows, tables.items), source.n)
    if isinstance(source, PackageSource):
        return package_items(source, tables.exclusions.users, rows, tables.items, tables.run_date)
    assert_never(source)


def _rows_of(
    source: Popular | Covisitation | ItemKnn | Ease | Als | PackageSource, tables: SourceTables
) -> Rows:
    """Returns the rows that a source reads. Only the sources of packages read rows that are no clicks."""
    rows = tables.rows
    if isinstance(rows, StoredRows) and not isinstance(source, PackageSource):
        rows = query("SELECT * FROM {rows} WHERE label = 1", rows=rows)
    return within(rows, source.window_days, tables.run_date)


def _stored_candidates_of(
    source: Covisitation | ItemKnn | Ease | Als, tables: SourceTables, rows: Rows
) -> Rows:
    """Returns the candidates of a source that publishes what it computes for each item."""
    if tables.store is None:
        raise ValueError(f"internal error, please report: the source `{source.name}` has no store")
    if isinstance(source, Covisitation):
        return covisited_items(source, tables.exclusions, rows, tables.items, tables.store)
    if isinstance(source, ItemKnn):
        return item_knn_items(source, tables.exclusions, rows, tables.items, tables.store)
    if isinstance(source, Ease):
        return ease_items(source, tables.exclusions, rows, tables.items, tables.store)
    if isinstance(source, Als):
        return als_items(source, tables.exclusions, rows, tables.items, tables.store)
    assert_never(source)
