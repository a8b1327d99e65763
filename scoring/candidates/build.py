"""From a configuration and the tables it needs to the candidates of every user."""

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
class Tables:
    """What the sources are made of.

    Attributes:
        excluding: one row a user: what no source may give.
        items: numbered, with item_key.
        rows: user_key, item_key, label, features_dt and, where the log has one, event_time; of the splits that count.
        run_date: the day that windows of days end with.
        segments: name → (user_key, segment), for each segment of a source.
        retrieved: (user_key, candidates) of the retrieval source; None without one.
    """

    excluding: Exclusions
    items: DataFrame
    rows: DataFrame
    run_date: str
    segments: Mapping[str, DataFrame] = field(default_factory=dict)
    retrieved: DataFrame | None = None


def make_candidates(config: Candidates, tables: Tables) -> DataFrame:
    """One row a user: (user_key, candidates array<int>, excluded array<int>, sources array<tinyint>)."""
    lists = []
    for source in config.sources:
        if isinstance(source, AllItems):
            return all_items(tables.excluding)
        lists.append(_listed(source, tables))
    return unite(tables.excluding.users.select(USER_KEY), lists, config.max)


def _listed(source: Popular | Covisitation | Retrieval, tables: Tables) -> DataFrame:
    """(user_key, candidates) of one source."""
    if isinstance(source, Retrieval):
        if tables.retrieved is None:
            raise ValueError("a retrieval source needs what was retrieved")
        return tables.retrieved
    rows = within(tables.rows, source.window_days, tables.run_date)
    if isinstance(source, Covisitation):
        return covisited_items(source, tables.excluding, rows, tables.items)
    if source.segment is not None:
        segments = tables.segments[source.segment]
        return popular_in_segment(tables.excluding, rows, tables.items, segments, source.n)
    return popular_items(tables.excluding, popularity(rows, tables.items), source.n)
