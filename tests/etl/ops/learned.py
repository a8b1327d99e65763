"""The oracles of operators that learn from the training rows; the others stand in tests.etl.ops.oracle."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from tests.etl.ops.examples import EXTERNAL, EXTERNAL_COLUMNS
from tests.etl.ops.hashing import of_integer, of_text

NULL, OOV = 1, 2

Columns = Mapping[str, list[Any]]
Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows on their way through a chain.

    Attributes:
        raw: column → values of the log, with row_id, label and _day.
        days: the days that were fitted on: which of the rows are training rows.
        values: the chain's columns as they are by now.
    """

    raw: Columns
    days: frozenset[str]
    values: Columns = field(default_factory=dict)


Apply = Callable[[Table], Columns]


def by_column(train: Table, learn: Callable[[list[Any]], Callable[[Any], Any]]) -> Apply:
    """Each column by itself: what is learned from its training values maps its values, null to null."""
    learned = {
        name: learn([element for element in values if element is not None])
        for name, values in train.values.items()
    }
    return lambda rows: {
        name: [None if element is None else learned[name](element) for element in values]
        for name, values in rows.values.items()
    }


def normalize(parameters: Parameters, train: Table) -> Apply:
    def learn(present: list[Any]) -> Callable[[Any], float]:
        mean = math.fsum(present) / len(present)
        std = math.sqrt(math.fsum((float(element) - mean) ** 2 for element in present) / len(present))
        divisor = 1.0 if len(set(present)) == 1 else std
        return lambda value: (float(value) - mean) / divisor

    return by_column(train, learn)


def normalize_min_max(parameters: Parameters, train: Table) -> Apply:
    def learn(present: list[Any]) -> Callable[[Any], float]:
        least, most = float(min(present)), float(max(present))
        return lambda value: (float(value) - least) / ((most - least) or 1.0)

    return by_column(train, learn)


