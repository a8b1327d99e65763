"""Estimates the click rate of explored positions if the model ordered the drawn items.

The rule `score.rules.exploration` sorts the other candidates of a user by a uniform random key, and the first
m of them get the last positions. So, whichever m items were drawn, each of their m! orders has the same
probability: the item that the model ranks j-th among them stands at the j-th explored position with the
probability 1 / m. This propensity is exact, and it does not depend on the number of candidates.

The other choice is: the same drawn items, in descending order of their scores. The estimate is the
self-normalised one (A. Swaminathan and T. Joachims, The Self-Normalized Estimator for Counterfactual
Learning, 2015): shown entries that stand where the other choice puts them have the weight m, all others 0,
and the estimate is the weighted mean of the clicks. It assumes that whether a position is shown does not
depend on the items. The interval is that of a bootstrap over users. The effective number of entries is
(sum of weights)² / sum of squared weights.

With a maximum per category, or with a rule of a package that leaves out items, whether an item can be drawn
depends on the items before it. Then the orders are not equally probable, and there is no estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.load import config_digest
from conf.rule_types import RuleSettings
from conf.serving_types import Impressions
from conf.types import Config
from metrics.bootstrap import Resample, interval, reduce_means
from scoring.evaluation.prediction_quality import UNIT
from scoring.rules.request import EXPLORE
from spark.rows import Rows, map_rows, query, records
from storage.manifest import Manifest

_VALUES = ("shown", "clicked", "weight", "weighted_clicks")
_SQUARES = "squared_weight"
_PARTIAL = pa.schema(
    [*((name, pa.list_(pa.int64())) for name in _VALUES), (_SQUARES, pa.int64()), ("drawn", pa.int64())]
)


def why_unknown(config: Config, published: Manifest) -> str | None:
    """Returns why the probabilities of the draws are not known; None if they are.

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
        return f"rules of packages may change the probabilities of the draws: {sorted(rules.packages)}"
    return None


def estimate_explored(lists: Rows, shown: Rows, settings: Impressions) -> dict[str, Any]:
    """Returns the click rate of the explored positions as they were, and in the order of the scores.

    Args:
        lists: the lists with the columns user_key, item_key, position, score and reason.
        shown: the shown entries: user_key, item_key, `clicked` (0 or 1), and the hash of the user.
        settings: the section `serving.impressions`.

    Returns:
        A dictionary of JSON values: `shown` and `clicked` entries, `effective_entries`, and the values with
        their intervals of `click_rate`, `by_score` and `difference` (by_score - click_rate). The last two are
        None if there are too few effective entries, and `reason` says so.
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
    entries = query(
        f"""
        SELECT shown.{UNIT}, clicked, CAST(drawn AS BIGINT) AS drawn,
            CAST(CASE WHEN place = by_score THEN drawn ELSE 0 END AS BIGINT) AS weight
        FROM {{ordered}} AS ordered JOIN {{shown}} AS shown
            ON shown.user_key = ordered.user_key AND shown.item_key = ordered.item_key
        """,
        ordered=ordered,
        shown=shown,
    )
    resample = Resample(settings.replicates, settings.seed)
    sums: dict[str, NDArray[np.int64]] = {
        name: np.zeros(settings.replicates + 1, np.int64) for name in _VALUES
    }
    squares, drawn = 0, 0
    for partial in records(map_rows(entries, _reducer(resample), _PARTIAL)):
        sums = {name: sums[name] + np.array(partial[name], np.int64) for name in _VALUES}
        squares, drawn = squares + partial[_SQUARES], max(drawn, partial["drawn"])
    return _facts(sums, squares, drawn, settings)


def _reducer(resample: Resample) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the entries of one task to one row."""

    def reduce_entries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if not tables:
            return
        rows = pa.concat_tables(tables)
        clicked, weight = rows.column("clicked").to_numpy(), rows.column("weight").to_numpy()
        columns = (np.ones(len(clicked), np.int64), clicked, weight, weight * clicked)
        values = dict(zip(_VALUES, columns, strict=True))
        # Rows of a user have the same hash, so they have the same weight in a resample.
        of_resamples = reduce_means(rows.column(UNIT).to_numpy(), values, resample)
        row: dict[str, Any] = {name: [int(of.sum()), *of_resamples[name]] for name, of in values.items()}
        row |= {_SQUARES: int(weight @ weight), "drawn": int(rows.column("drawn").to_numpy().max())}
        yield pa.RecordBatch.from_pylist([row], schema=_PARTIAL)

    return reduce_entries


def _facts(
    sums: Mapping[str, NDArray[np.int64]], squares: int, drawn: int, settings: Impressions
) -> dict[str, Any]:
    effective = float(sums["weight"][0]) ** 2 / squares if squares else 0.0
    reason = None
    if drawn < 2:
        reason = "no shown list has two explored positions"
    elif effective < settings.min_effective_entries:
        reason = (
            f"there are fewer effective entries than min_effective_entries={settings.min_effective_entries}"
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = sums["clicked"] / sums["shown"]
        by_score = sums["weighted_clicks"] / sums["weight"]
    known = reason is None
    return {
        "shown": int(sums["shown"][0]),
        "clicked": int(sums["clicked"][0]),
        "click_rate": _with_interval(rates, settings.confidence),
        "effective_entries": effective,
        "by_score": _with_interval(by_score, settings.confidence) if known else None,
        "difference": _with_interval(by_score - rates, settings.confidence) if known else None,
        "reason": reason,
    }


def _with_interval(values: NDArray[np.float64], confidence: float) -> dict[str, float] | None:
    """Returns the first of (1 + replicates,) values with the interval of the others; None if undefined."""
    if not np.isfinite(values[0]):
        return None
    between = interval(float(values[0]), values[1:], np.zeros(len(values) - 1), confidence)
    if between is None:
        return None
    return {"value": between.difference, "low": between.low, "high": between.high}
