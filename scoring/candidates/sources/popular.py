"""The source `popular`: proposes the items with the most clicks (scoring/candidates/popular.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from conf.candidate_types import WindowedSource
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
        description="Feature of scope `user`, or column of `user_attributes`. For each user, only the clicks "
        "of users with the same value in this column are counted, and items without such a click are left "
        "out. Null: the clicks of all users are counted.",
    )

    @property
    def name(self) -> str:
        """Returns the name of this object in messages and tables."""
        return f"{self.source} by {self.segment}" if self.segment else self.source

    @property
    def segments(self) -> list[str]:
        """Returns the segments that the source needs."""
        return [self.segment] if self.segment else []


def candidates(settings: Settings, tables: SourceTables) -> Rows:
    """Returns the n most popular items of each user, of all users or of the user's segment."""
    from scoring.candidates.popular import popular_in_segment, popular_items, popularity

    rows = tables.clicks(settings.window_days)
    if settings.segment is not None:
        segments = tables.segments[settings.segment]
        return popular_in_segment(tables.exclusions, rows, tables.items, segments, settings.n)
    return popular_items(tables.exclusions, popularity(rows, tables.items), settings.n)
