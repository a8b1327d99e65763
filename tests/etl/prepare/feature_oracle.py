"""The features of prepared rows, by the documents and by brute force (see tests.etl.prepare.oracle).

It knows the operators of tests.etl.prepare.random_logs: fill, fill_median, normalize, categorify and, for lists of
numbers, bucketize.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from conf.types import Config
from tests.etl.prepare.oracle import Row, rounded

NULL_ID, OOV_ID = 1, 2


def features(config: Config, train: Sequence[Row], rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Feature → its values for `rows`, fitted on the rows `train`: float, int or list of ints.

    A list that is null stays null.
    """
    counts: dict[str, Counter[str]] = {}
    least: dict[str, int] = {}
    for group in config.features:
        name, settings = _entry(group.ops[-1])
        if name != "categorify":
            continue
        for column in group.columns:
            vocabulary = settings.get("share") or column
            counts.setdefault(vocabulary, Counter())
            least[vocabulary] = settings.get("min_count", 1)
            if settings.get("counts", True):
                counts[vocabulary].update(text for row in train for text in _texts(row[column]))
    ids = {name: _ids(counts[name], least[name]) for name in counts}
    computed: dict[str, list[Any]] = {}
    for group in config.features:
        for column in group.columns:
            name, settings = _entry(group.ops[-1])
            if name == "bucketize":
                limits = settings["boundaries"]
                computed[column] = [
                    [OOV_ID + 1 + sum(number >= limit for limit in limits) for number in row[column]]
                    for row in rows
                ]
                continue
            if group.kind == "dense":
                computed[column] = _dense(group.ops, column, train, rows)
                continue
            known = ids[_entry(group.ops[-1])[1].get("share") or column]
            computed[column] = [
                None if row[column] is None and group.kind == "multi_hot" else _id_or_ids(row[column], known)
                for row in rows
            ]
    return computed


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    return (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))


def _texts(value: Any) -> list[str]:
    """The values that are counted: none for null."""
    values = value if isinstance(value, list) else [value]
    return [str(one) for one in values if one is not None]


def _ids(counts: Counter[str], least: int) -> dict[str, int]:
    frequent = [text for text, count in counts.items() if count >= least]
    ranked = sorted(frequent, key=lambda text: (-counts[text], text.encode()))
    return {text: OOV_ID + 1 + rank for rank, text in enumerate(ranked)}


def _id_or_ids(value: Any, ids: Mapping[str, int]) -> Any:
    if isinstance(value, list):
        return [ids.get(str(one), OOV_ID) for one in value]
    return NULL_ID if value is None else ids.get(str(value), OOV_ID)


def _dense(ops: Sequence[Any], column: str, train: Sequence[Row], rows: Sequence[Row]) -> list[Any]:
    fitted, values = [row[column] for row in train], [row[column] for row in rows]
    for name, settings in map(_entry, ops):
        if name == "normalize":
            present = [rounded(value) for value in fitted if value is not None]
            mean = math.fsum(present) / len(present)
            std = math.sqrt(math.fsum((value - mean) ** 2 for value in present) / len(present))
            std = std if len(set(present)) > 1 else 1.0
            fitted, values = (
                [None if value is None else (value - mean) / std for value in column_values]
                for column_values in (fitted, values)
            )
            continue
        filling = float(settings.get("value", 0))
        if name == "fill_median":
            present = sorted(value for value in fitted if value is not None)
            filling = float(present[(len(present) - 1) // 2])
        elif name != "fill":
            raise ValueError(f"the oracle has no operator {name}")
        fitted, values = (
            [filling if value is None else float(value) for value in column_values]
            for column_values in (fitted, values)
        )
    return values
