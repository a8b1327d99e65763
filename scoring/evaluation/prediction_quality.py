"""Measures the quality of predictions: exact AUC, log loss, normalised entropy and calibration.

Spark partitions the rows by ranges of the probability. Each task reduces the rows of one range to one row of
sums. The driver combines the rows of sums, so the driver's memory does not grow with the data.

The AUC is the share of the pairs of a click and a non-click in which the click has the higher probability.
This computation is exact: each task counts these pairs within its range. If the two rows of a pair are in
different ranges, the row in the higher range has the higher probability.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from metrics.bootstrap import SUMS, Resample, combine_replicates, reduce_replicates
from metrics.psi import bin_keys
from scoring.ranking.list_summary import HISTOGRAM_BINS, histogram_edges
from scoring.requests import PROBABILITY
from spark.rows import Rows, map_rows, records, select
from storage.feature_spec import LABEL

UNIT = "resample_unit"

# The difference between 1 and the next smaller float32. Probabilities are kept at least this far from 0 and
# 1, because the loss of a row at 0 or 1 may be infinite.
_EPSILON = 2.0**-24

# Losses and probabilities are summed in integer units of 2⁻³². So the sums do not depend on how rows are
# divided into ranges.
_UNITS = 2**32

_COLUMNS = {
    "lowest": pa.float64(),
    **dict.fromkeys(("rows", "positives", "doubled_wins", "loss_units"), pa.int64()),
    **dict.fromkeys(("bin_rows", "bin_positives", "bin_probability_units"), pa.list_(pa.int64())),
    **dict.fromkeys(("score_keys", "score_rows"), pa.list_(pa.int64())),
    **{f"replicate_{name}": pa.list_(pa.int64()) for name in SUMS},
}
_PARTIAL = pa.schema(_COLUMNS)


@dataclass(frozen=True)
class PredictionQuality:
    """The quality of one model's predictions.

    Attributes:
        facts: JSON values by name, as listed below.
        score_bins: maps the key of each bin of the probability to the number of rows in this bin. The bins
            are those of metrics.psi: 16 bins between a probability and its double.
        replicates: maps `auc` and `log_loss` to an array with one value for each bootstrap replicate; empty
            without a bootstrap.

    The keys of `facts` are:

    - auc; None without clicks or without non-clicks
    - log_loss, in nats; None without rows
    - normalized_entropy: the log loss divided by the log loss of always predicting the click rate (He et al.
      2014, section 3); None without clicks or without non-clicks
    - rows, positives: number of rows and number of clicks
    - predicted_over_observed: the sum of the probabilities divided by the number of clicks; None without
      clicks
    - unmeasured: the reason why the AUC is None. The key is absent if the AUC is defined.
    - calibration: one entry {low, high, rows, mean_probability, click_rate} for each bin with rows
    - histogram: {edges, counts}
    """

    facts: Mapping[str, Any]
    score_bins: Mapping[int, int]
    replicates: Mapping[str, NDArray[np.float64]]

    @property
    def unmeasured(self) -> str | None:
        """Returns the reason why the AUC is undefined; None if it is defined."""
        reason: str | None = self.facts.get("unmeasured")
        return reason


def measure_predictions(predictions: Rows, resample: Resample | None = None) -> PredictionQuality:
    """Measures the quality of predictions.

    Spark evaluates a frame twice. The first evaluation determines the ranges of probabilities for
    partitioning, and the second measures the rows. Persist the frame if computing it is expensive.

    Args:
        predictions: rows with the columns label (0 or 1), probability (float64) and, for resampling, UNIT
            (long). UNIT is a hash; rows with equal UNIT are resampled together.
        resample: the settings of the bootstrap; None computes no replicates.
    """
    columns = [LABEL, PROBABILITY, *([UNIT] if resample else [])]
    rows = select(predictions, columns)
    ranged = rows.repartitionByRange(PROBABILITY) if isinstance(rows, DataFrame) else rows
    return combine(records(map_rows(ranged, _range_reducer(resample), _PARTIAL)))


def combine(partials: Iterable[Mapping[str, Any]]) -> PredictionQuality:
    """Computes the quality of predictions from the sums of all ranges of probabilities.

    Args:
        partials: one row of sums for each range, in any order; empty without predictions.
    """
    ranges = sorted(partials, key=lambda sums: sums["lowest"])
    rows, positives = sum(sums["rows"] for sums in ranges), sum(sums["positives"] for sums in ranges)
    negatives = rows - positives
    # `doubled` is twice the number of pairs (click, non-click) in the right order. A tie counts 1/2.
    doubled, below = 0, 0
    for sums in ranges:
        doubled += sums["doubled_wins"] + 2 * sums["positives"] * below
        below += sums["rows"] - sums["positives"]
    loss = sum(sums["loss_units"] for sums in ranges) / _UNITS / rows if rows else None
    predicted = sum(sum(sums["bin_probability_units"]) for sums in ranges) / _UNITS
    auc, normalized, unmeasured = None, None, {}
    if loss is not None and positives and negatives:
        rate = positives / rows
        auc = doubled / (2 * positives * negatives)
        normalized = loss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
    else:
        content = "no row" if not rows else f"{rows} rows, of which {positives} are clicks"
        reason = f"the test split has {content}: the AUC needs clicks and non-clicks"
        unmeasured = {"unmeasured": reason}
    facts = {
        "auc": auc,
        "log_loss": loss,
        "normalized_entropy": normalized,
        "rows": rows,
        "positives": positives,
        "predicted_over_observed": predicted / positives if positives else None,
        **_bins(ranges),
        **unmeasured,
    }
    score_bins: Counter[int] = Counter()
    for sums in ranges:
        score_bins.update(dict(zip(sums["score_keys"], sums["score_rows"], strict=True)))
    replicates = [{name: sums[f"replicate_{name}"] for name in SUMS} for sums in ranges]
    if not ranges:
        return PredictionQuality(facts, score_bins, {})
    return PredictionQuality(facts, score_bins, combine_replicates(replicates, _UNITS))


def reduce_rows(
    label: NDArray[Any],
    probability: NDArray[Any],
    units: NDArray[np.int64] | None = None,
    resample: Resample | None = None,
) -> dict[str, Any]:
    """Returns the sums over the rows of one range of probabilities. There must be at least one row.

    Args:
        label: (n,) 1 for clicks, 0 for non-clicks.
        probability: (n,) predicted probabilities.
        units: (n,) int64 hashes; rows with equal hashes are resampled together. None without a bootstrap.
        resample: the settings of the bootstrap; None without a bootstrap.
    """
    score = probability.astype(np.float64)
    click = label > 0
    distinct, group = np.unique(score, return_inverse=True)
    positives = np.bincount(group[click], minlength=len(distinct))
    negatives = np.bincount(group[~click], minlength=len(distinct))
    below = np.cumsum(negatives) - negatives
    clipped = np.clip(score, _EPSILON, 1 - _EPSILON)
    losses = _in_units(-np.where(click, np.log(clipped), np.log1p(-clipped)))
    bin_ = np.minimum((score * HISTOGRAM_BINS).astype(np.int64), HISTOGRAM_BINS - 1)
    probabilities = _in_units(score)
    keys, key_rows = np.unique(bin_keys(score), return_counts=True)
    resampled: Mapping[str, list[int]] = {name: [] for name in SUMS}
    if resample is not None and units is not None:
        resampled = reduce_replicates(units, click, score, losses, resample)
    return {
        "lowest": float(distinct[0]),
        "rows": len(score),
        "positives": int(click.sum()),
        "doubled_wins": int((positives * (2 * below + negatives)).sum()),
        "loss_units": int(losses.sum()),
        "bin_rows": np.bincount(bin_, minlength=HISTOGRAM_BINS).tolist(),
        "bin_positives": np.bincount(bin_[click], minlength=HISTOGRAM_BINS).tolist(),
        "bin_probability_units": [
            int(probabilities[bin_ == number].sum()) for number in range(HISTOGRAM_BINS)
        ],
        "score_keys": keys.tolist(),
        "score_rows": key_rows.tolist(),
        **{f"replicate_{name}": resampled[name] for name in SUMS},
    }


def _in_units(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns `values` as integer multiples of 2⁻³², rounded."""
    return np.rint(values * _UNITS).astype(np.int64)


