"""Plans which dates and versions of a lake are deleted. Nothing is changed here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from conf.counted import counted
from conf.errors import ConfigError
from conf.types import Config
from etl.raw.files import raw_path
from etl.raw.table_copies import COPIES
from jobs.stages.prune_items import Item, Limits
from jobs.stages.prune_versions import (
    FEATURES,
    OF_VERSIONS,
    VERSION,
    old_attempts,
    old_checkpoints,
    unused_models,
    unused_workflows,
)
from storage.dataset import Dataset, read_dataset
from storage.lake_files import DateFiles, dates_of_tables, list_lake
from storage.manifest import MANIFEST_NAME
from storage.paths import Lake, Partition
from training.registry.kept_models import model_versions
from training.registry.saved_models import saved_models

_DATASETS, _LISTS = "datasets", "recommendations"
_INTERNAL = frozenset({"typed", "prepared", COPIES})  # tables that only jobs read
# Tables without workflow versions. The tables datasets, experiments and comparisons are small and stay.
_OTHER_TABLES = frozenset(
    {"quarantine", "value_counts", "profiles", "quality", *_INTERNAL, "last_clicks", _LISTS}
    | {"list_changes", "scores", "measures", "deliveries", "evaluations"}
)


def check_days(config: Config, run_date: str, keep_days: int) -> None:
    """Raises ConfigError if a run of the run date reads more than `keep_days` days."""
    split, history = config.split, config.history
    needed = {"the run date": 1}
    if split.by == "day":
        names = ("train_days", "validation_days", "test_days")
        needed = {f"split.{name}": getattr(split, name) for name in names}
    if history is not None and history.days:
        needed["history.days"] = history.days
    days = sum(needed.values())
    if keep_days < days:
        sources = " + ".join(f"{name}={value}" if "." in name else name for name, value in needed.items())
        raise ConfigError(
            f"--keep-days {keep_days} is too small: a run of {run_date} reads {counted(days, 'day')} "
            f"({sources})",
            f"pass --keep-days with at least {days}",
        )


def plan_prune(config: Config, run_date: str, keep_days: int) -> tuple[Limits, list[Item]]:
    """Returns the limits, and what is deleted, in this order.

    Args:
        config: the configuration.
        run_date: runs of this date and of later ones find everything that they need.
        keep_days: number of days up to the run date whose dates are kept.

    Raises:
        ConfigError: `keep_days` is smaller than the window of the configuration, or there is no lake.
        DataError: a data manifest, a model.json or a file of the registry is damaged.
    """
    check_days(config, run_date, keep_days)
    lake = Lake(config.lake)  # what is read here is no input of the run
    files = list_lake(lake)
    if not any(file.path.endswith(f"/{MANIFEST_NAME}") for file in files):
        raise ConfigError(
            f"{config.lake} is no lake: no table is published there",
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
    unused = {item.name for item in workflows}
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
    """Returns the newest published date of each table, and the newest one before the run date."""
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
    config: Config, lake: Lake, table: str, dt: str, of_date: DateFiles, limits: Limits
) -> Item | None:
    """Returns the item of a date; None if a job may be writing it, or if it is a raw log."""
    path = f"{lake.root.rstrip('/')}/{table}/dt={dt}"
    if not of_date.is_of_job or path == raw_path(config, config.log, dt).rpartition("/")[0]:
        return None
    manifest = [of_date.manifest] if of_date.manifest else []
    old = [file for file in of_date.data if limits.are_old([file])]
    is_empty = not manifest and not of_date.data  # a job may have created the folders
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
    return Item(table.split("/")[0], dt, (*manifest, *old), (), partition)
