"""What chains of operators must give, a second time, in plain Python: written from the operators' docstrings.

Values are lists, None is null. Each operator's oracle learns from the training rows and returns a function:
rows → the columns in place of the chain's. Nothing of etl is used.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.etl.ops import formulas, learned
from tests.etl.ops.examples import EXAMPLES
from tests.etl.ops.hashing import of_text
from tests.etl.ops.learned import Apply, Columns, Parameters, Table

NULL, OOV, FIRST = 1, 2, 3


def run(group: Mapping[str, Any], train: Table, rows: Table) -> Columns:
    """Feature → its values for `rows`, by the chain of a group of the section `features`."""
    names = group["columns"]
    train, rows = (
        replace(table, values={name: table.raw[name] for name in names}) for table in (train, rows)
    )
    for entry in group["ops"]:
        name, parameters = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
        apply = oracle_of(name)(parameters or {}, train)
        train, rows = (replace(table, values=apply(table)) for table in (train, rows))
    return rows.values


def oracle_of(name: str) -> Callable[[Parameters, Table], Apply]:
    """The oracle of an operator: that of its first example, or the one below."""
    examples = EXAMPLES.get(name, ())
    learn = examples[0].learn if examples else None
    if learn is not None:
        return lambda parameters, train: learned.by_column(train, lambda values: learn(parameters, values))
    return ORACLES[name]


def _one_by_one(function: Callable[[Parameters, Any], Any]) -> Callable[[Parameters, Table], Apply]:
    """An operator without a fit that maps each value of each column by itself."""

    def learn(parameters: Parameters, train: Table) -> Apply:
        return lambda rows: {
            name: [function(parameters, value) for value in values] for name, values in rows.values.items()
        }

    return learn


def _unless_null(function: Callable[[Parameters, Any], Any]) -> Callable[[Parameters, Table], Apply]:
    return _one_by_one(lambda parameters, value: None if value is None else function(parameters, value))


def _fill(parameters: Parameters, train: Table) -> Apply:
    def apply(rows: Table) -> Columns:
        outputs: dict[str, list[Any]] = {}
        for name, values in rows.values.items():
            filled = [parameters.get("value", 0.0) if element is None else element for element in values]
            outputs[name] = [element if isinstance(element, str) else float(element) for element in filled]
            if parameters.get("indicator"):
                outputs[f"{name}_filled"] = [1.0 if element is None else 0.0 for element in values]
        return outputs

    return apply


def _clip(parameters: Parameters, value: float) -> float:
    number = float(value)
    if parameters.get("min") is not None and number < parameters["min"]:
        return float(parameters["min"])
    return (
        float(parameters["max"])
        if parameters.get("max") is not None and number > parameters["max"]
        else number
    )


def _bucketize(parameters: Parameters, value: Any) -> int:
    return (
        NULL
        if value is None
        else FIRST + bisect_right([float(b) for b in parameters["boundaries"]], float(value))
    )


def _by_element(function: Callable[[Parameters, Any], Any]) -> Callable[[Parameters, Table], Apply]:
    """As `_one_by_one`; in a column with lists, each element is mapped, and a null list stays null."""

    def learn(parameters: Parameters, train: Table) -> Apply:
        def apply(rows: Table) -> Columns:
            outputs: dict[str, list[Any]] = {}
            for name, values in rows.values.items():
                if any(isinstance(value, list) for value in values):
                    outputs[name] = [
                        None if value is None else [function(parameters, element) for element in value]
                        for value in values
                    ]
                else:
                    outputs[name] = [function(parameters, value) for value in values]
            return outputs

        return apply

    return learn


def _hash_bucket(parameters: Parameters, value: Any) -> Any:
    return NULL if value is None else FIRST + of_text(str(value)) % parameters["buckets"]


def _hashed_cross(parameters: Parameters, train: Table) -> Apply:
    """Joined as the operator joins: the unit separator between texts, a zero byte for null."""

    def apply(rows: Table) -> Columns:
        output = parameters.get("output") or "_x_".join(rows.values)
        ids = []
        for values in zip(*rows.values.values(), strict=True):
            text = "\x1f".join("\x00" if element is None else str(element) for element in values)
            none = all(element is None for element in values)
            ids.append(NULL if none else FIRST + of_text(text) % parameters["buckets"])
        return {output: ids}

    return apply


def _split_list(parameters: Parameters, value: str) -> list[str]:
    return [part for part in value.split(parameters.get("separator", "|")) if part]


def _list_slice(parameters: Parameters, train: Table) -> Apply:
    start, length = parameters.get("start", 0), parameters["length"]

    def part(value: Sequence[Any]) -> list[Any]:
        first = max(0, len(value) + start) if start < 0 else start
        return list(value[first : first + length])

    def apply(rows: Table) -> Columns:
        if not parameters.get("columns"):
            return {
                name: [None if element is None else part(element) for element in values]
                for name, values in rows.values.items()
            }
        return {
            f"{name}_{place}": [(part(element or []) + [0] * length)[place] for element in values]
            for name, values in rows.values.items()
            for place in range(length)
        }

    return apply


def _list_similarity(parameters: Parameters, train: Table) -> Apply:
    def alike(left: Sequence[Any] | None, right: Sequence[Any] | None) -> float | None:
        if not left or not right:
            return None
        return len(set(left) & set(right)) / math.sqrt(len(set(left)) * len(set(right)))

    def apply(rows: Table) -> Columns:
        output = parameters.get("output") or "_sim_".join(rows.values)
        return {output: [alike(*both) for both in zip(*rows.values.values(), strict=True)]}

    return apply


def _expression(parameters: Parameters, train: Table) -> Apply:
    def apply(rows: Table) -> Columns:
        count = len(next(iter(rows.values.values())))
        outputs = []
        for place in range(count):
            row = {name: values[place] for name, values in rows.values.items()}
            value = formulas.feature(parameters["formula"], row)
            outputs.append(float(value) if isinstance(value, bool) else value)
        return {parameters["output"]: outputs}

    return apply


def _rename(parameters: Parameters, train: Table) -> Apply:
    names, prefix, suffix = (
        parameters.get("names") or {},
        parameters.get("prefix", ""),
        parameters.get("suffix", ""),
    )
    return lambda rows: {
        names.get(name, f"{prefix}{name}{suffix}"): values for name, values in rows.values.items()
    }


def _as_it_is(parameters: Parameters, train: Table) -> Apply:
    return lambda rows: dict(rows.values)


# Operator → (its parameters, the training rows) → rows → columns.
ORACLES: Mapping[str, Callable[[Parameters, Table], Apply]] = {
    "fill": _fill,
    "fill_median": learned.fill_median,
    "clip": _unless_null(_clip),
    "log1p": _unless_null(lambda parameters, value: math.log1p(value) if value > -1 else None),
    "normalize": learned.normalize,
    "normalize_min_max": learned.normalize_min_max,
    "bucketize": _by_element(_bucketize),
    "categorify": learned.categorify,
    "hash_bucket": _by_element(_hash_bucket),
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
