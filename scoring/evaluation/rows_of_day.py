"""Reads users, items and labels from the log of one day, for example the day after the lists."""

from __future__ import annotations

from conf.types import SPLITS
from etl.build import current_features, feature_inputs
from etl.passes import digests_of_earlier_days, read_clicks
from etl.raw.files import RawFiles, require_raw
from etl.workflow.feature_plan import plan_of
from scoring.candidates.clicks import CLICK_COLUMNS, within
from scoring.feature_rows import read_split
from spark.choose_workers import workers_of
from spark.rows import Rows, query, read_rows, records
from storage.dataset import Dataset, read_dataset
from storage.feature_spec import EVENT_TIME
from storage.manifest import Manifest, is_published
from storage.paths import Partition
from storage.run_context import RunContext


def rows_of_day(context: RunContext, day: str) -> Rows:
    """Returns user_key, item_key and label of each row of a day's log that can be parsed.

    The log is stored by day. If build_features has published the features of this log, the function reads
    them, because parsing the log takes longer. The features include rows with the label 0 that the section
    `negatives` added.

    Raises:
        DataError: the day has no raw log.
    """
    raw = require_raw(context.config, context.config.log, day, recorder=context.recorder)
    published = _published_features(context, raw)
    if published is not None:
        return read_rows(context, *published, columns=CLICK_COLUMNS)
    return read_clicks(workers_of(context), plan_of(context.config), raw)


def new_rows_of_day(context: RunContext, dataset: Dataset, day: str) -> Rows:
    """Returns user_key, item_key and label of the rows of a day that are later than all rows of a dataset.

    The function is for a log whose path has no date, so that each run reads all rows. The dataset may contain
    rows of this day, for example if the run started after midnight. They do not measure lists, because the
    model and the candidates may have been computed from them. A row belongs to the local day of its
    event_time. If the log has no event_time, no row is known to be later.

    Args:
        context: the context of the run.
        dataset: the dataset of the run date.
        day: a day after the run date.

    Raises:
        DataError: there is no raw log.
    """
    log = context.config.log
    if log.event_time is None:
        return query(
            "SELECT * FROM {rows} WHERE false", rows=read_split(context, dataset, SPLITS, CLICK_COLUMNS)
        )
    known = read_split(context, dataset, SPLITS, [EVENT_TIME])
    (last,) = records(query(f"SELECT max({EVENT_TIME}) AS time FROM {{rows}}", rows=known))
    raw = require_raw(context.config, log, day, recorder=context.recorder)
    rows = read_clicks(workers_of(context), plan_of(context.config), raw, times=True)
    return query(
        f"SELECT {', '.join(CLICK_COLUMNS)} FROM {{rows}} WHERE {EVENT_TIME} > {last['time']}",
        rows=within(rows, 1, day, log.time_zone),
    )


def _published_features(context: RunContext, raw: RawFiles) -> tuple[Partition, Manifest] | None:
    """Returns the partition and the manifest of a day's features, by the workflow of that day's dataset.

    Returns None if no features are published, or if they were computed from another log or by other settings.
    """
    plan, lake = plan_of(context.config), context.lake
    if plan.is_divided or not is_published(lake.datasets.partition(raw.dt)):
        return None
    version = read_dataset(lake, raw.dt).workflow_version
    partition = lake.features(version).partition(raw.dt)
    earlier = digests_of_earlier_days(workers_of(context), plan, lake)
    manifest = current_features(partition, feature_inputs(plan, raw, version, earlier))
    return None if manifest is None else (partition, manifest)
