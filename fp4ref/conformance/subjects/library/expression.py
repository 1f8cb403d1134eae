"""Sizes in a signature: whole numbers over the names of sizes, in a small language that runs no code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping

LONGEST = 200  # characters of an expression
LARGEST = 2**63 - 1

OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "ceil_div": lambda a, b: -(-a // b),
    "round_up": lambda a, b: -(-a // b) * b,
    "min": min,
    "max": max,
}
FORM = "whole numbers, names of sizes, + - * // %, ceil_div, round_up, min and max of two"


class ExpressionError(ValueError):
    """Text that is no expression, or an expression without a value."""


def parsed(text: str, known: Iterable[str]) -> ast.expr:
    """Read an expression; every name in it must be known.

    >>> evaluated(parsed("round_up(rows, 128) * 4", ["rows"]), {"rows": 130})
    1024

    Errors: ExpressionError, with what was found.

    Rules: CNF-39.
    """
    if len(text) > LONGEST:
        raise ExpressionError(f"{len(text)} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError(repr(text)) from None
    names = set(known)
    pending: list[ast.expr] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            pending += [node.left, node.right]
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            if name not in FUNCTIONS or len(node.args) != 2 or node.keywords:
                raise ExpressionError(repr(ast.unparse(node)))
            pending += node.args
        elif isinstance(node, ast.Name):
            if node.id not in names:
                raise ExpressionError(f"unknown size {node.id!r}")
        elif not (isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= LARGEST):
            raise ExpressionError(repr(ast.unparse(node)))
    return tree


def evaluated(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """Compute a parsed expression.

    Errors: ExpressionError for a division by zero, and for a value below 0 or above 2^63 - 1.

    Rules: CNF-39.
    """
    value = _value(node, sizes)
    if value < 0:
        raise ExpressionError(f"{ast.unparse(node)} is {value}")
    return value


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return int(value)
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _applied(node, OPERATORS[type(op)], _value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=[first, second]):
            return _applied(node, FUNCTIONS[name], _value(first, sizes), _value(second, sizes))
    raise AssertionError(node)  # nothing else was parsed


def _applied(node: ast.expr, function: Callable[[int, int], int], first: int, second: int) -> int:
    try:
        value = function(first, second)
    except ZeroDivisionError:
        raise ExpressionError(f"{ast.unparse(node)} divides by 0") from None
    if abs(value) > LARGEST:
        raise ExpressionError(f"{ast.unparse(node)} is above 2^63 - 1")
    return value
