"""What sinks get to erase users (the optional function `erase` of a sink)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from storage.lineage import NOT_RECORDED, LineageRecorder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class EraseRequest:
    """The users whose lists and features a sink removes.

    Attributes:
        users: their ids.
        digests: maps old digests of partitions of the lake to those without the users. A sink that stores the
            digest of a partition stores the new one, so that the next delivery finds its rows unchanged.
        open_session: starts the Spark session, for sinks that need it.
        recorder: records, for lineage, what is published.
    """

    users: frozenset[str]
    digests: Mapping[str, str]
    open_session: Callable[[], SparkSession]
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False)


@dataclass(frozen=True)
class Erased:
    """What a sink has removed.

    Attributes:
        target: the address of the sink, without a password.
        rows: number of removed rows, lines or keys.
        remark: what still has bytes of them, for the record; empty if nothing has.
    """

    target: str
    rows: int
    remark: str = ""
