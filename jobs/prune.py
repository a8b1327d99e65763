"""Deletes old dates and unused versions from a lake."""

from __future__ import annotations

import argparse
import logging
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import groupby

from conf.errors import ConfigError, InfrastructureError
from conf.messages import counted
from conf.types import Config
from etl.raw.files import COPIES, raw_path
from etl.workflow.fitted_workflow import FILE_NAME
from jobs.command_line import job_parser
from jobs.runner import run_with_options
from reporting.terminal import text_table
from storage import file_io
from storage.dataset import Dataset, read_dataset
from storage.job_summary import JobSummary
from storage.manifest import MANIFEST_NAME
from storage.paths import DATA, LakePaths, Partition
from storage.remove import (
    WITHDRAWN_NAME,
    DateFiles,
    LakeFile,
    dates_of_tables,
    delete_empty_folders,
    list_lake,
    record_withdrawal,
    remove,
)
from storage.run_context import RunContext
from training.registry.kept_models import model_versions, saved_models
from training.registry.model_json import MODEL_JSON, is_complete

DESCRIPTION = (
    "With --delete, deletes old dates and unused versions from the lake. Without this option, prints what it "
    "would delete, and changes nothing. It keeps the dates of the last --keep-days days up to the run date, "
    "and all later dates. It also keeps all other data that a run of the run date or of a later date needs: "
    "the newest date of each table, the features of kept datasets, and the models that serve or may serve "
    "again. Data files stay for output.grace_hours after the file that lists them was deleted; a later prune "
    "deletes them. The raw log is never changed. Other jobs of the run date may run at the same time. If the "
    "job is interrupted, start it again: it continues."
)

log = logging.getLogger("nightrank.prune")

_HEADERS = ["What", "Dates or versions", "Files", "Bytes"]
_TRIES, _WAIT_S = 3, 0.5