def fill_median(parameters: Parameters, train: Table) -> Apply:
    medians = {}
    for name, values in train.values.items():
        present = sorted(float(element) for element in values if element is not None)
        medians[name] = present[(len(present) - 1) // 2]
    return lambda rows: {
        name: [medians[name] if element is None else element for element in values]
        for name, values in rows.values.items()
    }


def drop_low_cardinality(parameters: Parameters, train: Table) -> Apply:
    kept = [
        name
        for name, values in train.values.items()
        if len(set(values) - {None}) >= parameters.get("min_cardinality", 2)
    ]
    return lambda rows: {name: rows.values[name] for name in kept}


def categorify(parameters: Parameters, train: Table) -> Apply:
    buckets = parameters.get("oov_buckets", 1)
    counts: dict[str, Counter[str]] = {}
    seen: dict[tuple[str, str], str] = {}
    for column, values in train.values.items():
        name = parameters.get("share", column)
        counted = counts.setdefault(name, Counter())
        for value, day in zip(values, train.raw["_day"], strict=True):
            for text in _texts(value):
                counted[text] += 1
                seen[name, text] = max(day, seen.get((name, text), ""))
    ids = {name: _ids(parameters, name, counted, 2 + buckets) for name, counted in counts.items()}
    if parameters.get("max_age_days") is not None:
        latest = date.fromisoformat(max(train.days))
        for name, known in ids.items():
            for text in list(known):
                if (latest - date.fromisoformat(seen[name, text])).days > parameters["max_age_days"]:
                    del known[text]

    def encode(known: Mapping[str, int], value: Any, in_list: bool) -> Any:
        if isinstance(value, list):
            return [encode(known, element, in_list) for element in value]
        if value is None:
            return None if in_list else NULL
        return known.get(str(value), OOV + (of_text(str(value)) % buckets if buckets > 1 else 0))

    def apply(rows: Table) -> Columns:
        outputs = {}
        for column, values in rows.values.items():
            lists = any(isinstance(element, list) for element in values)
            outputs[column] = [
                encode(ids[parameters.get("share", column)], element, lists) for element in values
            ]
        return outputs

    return apply


def _texts(value: Any) -> list[str]:
    elements = value if isinstance(value, list) else [value]
    return [str(element) for element in elements if element is not None]


def _ids(parameters: Parameters, name: str, counts: Counter[str], first: int) -> dict[str, int]:
    if parameters.get("values"):
        ranked = [str(element) for element in parameters["values"]]
    else:
        least = parameters.get("min_count", 1)
        least = least[name] if isinstance(least, Mapping) else least
        ranked = sorted(
            (text for text, count in counts.items() if count >= least),
            key=lambda text: (-counts[text], text.encode("utf-8")),
        )[: parameters.get("max_size")]
    return {text: first + place for place, text in enumerate(ranked)}


def _keys(parameters: Parameters, values: Columns) -> dict[str, list[Any]]:
    """Name of a key → its value for each row; null where there is none."""
    if not parameters.get("joint"):
        return {
            name: [None if element is None else str(element) for element in values[name]] for name in values
        }
    rows = zip(*values.values(), strict=True)
    joined = [None if all(element is None for element in row) else tuple(map(str, row)) for row in rows]
    return {"_".join(values): joined}


def _measure(statistic: str, present: Sequence[Any]) -> float | None:
    if not present:
        return None
    total = _sum(present)
    mean = None if total is None else total / len(present)
    squares = None if mean is None else _sum([(float(element) - mean) ** 2 for element in present])
    variance = None if squares is None else squares / len(present)
    measures = {
        "sum": total,
        "mean": mean,
        "var": variance,
        "std": None if variance is None else math.sqrt(variance),
        "min": min(present),
        "max": max(present),
    }
    value = measures[statistic]
    return None if value is None else float(value)


def _sum(values: Sequence[float]) -> float | None:
    """Null where a value, or the sum, needs more than 38 digits in units of 2**-24."""
    total = math.fsum(values)
    return None if any(abs(element) * 2**24 >= 1e38 for element in (*values, total)) else total


def join_groupby(parameters: Parameters, train: Table) -> Apply:
    statistics = parameters.get("statistics", ["count"])
    rows_of: dict[tuple[str, Any], list[int]] = {}
    for name, keys in _keys(parameters, train.values).items():
        for place, key in enumerate(keys):
            rows_of.setdefault((name, key), []).append(place)

    def apply(rows: Table) -> Columns:
        outputs: dict[str, list[Any]] = {}
        for name, keys in _keys(parameters, rows.values).items():
            places = [[] if key is None else rows_of.get((name, key), []) for key in keys]
            if "count" in statistics:
                outputs[f"{name}_count"] = [float(len(element)) for element in places]
            for column in parameters.get("of", []):
                present = [
                    [train.raw[column][at] for at in element if train.raw[column][at] is not None]
                    for element in places
                ]
                for statistic in statistics:
                    if statistic != "count":
                        outputs[f"{name}_{column}_{statistic}"] = [
                            _measure(statistic, element) for element in present
                        ]
        return outputs

    return apply


def target_encoding(parameters: Parameters, train: Table) -> Apply:
    folds, smoothing = parameters.get("folds", 5), parameters.get("smoothing", 20.0)
    target = train.raw[parameters.get("target", "label")]
    fold_of = [of_integer(row_id) % folds for row_id in train.raw["row_id"]]
    known = [place for place, element in enumerate(target) if element is not None]

    def encoded(keys: Sequence[Any], key: Any, without: int | None) -> float:
        others = [at for at in known if fold_of[at] != without]
        prior = math.fsum(target[at] for at in others) / len(others) if others else 0.0
        mine = [target[at] for at in others if key is not None and keys[at] == key]
        weight = len(mine) + smoothing
        return (math.fsum(mine) + smoothing * prior) / weight if weight else prior

    def apply(rows: Table) -> Columns:
        outputs = {}
        for name, keys in _keys(parameters, rows.values).items():
            of_train = _keys(parameters, train.values)[name]
            outputs[f"{name}_te"] = [
                encoded(of_train, key, of_integer(row_id) % folds if day in train.days else None)
                for key, row_id, day in zip(keys, rows.raw["row_id"], rows.raw["_day"], strict=True)
            ]
        return outputs

    return apply


def join_external(parameters: Parameters, train: Table) -> Apply:
    def apply(rows: Table) -> Columns:
        ((name, keys),) = rows.values.items()
        at = EXTERNAL_COLUMNS.index(parameters.get("key") or name)
        rows_by_key = {str(row[at]): dict(zip(EXTERNAL_COLUMNS, row, strict=True)) for row in EXTERNAL}
        return {
            column: [None if key is None else rows_by_key.get(str(key), {}).get(column) for key in keys]
            for column in parameters["columns"]
        }

    return apply
