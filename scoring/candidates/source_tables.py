"""The tables that the sources of candidates read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from scoring.candidates.clicks import within
from scoring.candidates.exclusions import Exclusions
from scoring.candidates.lists_in_spark import VectorStore
from spark.rows import ReadableRows, Rows, StoredRows, query


@dataclass(frozen=True)
class SourceTables:
    """The inputs of the sources of candidates.

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
        store: publishes the tables of the sources `covisitation`, `item_knn`, `ease` and `als`. It may be
            None if none of these sources is configured.
    """

    exclusions: Exclusions
    items: Rows
    rows: ReadableRows
    run_date: str
    segments: Mapping[str, Rows] = field(default_factory=dict)
    retrieved: Rows | None = None
    store: VectorStore | None = None

    @property
    def vector_store(self) -> VectorStore:
        """Returns the store, through which sources publish tables with one row per item."""
        if self.store is None:
            raise ValueError("internal error, please report: there is no store for vectors of items")
        return self.store

    def shown(self, window_days: int | None) -> Rows:
        """Returns the rows of the last `window_days` days; all rows if `window_days` is None."""
        return within(self.rows, window_days, self.run_date)

    def clicks(self, window_days: int | None) -> Rows:
        """Returns the rows of the last `window_days` days, for sources that count only rows with label 1.

        Rows with label 0 are left out if the rows are read from files, because this saves reading some of
        them.
        """
        rows = self.rows
        if isinstance(rows, StoredRows):
            rows = query("SELECT * FROM {rows} WHERE label = 1", rows=rows)
        return within(rows, window_days, self.run_date)