def _range_reducer(
    resample: Resample | None,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function for `map_rows` that reduces the rows of one range to one row of sums."""

    def reduce_range(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        if tables:
            rows = pa.concat_tables(tables)
            units = rows.column(UNIT).to_numpy() if resample else None
            sums = reduce_rows(
                rows.column(LABEL).to_numpy(), rows.column(PROBABILITY).to_numpy(), units, resample
            )
            yield pa.RecordBatch.from_pylist([sums], schema=_PARTIAL)

    return reduce_range


def _bins(ranges: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the calibration and the histogram of the probabilities, for PredictionQuality.facts."""
    edges = histogram_edges()
    columns = zip(
        *(
            np.sum([sums[name] for sums in ranges], axis=0) if ranges else [0] * HISTOGRAM_BINS
            for name in ("bin_rows", "bin_positives", "bin_probability_units")
        ),
        strict=True,
    )
    counted = [(int(rows), int(positives), int(units) / _UNITS) for rows, positives, units in columns]
    calibration = [
        {
            "low": edges[index],
            "high": edges[index + 1],
            "rows": rows,
            "mean_probability": total / rows,
            "click_rate": positives / rows,
        }
        for index, (rows, positives, total) in enumerate(counted)
        if rows
    ]
    histogram = {"edges": edges, "counts": [rows for rows, _, _ in counted]}
    return {"calibration": calibration, "histogram": histogram}
