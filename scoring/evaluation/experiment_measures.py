"""Compares the variants of an experiment by the clicks after its lists, and stops it if a guard rail says so.

The sums of a date are the table `experiments/<name>/dt=…`. The figures of the experiment add the sums of its
dates up to the measured one. They leave out dates with other models, for example before a promotion, or with
another share.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from conf.serving_types import ServingExperiment
from metrics.bootstrap import Resample
from scoring.evaluation.variant_figures import MISMATCH_P, compare_variants, sample_ratios, stop_reason
from scoring.evaluation.variant_sums import Sums, add_days, from_table, sum_variants, to_table
from scoring.inputs.list_tables import last_published
from scoring.inputs.requests import CONTROL, TREATMENT, VARIANT
from spark.rows import Rows, query, read_rows
from storage import file_io
from storage.manifest import Manifest, is_published, read_manifest
from storage.parquet_files import read_table
from storage.publish_rows import publish_rows
from storage.run_context import RunContext
from training.registry.served_experiments import ExperimentStop, read_stops, record_stop

log = logging.getLogger("nightrank.measure")

_DAYS_TO_STOP = 2  # the lists of the day after were made before the clicks of that day were compared
_LAST_DATE = "9999-12-31"


def measure_experiment(context: RunContext, published: Manifest, clicked: Rows) -> dict[str, Any] | None:
    """Returns the figures of an experiment as JSON values; None if the lists have only one variant.

    Publishes the sums of the date, and records a stop if the guard rail of `stop_below` is crossed.

    Args:
        context: the context of the run.
        published: the manifest of the lists.
        clicked: rows with the columns user_key and item_key: the distinct items that each user clicked on the
            day after.
    """
    settings, facts = context.config.serving.experiment, published.facts.get("experiment")
    if settings is None or facts is None or facts["name"] != settings.name:
        return None
    if TREATMENT not in facts["variants"]:
        return None
    resample = Resample(settings.replicates, settings.seed)
    with context.phase("experiment"):
        sums = sum_variants(_lists(context, published), clicked, published.facts["k"], resample)
        _publish(context, settings, published, sums)
    day = compare_variants(sums, settings.confidence)
    for variant, figures in day["variants"].items():
        figures |= facts["variants"][variant]
        figures["coverage"] = figures["items_recommended"] / published.facts["items"]
    ratios = sample_ratios(day, facts["share"])
    _warn_of_mismatch(settings, day, ratios, facts["share"])
    days, left_out = _days(context, settings, facts)
    total = compare_variants(add_days(list(days.values())), settings.confidence)
    return {
        "name": settings.name,
        "share": facts["share"],
        "confidence": settings.confidence,
        **day,
        "sample_ratio_p": ratios,
        "total": {"days": list(days), "left_out": left_out, **total},
        "stops_on": _stop(context, settings, total),
    }


def _lists(context: RunContext, published: Manifest) -> Rows:
    """Returns the lists with the columns user_key, position, item_key and variant."""
    partition = context.lake.recommendations.partition(context.run_date)
    rows = read_rows(context, partition, published, columns=["user_id", "position", "item_id", VARIANT])
    return query(
        f"SELECT user_id AS user_key, position, item_id AS item_key, {VARIANT} FROM {{rows}}", rows=rows
    )


def _publish(
    context: RunContext, settings: ServingExperiment, published: Manifest, sums: Mapping[str, Sums]
) -> None:
    """Publishes the sums of the date, with the models and the resamples as facts."""
    table = to_table(sums)
    publish_rows(
        table,
        context.lake.experiments(settings.name).partition(context.run_date),
        inputs={"recommendations": published.digest},
        row_group_rows=context.config.output.row_group_rows,
        expected_rows=len(table),
        facts=_comparable(settings, published.facts["experiment"]),
        grace_hours=context.config.output.grace_hours,
    )


def _comparable(settings: ServingExperiment, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what two dates must have in common, so that their sums can be added."""
    models = {name: facts["variants"][name]["model_version"] for name in (CONTROL, TREATMENT)}
    return {
        "models": models,
        "replicates": settings.replicates,
        "seed": settings.seed,
        "share": facts["share"],
    }


def _days(
    context: RunContext, settings: ServingExperiment, facts: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Sums]], list[str]]:
    """Returns the sums of the experiment's dates up to the run date, and the dates that are left out."""
    table = context.lake.experiments(settings.name)
    names = (info.base_name.removeprefix("dt=") for info in file_io.list_files(table.path))
    first, comparable = settings.first_date(context.run_date), _comparable(settings, facts)
    days, left_out = {}, []
    for name in sorted(name for name in names if first <= name <= context.run_date):
        partition = table.partition(name)
        if not is_published(partition):
            continue
        manifest = read_manifest(partition)
        if {key: manifest.facts.get(key) for key in comparable} == comparable:
            days[name] = from_table(read_table(partition, manifest))
        else:
            left_out.append(name)
    return days, left_out


def _warn_of_mismatch(
    settings: ServingExperiment, day: Mapping[str, Any], ratios: Mapping[str, float | None], share: float
) -> None:
    for name, p in ratios.items():
        if p is not None and p < MISMATCH_P:
            counts = {variant: figures[name] for variant, figures in day["variants"].items()}
            log.warning(
                "experiment %s: sample ratio mismatch: the numbers of users (%s) are %s, which do not fit "
                "the share %g (p=%.2g): do not trust the differences",
                settings.name,
                name,
                counts,
                share,
                p,
            )


def _stop(context: RunContext, settings: ServingExperiment, total: Mapping[str, Any]) -> str | None:
    """Returns the run date on which the experiment stops; None if it goes on. Records a new stop.

    A new stop is later than all published lists, so a rerun of their dates makes the same lists.
    """
    lake, name = context.lake, context.config.name
    for stop in read_stops(lake, name, _LAST_DATE):
        resumed = settings.resume is not None and stop.run_date <= settings.resume
        if stop.experiment == settings.name and not resumed:
            return stop.run_date
    reason = stop_reason(settings, total)
    if reason is None:
        return None
    newest = last_published(lake, _LAST_DATE)
    dates = [_later(context.run_date, _DAYS_TO_STOP), *([_later(newest.dt, 1)] if newest else [])]
    record_stop(lake, name, ExperimentStop(max(dates), settings.name, reason, dict(total), file_io.utc_now()))
    log.warning("experiment %s stops on %s: %s", settings.name, max(dates), reason)
    return max(dates)


def _later(day: str, days: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()
