"""Click rates of shown list entries by position, with intervals.

The click rate of a position is the number of list entries there that were shown and clicked, divided by the
number of entries there that were shown. Its interval is that of a bootstrap over users (metrics.bootstrap).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.serving_types import Impressions
from metrics.bootstrap import Resample, draw_weights, interval
from scoring.evaluation.prediction_quality import UNIT
from scoring.inputs.requests import VARIANT
from spark.rows import Rows, map_rows, records

ALL = "all"  # the key of the click rates of all variants together
_SUMS = ("shown", "clicked")
_PARTIAL = pa.schema([(VARIANT, pa.string()), *((name, pa.list_(pa.int64())) for name in _SUMS)])

# Maps each name of _SUMS to (1 + replicates, k) int64: the sums of the positions over all users, then those
# of each resample.
Sums = Mapping[str, NDArray[np.int64]]


def click_rates(shown: Rows, k: int, settings: Impressions) -> dict[str, Any]:
    """Returns the click rates of each variant, and of all together: in total and by position.

    Args:
        shown: the entries that were shown: position, variant, `clicked` (0 or 1) and the hash of the user.
        k: maximum length of a list.
        settings: the section `serving.impressions`.
    """
    resample = Resample(settings.replicates, settings.seed)
    totals: dict[str, dict[str, NDArray[np.int64]]] = {}
    for partial in records(map_rows(shown, _reducer(k, resample), _PARTIAL)):
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


def _reducer(k: int, resample: Resample) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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
                for weights in draw_weights(units, resample):  # doubles add whole numbers exactly
                    sums.append(np.bincount(places, weights[users], minlength=k).astype(np.int64))
                row[value] = np.concatenate(sums)
            yield pa.RecordBatch.from_pylist([row], schema=_PARTIAL)

    return reduce_entries


def _rate(sums: Sums, confidence: float) -> dict[str, Any]:
    """Returns the click rate of (1 + replicates,) sums with its interval; null if nothing was shown."""
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
