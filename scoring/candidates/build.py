"""Builds the candidates of every user from the configured sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from conf.types import AllItems, Candidates, Covisitation, Popular, Retrieval
from scoring.candidates.all_items import all_items
from scoring.candidates.clicks import within
from scoring.candidates.covisitation import covisited_items
from scoring.candidates.filters import Exclusions
from scoring.candidates.popular import popular_in_segment, popular_items, popularity
from scoring.candidates.quotas import unite
from storage.feature_spec import USER_KEY


@dataclass(frozen=True)
class SourceTables:
    """The tables that sources of candidates read.

    Attributes:
        exclusions: one row per user, with the items that no source may return for this user.
        items: (item_index, item_key).
        rows: the feature rows of the configured splits: user_key, item_key, label, features_dt and, if the
            log has it, event_time.
        run_date: the last day of the window of days whose clicks a source counts.
        segments: maps the name of each segment that a source uses to a frame (user_key, segment).
        retrieved: (user_key, candidates) from the source `retrieval`; None without this source.
    """

    exclusions: Exclusions
    items: DataFrame
    rows: DataFrame
    run_date: str
    segments: Mapping[str, DataFrame] = field(default_factory=dict)
    retrieved: DataFrame | None = None


def make_candidates(config: Candidates, tables: SourceTables) -> DataFrame:
    """One row per user: (user_key, candidates array<int>, excluded array<int>, sources array<tinyint>)."""
    lists = []
    for source in config.sources:
        if isinstance(source, AllItems):
            return all_items(tables.exclusions)
        lists.append(_candidates_of(source, tables))
    return unite(tables.exclusions.users.select(USER_KEY), lists, config.max)


def _candidates_of(source: Popular | Covisitation | Retrieval, tables: SourceTables) -> DataFrame:
    """(user_key, candidates) of one source."""
    if isinstance(source, Retrieval):
        if tables.retrieved is None:
            raise ValueError("internal error, please report: a retrieval source without retrieved candidates")
        return tables.retrieved
    rows = within(tables.rows, source.window_days, tables.run_date)
    if isinstance(source, Covisitation):
        return covisited_items(source, tables.exclusions, rows, tables.items)
    if source.segment is not None:
        segments = tables.segments[source.segment]
        return popular_in_segment(tables.exclusions, rows, tables.items, segments, source.n)
    return popular_items(tables.exclusions, popularity(rows, tables.items), source.n)
