"""What chains of operators must give, a second time, in plain Python: written from the operators' docstrings.

Values are lists, None is null. Each operator's oracle learns from the training rows and returns the function it has
become: rows → the columns in place of the chain's. Nothing of etl is used.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.etl.ops import formulas, learned
from tests.etl.ops.hashing import of_text
from tests.etl.ops.learned import Apply, Columns, Given, Table

NULL, OOV, FIRST = 1, 2, 3


def run(group: Mapping[str, Any], train: Table, rows: Table) -> Columns:
    """Feature → its values for `rows`, by the chain of a group of the section `features`."""
    names = group["columns"]
    train, rows = (replace(each, values={name: each.raw[name] for name in names}) for each in (train, rows))
    for entry in group["ops"]:
        name, given = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
        apply = ORACLES[name](given or {}, train)
        train, rows = (replace(each, values=apply(each)) for each in (train, rows))
    return rows.values


def _one_by_one(function: Callable[[Given, Any], Any]) -> Callable[[Given, Table], Apply]:
    """An operator without a fit that maps each value of each column by itself."""

    def learn(given: Given, train: Table) -> Apply:
        return lambda rows: {
            name: [function(given, value) for value in values] for name, values in rows.values.items()
        }

    return learn


def _unless_null(function: Callable[[Given, Any], Any]) -> Callable[[Given, Table], Apply]:
    return _one_by_one(lambda given, value: None if value is None else function(given, value))


def _fill(given: Given, train: Table) -> Apply:
    def apply(rows: Table) -> Columns:
        found: dict[str, list[Any]] = {}
        for name, values in rows.values.items():
            filled = [given.get("value", 0.0) if each is None else each for each in values]
            found[name] = [each if isinstance(each, str) else float(each) for each in filled]
            if given.get("indicator"):
                found[f"{name}_filled"] = [1.0 if each is None else 0.0 for each in values]
        return found

    return apply


def _clip(given: Given, value: float) -> float:
    number = float(value)
    if given.get("min") is not None and number < given["min"]:
        return float(given["min"])
    return float(given["max"]) if given.get("max") is not None and number > given["max"] else number


def _bucketize(given: Given, value: Any) -> int:
    return (
        NULL if value is None else FIRST + bisect_right([float(b) for b in given["boundaries"]], float(value))
    )


def _hash_bucket(given: Given, value: Any) -> Any:
    if isinstance(value, list):
        return [_hash_bucket(given, each) for each in value]
    return NULL if value is None else FIRST + of_text(str(value)) % given["buckets"]


def _hash_buckets(given: Given, train: Table) -> Apply:
    def apply(rows: Table) -> Columns:
        found = {}
        for name, values in rows.values.items():
            lists = any(isinstance(each, list) for each in values)
            found[name] = [
                None if lists and value is None else _hash_bucket(given, value) for value in values
            ]
        return found

    return apply


def _hashed_cross(given: Given, train: Table) -> Apply:
    """Joined as the operator joins: the unit separator between texts, a zero byte for null."""

    def apply(rows: Table) -> Columns:
        output = given.get("output") or "_x_".join(rows.values)
        ids = []
        for values in zip(*rows.values.values(), strict=True):
            text = "\x1f".join("\x00" if each is None else str(each) for each in values)
            none = all(each is None for each in values)
            ids.append(NULL if none else FIRST + of_text(text) % given["buckets"])
        return {output: ids}

    return apply


def _split_list(given: Given, value: str) -> list[str]:
    return [part for part in value.split(given.get("separator", "|")) if part]


def _list_slice(given: Given, train: Table) -> Apply:
    start, length = given.get("start", 0), given["length"]

    def part(value: Sequence[Any]) -> list[Any]:
        first = max(0, len(value) + start) if start < 0 else start
        return list(value[first : first + length])

    def apply(rows: Table) -> Columns:
        if not given.get("columns"):
            return {
                name: [None if each is None else part(each) for each in values]
                for name, values in rows.values.items()
            }
        return {
            f"{name}_{place}": [(part(each or []) + [0] * length)[place] for each in values]
            for name, values in rows.values.items()
            for place in range(length)
        }

    return apply


def _list_similarity(given: Given, train: Table) -> Apply:
    def alike(left: Sequence[Any] | None, right: Sequence[Any] | None) -> float | None:
        if not left or not right:
            return None
        return len(set(left) & set(right)) / math.sqrt(len(set(left)) * len(set(right)))

    def apply(rows: Table) -> Columns:
        output = given.get("output") or "_sim_".join(rows.values)
        return {output: [alike(*both) for both in zip(*rows.values.values(), strict=True)]}

    return apply


def _expression(given: Given, train: Table) -> Apply:
    def apply(rows: Table) -> Columns:
        count = len(next(iter(rows.values.values())))
        found = []
        for place in range(count):
            row = {name: values[place] for name, values in rows.values.items()}
            value = formulas.feature(given["formula"], row)
            found.append(float(value) if isinstance(value, bool) else value)
        return {given["output"]: found}

    return apply


def _rename(given: Given, train: Table) -> Apply:
    names, prefix, suffix = given.get("names") or {}, given.get("prefix", ""), given.get("suffix", "")
    return lambda rows: {
        names.get(name, f"{prefix}{name}{suffix}"): values for name, values in rows.values.items()
    }


def _as_it_is(given: Given, train: Table) -> Apply:
    return lambda rows: dict(rows.values)


# Operator → (its parameters, the training rows) → rows → columns.
ORACLES: Mapping[str, Callable[[Given, Table], Apply]] = {
    "fill": _fill,
    "fill_median": learned.fill_median,
    "clip": _unless_null(_clip),
    "log1p": _unless_null(lambda given, value: math.log1p(value) if value > -1 else None),
    "normalize": learned.normalize,
    "normalize_min_max": learned.normalize_min_max,
    "bucketize": _one_by_one(_bucketize),
    "categorify": learned.categorify,
    "hash_bucket": _hash_buckets,
    "hashed_cross": _hashed_cross,
    "target_encoding": learned.target_encoding,
    "join_groupby": learned.join_groupby,
    "join_external": learned.join_external,
    "split_list": _unless_null(_split_list),
    "list_slice": _list_slice,
    "list_similarity": _list_similarity,
    "expression": _expression,
    "rename": _rename,
    "data_stats": _as_it_is,
    "value_count": _as_it_is,
    "drop_low_cardinality": learned.drop_low_cardinality,
}
