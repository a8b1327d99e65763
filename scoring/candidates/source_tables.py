"""The tables that candidate sources read, and the proposals that sources from other packages return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conf.errors import ConfigError
from conf.lazy_imports import F, Window
from conf.plugins import Plugin
from conf.raw_types import Strict
from conf.time_notation import UTC
from scoring.candidates.clicks import within
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import VectorStore
from scoring.requests import CANDIDATES, EXCLUDED, ITEM_INDEX, SCORES
from spark.rows import ReadableRows, Rows, StoredRows, query
from storage.feature_spec import ITEM_KEY, USER_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SourceTables:
    """The inputs of the sources of candidates.

    Attributes:
        exclusions: the items that no source may propose for a user.
        items: rows with the columns item_index and item_key, one row per item.
        rows: the feature rows of the configured splits. The columns are user_key, item_key, label and
            features_dt, and also event_time if the log has it, and weight if rows have weights.
        last_day: the last day whose clicks a source counts. With split.by=day it is the run date.
        segments: maps the name of each segment that a source uses to rows with the columns user_key and
            segment.
        retrieved: rows with the columns user_key, candidates and scores from the source `retrieval`; None
            if this source is not configured.
        store: publishes the tables of the sources `covisitation`, `item_knn`, `ease` and `als`. It may be
            None if none of these sources is configured.
        time_zone: the IANA name of the zone of the days that `window_days` counts.
    """

    exclusions: Exclusions
    items: Rows
    rows: ReadableRows
    last_day: str
    segments: Mapping[str, Rows] = field(default_factory=dict)
    retrieved: Rows | None = None
    store: VectorStore | None = None
    time_zone: str = UTC

    @property
    def vector_store(self) -> VectorStore:
        """Returns the store, through which sources publish tables with one row per item."""
        if self.store is None:
            raise ValueError("internal error, please report: there is no store for vectors of items")
        return self.store

    def shown(self, window_days: int | None) -> Rows:
        """Returns the feature rows of the last `window_days` days; all of them if `window_days` is None."""
        return within(self.rows, window_days, self.last_day, self.time_zone)

    def clicks(self, window_days: int | None) -> Rows:
        """Returns the rows of the last `window_days` days, for sources that count only rows with label 1.

        If the rows are read from files, those with label 0 are left out here, so that fewer rows are read.
        """
        rows = self.rows
        if isinstance(rows, StoredRows):
            rows = query("SELECT * FROM {rows} WHERE label = 1", rows=rows)
        return within(rows, window_days, self.last_day, self.time_zone)


# The code below makes candidates from proposals: scored (user, item) pairs that a source returns as a Spark
# frame.
#
# The function `propose` of a source returns one row for each proposed pair: user_key (string), item_key
# (string) and score (a number). For each user, the n items with the highest scores become candidates.
# Pairs with unknown users or items, with excluded items, or with a null, infinite or NaN score are left out.
# So `propose` need not consider the exclusions. But it should propose more than n items to users for whom
# many items are excluded.

_SCORE = "score"
_COLUMNS = (USER_KEY, ITEM_KEY, _SCORE)


@dataclass(frozen=True)
class SourceInputs:
    """The inputs of the function `propose` of a source.

    Attributes:
        rows: the feature rows of the configured splits and of the last `window_days` days. The columns are
            user_key, item_key, label (1 for a click) and features_dt, and also event_time if the log has it.
        users: a frame with the column user_key: the users that get candidates.
        items: a frame with the columns item_index and item_key: the items that may be candidates.
        run_date: the last day whose clicks may be counted.
        n: the largest number of candidates of a user.
    """

    rows: DataFrame
    users: DataFrame
    items: DataFrame
    run_date: str
    n: int


def proposed_items(plugin: Plugin, settings: Strict, inputs: SourceInputs, users: DataFrame) -> DataFrame:
    """Returns the candidates of a source that proposes pairs: user_key, candidates and scores.

    Args:
        plugin: the source.
        settings: its settings.
        inputs: the inputs of its function `propose`.
        users: a frame with the columns user_key and excluded, one row per user.

    Raises:
        ConfigError: the source returns a frame without the columns user_key, item_key and score.
    """
    pairs = plugin.member("propose")(settings, inputs)
    _require_columns(plugin, getattr(pairs, "columns", None), pairs)
    score = F.col(_SCORE).cast("float")
    finite = score.isNotNull() & ~F.isnan(score) & (F.abs(score) < float("inf"))
    scored = (
        pairs.select(F.col(USER_KEY).cast("string"), F.col(ITEM_KEY).cast("string"), score.alias(_SCORE))
        .where(finite)
        .join(inputs.items, ITEM_KEY)
        .groupBy(USER_KEY, ITEM_INDEX)
        .agg(F.max(_SCORE).alias(_SCORE))
        .join(users.select(USER_KEY, EXCLUDED), USER_KEY)
        .where(~F.coalesce(F.array_contains(EXCLUDED, F.col(ITEM_INDEX)), F.lit(False)))
    )
    place = F.row_number().over(Window.partitionBy(USER_KEY).orderBy(F.desc(_SCORE), F.asc(ITEM_INDEX)))
    best = scored.withColumn("_place", place).where(F.col("_place") <= inputs.n)
    lists = best.groupBy(USER_KEY).agg(
        F.sort_array(F.collect_list(F.struct("_place", ITEM_INDEX, _SCORE))).alias("_items")
    )
    return lists.select(
        USER_KEY,
        F.col(f"_items.{ITEM_INDEX}").cast("array<int>").alias(CANDIDATES),
        F.col(f"_items.{_SCORE}").alias(SCORES),
    )


def _require_columns(extension: Plugin, columns: Sequence[str] | None, returned: Any) -> None:
    from pyspark.sql import DataFrame

    missing = [name for name in _COLUMNS if name not in (columns or ())]
    if missing or not isinstance(returned, DataFrame):
        what = f"a {type(returned).__name__}" if columns is None else f"a frame with the columns {columns}"
        raise ConfigError(
            f"{extension} returned {what}, but its function propose must return a frame of Spark with the "
            f"columns {list(_COLUMNS)}",
            "correct the module; docs/extending.md describes the contract of nightrank.candidate_sources",
        )
