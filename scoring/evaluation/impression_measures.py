"""Compares the log of impressions with the published lists, and with the clicks of the same day.

An impression is a distinct row of the log: repeated rows with the same user, item, position, variant and
model version count once. An impression fits a list if the user's list has the same item at the same position,
and if the same model made this list for the same variant. Each other impression is counted under the first
reason of `REASONS` that is true for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.list_types import RuleSettings
from conf.load import config_digest
from conf.messages import counted
from conf.stage_types import Impressions
from conf.types import Config
from etl.raw.files import RawFiles, find_raw, raw_path
from etl.readers.impressions import ERROR, read_impressions, unreadable
from metrics.bootstrap import Resample, draw_weights, interval, reduce_means
from scoring.evaluation.prediction_quality import UNIT
from scoring.requests import VARIANT
from scoring.rules.request import EXPLORE
from spark.choose_workers import workers_of
from spark.rows import Rows, map_rows, persist, query, read_rows, records, unpersist, with_hash, with_value
from storage.manifest import Manifest
from storage.run_context import RunContext

log = logging.getLogger("nightrank.measure")
REASONS = ("invalid", "user", "model_version", "variant", "item", "position")
_FITS = "fits"


def find_impressions(context: RunContext) -> RawFiles | None:
    """Returns the impression log of the day after the run date; None if it is not configured or has no file.

    Logs a warning if a log is configured, but has no file of this day.
    """
    settings = context.config.serving.impressions
    if settings is None:
        return None
    day = (date.fromisoformat(context.run_date) + timedelta(days=1)).isoformat()
    raw = find_raw(context.config, settings, day, context.recorder)
    if raw is None:
        pattern = raw_path(context.config, settings, day)
        log.warning(
            "impressions: there is no file at %s, so the list entries that were shown are not measured",
            pattern,
        )
    return raw


def measure_impressions(
    context: RunContext, published: Manifest, clicked: Rows, raw: RawFiles | None
) -> dict[str, Any] | None:
    """Returns the figures of the list entries that were shown, as JSON values; None without a log.

    Args:
        context: the run's configuration, lake, run date and Spark session.
        published: the manifest of the lists.
        clicked: rows with the columns user_key and item_key: the distinct items that each user clicked on the
            next day.
        raw: the result of `find_impressions`.

    Raises:
        DataError: a file of the log cannot be read.
    """
    settings = context.config.serving.impressions
    if settings is None or raw is None:
        return None
    k, has_variants = published.facts["k"], VARIANT in dict(published.schema)
    with context.phase("impressions"):
        lists = persist(_lists(context, published, has_variants))
        logged = read_impressions(workers_of(context), context.config, raw)
        fits = persist(_compare(logged, lists, settings, has_variants))
        counts = {row["fit"]: row for row in records(_counts(fits))}
        _require_readable(counts)
        shown = persist(_shown(fits, clicked))
        facts = {
            "day": raw.dt,
            **_matches(counts),
            **_shares(lists, shown, clicked),
            "confidence": settings.confidence,
            "variants": click_rates(shown, k, settings),
        }
        rules = context.config.score.rules
        if rules is not None and "exploration" in rules.configured:
            unknown = why_unknown(context.config, published)
            estimate = {"reason": unknown} if unknown else estimate_explored(lists, shown, settings)
            facts["explored"] = estimate
        for rows in (lists, fits, shown):
            unpersist(rows)
    _warn_of_unmatched(settings, facts)
    return facts


def _lists(context: RunContext, published: Manifest, has_variants: bool) -> Rows:
    """Returns the lists: user_key, position, item_key, score, reason, model_version and variant.

    If the lists have no variants, `variant` is `all`.
    """
    partition = context.lake.recommendations.partition(context.run_date)
    columns = ["user_id", "position", "item_id", "score", "reason", "model_version"]
    columns += [VARIANT] if has_variants else []
    rows = read_rows(context, partition, published, columns=columns)
    rows = rows if has_variants else with_value(rows, VARIANT, ALL)
    return query(
        "SELECT user_id AS user_key, CAST(position AS BIGINT) AS position, item_id AS item_key, "
        f"score, reason, model_version, {VARIANT} FROM {{rows}}",
        rows=rows,
    )


def _compare(logged: Rows, lists: Rows, settings: Impressions, has_variants: bool) -> Rows:
    """Returns the distinct impressions, with the columns `times` and `fit`.

    `times` is the number of log rows of the impression. `fit` is `fits` or one of `REASONS`.
    """
    distinct = query(
        f"""
        SELECT user_key, item_key, position, logged_variant, logged_version, {ERROR}, count(*) AS times
        FROM {{logged}}
        GROUP BY user_key, item_key, position, logged_variant, logged_version, {ERROR}
        """,
        logged=logged,
    )
    users = query(
        f"""
        SELECT user_key, min(model_version) AS model_version, min({VARIANT}) AS {VARIANT}
        FROM {{lists}} GROUP BY user_key
        """,
        lists=lists,
    )
    reasons = ["WHEN users.user_key IS NULL THEN 'user'"]
    for column, logged_as, compared in (
        ("model_version", "logged_version", settings.model_version is not None),
        (VARIANT, "logged_variant", settings.variant is not None and has_variants),
    ):
        if compared:
            reasons.append(
                f"WHEN logged.{logged_as} IS NULL OR logged.{logged_as} <> users.{column} THEN '{column}'"
            )
    return query(
        f"""
        SELECT logged.user_key, logged.item_key, logged.position, {ERROR}, times, users.{VARIANT},
            CASE WHEN logged.user_key IS NULL OR logged.item_key IS NULL OR logged.position IS NULL
                THEN 'invalid'
            {" ".join(reasons)}
            WHEN lists.item_key IS NULL THEN 'item'
            WHEN lists.position <> logged.position THEN 'position'
            ELSE '{_FITS}' END AS fit
        FROM {{logged}} AS logged
        LEFT JOIN {{users}} AS users ON users.user_key = logged.user_key
        LEFT JOIN {{lists}} AS lists
            ON lists.user_key = logged.user_key AND lists.item_key = logged.item_key
        """,
        logged=distinct,
        users=users,
        lists=lists,
    )


def _counts(fits: Rows) -> Rows:
    """Returns the numbers of impressions and of log rows for each value of `fit`.

    The row of `invalid` also has the error of an unreadable file, if there is one.
    """
    return query(
        f"""
        SELECT fit, count(*) AS impressions, CAST(sum(times) AS BIGINT) AS logged, min({ERROR}) AS {ERROR}
        FROM {{fits}} GROUP BY fit
        """,
        fits=fits,
    )


def _require_readable(counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises DataError if a file could not be read.

    The reader returns a row with the error and without a user for such a file, so its `fit` is `invalid`.
    """
    error = counts.get("invalid", {}).get(ERROR)
    if error is not None:
        raise unreadable(error)


