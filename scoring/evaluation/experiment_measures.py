"""Compares an experiment's variants by the next day's clicks, and stops a bad experiment.

The sums of a date are stored in the table `experiments/<name>/dt=…`. The figures of the experiment are
computed from the sums of its dates up to the measured date. Dates with other models (for example, before a
promotion) or with another share are left out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.stage_types import ServingExperiment
from metrics.bootstrap import Resample, interval, reduce_means
from scoring.evaluation.measured_lists import UNITS, user_relevance
from scoring.evaluation.prediction_quality import UNIT
from scoring.feature_rows import last_published
from scoring.requests import CONTROL, TREATMENT, VARIANT
from spark.rows import Rows, map_rows, query, read_rows, records, with_hash
from storage import file_io
from storage.manifest import Manifest, is_published, read_manifest
from storage.publish import publish_rows
from storage.read_parquet import read_table
from storage.run_context import RunContext
from training.registry.served_experiments import ExperimentStop, read_stops, record_stop

log = logging.getLogger("nightrank.measure")
# Days from the date of measured lists to the first date on which they can stop the experiment. Lists are
# measured by the clicks of the next day. When this happens, the lists of the next day already exist.
_DAYS_TO_STOP = 2
_LAST_DATE = "9999-12-31"


def measure_experiment(context: RunContext, published: Manifest, clicked: Rows) -> dict[str, Any] | None:
    """Returns the figures of an experiment as JSON values.

    Returns None if the lists have only one variant, or if the configuration does not have their experiment.

    Publishes the sums of the date, and records a stop if the treatment is worse than `stop_below` allows.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        published: the manifest of the lists.
        clicked: rows with the columns user_key and item_key: the distinct items that each user clicked on the
            next day.
    """
    settings, facts = context.config.serving.experiment, published.facts.get("experiment")
    if facts is None or TREATMENT not in facts["variants"]:
        return None
    if settings is None or facts["name"] != settings.name:
        log.warning(
            "experiment %s: its lists of %s are not measured, because the configuration has no such "
            "experiment; to measure them, restore serving.experiment, and set its `end` to the last date",
            facts["name"],
            context.run_date,
        )
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
    days, left_out = _days(context, settings, published)
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
    """Returns the published lists of the run date: user_key, position, item_key and variant."""
    partition = context.lake.recommendations.partition(context.run_date)
    rows = read_rows(context, partition, published, columns=["user_id", "position", "item_id", VARIANT])
    return query(
        f"SELECT user_id AS user_key, position, item_id AS item_key, {VARIANT} FROM {{rows}}", rows=rows
    )


def _publish(
    context: RunContext, settings: ServingExperiment, published: Manifest, sums: Mapping[str, Sums]
) -> None:
    """Publishes each variant's sums for the run date. The manifest's `facts` have models and resamples."""
    table = to_table(sums)
    publish_rows(
        table,
        context.lake.experiments(settings.name).partition(context.run_date),
        inputs={"recommendations": published.digest},
        row_group_rows=context.config.output.row_group_rows,
        expected_rows=len(table),
        facts=_comparable(settings, published),
        grace_hours=context.config.output.grace_hours,
    )


def _comparable(settings: ServingExperiment, published: Manifest) -> dict[str, Any]:
    """Returns the values that must be equal for two dates, so that the dates' sums can be added.

    The manifests of lists that earlier releases made do not record the salt.
    """
    facts = published.facts["experiment"]
    models = {name: facts["variants"][name]["model_version"] for name in (CONTROL, TREATMENT)}
    return {
        "models": models,
        "replicates": settings.replicates,
        "seed": settings.seed,
        "share": facts["share"],
        "k": published.facts["k"],
        **({"salt": facts["salt"]} if "salt" in facts else {}),
    }


def _days(
    context: RunContext, settings: ServingExperiment, published: Manifest
) -> tuple[dict[str, dict[str, Sums]], list[str]]:
    """Returns the sums of the experiment's dates up to the run date, and the dates that are left out.

    The sums that earlier releases published do not record k and the salt. The function assumes the values of
    the run date for them.
    """
    table = context.lake.experiments(settings.name)
    names = (info.base_name.removeprefix("dt=") for info in file_io.list_files(table.path))
    first, comparable = settings.first_date(context.run_date), _comparable(settings, published)
    days, left_out = {}, []
    for name in sorted(name for name in names if first <= name <= context.run_date):
        partition = table.partition(name)
        if not is_published(partition):
            continue
        manifest = read_manifest(partition)
        if all(manifest.facts.get(key, value) == value for key, value in comparable.items()):
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
                "the share %g (p=%.2g). Do not trust the differences",
                settings.name,
                name,
                counts,
                share,
                p,
            )


def _stop(context: RunContext, settings: ServingExperiment, total: Mapping[str, Any]) -> str | None:
    """Returns the run date on which the experiment stops; None if it continues. Records a new stop.

    The date of a new stop is after the dates of all published lists. So a rerun of these dates makes the same
    lists. No stop is recorded on a date before `settings.resume`, because the figures of this date describe
    the experiment before it was resumed.
    """
    lake, name = context.lake, context.config.name
    for stop in read_stops(lake, name, _LAST_DATE):
        resumed = settings.resume is not None and stop.run_date <= settings.resume
        if stop.experiment == settings.name and not resumed:
            return stop.run_date
    if settings.resume is not None and context.run_date < settings.resume:
        return None
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


# The code below sums the relevance of each variant's lists, over all users and over each resample of them.
#
# The weight of a user in a resample depends only on the seed and on the user. So the sums of several days can
# be added, and each resample of the total contains all days of a sampled user. The sums are integers, so
# tasks and the order of rows do not change them.

# These values of each user are summed: 1 if the user clicked, 1 if a clicked item is in the list, NDCG, and
# the reciprocal rank of the first hit. NDCG and reciprocal rank are in units of 2⁻³², and 0 for users without
# a click.
VALUES = ("clicked", "hit", "ndcg", "reciprocal_rank")
WEIGHT = "users"
SUMS = (WEIGHT, *VALUES)
_PARTIAL = pa.schema([(VARIANT, pa.string()), *((name, pa.list_(pa.int64())) for name in SUMS)])

# Maps each name in the tuple SUMS to an int64 array (1 + replicates,): the sum over all users, then the sum
# over each resample.
Sums = Mapping[str, NDArray[np.int64]]


def sum_variants(lists: Rows, positives: Rows, k: int, resample: Resample) -> dict[str, Sums]:
    """Returns the sums of each variant that has a list.

    Args:
        lists: rows with the columns user_key, position, item_key and variant, one row per list entry.
        positives: rows with the columns user_key and item_key: the distinct items that each user clicked
            after the lists were made.
        k: maximum length of a list.
        resample: the number of resamples of the users, and the seed.
    """
    first_hits = query(
        """
        SELECT lists.user_key, min(position) AS first_hit
        FROM {lists} AS lists JOIN {positives} AS positives
            ON positives.user_key = lists.user_key AND positives.item_key = lists.item_key
        GROUP BY lists.user_key
        """,
        lists=lists,
        positives=positives,
    )
    users = query(
        f"SELECT user_key, min({VARIANT}) AS {VARIANT} FROM {{lists}} GROUP BY user_key", lists=lists
    )
    rows = query(
        f"""
        SELECT {UNIT}, {VARIANT},
            CAST(CASE WHEN hits IS NULL THEN 0 ELSE 1 END AS BIGINT) AS clicked,
            CAST(CASE WHEN hits > 0 THEN 1 ELSE 0 END AS BIGINT) AS hit,
            coalesce(ndcg_units, CAST(0 AS BIGINT)) AS ndcg,
            CASE WHEN first_hit IS NULL THEN CAST(0 AS BIGINT)
                ELSE CAST(round({UNITS} / CAST(first_hit AS DOUBLE)) AS BIGINT) END AS reciprocal_rank
        FROM {{users}} AS users
        LEFT JOIN {{relevance}} AS relevance ON relevance.user_key = users.user_key
        LEFT JOIN {{first_hits}} AS first_hits ON first_hits.user_key = users.user_key
        """,
        users=with_hash(users, "user_key", UNIT),
        relevance=user_relevance(lists, positives, k),
        first_hits=first_hits,
    )
    totals: dict[str, dict[str, NDArray[np.int64]]] = {}
    for partial in records(map_rows(rows, _reducer(resample), _PARTIAL)):
        sums = {name: np.array(partial[name], np.int64) for name in SUMS}
        known = totals.get(partial[VARIANT])
        totals[partial[VARIANT]] = {name: sums[name] + known[name] for name in SUMS} if known else sums
    return {variant: totals[variant] for variant in sorted(totals)}


def _reducer(
    resample: Resample,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the users of one task to one row for each variant."""

    def reduce_users(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        variant = np.array(rows.column(VARIANT).to_pylist())
        units = rows.column(UNIT).to_numpy()
        values = {name: rows.column(name).to_numpy() for name in VALUES}
        for name in np.unique(variant):
            chosen = variant == name
            of_variant = {value: column[chosen] for value, column in values.items()}
            sums = reduce_means(units[chosen], of_variant, resample)
            row = {VARIANT: str(name), WEIGHT: [int(chosen.sum()), *sums["weights"]]}
            row |= {value: [int(column.sum()), *sums[value]] for value, column in of_variant.items()}
            yield pa.RecordBatch.from_pylist([row], schema=_PARTIAL)

    return reduce_users


def add_days(days: Sequence[Mapping[str, Sums]]) -> dict[str, Sums]:
    """Returns the sums over several days. A variant without users on a day adds nothing on this day."""
    variants = {variant for day in days for variant in day}
    return {
        variant: {
            name: np.sum([day[variant][name] for day in days if variant in day], axis=0) for name in SUMS
        }
        for variant in sorted(variants)
    }


def to_table(sums: Mapping[str, Sums]) -> pa.Table:
    """Returns sums as a table with one row for each variant and replicate. Replicate 0 has all users."""
    parts = []
    for variant, of_variant in sums.items():
        length = len(of_variant[WEIGHT])
        columns = [pa.repeat(pa.scalar(variant, pa.string()), length), pa.array(range(length), pa.int32())]
        columns += [pa.array(of_variant[name], pa.int64()) for name in SUMS]
        parts.append(pa.Table.from_arrays(columns, [VARIANT, "replicate", *SUMS]))
    return pa.concat_tables(parts)


def from_table(table: pa.Table) -> dict[str, Sums]:
    """Returns the sums of a table that `to_table` returned."""
    ordered = table.sort_by([(VARIANT, "ascending"), ("replicate", "ascending")])
    variant = np.array(ordered.column(VARIANT).to_pylist())
    columns = {name: ordered.column(name).to_numpy() for name in SUMS}
    return {
        str(name): {value: column[variant == name] for value, column in columns.items()}
        for name in np.unique(variant)
    }


# The code below compares the variants of an experiment, and decides whether the experiment must stop.

# Maps each measure to its numerator, its denominator, and the number of units that represent 1.
_RATIOS = {
    "hit_rate": ("hit", "clicked", 1),
    "ndcg": ("ndcg", "clicked", UNITS),
    "mrr": ("reciprocal_rank", "clicked", UNITS),
    "hit_user_share": ("hit", WEIGHT, 1),
}
DECISIVE = "ndcg"
MISMATCH_P = 0.001


def compare_variants(sums: Mapping[str, Sums], confidence: float) -> dict[str, Any]:
    """Returns the figures of each variant, and the differences between treatment and control.

    Args:
        sums: the sums of each variant (`sum_variants`).
        confidence: the confidence of the intervals.

    Returns:
        A dictionary of JSON values with these keys:
        - `variants`: maps each variant to `users`, `clicked` (users with a click), `hit_rate`, `ndcg` and
          `mrr` (means over the users with a click), and `hit_user_share` (share of all users who clicked an
          item of their list). A mean over no users is None.
        - `differences`: maps each measure to `difference`, `low` and `high`, and to the same figures of the
          relative difference, (treatment - control) / control. A measure without an interval is left out.
    """
    figures = {variant: _figures(of_variant) for variant, of_variant in sums.items()}
    differences = {}
    if CONTROL in figures and TREATMENT in figures:
        for measure in _RATIOS:
            ours, theirs = figures[TREATMENT][measure], figures[CONTROL][measure]
            absolute = _interval(ours, theirs, confidence)
            if absolute is not None:
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio = ours / theirs
                relative = _interval(ratio, np.ones_like(ratio), confidence) or {}
                differences[measure] = {
                    **absolute,
                    **{f"relative_{name}": relative.get(name) for name in ("difference", "low", "high")},
                }
    return {
        "variants": {
            variant: {
                "users": int(sums[variant][WEIGHT][0]),
                "clicked": int(sums[variant]["clicked"][0]),
                **{measure: _number(values[0]) for measure, values in of_variant.items()},
            }
            for variant, of_variant in figures.items()
        },
        "differences": differences,
    }


def _figures(sums: Sums) -> dict[str, NDArray[np.float64]]:
    """Maps each measure to its values for all users and for each resample, (1 + replicates,).

    A measure without users is NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            measure: sums[above] / (sums[below].astype(np.float64) * units)
            for measure, (above, below, units) in _RATIOS.items()
        }


def _interval(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], confidence: float
) -> dict[str, float] | None:
    """Returns the difference of two measures (1 + replicates,) with its interval; None if it is undefined."""
    difference = float(ours[0] - theirs[0])
    between = interval(difference, ours[1:], theirs[1:], confidence) if np.isfinite(difference) else None
    if between is None:
        return None
    return {"difference": difference, "low": between.low, "high": between.high}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def sample_ratios(figures: Mapping[str, Any], share: float) -> dict[str, float | None]:
    """Returns the p-values of the test for a sample ratio mismatch, for all users and for users with a click.

    Args:
        figures: the result of `compare_variants` for one day.
        share: the share of the treatment.
    """
    control, treatment = (figures["variants"].get(variant, {}) for variant in (CONTROL, TREATMENT))
    return {
        name: sample_ratio_p(control.get(name, 0), treatment.get(name, 0), share)
        for name in ("users", "clicked")
    }


def stop_reason(settings: ServingExperiment, total: Mapping[str, Any]) -> str | None:
    """Returns the reason why an experiment must stop; None if it may continue.

    Args:
        settings: the section `serving.experiment`.
        total: the result of `compare_variants` for all days of the experiment.
    """
    decisive = total["differences"].get(DECISIVE)
    if settings.stop_below is None or decisive is None or decisive["relative_high"] is None:
        return None
    fewest = min(variant["clicked"] for variant in total["variants"].values())
    if fewest < settings.min_users or decisive["relative_high"] >= settings.stop_below:
        return None
    return (
        f"NDCG of the treatment differs from that of the control by {decisive['relative_difference']:+.1%}; "
        f"the {settings.confidence:.0%} interval, {decisive['relative_low']:+.1%} to "
        f"{decisive['relative_high']:+.1%}, is below stop_below={settings.stop_below:g}"
    )


# The code below tests for a sample ratio mismatch: whether the sizes of two groups fit the chosen share.
#
# A. Fabijan et al., Diagnosing Sample Ratio Mismatch in Online Controlled Experiments, KDD 2019.


def sample_ratio_p(control: int, treatment: int, share: float) -> float | None:
    """Returns the p-value of Pearson's chi-square test of two counts, with one degree of freedom.

    A small value means that a random assignment with this share is unlikely to give these counts.

    Args:
        control, treatment: number of units in each group.
        share: the chosen share of the treatment, above 0 and below 1.

    Returns:
        The p-value; None if both groups are empty.
    """
    total = control + treatment
    if not total:
        return None
    expected = total * share
    statistic = (treatment - expected) ** 2 / (expected * (1 - share))
    return math.erfc(math.sqrt(statistic / 2))
