"""Deletes old dates and unused versions from a lake."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from itertools import groupby

from conf.errors import InfrastructureError
from conf.messages import counted
from jobs.stages.prune_plan import Item, Limits, plan_prune
from reporting.terminal import text_table
from storage import file_io
from storage.job_summary import JobSummary
from storage.manifest import MANIFEST_NAME
from storage.paths import LakePaths
from storage.remove import delete_empty_folders, remove
from storage.run_context import RunContext

log = logging.getLogger("nightrank.prune")

_HEADERS = ["What", "Dates or versions", "Files", "Bytes"]
_TRIES, _WAIT_S = 3, 0.5


def run(context: RunContext, keep_days: int, *, dry_run: bool) -> tuple[str, JobSummary]:
    """Deletes data that no run of the run date or of a later date needs, or reports what would be deleted.

    Args:
        context: the context of the run.
        keep_days: number of days up to the run date whose dates are kept.
        dry_run: whether the function only reports, without deleting files.

    Returns:
        A text for a terminal, and the summary.

    Raises:
        ConfigError: `keep_days` is smaller than the window of the configuration, or there is no lake.
        DataError: a file of the lake is damaged.
        InfrastructureError: a file cannot be deleted.
    """
    with context.phase("plan"):
        limits, items = plan_prune(context.config, context.run_date, keep_days)
    if not dry_run:
        with context.phase("delete"):
            _delete_all(LakePaths(context.config.lake), items, context.config.output.grace_hours)
    return _text(limits, items, dry_run), _summary(context.lake, limits, items, dry_run)


def _delete_all(lake: LakePaths, items: Sequence[Item], grace_hours: float) -> None:
    """Deletes the items in their order in the plan. Another prune may delete the same items at the same time.

    Raises:
        InfrastructureError: a file cannot be deleted.
    """
    for kind, group in groupby(items, key=lambda item: item.kind):
        of_kind = list(group)
        for item in of_kind:
            _delete(lake, item, grace_hours)
        log.info("%s", _line(kind, of_kind))


def _delete(lake: LakePaths, item: Item, grace_hours: float) -> None:
    for attempt in range(_TRIES):
        try:
            _delete_once(lake, item, grace_hours)
            return
        except (OSError, InfrastructureError) as error:
            if attempt == _TRIES - 1:
                raise InfrastructureError(
                    f"{item.kind} {item.name} cannot be deleted: {error}",
                    "check the permissions of the lake, then run prune again: it continues",
                ) from error
            time.sleep(_WAIT_S)  # another prune may be deleting the same folder


def _delete_once(lake: LakePaths, item: Item, grace_hours: float) -> None:
    root = lake.root.rstrip("/")
    if item.partition is None:
        for file in item.files:
            file_io.delete_if_present(f"{root}/{file.path}")
        for folder in item.folders:
            delete_empty_folders(f"{root}/{folder}")
    elif _is_replaced(item):
        log.info("%s %s was published again, and is kept", item.partition.table, item.name)
    else:
        remove(item.partition, grace_hours)


def _is_replaced(item: Item) -> bool:
    """Returns whether a job has published a date of a table since the plan."""
    if item.partition is None:
        return False
    files, inner = file_io.filesystem(item.partition.file(MANIFEST_NAME))
    info = files.get_file_info(inner)
    if not info.is_file:
        return False
    return item.manifest is None or info.mtime is None or info.mtime.timestamp() != item.manifest.modified


def _line(kind: str, items: Sequence[Item]) -> str:
    files, size = _files(items), sum(item.bytes for item in items)
    number = counted(len(items), "date or version", "dates or versions")
    return f"{kind}: {number}, {counted(files, 'file')}, {counted(size, 'byte')} deleted"


def _files(items: Sequence[Item]) -> int:
    return sum(len(item.files) for item in items)


def _text(limits: Limits, items: Sequence[Item], dry_run: bool) -> str:
    """Returns a table of the deleted data for a terminal."""
    verb = "would be deleted" if dry_run else "was deleted"
    head = f"Dates from {limits.first_date} on are kept, and all other data that runs need. "
    if not items:
        return f"{head}Nothing else {verb}."
    groups = [(kind, list(group)) for kind, group in groupby(items, key=lambda item: item.kind)]
    rows = [(kind, group, sum(item.bytes for item in group)) for kind, group in [*groups, ("total", items)]]
    cells = [[kind, f"{len(some):,}", f"{_files(some):,}", f"{size:,}"] for kind, some, size in rows]
    end = "\nNothing was changed: to delete it, add --delete." if dry_run else ""
    return f"{head}This {verb}:\n{text_table(_HEADERS, cells, right=(1, 2, 3))}{end}"


def _summary(lake: LakePaths, limits: Limits, items: Sequence[Item], dry_run: bool) -> JobSummary:
    deleted = {
        kind: {
            "count": len(group := list(some)),
            "files": _files(group),
            "bytes": sum(item.bytes for item in group),
        }
        for kind, some in groupby(items, key=lambda item: item.kind)
    }
    facts = {
        "first_date": limits.first_date,
        "dry_run": dry_run,
        "deleted": deleted,
        "files": _files(items),
        "bytes": sum(item.bytes for item in items),
    }
    return JobSummary(lake.root, rows_in=None, rows_out=None, dropped=None, facts=facts)