def run(context: RunContext, keep_days: int, *, dry_run: bool) -> tuple[str, JobSummary]:
    """Deletes data that no run of the run date or of a later date needs, or reports what would be deleted.

    Args:
        context: the context of the run, with its run date and the configuration.
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
        if item.withdrawn is not None:
            record_withdrawal(f"{root}/{item.withdrawn}")
        for file in item.files:
            file_io.delete_if_present(f"{root}/{file.path}")
        for folder in item.folders:
            delete_empty_folders(f"{root}/{folder}")
    elif _is_replaced(item):
        log.info("%s %s was published again, and is kept", item.partition.table, item.name)
    else:
        remove(item.partition, grace_hours)


def _is_replaced(item: Item) -> bool:
    """Returns whether a job has published this date of a table since the plan was made."""
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
    end = "\nNothing was changed: to delete these data, add --delete." if dry_run else ""
    return f"{head}This {verb}:\n{text_table(_HEADERS, cells, right=(1, 2, 3))}{_text_of_kept(items)}{end}"


def _text_of_kept(items: Sequence[Item]) -> str:
    """Returns a line about data files that a later prune deletes; empty if there are none."""
    kept = [file for item in items for file in item.kept]
    if not kept:
        return ""
    size = sum(file.bytes for file in kept)
    return (
        f"\n{counted(len(kept), 'data file')} of these dates and versions ({counted(size, 'byte')}) "
        f"{'stays' if len(kept) == 1 else 'stay'} for output.grace_hours, because programs may be reading "
        "them. A later prune deletes them."
    )


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
        "files_in_grace": sum(len(item.kept) for item in items),
        "bytes_in_grace": sum(file.bytes for item in items for file in item.kept),
    }
    return JobSummary(lake.root, rows_in=None, rows_out=None, dropped=None, facts=facts)


_DATASETS, _LISTS = "datasets", "recommendations"
_INTERNAL = frozenset({"typed", "prepared", COPIES})  # tables that only jobs read

# Tables without workflow versions. The small tables datasets, experiments and comparisons are not deleted.
_OTHER_TABLES = frozenset(
    {"quarantine", "value_counts", "profiles", "quality", *_INTERNAL, "last_clicks", "last_values", _LISTS}
    | {"list_changes", "scores", "measures", "deliveries", "evaluations", "item_titles"}
)


_MOST_DAYS = 36_500


def check_days(config: Config, run_date: str, keep_days: int) -> None:
    """Raises ConfigError if a run of the run date reads more than `keep_days` days."""
    split = config.split
    needed = {"the run date": 1}
    if split.by == "day":
        names = ("train_days", "validation_days", "test_days")
        needed = {f"split.{name}": getattr(split, name) for name in names}
    if config.days_before:
        of_history = config.history is not None and config.history.days == config.days_before
        needed["history.days" if of_history else "last_values.days"] = config.days_before
    days = sum(needed.values())
    if keep_days > _MOST_DAYS:
        raise ConfigError(
            f"--keep-days {keep_days} is too large: at most {_MOST_DAYS:,} days can be kept",
            "pass a smaller number, or do not run prune",
        )
    if keep_days < days:
        sources = " + ".join(f"{name}={value}" if "." in name else name for name, value in needed.items())
        raise ConfigError(
            f"--keep-days {keep_days} is too small: a run of {run_date} reads {counted(days, 'day')} "
            f"({sources})",
            f"pass --keep-days with at least {days}",
        )


def plan_prune(config: Config, run_date: str, keep_days: int) -> tuple[Limits, list[Item]]:
    """Returns the limits, and the items to delete, in the order of their deletion.

    Args:
        config: the configuration.
        run_date: the data that runs of this date and of later dates need are kept.
        keep_days: number of days up to the run date whose dates are kept.

    Raises:
        ConfigError: `keep_days` is smaller than the window of the configuration, or there is no lake.
        DataError: a data manifest, a model.json or a file of the registry is damaged.
    """
    check_days(config, run_date, keep_days)
    lake = LakePaths(config.lake)  # without a recorder, because these files are not inputs of the run
    files = list_lake(lake)
    if not any(file.path.endswith(f"/{MANIFEST_NAME}") for file in files):
        raise ConfigError(
            f"{config.lake} is not a lake, the folder of the jobs' tables: it contains no published table",
            "check the key `lake` of the configuration",
        )
    limits = Limits.of(run_date, keep_days, config.output.grace_hours)
    files_only = [file for file in files if not file.path.endswith("/")]
    dates = dates_of_tables(files)
    newest = _newest(dates, run_date)
    datasets = [
        read_dataset(lake, dt)
        for table, dt in dates
        if table == _DATASETS and _is_kept(table, dt, limits, newest)
    ]
    lists = [dt for table, dt in newest if table == _LISTS]
    used = {version for one in datasets for version in (one.workflow_version, one.parent_workflow) if version}
    models = model_versions(config, lake, limits.first_date, run_date, lists, used)
    model_items = unused_models(models.unused, files_only, limits)
    deleted = {(item.kind, item.name) for item in model_items}
    saved = [one for one in saved_models(lake) if (f"models/{one['name']}", one["version"]) not in deleted]
    used |= {one["workflow_version"] for one in saved}
    workflows = unused_workflows(used, files_only, dates, limits)
    unused = {item.name for item in workflows} | (_withdrawn_workflows(files_only) - used)
    partitions = [
        item
        for (table, dt), of_date in sorted(dates.items())
        if _is_table(table, unused)
        and not _is_kept(table, dt, limits, newest | _rows_of(datasets))
        and (item := _partition(config, lake, table, dt, of_date, limits)) is not None
    ]
    attempts = [*old_checkpoints(lake, saved, files_only, limits), *old_attempts(files_only, limits)]
    return limits, [*partitions, *model_items, *workflows, *attempts]


def _newest(dates: Mapping[tuple[str, str], DateFiles], run_date: str) -> set[tuple[str, str]]:
    """Returns two dates of each table: the newest published date, and the newest date before the run date."""
    published: dict[str, list[str]] = defaultdict(list)
    for (table, dt), of_date in dates.items():
        if of_date.manifest is not None:
            published[table].append(dt)
    return {
        (table, max(some))
        for table, known in published.items()
        for some in (known, [dt for dt in known if dt < run_date])
        if some
    }


def _rows_of(datasets: Sequence[Dataset]) -> set[tuple[str, str]]:
    """Returns the feature partitions of the datasets that are kept, as (table, date)."""
    return {(f"{FEATURES}/{one.workflow_version}", day) for one in datasets for day in one.days}


def _is_kept(table: str, dt: str, limits: Limits, others: set[tuple[str, str]]) -> bool:
    return dt >= limits.first_date or (table, dt) in others


def _is_table(table: str, unused: set[str]) -> bool:
    """Returns whether dates of a table may be deleted one by one."""
    kind, _, rest = table.partition("/")
    version = rest.split("/")[0]
    if kind in OF_VERSIONS:
        return bool(VERSION.fullmatch(version)) and version not in unused
    return kind in _OTHER_TABLES


def _partition(
    config: Config, lake: LakePaths, table: str, dt: str, of_date: DateFiles, limits: Limits
) -> Item | None:
    """Returns one date of a table as an item to delete; None for a raw log, or if a job may be writing it."""
    path = f"{lake.root.rstrip('/')}/{table}/dt={dt}"
    if not of_date.is_of_job or path == raw_path(config, config.log, dt).rpartition("/")[0]:
        return None
    manifest = [of_date.manifest] if of_date.manifest else []
    if not manifest and of_date.withdrawn is not None and not limits.are_old([of_date.withdrawn]):
        return None
    old = [file for file in of_date.data if limits.are_old([file])]
    is_empty = not manifest and not of_date.data  # a running job may have just created the folders
    has_old_part = of_date.modified < limits.old if is_empty else bool(manifest or old)
    if not has_old_part or not limits.are_old(manifest):
        return None
    partition = Partition(
        table,
        dt,
        path,
        table.count("/") + 2,
        lake.recorder,
        internal=table.split("/")[0] in _INTERNAL,
    )
    if manifest and limits.has_grace:
        return Item(table.split("/")[0], dt, (*manifest,), (), partition, kept=(*of_date.data,))
    return Item(table.split("/")[0], dt, (*manifest, *old), (), partition)


# The classes below define items, which prune deletes as units, and the limits for dates and ages.

_DAY_S = 24 * 3600


@dataclass(frozen=True)
class Item:
    """An item: the files of one date of a table, of one version, or of some attempts, deleted together.

    Attributes:
        kind: the row that counts the item in the table that prune prints, such as `features`.
        name: the date, version or folder.
        files: the files, in the order of their deletion. If prune is killed, the next prune deletes the rest.
        folders: folders below the root of the lake that are deleted if they are then empty.
        partition: the date of a table; None for all other items.
        kept: files that are not deleted now, because programs may be reading them. A prune after
            `output.grace_hours` deletes them.
        withdrawn: folder in which `record_withdrawal` records the time of the deletion, before the first
            file is deleted; None if the time is not recorded, or if `partition` is set.
    """

    kind: str
    name: str
    files: tuple[LakeFile, ...]
    folders: tuple[str, ...] = ()
    partition: Partition | None = None
    kept: tuple[LakeFile, ...] = ()
    withdrawn: str | None = None

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
    """The dates and ages that decide what a plan deletes.

    Attributes:
        run_date: the run date.
        first_date: the first date that is kept.
        old: files that were changed before this time may be deleted (`output.grace_hours`), in seconds since
            1970.
        expired: files of attempts whose names contain no date are deleted if they were last changed before
            this time, in seconds since 1970.
        has_grace: whether data files stay for a time after the file that lists them is deleted.
    """

    run_date: str
    first_date: str
    old: float
    expired: float
    has_grace: bool

    @classmethod
    def of(cls, run_date: str, keep_days: int, grace_hours: float) -> Limits:
        """Returns the limits for a number of days up to the run date."""
        now, last = time.time(), date.fromisoformat(run_date)
        end = datetime(last.year, last.month, last.day, tzinfo=UTC).timestamp() + _DAY_S
        old = now - grace_hours * 3600
        first = (last - timedelta(days=keep_days - 1)).isoformat()
        expired = min(old, now - keep_days * _DAY_S, end - keep_days * _DAY_S)
        return cls(run_date, first, old, expired, grace_hours > 0)

    def are_old(self, files: Iterable[LakeFile]) -> bool:
        """Returns whether these files are so old that no job can still be writing them."""
        return all(file.modified < self.old for file in files)


# The functions below decide which versions, checkpoints and files of attempts prune deletes.

FEATURES = "features"

# Tables that exist for each workflow version.
OF_VERSIONS = frozenset(
    {FEATURES, "users", "items", "candidates", "candidate_items", "item_vectors"}
    | {"gate_items", "blend_items", "experiment_items"}
)
VERSION = re.compile(r"[0-9a-f]{16}")
_WORKFLOW, _CHECKPOINTS = "workflow", "checkpoints"
_OF_ATTEMPTS = ("runs", "logs", "spark-events", "reports", "leases")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def unused_models(unused: Sequence[tuple[str, str]], files: Sequence[LakeFile], limits: Limits) -> list[Item]:
    """Returns the items of model versions that no run needs and that no training run is still writing.

    Checkpoints come first. They are deleted with the model only if the model has a model.json. Without this
    file, a training run may continue from the checkpoints. If model.json is deleted, the files of weights
    stay for the grace period.
    """
    folders = [f"models/{name}/{version}" for name, version in unused]
    of_folder = _by_folder(files, [*folders, *(f"{_CHECKPOINTS}/{version}" for _, version in unused)])
    items = []
    for folder, (name, version) in zip(folders, unused, strict=True):
        checkpoints = f"{_CHECKPOINTS}/{version}"
        marker = f"{folder}/{MODEL_JSON}"
        model = sorted(of_folder[folder], key=lambda file: (file.path != marker, file.path))
        is_described = any(file.path == marker for file in model)
        all_files = (*(of_folder[checkpoints] if is_described else ()), *model)
        if not model or not limits.are_old(all_files):  # a training run may have just created the folder
            continue
        kind, folders_of_item = f"models/{name}", (checkpoints, folder)
        if is_described and limits.has_grace:
            now = (*of_folder[checkpoints], model[0])
            items.append(Item(kind, version, now, folders_of_item, kept=(*model[1:],), withdrawn=folder))
        else:
            items.append(Item(kind, version, all_files, folders_of_item))
    return items


def _by_folder(files: Iterable[LakeFile], folders: Iterable[str]) -> dict[str, list[LakeFile]]:
    """Maps each of the folders to the files below it."""
    below: dict[str, list[LakeFile]] = {folder: [] for folder in folders}
    for file in files:
        parts = file.path.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in below:
                below[folder].append(file)
    return below


def unused_workflows(
    used: set[str],
    files: Sequence[LakeFile],
    dates: Mapping[tuple[str, str], DateFiles],
    limits: Limits,
) -> list[Item]:
    """Returns the items of workflow versions that no dataset or model uses, with all of their tables.

    Versions that have a table of a kept date, or a file that a job may be writing, are left out.
    workflow.json is deleted first, so that no job uses an incomplete version. The manifests are deleted next.
    Data files stay for the grace period.
    """
    dated = {table.split("/")[1] for table, dt in dates if dt >= limits.first_date and "/" in table}
    of_version: dict[str, list[LakeFile]] = defaultdict(list)
    for file in files:
        kind, version, *rest = [*file.parts, ""]
        if rest[1:] and kind in OF_VERSIONS | {_WORKFLOW} and VERSION.fullmatch(version):
            of_version[version].append(file)
    last = {FILE_NAME: 0, MANIFEST_NAME: 1}
    items = []
    for version, of_one in sorted(of_version.items()):
        if version in used or version in dated or not limits.are_old(of_one):
            continue
        ordered = sorted(of_one, key=lambda file: (last.get(file.parts[-1], 2), file.path))
        folders = sorted({file.path[: file.path.index(version) + len(version)] for file in of_one})
        listing = [file for file in ordered if _lists_files(file)]
        if listing and limits.has_grace:
            kept = tuple(file for file in ordered if not _lists_files(file))
            own = f"{_WORKFLOW}/{version}"
            items.append(Item(_WORKFLOW, version, tuple(listing), tuple(folders), kept=kept, withdrawn=own))
        else:
            items.append(Item(_WORKFLOW, version, tuple(ordered), tuple(folders)))
    return items


def _lists_files(file: LakeFile) -> bool:
    """Returns whether programs find data files of a workflow version through this file.

    Such files are workflow.json, the manifests, and hard links to data files.
    """
    is_data = file.path.startswith(f"{DATA}/") or file.parts[0] == _WORKFLOW
    return file.parts[-1] in (FILE_NAME, MANIFEST_NAME) or not is_data


def _withdrawn_workflows(files: Iterable[LakeFile]) -> set[str]:
    """Returns the workflow versions whose workflow.json was deleted, but whose data files may still exist."""
    return {file.parts[1] for file in files if file.parts[::2] == [_WORKFLOW, WITHDRAWN_NAME]}


def old_checkpoints(
    lake: LakePaths, saved: Sequence[Mapping[str, str]], files: Iterable[LakeFile], limits: Limits
) -> list[Item]:
    """Returns the items of old checkpoints of complete models.

    Args:
        lake: the lake.
        saved: the models that are kept, from `saved_models`.
        files: all files of the lake.
        limits: the dates and ages that decide what is deleted.
    """
    folders = {one["version"]: f"{lake.models(one['name'])}/{one['version']}" for one in saved}
    of_version: dict[str, list[LakeFile]] = defaultdict(list)
    for file in files:
        kind, version, *_ = [*file.parts, ""]
        if kind == _CHECKPOINTS and version in folders and limits.are_old([file]):
            of_version[version].append(file)
    return [
        Item(_CHECKPOINTS, version, tuple(old), (f"{_CHECKPOINTS}/{version}",))
        for version, old in sorted(of_version.items())
        if is_complete(folders[version])
    ]


def old_attempts(files: Iterable[LakeFile], limits: Limits) -> list[Item]:
    """Returns the items of files that runs of jobs leave: run records, logs, event logs, reports, leases.

    An item belongs to a date if its name, or the name of its folder, contains the date. Otherwise the time of
    the last change decides whether the item is deleted.
    """
    entries: dict[tuple[str, str], list[LakeFile]] = defaultdict(list)
    for file in files:
        kind, _, rest = file.path.partition("/")
        if kind in _OF_ATTEMPTS and rest:
            entries[kind, rest.split("/")[0]].append(file)
    items = []
    for (kind, name), of_entry in sorted(entries.items()):
        days = _DATE.findall(name)
        if days:
            expired = days[-1] < limits.first_date and limits.are_old(of_entry)
        else:
            expired = all(file.modified < limits.expired for file in of_entry)
        if expired:
            items.append(Item(kind, name, tuple(of_entry), (f"{kind}/{name}",)))
    return items


def prune(context: RunContext, arguments: argparse.Namespace) -> JobSummary:
    """Deletes or lists old dates and unused versions, prints a table, and returns the summary."""
    text, summary = run(context, arguments.keep_days, dry_run=not arguments.delete)
    print(text, flush=True)
    return summary


def _parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line: the options of every job, --keep-days and --delete."""
    parser = job_parser("prune", DESCRIPTION)
    parser.add_argument(
        "--keep-days",
        type=int,
        required=True,
        metavar="N",
        help="number of days to keep: the run date and the days before it; at least as many as a run reads",
    )
    parser.add_argument(
        "--delete",
        action="store_true",
        help="delete what the job prints; without this option, nothing is changed",
    )
    return parser


if __name__ == "__main__":
    run_with_options("prune", _parser(), prune, sys.argv[1:])
