"""The formulas on a method's card, such as ``c * (K + 1)``: parsed with `ast`, so they can do arithmetic only."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def evaluate(formula: str, values: Mapping[str, Any]) -> float:
    """Evaluate a formula of numbers, names, + - * / // **, brackets, == != and ``a if b else c``.

    >>> evaluate("c * (K + 1)", {"c": 2, "K": 5})
    12
    """

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=a, op=op, right=b) | ast.Compare(left=a, ops=[op], comparators=[b]) if (
                type(op) in _OPERATORS
            ):
                return _OPERATORS[type(op)](value(a), value(b))
            case ast.IfExp(test=test, body=a, orelse=b):
                return value(a) if value(test) else value(b)
            case _:
                raise AssertionError(
                    f"{ast.unparse(node)!r} in the formula {formula!r} is not one of {', '.join(values)}"
                )

    try:
        result = value(ast.parse(formula, mode="eval").body)
    except SyntaxError as error:
        raise AssertionError(f"the formula {formula!r} can't be read: write 2*P, not 2P") from error
    if not isinstance(result, (int, float)):
        raise AssertionError(f"the formula {formula!r} gives {result!r}, which is not a number")
    return result
