"""Builds the candidates of every user from the configured sources."""

from __future__ import annotations

from conf.candidate_types import SourceSettings, window_days
from conf.types import Candidates
from scoring.candidates.proposals import SourceInputs, proposed_items
from scoring.candidates.read_sources import read_source
from scoring.candidates.source_tables import SourceTables
from scoring.candidates.unite_sources import unite
from scoring.requests import ITEM_INDEX
from spark.rows import Rows, select
from storage.feature_spec import ITEM_KEY, USER_KEY


def make_candidates(config: Candidates, tables: SourceTables, *, with_scores: bool = False) -> Rows:
    """Returns the candidates of all configured sources, one row per user.

    The columns are user_key, candidates array<int>, excluded array<int> and sources array<tinyint>. With
    `with_scores`, there is also source_scores array<float> (`unite_sources.add_source_scores`). The source
    `all_items` has no scores.

    Raises:
        ConfigError: the module of a package does not obey the contract of scoring/candidates/sources.
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

    `scores` is an array<float> as long as `candidates`. Within a user's list, it does not increase.
    """
    plugin, settings = read_source(source)
    if hasattr(plugin.load(), "candidates"):
        candidates: Rows = plugin.member("candidates")(settings, tables)
        return candidates
    users, items = tables.exclusions.users, tables.items
    n = getattr(source, "n", 0)
    rows = tables.shown(window_days(source))
    inputs = SourceInputs(
        rows, users.select(USER_KEY), items.select(ITEM_INDEX, ITEM_KEY), tables.run_date, n
    )
    return proposed_items(plugin, settings, inputs, users)
