"""Compares the log of what was shown with the published lists, and with the clicks of the same day.

An impression is a distinct row of the log: the same user, item, position, variant and model version count
once, however often the row was logged. An impression fits a list if the list of its user has its item at its
position, and was made by its model for its variant. Every other impression is counted by the first reason of
`REASONS` that applies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from conf.serving_types import Impressions
from etl.raw.files import RawFiles, find_raw, raw_path
from etl.readers.impressions import ERROR, read_impressions, unreadable
from scoring.evaluation.exploration_estimate import estimate_explored, why_unknown
from scoring.evaluation.prediction_quality import UNIT
from scoring.evaluation.shown_rates import ALL, click_rates
from scoring.inputs.requests import VARIANT
from spark.choose_workers import workers_of
from spark.rows import Rows, persist, query, read_rows, records, unpersist, with_hash, with_value
from storage.manifest import Manifest
from storage.run_context import RunContext

log = logging.getLogger("nightrank.measure")

REASONS = ("invalid", "user", "model_version", "variant", "item", "position")
_FITS = "fits"


def find_impressions(context: RunContext) -> RawFiles | None:
    """Returns the files of the day after the lists; None if there are none, or no log is configured.

    Logs a warning if a log is configured, but has no file of this day.
    """
    settings = context.config.serving.impressions
    if settings is None:
        return None
    day = (date.fromisoformat(context.run_date) + timedelta(days=1)).isoformat()
    raw = find_raw(context.config, settings, day, context.recorder)
    if raw is None:
        pattern = raw_path(context.config, settings, day)
        log.warning("impressions: there is no file at %s, so shown entries are not measured", pattern)
    return raw


def measure_impressions(
    context: RunContext, published: Manifest, clicked: Rows, raw: RawFiles | None
) -> dict[str, Any] | None:
    """Returns the figures of what was shown as JSON values; None without a log.

    Args:
        context: the context of the run.
        published: the manifest of the lists.
        clicked: rows with the columns user_key and item_key: the distinct items that each user clicked on the
            day after.
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

    Without variants, the variant is `all`.
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
    """Returns the distinct impressions, how often each was logged, and `fit`: `fits` or a reason."""
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
    """Returns the distinct impressions, the rows and an error of each value of `fit`."""
    return query(
        f"""
        SELECT fit, count(*) AS impressions, CAST(sum(times) AS BIGINT) AS logged, min({ERROR}) AS {ERROR}
        FROM {{fits}} GROUP BY fit
        """,
        fits=fits,
    )


def _require_readable(counts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises DataError if a file could not be read. The row that says so has no user, so it is `invalid`."""
    error = counts.get("invalid", {}).get(ERROR)
    if error is not None:
        raise unreadable(error)


def _matches(counts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the numbers of rows and impressions, and of impressions that fit no list, by reason."""
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
    """Returns users and entries of the lists, those that were shown, and entries clicked but not shown."""
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
            "impressions: %d of %d impressions of %s fit no list (%s), a larger share than "
            "serving.impressions.max_unmatched_share=%g",
            sum(facts["unmatched"].values()),
            facts["impressions"],
            facts["day"],
            ", ".join(f"{reason}: {number}" for reason, number in facts["unmatched"].items()),
            settings.max_unmatched_share,
        )
