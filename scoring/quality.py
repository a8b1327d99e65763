"""How good predictions are: exact AUC, log loss, normalised entropy, calibration, over any number of rows.

Rows are spread over tasks by ranges of their probability; each task reduces its range to one row of sums, and the
driver adds those up. So nothing that grows with the data reaches the driver, and the AUC is exact all the same: a
pair of rows in different ranges is decided by the order of the ranges, a pair in one range by its task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Row

from conf.errors import DataError
from conf.feature_spec import LABEL
from scoring.contract import PROBABILITY
from scoring.summary import HISTOGRAM_BINS, histogram_edges

# As far as float32 comes close to 1: a probability of exactly 0 or 1 would make one wrong row's loss infinite.
_EPSILON = 2.0**-24

# Losses and probabilities are added up as multiples of 2⁻³²: integers give one sum, however rows lie in ranges.
_UNITS = 2**32

_PARTIAL = pa.schema(
    [
        ("lowest", pa.float64()),
        ("rows", pa.int64()),
        ("positives", pa.int64()),
        ("doubled_wins", pa.int64()),
        ("loss_units", pa.int64()),
        ("bin_rows", pa.list_(pa.int64())),
        ("bin_positives", pa.list_(pa.int64())),
        ("bin_probability_units", pa.list_(pa.int64())),
    ]
)
_PARTIAL_DDL = (
    "lowest double, rows long, positives long, doubled_wins long, loss_units long, "
    "bin_rows array<long>, bin_positives array<long>, bin_probability_units array<long>"
)


def measure_predictions(predictions: DataFrame) -> dict[str, Any]:
    """Quality of (label 0/1, probability float32) rows.

    The frame is evaluated twice (once to find the ranges): persist it where making it is expensive.

    Returns:
        auc; log_loss in nats; normalized_entropy, log loss over that of the click rate (He et al. 2014, section 3);
        rows; positives; calibration [{low, high, rows, mean_probability, click_rate}] of the bins that hold rows;
        histogram {edges, counts}.

    Raises:
        DataError: the rows are all clicks or all non-clicks, or there are none.
    """
    ranged = predictions.select(LABEL, PROBABILITY).repartitionByRange(PROBABILITY)
    return combine(ranged.mapInArrow(_reduce_range, _PARTIAL_DDL).collect())


def combine(partials: Iterable[Row]) -> dict[str, Any]:
    """The measures from the sums of all ranges, in whatever order they come."""
    found = sorted(partials, key=lambda each: each["lowest"])
    rows, positives = sum(each["rows"] for each in found), sum(each["positives"] for each in found)
    negatives = rows - positives
    if not positives or not negatives:
        raise DataError(
            f"the test split holds {rows} rows, {positives} of them clicks: quality needs clicks and non-clicks",
            "choose a run date whose test days hold both, or more test days (split.test_days)",
        )
    doubled, below = (
        0,
        0,
    )  # twice the number of (click, non-click) pairs in the right order, ties counting one half
    for each in found:
        doubled += each["doubled_wins"] + 2 * each["positives"] * below
        below += each["rows"] - each["positives"]
    rate, loss = positives / rows, sum(each["loss_units"] for each in found) / _UNITS / rows
    entropy = -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
    return {
        "auc": doubled / (2 * positives * negatives),
        "log_loss": loss,
        "normalized_entropy": loss / entropy,
        "rows": rows,
        "positives": positives,
        **_bins(found),
    }


def reduce_rows(label: NDArray[Any], probability: NDArray[Any]) -> dict[str, Any]:
    """The sums of one range of rows, at least one; probabilities are float32 values."""
    score = probability.astype(np.float64)
    click = label > 0
    distinct, group = np.unique(score, return_inverse=True)
    positives = np.bincount(group[click], minlength=len(distinct))
    negatives = np.bincount(group[~click], minlength=len(distinct))
    below = np.cumsum(negatives) - negatives
    clipped = np.clip(score, _EPSILON, 1 - _EPSILON)
    bin_ = np.minimum((score * HISTOGRAM_BINS).astype(np.int64), HISTOGRAM_BINS - 1)
    units = _in_units(score)
    return {
        "lowest": float(distinct[0]),
        "rows": len(score),
        "positives": int(click.sum()),
        "doubled_wins": int((positives * (2 * below + negatives)).sum()),
        "loss_units": int(_in_units(-np.where(click, np.log(clipped), np.log1p(-clipped))).sum()),
        "bin_rows": np.bincount(bin_, minlength=HISTOGRAM_BINS).tolist(),
        "bin_positives": np.bincount(bin_[click], minlength=HISTOGRAM_BINS).tolist(),
        "bin_probability_units": [int(units[bin_ == each].sum()) for each in range(HISTOGRAM_BINS)],
    }


def _in_units(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(values * _UNITS).astype(np.int64)


def _reduce_range(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    tables = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
    if tables:
        rows = pa.concat_tables(tables)
        sums = reduce_rows(rows.column(LABEL).to_numpy(), rows.column(PROBABILITY).to_numpy())
        yield pa.RecordBatch.from_pylist([sums], schema=_PARTIAL)


def _bins(partials: list[Row]) -> dict[str, Any]:
    edges = histogram_edges()
    columns = zip(
        *(
            np.sum([each[name] for each in partials], axis=0)
            for name in ("bin_rows", "bin_positives", "bin_probability_units")
        ),
        strict=True,
    )
    counted = [(int(rows), int(positives), int(units) / _UNITS) for rows, positives, units in columns]
    calibration = [
        {
            "low": edges[place],
            "high": edges[place + 1],
            "rows": rows,
            "mean_probability": total / rows,
            "click_rate": positives / rows,
        }
        for place, (rows, positives, total) in enumerate(counted)
        if rows
    ]
    histogram = {"edges": edges, "counts": [rows for rows, _, _ in counted]}
    return {"calibration": calibration, "histogram": histogram}
