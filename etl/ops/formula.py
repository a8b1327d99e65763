"""Formulas over columns, such as `I1 / (I2 + 1) if I2 > 0 else 0`, for the engines `sql` and `arrow`.

A formula has Python's syntax, but Python does not run it. A value is a number (a double), a text, or true or
false. If an operand is null, the result is null, except for `and` and `or` (three-valued logic), `coalesce`
and `is_null`. The result is also null if there is no finite result, for example after a division by zero, for
log(0), or after an overflow.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conf.errors import ConfigError
from conf.lazy_imports import F
from conf.messages import shortened

if TYPE_CHECKING:
    from pyspark.sql import Column

Kind = Literal["number", "text", "truth"]

# Maximum number of characters of a formula, and maximum depth of its operations. The depth is limited because
# each level of operations needs a few nested calls of the compiler.
_MOST_TEXT = 20_000
_MOST_DEPTH = 150
_MOST_SHOWN = 500  # maximum number of characters of a formula in a message


@dataclass(frozen=True)
class Function:
    """A function or operator of formulas: the kinds of its operands and result, and code for each engine."""

    takes: tuple[Kind, ...]
    gives: Kind
    column: Callable[..., Column]
    array: Callable[..., pa.Array]


def _finite_column(function: Callable[..., Column]) -> Callable[..., Column]:
    def finite(*values: Column) -> Column:
        result = function(*values)
        return F.when(F.abs(result) < float("inf"), result)  # Spark treats NaN as greater than infinity

    return finite


def _finite_array(function: Callable[..., Any]) -> Callable[..., pa.Array]:
    def finite(*values: pa.Array) -> pa.Array:
        nulls = np.logical_or.reduce([value.is_null().to_numpy(zero_copy_only=False) for value in values])
        with np.errstate(all="ignore"):
            result = function(*(value.to_numpy(zero_copy_only=False) for value in values))
        return pa.array(result, pa.float64(), mask=nulls | ~np.isfinite(result))

    return finite


def _arithmetic(count: int, column: Callable[..., Column], array: Callable[..., Any]) -> Function:
    number: Kind = "number"
    numbers = (number,) * count
    return Function(numbers, "number", _finite_column(column), _finite_array(array))


def _compare(column: Callable[..., Column], array: Callable[..., pa.Array]) -> Function:
    return Function(("number", "number"), "truth", column, array)


def _whole(rounded: Callable[[Column], Column], value: Column) -> Column:
    """Rounds a double with Spark's `floor` or `ceil`. Both return 64-bit integers.

    A double whose absolute value is 2**53 or more is an integer already. It is returned unchanged, because
    the conversion of a larger double to 64 bits could overflow.
    """
    return F.when(F.abs(value) < float(2**53), rounded(value).cast("double")).otherwise(value)


_OPERATIONS: dict[type, Function] = {
    ast.Add: _arithmetic(2, lambda a, b: a + b, np.add),
    ast.Sub: _arithmetic(2, lambda a, b: a - b, np.subtract),
    ast.Mult: _arithmetic(2, lambda a, b: a * b, np.multiply),
    ast.Div: _arithmetic(2, lambda a, b: F.when(b != 0, a / b), np.divide),
    ast.Pow: _arithmetic(2, lambda a, b: F.pow(a, b), np.power),
    ast.USub: _arithmetic(1, lambda a: -a, np.negative),
    ast.Lt: _compare(lambda a, b: a < b, pc.less),
    ast.LtE: _compare(lambda a, b: a <= b, pc.less_equal),
    ast.Gt: _compare(lambda a, b: a > b, pc.greater),
    ast.GtE: _compare(lambda a, b: a >= b, pc.greater_equal),
    ast.And: Function(("truth", "truth"), "truth", lambda a, b: a & b, pc.and_kleene),
    ast.Or: Function(("truth", "truth"), "truth", lambda a, b: a | b, pc.or_kleene),
    ast.Not: Function(("truth",), "truth", lambda a: ~a, pc.invert),
}
_EQUAL = {
    ast.Eq: (lambda a, b: a == b, pc.equal),
    ast.NotEq: (lambda a, b: a != b, pc.not_equal),
}

FUNCTIONS: dict[str, Function] = {
    "log": _arithmetic(1, lambda a: F.when(a > 0, F.log(a)), np.log),
    "log1p": _arithmetic(1, lambda a: F.when(a > -1, F.log1p(a)), np.log1p),
    "exp": _arithmetic(1, lambda a: F.exp(a), np.exp),
    "sqrt": _arithmetic(1, lambda a: F.when(a >= 0, F.sqrt(a)), np.sqrt),
    "abs": _arithmetic(1, lambda a: F.abs(a), np.abs),
    "floor": _arithmetic(1, lambda a: _whole(F.floor, a), np.floor),
    "ceil": _arithmetic(1, lambda a: _whole(F.ceil, a), np.ceil),
    "min": _arithmetic(2, lambda a, b: F.when(a <= b, a).when(a > b, b), np.minimum),
    "max": _arithmetic(2, lambda a, b: F.when(a >= b, a).when(a < b, b), np.maximum),
    "length": Function(
        ("text",),
        "number",
        lambda a: F.length(a).cast("double"),
        lambda a: pc.utf8_length(a).cast(pa.float64()),
    ),
    "contains": Function(
        ("text", "text"),
        "truth",
        lambda a, b: F.contains(a, b),
        lambda a, b: _by_constant(pc.match_substring, a, b),
    ),
    "starts_with": Function(
        ("text", "text"),
        "truth",
        lambda a, b: F.startswith(a, b),
        lambda a, b: _by_constant(pc.starts_with, a, b),
    ),
    "ends_with": Function(
        ("text", "text"),
        "truth",
        lambda a, b: F.endswith(a, b),
        lambda a, b: _by_constant(pc.ends_with, a, b),
    ),
    "concat": Function(
        ("text", "text"),
        "text",
        lambda a, b: F.concat(a, b),
        lambda a, b: pc.binary_join_element_wise(a, b, ""),
    ),
}
_NAMES = [*FUNCTIONS, "coalesce", "is_null"]


def _by_constant(matches: Callable[..., pa.Array], texts: pa.Array, pattern: pa.Array) -> pa.Array:
    return matches(texts, pattern[0].as_py()) if len(texts) else pa.array([], pa.bool_())


# The input of a compiled formula, which maps the names of columns to their values. In the engine `arrow`, a
# compiled formula also takes the number of rows, which it needs to repeat constants.
Columns: TypeAlias = "Mapping[str, Column]"
Arrays = Mapping[str, pa.Array]


@dataclass(frozen=True)
class Formula:
    """A formula that has been parsed and checked, with its code for each engine.

    Attributes:
        columns: the columns that the formula reads, in the order in which they appear.
        kind: the kind of the result: `number`, `text`, or `truth` (true or false).
    """

    text: str
    columns: tuple[str, ...]
    kind: Kind
    to_column: Callable[[Columns], Column]
    to_array: Callable[[Arrays, int], pa.Array]


@dataclass(frozen=True)
class _Node:
    kind: Kind
    column: Callable[[Columns], Column]
    array: Callable[[Arrays, int], pa.Array]
    constant: bool = False


def parse(text: str, kinds: Mapping[str, Kind]) -> Formula:
    """Parses and checks a formula. `kinds` has the kind of value of each column that the formula may read.

    Raises:
        ConfigError: the formula cannot be parsed, a column or function does not exist, or an operand has the
            wrong kind.
    """
    shown = shortened(repr(text), _MOST_SHOWN)
    if len(text) > _MOST_TEXT:
        raise ConfigError(
            f"the formula {shown} has more than {_MOST_TEXT:,} characters", "divide it into several formulas"
        )
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ConfigError(
            f"the formula {shown} does not parse: {error.msg}", "correct the syntax of the formula"
        ) from error
    # Python's parser raises these errors if the formula exceeds the limits of the parser
    except (RecursionError, MemoryError) as error:
        raise _too_deep(shown) from error
    if _depth(tree) > _MOST_DEPTH:
        raise _too_deep(shown)
    used: list[str] = []
    node = _Compiler(text, kinds, used).compile(tree)
    return Formula(text, tuple(dict.fromkeys(used)), node.kind, node.column, node.array)


def _too_deep(shown: str) -> ConfigError:
    return ConfigError(
        f"the operations of the formula {shown} are nested more than {_MOST_DEPTH} levels deep",
        "divide it into several formulas; in a long sum, put parts in parentheses",
    )


def _depth(tree: ast.AST) -> int:
    """Returns the number of levels of a syntax tree, without recursion."""
    depth, level = 0, [tree]
    while level:
        depth += 1
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


class _Compiler:
    def __init__(self, text: str, kinds: Mapping[str, Kind], used: list[str]) -> None:
        self._text, self._kinds, self._used = text, kinds, used

    def compile(self, tree: ast.AST) -> _Node:
        """Compiles a syntax tree to code for both engines."""
        match tree:
            case ast.Name(id=name):
                return self._column(name)
            case ast.Constant(value=value):
                return self._constant(value)
            case ast.BinOp(left=left, op=op, right=right):
                return self._call(type(op).__name__, _OPERATIONS.get(type(op)), [left, right])
            case ast.UnaryOp(op=op, operand=operand):
                return self._call(type(op).__name__, _OPERATIONS.get(type(op)), [operand])
            case ast.BoolOp(op=op, values=values):
                return self._combined(op, [self.compile(operand) for operand in values])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._comparison(op, left, right)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._choice(*(self.compile(part) for part in (test, body, orelse)))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._function(name, arguments)
        raise self._wrong(f"{shortened(repr(ast.unparse(tree)))} is an unsupported expression")

    def _column(self, name: str) -> _Node:
        if name not in self._kinds:
            columns = shortened(str(sorted(self._kinds)), 1000)
            raise self._wrong(f"there is no column {shortened(name)}; the columns are {columns}")
        self._used.append(name)
        kind = self._kinds[name]
        if kind == "number":
            return _Node(
                kind, lambda c: c[name].cast("double"), lambda a, n: a[name].cast(pa.float64(), safe=False)
            )
        return _Node(kind, lambda c: c[name], lambda a, n: a[name])

    def _constant(self, value: Any) -> _Node:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise self._wrong(f"the constant {shortened(repr(value))} is neither a number nor a text")
        kind: Kind = "text" if isinstance(value, str) else "number"
        try:
            typed = value if isinstance(value, str) else float(value)
        except OverflowError as error:
            raise self._wrong(f"{shortened(str(value))} is too large for a double") from error
        array_type = pa.string() if kind == "text" else pa.float64()
        return _Node(
            kind, lambda c: F.lit(typed), lambda a, n: pa.array([typed] * n, array_type), constant=True
        )

    def _comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> _Node:
        if isinstance(op, ast.In) and isinstance(right, ast.List | ast.Tuple) and right.elts:
            equals: list[ast.expr] = [ast.Compare(left, [ast.Eq()], [element]) for element in right.elts]
            return self.compile(ast.BoolOp(ast.Or(), equals)) if len(equals) > 1 else self.compile(equals[0])
        nodes = [self.compile(left), self.compile(right)]
        if type(op) in _EQUAL:
            column, array = _EQUAL[type(op)]
            return self._apply(
                type(op).__name__, Function((nodes[0].kind, nodes[0].kind), "truth", column, array), nodes
            )
        return self._apply(type(op).__name__, _OPERATIONS.get(type(op)), nodes)

    def _function(self, name: str, arguments: Sequence[ast.AST]) -> _Node:
        if name not in _NAMES:
            raise self._wrong(f"there is no function {shortened(name)}; the functions are {sorted(_NAMES)}")
        nodes = [self.compile(argument) for argument in arguments]
        if name == "is_null" and len(nodes) == 1:
            node = nodes[0]
            return _Node("truth", lambda c: node.column(c).isNull(), lambda a, n: node.array(a, n).is_null())
        if name == "coalesce" and nodes and len({operand.kind for operand in nodes}) == 1:
            return _Node(
                nodes[0].kind,
                lambda c: F.coalesce(*(operand.column(c) for operand in nodes)),
                lambda a, n: pc.coalesce(*(operand.array(a, n) for operand in nodes)),
            )
        if name in ("contains", "starts_with", "ends_with") and len(nodes) == 2 and not nodes[1].constant:
            raise self._wrong(f"{name} needs a constant text as its second argument")
        return self._apply(name, FUNCTIONS.get(name), nodes)

    def _combined(self, op: ast.boolop, nodes: list[_Node]) -> _Node:
        """Returns `a and b and …` or `a or b or …`.

        The function combines values in pairs, so that calls are not nested deeply.
        """
        while len(nodes) > 1:
            pairs = [nodes[start : start + 2] for start in range(0, len(nodes), 2)]
            nodes = [
                self._apply(type(op).__name__, _OPERATIONS[type(op)], pair) if len(pair) == 2 else pair[0]
                for pair in pairs
            ]
        return nodes[0]

    def _choice(self, test: _Node, body: _Node, orelse: _Node) -> _Node:
        if test.kind != "truth" or body.kind != orelse.kind:
            raise self._wrong(
                "in `a if test else b`, `test` must be a condition, and `a` and `b` must be of the same kind"
            )
        return _Node(
            body.kind,
            lambda c: F.when(test.column(c), body.column(c)).otherwise(orelse.column(c)),
            lambda a, n: pc.if_else(
                pc.fill_null(test.array(a, n), False), body.array(a, n), orelse.array(a, n)
            ),
        )

    def _call(self, name: str, function: Function | None, arguments: Sequence[ast.AST]) -> _Node:
        return self._apply(name, function, [self.compile(argument) for argument in arguments])

    def _apply(self, name: str, function: Function | None, nodes: Sequence[_Node]) -> _Node:
        if function is None:
            raise self._wrong(f"{name} is an unsupported expression")
        kinds = tuple(operand.kind for operand in nodes)
        if kinds != function.takes:
            raise self._wrong(
                f"{name} takes operands of kind {', '.join(function.takes)}, not {', '.join(kinds)}"
            )
        return _Node(
            function.gives,
            lambda c: function.column(*(operand.column(c) for operand in nodes)),
            lambda a, n: function.array(*(operand.array(a, n) for operand in nodes)),
        )

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"the formula {shortened(repr(self._text), _MOST_SHOWN)}: {why}",
            "correct the formula; docs/operators/columns.md lists the allowed functions and operators",
        )
