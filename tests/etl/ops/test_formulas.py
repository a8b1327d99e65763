"""Formulas of expression and filter: both engines give what plain Python gives, row by row."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from conf.errors import ConfigError
from etl.operators.expression import Expression, kinds_of
from etl.ops import Statistics
from etl.ops.formula import FUNCTIONS, parse
from etl.ops.tables import LocalTables, Tables
from tests.etl.ops import formulas

TYPES: dict[str, Any] = {"a": "int", "b": "float", "s": "string", "t": "string"}
ARROW = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}

ROWS: list[dict[str, Any]] = [
    {"a": a, "b": b, "s": s, "t": t}
    for a, b in [
        (None, None),
        (None, 1.5),
        (3, None),
        (0, 0.0),
        (3, -0.5),
        (-1, 2.0),
        (-8, 1 / 3),
        (2**63 - 1, 1e300),
        (-(2**63), -1e300),
        (700, 709.9),
    ]
    for s, t in [(None, "b"), ("né", None), ("né", "né"), ("a\U0001f600b", "b"), ("", "")]
]

NUMBERS = [
    "a + b * 2 - 1",
    "a / b",
    "a / (b - b)",
    "-a",
    "a ** b",
    "b ** 2",
    "log(a)",
    "log1p(b)",
    "exp(b)",
    "sqrt(a)",
    "abs(a)",
    "floor(b)",
    "ceil(b)",
    "floor(a / 3)",
    "min(a, b)",
    "max(a, b)",
    "max(a, 0)",
    "length(s)",
    "coalesce(a, b, -1)",
    "a if b > 0 else b",
    "(a if s == t else 0) + 1",
    "length(concat(s, t)) + a",
]
TRUTHS = [
    "a < b",
    "a <= b",
    "a > b",
    "a >= b",
    "a == 3",
    "a != 3",
    "s == t",
    "s != 'né'",
    "a > 0 and b > 0",
    "a > 0 or b > 0",
    "not a > 0",
    "(a > 0) == (b > 0)",
    "a in [0, 3, b]",
    "s in ['né', t]",
    "contains(s, 'b')",
    "starts_with(s, 'n')",
    "ends_with(s, '😀b')",
    "contains(s, '')",
    "is_null(a) or is_null(concat(s, t))",
]
TEXTS = ["concat(s, t)", "concat(concat(s, '-'), t)", "s if a > 0 else t", "coalesce(s, t, 'né')"]
NO_TABLES = Tables({}, {}, 1, LocalTables({}))
ALL = [*NUMBERS, *TRUTHS, *TEXTS]


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return mine == theirs and type(mine) is type(theirs)


def _expected(formula: str, row: dict[str, Any]) -> Any:
    result = formulas.feature(formula, row)
    return float(result) if isinstance(result, bool) else result


def _computed(formula: str, rows: list[dict[str, Any]]) -> list[Any]:
    (step,) = Expression(output="out", formula=formula).bind(TYPES)
    fitted = step.operator.fit(step, Statistics())
    arrays = [pa.array([row[name] for row in rows], ARROW[TYPES[name]]) for name in step.inputs]
    return fitted.compute(arrays, LocalTables({}))[0].to_pylist()


def test_the_examples_use_every_function() -> None:
    text = " ".join(ALL)
    assert [name for name in FUNCTIONS if f"{name}(" not in text] == []


@pytest.mark.parametrize("formula", ALL)
def test_arrow_computes_what_the_formula_says(formula: str) -> None:
    for row, value in zip(ROWS, _computed(formula, ROWS), strict=True):
        assert _same(value, _expected(formula, row)), (row, value)


def test_sql_computes_what_the_formulas_say(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(*row.values(),) for row in ROWS], "a long, b double, s string, t string")
    columns = []
    for place, formula in enumerate(ALL):
        (step,) = Expression(output="out", formula=formula).bind(TYPES)
        _, (value,) = step.operator.fit(step, Statistics()).apply(
            frame,
            [F.col(name) for name in step.inputs],
            NO_TABLES,
            "",
        )
        columns.append(value.alias(f"f{place}"))
    for result in frame.select(*frame.columns, *columns).collect():
        row = result.asDict()
        for place, formula in enumerate(ALL):
            expected = _expected(formula, {name: row[name] for name in TYPES})
            assert _same(row[f"f{place}"], expected), (formula, row, expected)


# Exact arithmetic inside, and functions that may round differently outside: comparisons of their values could
# differ in the last bit.
def _around(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max", "coalesce"]), inner, inner),
        st.builds("{}({})".format, st.sampled_from(["floor", "ceil", "abs", "sqrt", "-"]), inner),
        st.builds(
            "({} if {} {} {} else {})".format, inner, inner, st.sampled_from(["<", ">=", "=="]), inner, inner
        ),
        st.builds("({} if not ({} > 0 or is_null({})) else {})".format, inner, inner, inner, inner),
    )


EXACT = st.recursive(st.sampled_from(["a", "b", "0", "1", "2.5", "-3"]), _around, max_leaves=6)
FORMULA = EXACT | st.builds("{}({})".format, st.sampled_from(["exp", "log", "log1p"]), EXACT)
INTEGERS = st.none() | st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 0.5]) | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(formula=FORMULA, rows=st.lists(st.tuples(INTEGERS, FLOATS), min_size=1, max_size=5))
def test_any_formula_over_numbers_is_computed_alike(formula: str, rows: list[tuple[Any, Any]]) -> None:
    given_rows = [{"a": a, "b": b, "s": None, "t": None} for a, b in rows]
    if not parse(formula, kinds_of(TYPES)).columns:
        formula = f"a * 0 + {formula}"
    for row, value in zip(given_rows, _computed(formula, given_rows), strict=True):
        assert _same(value, _expected(formula, row)), (row, value, _expected(formula, row))


@pytest.mark.parametrize(
    "formula, message",
    [
        ("a +", "does not parse"),
        ("a b", "does not parse"),
        ("", "does not parse"),
        ("zzz + 1", "no column zzz"),
        ("cbrt(a)", "no function cbrt"),
        ("a + s", "takes operands of kind number, number, not number, text"),
        ("a == s", "takes operands of kind number, number, not number, text"),
        ("s < t", "takes operands of kind number, number, not text, text"),
        ("a and b", "takes operands of kind truth, truth"),
        ("a if b else 1", "`test` must be a condition"),
        ("a if b > 0 else s", "must be of the same kind"),
        ("contains(s, t)", "needs a constant text"),
        ("min(a)", "takes operands of kind number, number, not number"),
        ("0 < a < 3", "is an unsupported expression"),
        ("a in []", "is an unsupported expression"),
        ("a not in [1]", "is an unsupported expression"),
        ("a % 2", "is an unsupported expression"),
        ("a.real", "is an unsupported expression"),
        ("[a]", "is an unsupported expression"),
        ("__import__('os')", "no function __import__"),
        ("(lambda: a)()", "is an unsupported expression"),
        ("True", "neither a number nor a text"),
        ("None", "neither a number nor a text"),
        ("a + 1" + "0" * 400, "is too large for a double"),
        ("1 + 2", "reads no column"),
    ],
)
def test_what_is_no_formula_is_refused(formula: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Expression(output="out", formula=formula).bind(TYPES)
    assert message in str(refused.value)
    assert formula in str(refused.value)


@pytest.mark.parametrize(
    "formula, message",
    [
        ("not " * 3000 + "(a > 0)", "nested more than 150 levels deep"),
        ("not " * 500 + "(a > 0)", "nested more than 150 levels deep"),
        ("-" * 9000 + "a", "nested more than 150 levels deep"),
        ("(" * 900 + "a" + ")" * 900, "does not parse: too many nested parentheses"),
        (" + ".join(["a"] * 1000), "nested more than 150 levels deep"),
        ("a if b > 0 else " * 400 + "a", "nested more than 150 levels deep"),
        (" + ".join(["a"] * 10_000), "has more than 20,000 characters"),
        ("a + 1" + "0" * 5000, "does not parse: Exceeds the limit"),
        ("a\0", "does not parse"),
        ("n" * 15_000, "there is no column nnn"),
        ("s == '" + "x" * 15_000, "does not parse"),
        ("[" + "a, " * 4000 + "a]", "is an unsupported expression"),
    ],
)
def test_formulas_beyond_the_limits_are_refused(formula: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        parse(formula, kinds_of(TYPES))
    assert len(str(raised.value)) < 1000


def test_the_deepest_and_the_longest_formulas_are_computed() -> None:
    columns = {"a": pa.array([1, None], pa.int64())}
    deepest = parse(" + ".join(["a"] * 149), kinds_of(TYPES))
    assert deepest.to_array(columns, 2).to_pylist() == [149.0, None]
    choice = parse(f"a in [{', '.join(map(str, range(2000, 0, -1)))}]", kinds_of(TYPES))
    assert choice.to_array(columns, 2).to_pylist() == [True, None]
    longest = parse(" or ".join(["a > 0"] * 2000), kinds_of(TYPES))
    assert longest.to_array(columns, 2).to_pylist() == [True, None]
