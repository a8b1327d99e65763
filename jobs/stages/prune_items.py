"""What prune deletes together, and the limits of dates and ages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from storage.lake_files import LakeFile
from storage.manifest import MANIFEST_NAME
from storage.paths import Partition

_DAY_S = 24 * 3600


@dataclass(frozen=True)
class Item:
    """What is deleted together: a date of a table, a version, or the files of attempts.

    Attributes:
        kind: the name of a row in the table for a terminal, such as `features`.
        name: the date, version or folder.
        files: the files that are deleted. If a deletion in this order is killed, the next plan continues it.
        folders: folders below the root of the lake that are deleted if they are empty then.
        partition: the date of a table; None for all other items.
    """

    kind: str
    name: str
    files: tuple[LakeFile, ...]
    folders: tuple[str, ...] = ()
    partition: Partition | None = None

    @property
    def bytes(self) -> int:
        """Returns the number of bytes of the files."""
        return sum(file.bytes for file in self.files)

    @property
    def manifest(self) -> LakeFile | None:
        """Returns the manifest of the date of a table; None if it is not published."""
        return next((file for file in self.files if file.path.endswith(f"/{MANIFEST_NAME}")), None)


@dataclass(frozen=True)
class Limits:
    """The limits of a plan.

    Attributes:
        run_date: the run date.
        first_date: the first date that is kept.
        old: files that were changed before this time may be deleted (`output.grace_hours`), in seconds since
            1970.
        expired: files of attempts without a date were written too long ago if they were changed before this
            time.
    """

    run_date: str
    first_date: str
    old: float
    expired: float

    @classmethod
    def of(cls, run_date: str, keep_days: int, grace_hours: float) -> Limits:
        """Returns the limits for a number of days, counted from the run date backwards."""
        now, last = time.time(), date.fromisoformat(run_date)
        end = datetime(last.year, last.month, last.day, tzinfo=UTC).timestamp() + _DAY_S
        old = now - grace_hours * 3600
        first = (last - timedelta(days=keep_days - 1)).isoformat()
        return cls(run_date, first, old, min(old, now - keep_days * _DAY_S, end - keep_days * _DAY_S))

    def are_old(self, files: Iterable[LakeFile]) -> bool:
        """Returns whether no job can still be writing these files."""
        return all(file.modified < self.old for file in files)