def _matches(counts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Counts rows and impressions, and for each reason the impressions that fit no list for this reason."""
    impressions = sum(row["impressions"] for row in counts.values())
    unmatched = {reason: counts[reason]["impressions"] for reason in REASONS if reason in counts}
    rows = sum(row["logged"] for row in counts.values())
    return {
        "rows": rows,
        "repeated": rows - impressions,
        "impressions": impressions,
        "unmatched": unmatched,
        "unmatched_share": sum(unmatched.values()) / impressions if impressions else None,
    }


def _shown(fits: Rows, clicked: Rows) -> Rows:
    """Returns the list entries that were shown, with the hash of the user and whether they were clicked."""
    entries = query(
        f"""
        SELECT user_key, item_key, position, min({VARIANT}) AS {VARIANT}
        FROM {{fits}} WHERE fit = '{_FITS}' GROUP BY user_key, item_key, position
        """,
        fits=fits,
    )
    joined = query(
        f"""
        SELECT entries.user_key, entries.item_key, position, {VARIANT},
            CAST(CASE WHEN clicked.user_key IS NULL THEN 0 ELSE 1 END AS BIGINT) AS clicked
        FROM {{entries}} AS entries LEFT JOIN {{clicked}} AS clicked
            ON clicked.user_key = entries.user_key AND clicked.item_key = entries.item_key
        """,
        entries=entries,
        clicked=clicked,
    )
    return with_hash(joined, "user_key", UNIT)


def _shares(lists: Rows, shown: Rows, clicked: Rows) -> dict[str, Any]:
    """Counts the users who have a list and those with a shown entry, and counts entries of lists.

    The entries are counted three times: all entries, the shown entries, and those that were clicked but not
    shown.
    """
    (of_lists,) = records(
        query("SELECT count(*) AS entries, count(DISTINCT user_key) AS users FROM {lists}", lists=lists)
    )
    (of_shown,) = records(
        query(
            """
            SELECT count(*) AS entries, count(DISTINCT user_key) AS users,
                CAST(coalesce(sum(clicked), 0) AS BIGINT) AS clicked
            FROM {shown}
            """,
            shown=shown,
        )
    )
    (hits,) = records(
        query(
            """
            SELECT count(*) AS entries FROM {lists} AS lists JOIN {clicked} AS clicked
                ON clicked.user_key = lists.user_key AND clicked.item_key = lists.item_key
            """,
            lists=lists,
            clicked=clicked,
        )
    )
    return {
        "users": of_lists["users"],
        "users_shown": of_shown["users"],
        "entries": of_lists["entries"],
        "entries_shown": of_shown["entries"],
        "clicked_not_shown": hits["entries"] - of_shown["clicked"],
    }


def _warn_of_unmatched(settings: Impressions, facts: Mapping[str, Any]) -> None:
    share = facts["unmatched_share"]
    if share is not None and share > settings.max_unmatched_share:
        log.warning(
            "impressions: %d of %d impressions of %s fit no list (%s). This share is above "
            "serving.impressions.max_unmatched_share=%g",
            sum(facts["unmatched"].values()),
            facts["impressions"],
            facts["day"],
            ", ".join(f"{reason}: {number}" for reason, number in facts["unmatched"].items()),
            settings.max_unmatched_share,
        )


# The code below computes click rates of shown list entries by position, with intervals.
#
# The click rate of a position is the number of its list entries that were shown and clicked, divided by the
# number of its shown entries. A bootstrap over users gives the interval (metrics.bootstrap).

ALL = "all"  # the key of the click rates over all variants
_SUMS = ("shown", "clicked")
_RATES_PARTIAL = pa.schema([(VARIANT, pa.string()), *((name, pa.list_(pa.int64())) for name in _SUMS)])

# Maps each name of _SUMS to an int64 array with the shape (1 + replicates, k). Row 0 has the sums over all
# users for each of the k positions, and each other row has the sums over one resample.
Sums = Mapping[str, NDArray[np.int64]]


def click_rates(shown: Rows, k: int, settings: Impressions) -> dict[str, Any]:
    """Returns the click rates of each variant and of all variants together, in total and by position.

    Args:
        shown: the entries that were shown: position, variant, `clicked` (0 or 1) and the hash of the user.
        k: maximum length of a list.
        settings: the section `serving.impressions`.
    """
    resample = Resample(settings.replicates, settings.seed)
    totals: dict[str, dict[str, NDArray[np.int64]]] = {}
    for partial in records(map_rows(shown, _rates_reducer(k, resample), _RATES_PARTIAL)):
        sums = {name: np.array(partial[name], np.int64).reshape(-1, k) for name in _SUMS}
        for variant in {partial[VARIANT], ALL}:
            known = totals.get(variant)
            totals[variant] = {name: sums[name] + known[name] for name in _SUMS} if known else sums
    return {
        variant: {
            **_rate({name: totals[variant][name].sum(axis=1) for name in _SUMS}, settings.confidence),
            "positions": [
                {
                    "position": place + 1,
                    **_rate({name: totals[variant][name][:, place] for name in _SUMS}, settings.confidence),
                }
                for place in range(k)
            ],
        }
        for variant in sorted(totals)
    }


def _rates_reducer(
    k: int, resample: Resample
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the entries of one task to one row for each variant."""

    def reduce_entries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        variant = np.array(rows.column(VARIANT).to_pylist())
        units, entry_user = np.unique(rows.column(UNIT).to_numpy(), return_inverse=True)  # (m,), (n,)
        place = rows.column("position").to_numpy() - 1
        clicked = rows.column("clicked").to_numpy() == 1
        for name in np.unique(variant):
            chosen = {"shown": variant == name, "clicked": (variant == name) & clicked}
            row: dict[str, Any] = {VARIANT: str(name)}
            for value, of_value in chosen.items():
                places, users = place[of_value], entry_user[of_value]
                sums = [np.bincount(places, minlength=k)]
                for weights in draw_weights(units, resample):  # float64 sums of integers are exact
                    sums.append(np.bincount(places, weights[users], minlength=k).astype(np.int64))
                row[value] = np.concatenate(sums)
            yield pa.RecordBatch.from_pylist([row], schema=_RATES_PARTIAL)

    return reduce_entries


def _rate(sums: Sums, confidence: float) -> dict[str, Any]:
    """Returns the click rate with its interval; both are None if nothing was shown.

    The sums have the shape (1 + replicates,): the sum over all users, then one sum for each resample.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = sums["clicked"] / sums["shown"]
    rate = float(rates[0]) if np.isfinite(rates[0]) else None
    between = None if rate is None else interval(rate, rates[1:], np.zeros(len(rates) - 1), confidence)
    return {
        "shown": int(sums["shown"][0]),
        "clicked": int(sums["clicked"][0]),
        "click_rate": rate,
        "low": between and between.low,
        "high": between and between.high,
    }


# The code below estimates the click rate that explored positions would have if the model, instead of chance,
# ordered their items.
#
# The rule `score.rules.exploration` sorts a user's candidates that are not yet in the list by a uniform
# random key. The first m of them (the drawn items) get the last m positions. So all m! orders of the drawn
# items have the same probability. The item that the model ranks j-th among them is at the j-th explored
# position with probability 1 / m. This probability (the propensity) is exact, and does not depend on the
# number of candidates.
#
# The alternative order sorts the drawn items by descending score. The estimate is the self-normalised
# estimate (A. Swaminathan and T. Joachims, The Self-Normalized Estimator for Counterfactual Learning, 2015),
# a weighted mean of the clicks. A shown entry has the weight m if its position is the same in the alternative
# order, otherwise 0. The estimate assumes that the items have no influence on which positions are shown. A
# bootstrap over users gives the interval. The effective number of entries is (sum of weights)² / sum of
# squared weights.
#
# If drawn items of a user have equal scores, the published scores do not say how the model orders them: for
# example, all probabilities above 0.99999997 are published as 1. So the entries of such a user are left out.
# Whether a user is left out does not depend on the order of the drawn items, so all orders of the other
# users' items still have the same probability.
#
# With a maximum per category, or with a plug-in rule that leaves out items, the items at earlier positions
# decide whether an item can be drawn. Then the orders are not equally probable, and there is no estimate.

_VALUES = ("shown", "clicked", "weight", "weighted_clicks")
_SQUARES = "squared_weight"
_DRAWN_PARTIAL = pa.schema(
    [
        *((name, pa.list_(pa.int64())) for name in _VALUES),
        *((name, pa.int64()) for name in (_SQUARES, "drawn", "equal_scores")),
    ]
)


def why_unknown(config: Config, published: Manifest) -> str | None:
    """Returns why the probability of each order of the drawn items is unknown; None if it is known.

    Args:
        config: the configuration, with the rule `exploration`.
        published: the manifest of the lists.
    """
    rules = config.score.rules
    if published.inputs.get("config") != config_digest(config, "score"):
        return "the section score has changed since the lists were made"
    changing = [
        name
        for name, rule in (rules.configured.items() if rules else ())
        if isinstance(rule, RuleSettings) and not rule.keeps_draws
    ]
    if changing:
        return f"score.rules.{changing[0]} changes the probabilities of the draws"
    if rules is not None and rules.packages:
        return (
            "rules from installed packages may change the probabilities of the draws: "
            f"{sorted(rules.packages)}"
        )
    return None


def estimate_explored(lists: Rows, shown: Rows, settings: Impressions) -> dict[str, Any]:
    """Returns the click rate of drawn items, and the estimated rate if they had been ordered by score.

    Args:
        lists: the lists with the columns user_key, item_key, position, score and reason.
        shown: the shown entries: user_key, item_key, `clicked` (0 or 1), and the hash of the user.
        settings: the section `serving.impressions`.

    Returns:
        A dictionary of JSON values. `shown`, `clicked` and `effective_entries` are numbers of entries.
        Entries of users whose drawn items have equal scores are left out; `equal_scores` is their number.
        `click_rate`, `by_score` and `difference` (by_score - click_rate) are values with intervals.
        `by_score` and `difference` are None if there are too few effective entries; `reason` then says so.
    """
    ordered = query(
        f"""
        SELECT user_key, item_key,
            row_number() OVER (PARTITION BY user_key ORDER BY position) AS place,
            row_number() OVER (PARTITION BY user_key ORDER BY score DESC, item_key) AS by_score,
            count(*) OVER (PARTITION BY user_key) AS drawn
        FROM {{lists}} WHERE reason = '{EXPLORE}'
        """,
        lists=lists,
    )
    scores = query(
        f"""
        SELECT user_key, count(DISTINCT score) AS scores
        FROM {{lists}} WHERE reason = '{EXPLORE}' GROUP BY user_key
        """,
        lists=lists,
    )
    entries = query(
        f"""
        SELECT shown.{UNIT}, clicked, CAST(drawn AS BIGINT) AS drawn, scores < drawn AS equal_scores,
            CAST(CASE WHEN place = by_score THEN drawn ELSE 0 END AS BIGINT) AS weight
        FROM {{ordered}} AS ordered
        JOIN {{scores}} AS scores ON scores.user_key = ordered.user_key
        JOIN {{shown}} AS shown
            ON shown.user_key = ordered.user_key AND shown.item_key = ordered.item_key
        """,
        ordered=ordered,
        scores=scores,
        shown=shown,
    )
    resample = Resample(settings.replicates, settings.seed)
    sums: dict[str, NDArray[np.int64]] = {
        name: np.zeros(settings.replicates + 1, np.int64) for name in _VALUES
    }
    squares, drawn, equal_scores = 0, 0, 0
    for partial in records(map_rows(entries, _drawn_reducer(resample), _DRAWN_PARTIAL)):
        sums = {name: sums[name] + np.array(partial[name], np.int64) for name in _VALUES}
        squares, drawn = squares + partial[_SQUARES], max(drawn, partial["drawn"])
        equal_scores += partial["equal_scores"]
    return _facts(sums, squares, drawn, equal_scores, settings)


def _drawn_reducer(resample: Resample) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the entries of one task to one row."""

    def reduce_entries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        drawn, entries = int(rows.column("drawn").to_numpy().max()), len(rows)
        rows = rows.filter(pc.invert(rows.column("equal_scores")))
        clicked, weight = rows.column("clicked").to_numpy(), rows.column("weight").to_numpy()
        columns = (np.ones(len(clicked), np.int64), clicked, weight, weight * clicked)
        values = dict(zip(_VALUES, columns, strict=True))
        # Rows of a user have the same hash, so they have the same weight in a resample.
        of_resamples = reduce_means(rows.column(UNIT).to_numpy(), values, resample)
        row: dict[str, Any] = {name: [int(of.sum()), *of_resamples[name]] for name, of in values.items()}
        row |= {_SQUARES: int(weight @ weight), "drawn": drawn, "equal_scores": entries - len(rows)}
        yield pa.RecordBatch.from_pylist([row], schema=_DRAWN_PARTIAL)

    return reduce_entries


def _facts(
    sums: Mapping[str, NDArray[np.int64]],
    squares: int,
    drawn: int,
    equal_scores: int,
    settings: Impressions,
) -> dict[str, Any]:
    effective = float(sums["weight"][0]) ** 2 / squares if squares else 0.0
    reason = None
    if drawn < 2:
        reason = "no shown list has two explored positions"
    elif effective < settings.min_effective_entries:
        reason = (
            f"there are fewer effective entries than min_effective_entries={settings.min_effective_entries}"
        )
        if equal_scores:
            verb = "is" if equal_scores == 1 else "are"
            shown = counted(equal_scores, "shown entry", "shown entries")
            reason += f"; {shown} {verb} left out, because drawn items of a user have equal scores"
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = sums["clicked"] / sums["shown"]
        by_score = sums["weighted_clicks"] / sums["weight"]
    known = reason is None
    return {
        "shown": int(sums["shown"][0]),
        "clicked": int(sums["clicked"][0]),
        "click_rate": _with_interval(rates, settings.confidence),
        "effective_entries": effective,
        "equal_scores": equal_scores,
        "by_score": _with_interval(by_score, settings.confidence) if known else None,
        "difference": _with_interval(by_score - rates, settings.confidence) if known else None,
        "reason": reason,
    }


def _with_interval(values: NDArray[np.float64], confidence: float) -> dict[str, float] | None:
    """Returns `values[0]` with the interval of the replicates `values[1:]`; None if `values[0]` is NaN."""
    if not np.isfinite(values[0]):
        return None
    between = interval(float(values[0]), values[1:], np.zeros(len(values) - 1), confidence)
    if between is None:
        return None
    return {"value": between.difference, "low": between.low, "high": between.high}
