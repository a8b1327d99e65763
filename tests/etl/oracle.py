"""The expected output of build_features, computed with pandas and NumPy and without Spark.

It is written from the contracts (docstrings of conf and of the operators) and shares no code with etl. So a
test misses a mistake only if both have it. It loops over lines in Python, so use it for small inputs only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from conf.types import Config, FeatureGroup


def split_by_fraction(rows: pd.DataFrame, train: float, validation: float) -> pd.Series:
    """Splits by event time, with rows of one time together, or by rank if there is no time."""
    if "event_time" in rows:
        order = rows["event_time"].astype(np.int64)
        first, second = np.quantile(order, [train, train + validation])
    else:
        order = rows["row_id"].rank().astype(np.int64) - 1
        shares = [Fraction(str(train)), Fraction(str(train)) + Fraction(str(validation))]
        first, second = (math.floor((len(rows) - 1) * share) for share in shares)
    return pd.Series(
        np.select([order <= first, order <= second], ["train", "validation"], "test"), rows.index
    )


def split_leave_last_out(rows: pd.DataFrame) -> pd.Series:
    """Per user: test from the last positive on, validation from the positive before it on, train before."""
    order = ["event_time", "row_id"] if "event_time" in rows else ["row_id"]
    split = pd.Series("train", rows.index)
    for _, user_rows in rows.sort_values(order).groupby("user_key"):
        clicks = [index for index, label in enumerate(user_rows["label"]) if label == 1]
        if clicks:
            split[user_rows.index[clicks[-1] :]] = "test"
        if len(clicks) > 1:
            split[user_rows.index[clicks[-2] : clicks[-1]]] = "validation"
    return split


def add_negatives(
    log: pd.DataFrame, per_positive: int, hash_of: Mapping[tuple[int, int], int]
) -> pd.DataFrame:
    """The log and its negatives, by row_id. A row sees the rows of its split and of earlier splits only.

    Args:
        log: row_id, user_key, item_key, item, label and, if its splits are within one partition, split.
        per_positive: number of draws per positive row.
        hash_of: (row_id, draw, from 1) → hash.
    """
    order = ["train", "validation", "test"]
    splits = log["split"] if "split" in log else pd.Series("train", log.index)
    parts = [log.assign(row_id=log["row_id"] * (per_positive + 1))]
    for split in order:
        visible = log[splits.isin(order[: order.index(split) + 1])]
        first_seen = splits[visible.index].map(order.index).groupby(visible["item_key"]).min()
        items = sorted(first_seen.index, key=lambda item: (first_seen[item], item.encode()))
        known = set(zip(visible["user_key"], visible["item_key"], strict=True))
        for _, row in log[(splits == split) & (log["label"] == 1)].iterrows():
            for draw in range(1, per_positive + 1):
                item = items[hash_of[row["row_id"], draw] % len(items)]
                if (row["user_key"], item) not in known:
                    row_id = row["row_id"] * (per_positive + 1) + draw
                    changed = {"item_key": item, "item": item, "label": 0.0, "row_id": row_id}
                    parts.append(pd.DataFrame([{**row, **changed}]))
    return pd.concat(parts).sort_values("row_id", ignore_index=True)[log.columns]


@dataclass(frozen=True)
class Fitted:
    """Fitted statistics.

    Attributes:
        moments: (column, index in its chain) → (mean, std).
        ids: column → value → id.
        counts: column → value → count over all fits.
    """

    moments: Mapping[tuple[str, int], tuple[float, float]]
    ids: Mapping[str, Mapping[str, int]]
    counts: Mapping[str, Counter[str]]

    def moments_at(self, column: str, index: int, _: np.ndarray) -> tuple[float, float]:
        """(mean, std) at an index of a column's chain."""
        return self.moments[column, index]

    def cardinality(self, column: str) -> int:
        """Number of ids of a column, reserved ids included."""
        return max(self.ids[column].values(), default=2) + 1


