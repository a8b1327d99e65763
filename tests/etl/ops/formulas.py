"""What a formula means, one row at a time in plain Python: the oracle of etl.ops.formula."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from typing import Any

Value = float | str | bool | None


def evaluate(formula: str, row: Mapping[str, Any]) -> Value:
    """The formula's value for one row: a float, a text, a truth or None."""
    return _of(ast.parse(formula, mode="eval").body, row)


def _of(node: Any, row: Mapping[str, Any]) -> Value:
    match node:
        case ast.Name(id=name):
            return _plain(row[name])
        case ast.Constant(value=value):
            return _plain(value)
        case ast.BinOp(left=left, op=op, right=right):
            return _finite(_ARITHMETIC[type(op)], _of(left, row), _of(right, row))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _finite(lambda a: -a, _of(operand, row))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            result = _of(operand, row)
            return None if result is None else not result
        case ast.BoolOp(op=op, values=parts):
            return _joined([_of(operand, row) for operand in parts], decides=isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=[ast.In()], comparators=[ast.List(elts=elements)]):
            value = _of(left, row)
            return _joined(
                [_compared(ast.Eq, value, _of(operand, row)) for operand in elements], decides=True
            )
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _compared(type(op), _of(left, row), _of(right, row))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _of(body if _of(test, row) else orelse, row)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _called(name, [_of(operand, row) for operand in arguments])
    raise ValueError(f"the oracle does not know {ast.dump(node)}")


def _plain(value: Any) -> Value:
    return float(value) if isinstance(value, int) else value


def _joined(values: list[Value], decides: bool) -> Value:
    """`or` (decides=True) or `and`: the deciding truth wins over null."""
    if decides in values:
        return decides
    return None if None in values else not decides


def _compared(op: type, a: Any, b: Any) -> Value:
    if a is None or b is None:
        return None
    orders: dict[type, Any] = {
        ast.Lt: a < b,
        ast.LtE: a <= b,
        ast.Gt: a > b,
        ast.GtE: a >= b,
        ast.Eq: a == b,
        ast.NotEq: a != b,
    }
    return bool(orders[op])


def feature(formula: str, row: Mapping[str, Any]) -> Any:
    """The value of `expression` for a row: null where a number is beyond the range of float32."""
    result = evaluate(formula, row)
    too_large = isinstance(result, int | float) and abs(result) > 3.4028234663852886e38
    return None if too_large else result


def _finite(function: Callable[..., float], *values: Any) -> float | None:
    if None in values:
        return None
    try:
        result = float(function(*values))
    except (ArithmeticError, ValueError):
        return None
    return result if math.isfinite(result) else None


_ARITHMETIC: Mapping[type, Callable[..., float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: math.pow,
}
_NUMERIC: Mapping[str, Callable[..., float]] = {
    "log": math.log,
    "log1p": math.log1p,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "length": len,
}
_TEXTUAL: Mapping[str, Callable[[str, str], Value]] = {
    "contains": lambda a, b: b in a,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "concat": lambda a, b: a + b,
}


def _called(name: str, values: list[Any]) -> Value:
    if name == "is_null":
        return values[0] is None
    if name == "coalesce":
        return next((value for value in values if value is not None), None)
    if name in _NUMERIC:
        return _finite(_NUMERIC[name], *values)
    return None if None in values else _TEXTUAL[name](*values)
