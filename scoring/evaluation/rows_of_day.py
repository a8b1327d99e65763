"""Chooses the rows on which lists and models are measured: rows on which no model was trained.

`rows_of_day` and `new_rows_of_day` read the users, items and labels of one day, for example of the day after
the lists. `learned_rows` finds test rows on which a model was trained, in a log that is not stored by day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from conf.load import config_digest
from conf.messages import counted
from conf.types import SPLITS
from etl.build import current_features, feature_inputs
from etl.passes import digests_of_earlier_days, read_clicks
from etl.raw.files import RawFiles, require_raw
from etl.workflow.feature_plan import plan_of
from scoring.candidates.clicks import CLICK_COLUMNS, within
from scoring.evaluation.gate import GateCheck
from scoring.feature_rows import read_split
from scoring.model.model_info import ModelInfo
from spark.choose_workers import workers_of
from spark.rows import ReadableRows, Rows, count, query, read_rows, records
from storage.dataset import Dataset, read_dataset
from storage.feature_spec import EVENT_TIME
from storage.manifest import Manifest, is_published, read_manifest
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
    rows of this day, for example if the run started after midnight. These rows are left out, because the
    model and the candidates may have been computed from them. A row belongs to the local day of its
    event_time. If the log has no event_time, the result is empty, because it is unknown which rows are later.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
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
    """Returns the partition and the manifest of the published features of a day.

    The workflow of that day's dataset has computed them. Returns None if no features are published, or if
    they were computed from another log or by other settings.
    """
    plan, lake = plan_of(context.config), context.lake
    if plan.is_divided or not is_published(lake.datasets.partition(raw.dt)):
        return None
    version = read_dataset(lake, raw.dt).workflow_version
    partition = lake.features(version).partition(raw.dt)
    earlier = digests_of_earlier_days(workers_of(context), plan, lake)
    manifest = current_features(partition, feature_inputs(plan, raw, version, earlier))
    return None if manifest is None else (partition, manifest)


# The code below finds test rows on which a model was trained, in a log that is not stored by day.
#
# Each run divides the whole log again. If `split` changes, or if rows with earlier times arrive, the test
# split may begin before the end of the train split of an earlier run.

LEARNED = "held_out"  # name of the check that finds test rows on which a model was trained
_RESTORE = "restore the `split` with which the model was trained, or pin the challenger (champion.py --pin)"


def learned_rows(
    context: RunContext, dataset: Dataset, models: Sequence[ModelInfo]
) -> tuple[int | None, list[GateCheck]]:
    """Returns the event time (µs) after which test rows are new to all models, and a check.

    The time is None if all test rows are measured. The check reports test rows on which a model may have been
    trained; without such rows, there is no check. In two cases, all test rows are kept, and the check has the
    level `hold`. First, no test row is new. Second, the times of the training rows are unknown, and the
    section `split` has changed since the training. For a log that is stored by day, the result is
    `(None, [])`.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        dataset: the splits that build_features published for the run date.
        models: the challenger and, if there is one, the champion.
    """
    config = context.config
    if config.log.by_day:
        return None, []
    until: dict[str, int] = {}
    for role, model in zip(("challenger", "champion"), models, strict=False):
        named, trained = f"the {role} {model.version}", model.description.get("trained_rows")
        if trained is None or trained["until"] is None or config.log.event_time is None:
            if reason := _other_split(context, model, trained):
                message = f"{named} may have been trained on test rows, because {reason}: {_RESTORE}"
                return None, [GateCheck(LEARNED, "hold", message)]
        # Each user's test row is later than the user's train rows.
        elif not trained["by"] == config.split.by == "leave_last_out":
            until[named] = trained["until"]
    if not until:
        return None, []
    last = max(until.values())
    rows = read_split(context, dataset, ["test"], [EVENT_TIME])
    total, left = count(query("SELECT 1 AS one FROM {rows}", rows=rows)), count(rows_after(rows, last))
    if left == total:
        return None, []
    known = " and ".join(named for named, time in until.items() if time == last)
    message = f"{known} was trained on rows until {np.datetime64(last, 'us')}Z, so {total - left:,} of "
    message += f"{counted(total, 'test row')} may be among its training rows"
    if not left:
        message += f", and no test row is left for the comparison: {_RESTORE}"
        return None, [GateCheck(LEARNED, "hold", message)]
    return last, [GateCheck(LEARNED, "warn", f"{message}; the gate measures only the later rows")]


def rows_after(rows: ReadableRows, time: int | None) -> ReadableRows:
    """Returns the rows with a later event time (µs); all rows if `time` is None."""
    return rows if time is None else query(f"SELECT * FROM {{rows}} WHERE {EVENT_TIME} > {time}", rows=rows)


def _other_split(context: RunContext, model: ModelInfo, trained: Mapping[str, Any] | None) -> str | None:
    """Returns the reason why a model may have been trained on test rows; None if there is no reason.

    The function is for models whose last event time is unknown. A model.json of an earlier release does not
    describe the split. Then the function compares digests of the section `split`: the present digest, and the
    one in the manifest of the features with which the model was trained. If these features no longer exist,
    the result is None.
    """
    split = context.config.split
    if trained is None:
        table = context.lake.features(model.spec.workflow_version)
        partition = table.partition(model.description["run_date"])
        digest = config_digest(context.config, "split")
        if not is_published(partition) or read_manifest(partition).inputs.get("shares", digest) == digest:
            return None
        return "the section `split` has changed since it was trained"
    if trained["by"] != split.by:
        return f"it was trained with split.by={trained['by']}, and split.by is now {split.by}"
    begin = Fraction(str(split.train)) + Fraction(str(split.validation))
    if split.by == "leave_last_out" or begin >= Fraction(str(trained["train"])):
        return None
    return (
        f"its train split was the first {trained['train']:.0%} of the rows, and the test split now begins "
        f"after the first {float(begin):.0%}"
    )