def fit(config: Config, train: pd.DataFrame, parent: Fitted | None = None) -> Fitted:
    """Fits on the training rows. With a parent, its moments and ids stay and new ids are appended."""
    moments = dict(parent.moments) if parent else {}
    ids: dict[str, dict[str, int]] = {}
    counts: dict[str, Counter[str]] = {}
    for group in config.features:
        for column in group.columns:
            if group.kind == "dense" and parent is None:
                dense_chain(group, train[column], partial(_fit_moments, moments, column))
            elif group.kind == "categorical":
                known = parent.counts[column] if parent else Counter()
                counts[column] = known + Counter(train[column].dropna().map(str))
                ids[column] = dict(parent.ids[column]) if parent else {}
                append_ids(ids[column], counts[column], _parameters(group.ops[0]).get("min_count", 1))
    return Fitted(moments, ids, counts)


def append_ids(ids: dict[str, int], counts: Counter[str], min_count: int) -> None:
    """Gives ids to new values with `min_count` rows or more, by descending count and then by UTF-8 bytes."""
    new = [value for value, count in counts.items() if count >= min_count and value not in ids]
    first = max(ids.values(), default=2) + 1
    ranked = sorted(new, key=lambda value: (-counts[value], value.encode("utf-8")))
    ids.update({value: first + index for index, value in enumerate(ranked)})


def _fit_moments(
    moments: dict[tuple[str, int], tuple[float, float]], column: str, index: int, values: np.ndarray
) -> tuple[float, float]:
    present = values[~np.isnan(values)]
    mean = math.fsum(present) / len(present)
    std = math.sqrt(math.fsum((present - mean) ** 2) / len(present)) if np.ptp(present) else 1.0
    moments[column, index] = mean, std
    return mean, std


def dense_chain(
    group: FeatureGroup, raw: pd.Series, moments: Callable[[int, np.ndarray], tuple[float, float]]
) -> np.ndarray:
    """The values of a dense column after its chain.

    `moments` returns (mean, std) at an index of the chain.
    """
    values = raw.astype(float).to_numpy()
    for index, entry in enumerate(group.ops):
        name = entry if isinstance(entry, str) else next(iter(entry))
        parameters = _parameters(entry)
        if name == "fill":
            values = np.where(np.isnan(values), parameters.get("value", 0), values)
        elif name == "clip":
            values = np.where(values < parameters.get("min", -np.inf), parameters.get("min", 0), values)
            values = np.where(values > parameters.get("max", np.inf), parameters.get("max", 0), values)
        elif name == "log1p":
            values = np.array([math.log1p(x) if x > -1 else math.nan for x in values])
        elif name == "normalize":
            mean, std = moments(index, values)
            values = (values - mean) / std
        else:
            raise ValueError(f"the oracle has no operator {name}")
    return values


def _parameters(entry: str | dict[str, Any]) -> dict[str, Any]:
    return {} if isinstance(entry, str) else next(iter(entry.values())) or {}


def encode(config: Config, fitted: Fitted, rows: pd.DataFrame) -> pd.DataFrame:
    """The feature table of these rows, by row_id: keys, label and encoded features."""
    keys = [name for name in ("row_id", "user_key", "item_key", "event_time") if name in rows]
    columns: dict[str, Any] = {name: rows[name].to_numpy() for name in [*keys, "label"]}
    for group in config.features:
        for column in group.columns:
            if group.kind == "dense":
                columns[column] = dense_chain(group, rows[column], partial(fitted.moments_at, column))
            else:
                ids = fitted.ids[column]
                columns[column] = [1 if pd.isna(value) else ids.get(str(value), 2) for value in rows[column]]
    return pd.DataFrame(columns).sort_values("row_id", ignore_index=True)


def latest(days: Sequence[pd.DataFrame], key: str, columns: Sequence[str]) -> pd.DataFrame:
    """One row per key, sorted by its bytes: the features of its latest row (latest day, then last row)."""
    rows = pd.concat([day.sort_values("row_id") for day in days], ignore_index=True)
    last = rows.groupby(key).tail(1)[[key, *columns]]
    return last.sort_values(key, key=lambda keys: keys.map(str.encode), ignore_index=True)
