"""Operators that need no training rows give the oracle's values: in the arrow engine and in Spark.

The arrow engine gets any values that Hypothesis finds, also as slices and single rows. Spark gets chosen values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from etl.ops import Moments, Statistics, operator_from_config
from etl.ops.base import Type
from etl.ops.tables import VOCABULARY, LocalTables, Tables
from etl.workflow.chains import FittedChain
from etl.workflow.raw_values import one_row
from storage.feature_spec import FLOAT32_MAX
from tests.etl.ops import hashing, oracle
from tests.etl.ops.learned import Table

MANY = settings(max_examples=20, deadline=None, derandomize=True, database=None)
ARROW: Mapping[Type, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "string": pa.string(),
    "ints": pa.list_(pa.int64()),
    "strings": pa.list_(pa.string()),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1f\x00"), max_size=40)
INTEGER = st.integers(-3, 12) | st.integers(-(2**63), 2**63 - 1)
VALUES: Mapping[Type, Any] = {
    "int": st.none() | INTEGER,
    "float": st.none() | st.sampled_from([0.0, -0.0, 10.0]) | st.floats(-FLOAT32_MAX, FLOAT32_MAX),
    "string": st.none() | st.sampled_from(["", "|", "a|b", "||né||", "a"]) | TEXT,
    "ints": st.none() | st.lists(INTEGER, max_size=6),
    "strings": st.none() | st.lists(TEXT, max_size=6),
}
OPERATORS: list[tuple[dict[str, Any], tuple[Type, ...]]] = [
    ({"fill": {"value": -2, "indicator": True}}, ("int",)),
    ({"fill": {"value": 0.5}}, ("float",)),
    ({"fill": {"value": "né"}}, ("string",)),
    ({"clip": {"min": -1}}, ("int",)),
    ({"clip": {"min": -1, "max": 7.5}}, ("float",)),
    ({"clip": {"max": -1}}, ("float",)),
    ({"log1p": {}}, ("int",)),
    ({"log1p": {}}, ("float",)),
    ({"bucketize": {"boundaries": [-1, 0, 10, 1e18]}}, ("int",)),
    ({"bucketize": {"boundaries": [-1, 0, 10, 1e18]}}, ("float",)),
    ({"bucketize": {"boundaries": [-1, 0, 10, 1e18]}}, ("ints",)),
    *(({"hash_bucket": {"buckets": 11}}, (kind,)) for kind in ("int", "string", "ints", "strings")),
    ({"hashed_cross": {"buckets": 1000}}, ("string", "int")),
    ({"hashed_cross": {"buckets": 3, "output": "out"}}, ("int", "string", "string")),
    ({"split_list": {}}, ("string",)),
    ({"split_list": {"separator": "||"}}, ("string",)),
    ({"list_slice": {"length": 2}}, ("strings",)),
    ({"list_slice": {"length": 3, "start": 2}}, ("ints",)),
    ({"list_slice": {"length": 2, "start": -3}}, ("strings",)),
    ({"list_slice": {"length": 2, "start": 1, "columns": True}}, ("ints",)),
    ({"list_slice": {"length": 4, "start": -2, "columns": True}}, ("ints",)),
    *(({"rename": {"suffix": "_b"}}, (kind,)) for kind in VALUES),
]


def _chain(
    entry: dict[str, Any],
    kinds: Sequence[Type],
    statistics: Statistics | None = None,
    names: Sequence[str] = "abc",
) -> FittedChain:
    operator = operator_from_config(entry)
    columns = dict(zip(names, kinds, strict=False))
    steps = [operator.fit(step, statistics or Statistics()) for step in operator.bind(columns)]
    outputs = tuple(name for step in steps for name in step.outputs)
    return FittedChain(tuple(columns), tuple(kinds), tuple(steps), outputs)


def _computed(
    chain: FittedChain, columns: Sequence[Sequence[Any]], tables: LocalTables
) -> dict[str, list[Any]]:
    # Each array is a slice: its buffers begin before its first value.
    arrays = [
        pa.array([None, *values], ARROW[kind])[1:] for kind, values in zip(chain.types, columns, strict=True)
    ]
    return {name: output.to_pylist() for name, output in chain.compute(arrays, tables).items()}


def _expected(
    entry: dict[str, Any], columns: Sequence[Sequence[Any]], names: Sequence[str] = "abc"
) -> dict[str, list[Any]]:
    ((name, parameters),) = entry.items()
    rows = Table({}, frozenset(), dict(zip(names, map(list, columns), strict=False)))
    return dict(oracle.oracle_of(name)(parameters, rows)(rows))


def _assert_same(actual: Mapping[str, list[Any]], expected: Mapping[str, list[Any]]) -> None:
    assert list(actual) == list(expected)
    for name, values in expected.items():
        for mine, theirs in zip(actual[name], values, strict=True):
            if isinstance(theirs, float) and mine is not None:
                assert math.isclose(mine, theirs, rel_tol=1e-12), name
            else:
                assert mine == theirs, name


@pytest.mark.parametrize("entry, kinds", OPERATORS, ids=lambda value: str(value).replace(" ", ""))
@MANY
@given(data=st.data())
def test_values_are_the_oracles(entry: dict[str, Any], kinds: tuple[Type, ...], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(*(VALUES[kind] for kind in kinds)), max_size=8))
    columns = [[row[place] for row in rows] for place in range(len(kinds))]
    chain = _chain(entry, kinds)
    actual = _computed(chain, columns, LocalTables({}))
    if rows and all(value is None for value in columns[0]) and kinds[0] in ("ints", "strings"):
        # The oracle tells lists by their values: without one, null is all there is.
        assert all(set(map(str, values)) <= {"None", "0"} for values in actual.values())
        return
    _assert_same(actual, _expected(entry, columns))
    # Each row by itself, as encode_values has it, gives its part of the whole.
    for place, row in enumerate(rows):
        arrays = one_row([chain], dict(zip("abc", row, strict=False)))
        alone = chain.compute([arrays[name] for name in chain.inputs], LocalTables({}))
        assert [output.to_pylist() for output in alone.values()] == [
            [values[place]] for values in actual.values()
        ]


# Limits of the operators above, values next to them, and extremes.
CHOSEN: Mapping[Type, list[Any]] = {
    "int": [None, -2, -1, 0, 1, 7, 8, 9, 10, 11, 10**18 - 1, 10**18, 2**63 - 1, -(2**63)],
    "float": [None, -1.5, -1.0, -0.0, 0.5, 7.5, 7.75, 9.75, 10.0, 1e18, 2e18, FLOAT32_MAX, -FLOAT32_MAX],
    "string": [None, "", "|", "a|b", "||né||", "a", "日本|né|b|", "\U0001f600||b", "0"],
    "ints": [None, [], [-1], [0, 10, 9, 11], [10**18, -(2**63), 3, 4, 5], [7, 7]],
    "strings": [None, [], ["a"], ["a", "", "né"], ["b", "a", "b", "a", "日本"]],
}


def test_spark_gives_the_oracles_values(spark: SparkSession) -> None:
    rows = 60  # so that the values of columns with different numbers of chosen values are combined
    # Operators may take several columns of one type: column 1 of a type has its values in another order.
    columns = {
        f"{kind}{place}": [values[(1 + 2 * place) * row % len(values)] for row in range(rows)]
        for kind, values in CHOSEN.items()
        for place in range(2)
    }
    types = {"int": "long", "float": "double", "ints": "array<long>", "strings": "array<string>"}
    schema = ", ".join(f"{name} {types.get(name[:-1], 'string')}" for name in columns)
    frame = spark.createDataFrame(list(zip(*columns.values(), strict=True)), schema).coalesce(1)
    tables, outputs = Tables({}, {}, 0, LocalTables({})), []
    expected: dict[str, list[Any]] = {}
    for number, (entry, kinds) in enumerate(OPERATORS):
        names = [f"{kind}{kinds[:place].count(kind)}" for place, kind in enumerate(kinds)]
        chain = _chain(entry, kinds, names=names)
        values = _expected(entry, [columns[name] for name in names], names)
        outputs += [
            value.alias(f"{number} {name}") for name, value in chain.apply(frame, tables, "")[1].items()
        ]
        expected |= {f"{number} {name}": values[name] for name in values}
    collected = frame.select(*outputs).collect()
    _assert_same({name: [row[name] for row in collected] for name in expected}, expected)


NUMBERS = st.lists(st.none() | st.integers(-1000, 1000), max_size=8)


@MANY
@given(values=NUMBERS, mean=st.floats(-1e3, 1e3), std=st.floats(0.001, 1e3))
def test_what_was_learned_is_applied_to_each_value(values: list[int | None], mean: float, std: float) -> None:
    cases: list[tuple[str, Statistics, Any]] = [
        ("normalize", Statistics(moments=Moments(9, mean, std)), lambda x: (x - mean) / std),
        ("normalize", Statistics(moments=Moments(9, mean, 0.0)), lambda x: x - mean),
        (
            "normalize_min_max",
            Statistics(aggregates={"min": mean, "max": mean + std}),
            lambda x: (x - mean) / std,
        ),
        ("normalize_min_max", Statistics(aggregates={"min": mean, "max": mean}), lambda x: x - mean),
        ("fill_median", Statistics(quantiles={0.5: mean}), float),
    ]
    for name, learned, function in cases:
        actual = _computed(_chain({name: {}}, ["int"], learned), [values], LocalTables({}))
        for mine, value in zip(actual["a"], values, strict=True):
            if value is None:
                assert mine == (mean if name == "fill_median" else None)
            else:  # a span of max - min loses the digits that min has and the span has not
                assert math.isclose(mine, function(value), rel_tol=1e-6, abs_tol=1e-6)


KNOWN = ["a", "né", "\U0001f600", "", "7", *(f"v{n}" for n in range(200))]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> LocalTables:
    path = tmp_path_factory.mktemp("vocabulary") / "part.parquet"
    entries = {
        "column": ["a"] * len(KNOWN) + ["other"],
        "value": [*KNOWN, "a"],
        "id": [5 + place for place in range(len(KNOWN))] + [3],
        "last_seen": [20 - (value == "né") for value in KNOWN] + [20],
    }
    pq.write_table(pa.table(entries), path)
    return LocalTables({VOCABULARY: (str(path),)}, latest=20)


WORDS = st.none() | st.sampled_from(KNOWN) | TEXT


@MANY
@given(
    values=st.lists(WORDS, max_size=12), lists=st.lists(st.none() | st.lists(WORDS, max_size=4), max_size=6)
)
def test_values_are_looked_up(vocabulary: LocalTables, values: list[Any], lists: list[Any]) -> None:
    def expected(value: Any) -> int:
        if value is None:
            return 1
        return 5 + KNOWN.index(value) if value in KNOWN else 2 + hashing.of_text(value) % 3

    entry, statistics = {"categorify": {"oov_buckets": 3}}, Statistics(cardinality=5 + len(KNOWN))
    of_values = _computed(_chain(entry, ["string"], statistics), [values], vocabulary)["a"]
    assert of_values == [expected(value) for value in values]
    of_lists = _computed(_chain(entry, ["strings"], statistics), [lists], vocabulary)["a"]
    assert of_lists == [None if value is None else [expected(one) for one in value] for value in lists]


@MANY
@given(values=st.lists(st.none() | st.sampled_from([7, 8, -1, 2**63 - 1]), max_size=6))
def test_integers_are_looked_up_as_their_decimal_texts(
    vocabulary: LocalTables, values: list[int | None]
) -> None:
    actual = _computed(_chain({"categorify": {}}, ["int"], Statistics(cardinality=300)), [values], vocabulary)
    assert actual["a"] == [{None: 1, 7: 5 + KNOWN.index("7")}.get(value, 2) for value in values]


def test_a_value_that_is_too_old_is_not_found(vocabulary: LocalTables) -> None:
    chain = _chain({"categorify": {"max_age_days": 1}}, ["string"], Statistics(cardinality=300))
    assert _computed(chain, [["né", "a", None]], vocabulary)["a"] == [6, 5, 1]
    later = LocalTables(vocabulary.files, latest=21)
    assert _computed(chain, [["né", "a", None]], later)["a"] == [2, 5, 1]


def test_a_vocabulary_that_is_not_there_knows_nothing(vocabulary: LocalTables) -> None:
    for tables in (vocabulary, LocalTables({})):
        (step,) = operator_from_config("categorify").bind({"nowhere": "string"})
        fitted = step.operator.fit(step, Statistics(cardinality=1))
        assert fitted.cardinality == 3
        assert fitted.compute([pa.array(["a", None])], tables)[0].to_pylist() == [2, 1]


@pytest.mark.parametrize(
    "kind, value, message",
    [
        ("int", 2**63, "is not of type int"),
        ("int", 1.5, "is not of type int"),
        ("int", "1", "is not of type int"),
        ("int", 2.0**53, "is not of type int"),
        ("string", 1.5, "is not of type string"),
        ("float", -math.inf, "is outside the range of float32"),
        ("float", 1e308, "is outside the range of float32"),
        ("float", "x", "is not of type float"),
        ("ints", [1, "a"], "is not of type ints"),
        ("strings", "ab", "is not of type strings"),
        ("string", ["ab"], "is not of type string"),
        ("int", "true", "is not of type int"),
    ],
)
def test_a_raw_value_of_another_type_is_refused(kind: Type, value: Any, message: str) -> None:
    chain = FittedChain(("a",), (kind,), (), ())
    with pytest.raises(ValueError, match=message):
        one_row([chain], {"a": value})


def test_true_and_false_are_1_and_0() -> None:
    arrays = one_row([FittedChain(("a", "b"), ("int", "float"), (), ())], {"a": True, "b": False})
    assert [array.to_pylist() for array in arrays.values()] == [[1], [0.0]]


def test_a_raw_value_is_taken_as_its_column_has_it() -> None:
    kinds: list[Type] = ["int", "float", "string", "string", "ints", "strings"]
    chain = FittedChain(tuple("abcdef"), tuple(kinds), (), ())
    arrays = one_row([chain], {"a": 2**63 - 1, "b": 3, "c": 12.0, "d": math.nan, "e": [1, 2], "f": ["é"]})
    assert {name: array.to_pylist() for name, array in arrays.items()} == {
        "a": [2**63 - 1],
        "b": [3.0],
        "c": ["12"],
        "d": [None],
        "e": [[1, 2]],
        "f": [["é"]],
    }


def test_lookups_of_two_versions_are_kept_apart(vocabulary: LocalTables, tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"column": ["a"], "value": ["a"], "id": [9], "last_seen": [20]}), path)
    other = LocalTables({VOCABULARY: (str(path),)}, latest=20)
    chain = _chain({"categorify": {}}, ["string"], Statistics(cardinality=300))
    assert _computed(chain, [["a"]], vocabulary)["a"] == [5]
    assert _computed(chain, [["a"]], other)["a"] == [9]
