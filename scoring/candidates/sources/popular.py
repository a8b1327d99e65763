"""The source `popular`: proposes the items with the most clicks (scoring/candidates/popular.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from conf.list_types import WindowedSource
from conf.raw_types import PositiveInt

if TYPE_CHECKING:
    from scoring.candidates.source_tables import SourceTables
    from spark.rows import Rows


class Settings(WindowedSource):
    """The source `popular`: the items with the most clicks.

    Items with the same number of clicks are ordered by their key.
    """

    n: PositiveInt = Field(default=500, description="Largest number of items of this source for a user.")
    segment: str | None = Field(
        default=None,
        description="Feature of scope `user`, or column of `user_attributes`. Only the clicks of users "
        "with the same value in this column count for a user, and items without such clicks are left out. "
        "Null: the clicks of all users count.",
    )

    @property
    def name(self) -> str:
        """Returns the name of the source in messages and tables, which contains the segment."""
        return f"{self.source} by {self.segment}" if self.segment else self.source

    @property
    def segments(self) -> list[str]:
        """Returns the names of the columns by which the source divides users into segments."""
        return [self.segment] if self.segment else []


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns, for each user, the n most popular items among all users or in the user's segment."""
    from scoring.candidates.popular import popular_in_segment, popular_items, popularity

    rows = tables.clicks(settings.window_days)
    if settings.segment is not None:
        segments = tables.segments[settings.segment]
        return popular_in_segment(tables.exclusions, rows, tables.items, segments, settings.n)
    return popular_items(tables.exclusions, popularity(rows, tables.items), settings.n)
