"""The typed configuration of histories: the items that a user clicked before a row."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from conf.names import ColumnName
from conf.raw_types import Days, PositiveInt, Strict


class History(Strict):
    """A column with the keys of the items that the user of a row clicked last before this row.

    The most recent item comes first. Rows of a user are ordered by event time, then by their position in the
    log. Without an event time, they are ordered by their position. Only clicks before a row are in its list,
    so the row's own item is not. If the log has groups (keys.group), all rows of a group have the list of the
    group's first row, because a click of the group is not known when the group is shown. Features read the
    column like a column of the log. The table `users`, with which lists are scored, has the last clicks up to
    the run date. If the lists are compared with the test split (measure.against=test_split), the rows of the
    test split are left out.
    """

    column: ColumnName = Field(default="history", description="Name of the new column, a list of strings.")
    length: PositiveInt = Field(default=50, description="Largest number of items in a list.")
    days: Days | None = Field(
        default=None,
        description="Number of days before the day of a row whose clicks are used. Set it if, and only if, "
        "split.by=day. Other logs are one table, whose rows are all used.",
    )

    def new_columns(self, split_by: str, columns: Collection[str]) -> set[str]:
        """Returns the names of the columns that the section adds.

        Raises ValueError if the column is not new, or if `days` does not fit the split.

        Args:
            split_by: the value of split.by.
            columns: the names of all other columns.
        """
        if self.column in columns:
            raise ValueError(
                f"history.column={self.column!r} is the name of another column: choose a new name"
            )
        if split_by == "day" and self.days is None:
            raise ValueError(
                "history.days is missing: with split.by=day, set how many earlier days are used, such as 14"
            )
        if split_by != "day" and self.days is not None:
            raise ValueError(
                f"history.days={self.days} has no effect with split.by={split_by}, because all rows of the "
                "log are used: remove it"
            )
        return {self.column}
