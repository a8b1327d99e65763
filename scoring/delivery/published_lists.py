"""What every sink is given: the published lists of one date, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import Manifest

COLUMNS = ("user_id", "position", "item_id", "score", "reason")


@dataclass(frozen=True)
class PublishedLists:
    """`rows` has COLUMNS, model_version and workflow_version; `manifest` is that of the partition.

    `recorder` receives what is published from these lists.
    """

    rows: DataFrame
    manifest: Manifest
    recorder: LineageRecorder = NOT_RECORDED

    @property
    def run_date(self) -> str:
        return self.manifest.partition

    @property
    def users(self) -> int:
        """How many users have a list."""
        return int(self.manifest.facts["users"]) - int(self.manifest.facts["users_without"])


@dataclass(frozen=True)
class Delivered:
    """What a sink holds now.

    Attributes:
        target: where, without a password.
        rows: list entries of the date.
        written, deleted: entries that were new or other than before, and that were taken away; None where a sink does not know.
    """

    target: str
    rows: int
    written: int | None = None
    deleted: int | None = None
