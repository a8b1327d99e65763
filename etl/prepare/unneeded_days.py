"""Deletes prepared rows, and copies of tables of Spark's catalogue, that no run needs any more."""

from __future__ import annotations

import logging
from datetime import date, timedelta

from conf.errors import DataError
from etl.raw.files import find_raw
from etl.raw.table_copies import ALL_DAYS, copies_of
from etl.workflow.copied_tables import copied_tables
from etl.workflow.feature_plan import Plan
from storage.paths import Lake
from storage.remove import is_younger, remove, written_dates

log = logging.getLogger("nightrank.etl")


def delete_unneeded_days(plan: Plan, lake: Lake, first_day: str) -> None:
    """Deletes the days of the table `prepared`, and of `typed` of older lakes, that no run needs any more.

    A day is deleted if it is before `first_day`, the first day of the run (with the section `history`, the
    first day whose clicks the run reads), and was published more than `output.grace_hours` ago. A day whose
    raw log does not exist any more is deleted at once. A later run that needs a deleted day parses it again.

    Copies of tables of Spark's catalogue are deleted by the same rule, and those of tables that the
    configuration does not name any more.
    """
    grace_hours = plan.config.output.grace_hours
    if not plan.is_divided and plan.config.history:
        first = date.fromisoformat(first_day) - timedelta(days=plan.config.history.days or 0)
        first_day = first.isoformat()
    unrecorded = Lake(lake.root)  # the manifests that are read here are no inputs of the run
    for kind, table in (("typed", unrecorded.typed), ("prepared", unrecorded.prepared(plan.config.name))):
        for dt in written_dates(table):
            partition = table.partition(dt)
            try:
                if find_raw(plan.config, plan.config.log, dt) is None:
                    log.info("%s rows of %s are deleted, because its raw log does not exist", kind, dt)
                    remove(partition, 0)
                elif dt < first_day and not is_younger(partition, grace_hours):
                    log.info("%s rows of %s are deleted, because runs begin with %s", kind, dt, first_day)
                    remove(partition, grace_hours)
            except (OSError, DataError) as error:  # for example, another job deletes the same day
                log.warning("%s rows of %s cannot be deleted, the next run tries again: %s", kind, dt, error)
    _delete_copies(plan, unrecorded, first_day)


def _delete_copies(plan: Plan, lake: Lake, first_day: str) -> None:
    """Deletes copied rows of days before `first_day`, and of tables that the configuration does not name."""
    config, grace_hours = plan.config, plan.config.output.grace_hours
    used = {copies_of(config, one.table).name for one in copied_tables(plan)}
    for table in lake.tables_of_copies(config.name):
        for dt in written_dates(table):
            if table.name in used and (dt == ALL_DAYS or dt >= first_day):
                continue
            partition = table.partition(dt)
            try:
                if not is_younger(partition, grace_hours):
                    log.info("the copied rows of %s in %s are deleted: no run needs them", dt, table.path)
                    remove(partition, grace_hours)
            except (OSError, DataError) as error:
                log.warning("%s cannot be deleted, the next run tries again: %s", partition.path, error)
