"""The argument and the result of every sink: the published lists, and a summary of the delivery."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("user_id", "position", "item_id", "score", "reason")


@dataclass(frozen=True)
class LakeTable:
    """A table of a run with one row for each user or each item, such as the features of the users.

    Attributes:
        key: the column that names the user or item: `user_key` or `item_key`.
        manifest: the manifest of the partition.
        read: returns the rows, as an Arrow table if the rows of the lists are an Arrow table, otherwise
            as a Spark frame.
    """

    key: str
    manifest: Manifest
    read: Callable[[], pa.Table | DataFrame]


@dataclass(frozen=True)
class RawUsers:
    """The raw table of users, whose string columns can be delivered without being stored in the lake.

    Attributes:
        digest: the digest of its files.
        read: takes columns of type string. Returns rows with user_key and these columns, one row per user: an
            Arrow table if the rows of the lists are an Arrow table, else a frame of Spark.
    """

    digest: str
    read: Callable[[Sequence[str]], pa.Table | DataFrame]


@dataclass(frozen=True)
class PublishedLists:
    """The published lists of a date.

    Attributes:
        rows: one row per list entry, with the columns COLUMNS, model_version and workflow_version, and with
            the column variant during an experiment. They are an Arrow table if all sinks can deliver without
            Spark (IN_PROCESS) and the lists are small, and a frame of Spark otherwise.
        manifest: the manifest of the partition that contains the lists.
        recorder: records, for lineage, the tables that are published from these lists.
        grace_hours: number of hours after which a sink may delete files that it has replaced.
        open_features: opens the table `users` or `items` of the same run. It raises DataError if the run does
            not have this table.
        open_titles: opens the titles and pictures of items (etl/latest/item_titles.py), and raises DataError
            if the run has none. None if the configuration sets no title and no image of items (`items.title`,
            `items.image`).
        open_users: opens the raw table of users of the date; None if the configuration has none.
    """

    rows: pa.Table | DataFrame
    manifest: Manifest
    recorder: LineageRecorder = NOT_RECORDED
    grace_hours: float = 24.0
    open_features: Mapping[str, Callable[[], LakeTable]] = field(default_factory=dict)
    open_titles: Callable[[], LakeTable] | None = None
    open_users: Callable[[], RawUsers] | None = None

    @property
    def frame(self) -> DataFrame:
        """Returns the rows as a frame of Spark, for sinks that need Spark."""
        if not isinstance(self.rows, pa.Table):
            return self.rows
        raise RuntimeError(
            "internal error, please report: a sink without IN_PROCESS was given an Arrow table"
        )

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


# The argument and the result of the optional function `erase` of a sink.


@dataclass(frozen=True)
class EraseRequest:
    """The users whose lists and features a sink removes.

    Attributes:
        users: their ids.
        digests: maps the digest of each changed partition of the lake to its digest without the users. A sink
            that stores the digest of a partition stores the new digest, so that the next delivery treats the
            rows as unchanged.
        open_session: starts the Spark session, for sinks that need it.
        recorder: records the published tables, for lineage.
    """

    users: frozenset[str]
    digests: Mapping[str, str]
    open_session: Callable[[], SparkSession]
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False)


@dataclass(frozen=True)
class Erased:
    """The result of an erasure by a sink.

    Attributes:
        target: the address of the sink, without a password.
        rows: number of removed rows, lines or keys.
        remark: a sentence for the record of the erasure that says where removed rows still exist in old
            files; empty if there are no such files.
    """

    target: str
    rows: int
    remark: str = ""
