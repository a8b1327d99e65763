"""The argument and the result of every sink: the published lists, and a summary of the delivery."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import Manifest

COLUMNS = ("user_id", "position", "item_id", "score", "reason")


@dataclass(frozen=True)
class PublishedLists:
    """The published lists of a date.

    Attributes:
        rows: a frame with one row per list entry and the columns COLUMNS, model_version and workflow_version.
        manifest: the manifest of the partition that contains the lists.
        recorder: records, for lineage, the tables that are published from these lists.
    """

    rows: DataFrame
    manifest: Manifest
    recorder: LineageRecorder = NOT_RECORDED

    @property
    def run_date(self) -> str:
        """Returns the date of the lists."""
        return self.manifest.partition

    @property
    def users(self) -> int:
        """Returns the number of users who have a list."""
        return int(self.manifest.facts["users"]) - int(self.manifest.facts["users_without"])


@dataclass(frozen=True)
class Delivered:
    """The result of a delivery to one sink.

    Attributes:
        target: the address of the sink, without a password.
        rows: number of list entries of the date that the sink contains; 0 if nothing was delivered.
        written, deleted: number of list entries that were inserted or changed, and number of list entries
            that were deleted; None if the sink does not count them.
    """

    target: str
    rows: int
    written: int | None = None
    deleted: int | None = None
