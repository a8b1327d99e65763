"""The source `all_items`: proposes all items except the excluded items.

A null array of candidates represents all these items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from conf.list_types import SourceSettings

if TYPE_CHECKING:
    from scoring.candidates.exclusions import Exclusions
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows


class Settings(SourceSettings):
    """The source `all_items`: all items except the user's excluded items.

    No other source can be combined with `all_items`.
    """

    every_item: ClassVar[bool] = True


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns, for each user, all items except the user's excluded items; see `all_items`."""
    return all_items(tables.exclusions)


def all_items(exclusions: Exclusions) -> Rows:
    """Returns the candidates table of the source `all_items`, one row per user.

    The columns are user_key, candidates, excluded and sources. `candidates` and `sources` are null.
    `excluded` is null if no item is excluded for the user.
    """
    import pyarrow as pa

    from scoring.requests import CANDIDATES, EXCLUDED, SOURCES
    from spark.rows import select, with_nulls
    from storage.feature_spec import USER_KEY

    rows = with_nulls(exclusions.users, CANDIDATES, pa.list_(pa.int32()))
    rows = with_nulls(rows, SOURCES, pa.list_(pa.int8()))
    return select(rows, [USER_KEY, CANDIDATES, EXCLUDED, SOURCES])
