"""
Tool ``calculator``: arithmetic, by walking the syntax tree of an expression.

Numbers, ``+ - * / // % **``, parentheses, a few functions and constants are evaluated here; anything else is refused,
and integers are bounded, so that no expression takes long.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, Union

MAX_CHARS = 1000
MAX_BITS = 8192
"""Size of the integers of a calculation: about 2,466 digits."""
MAX_FACTORIAL = 500

Number = Union[int, float]

BINARY: dict[type, Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: dict[type, Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
CONSTANTS = {"pi": math.pi, "e": math.e}
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs, "min": min, "max": max, "round": round, "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt,
    "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "gcd": math.gcd,
}  # fmt: skip


class CannotCalculate(Exception):
    """The expression is not arithmetic, or its numbers are too large."""


def calculator(expression: str) -> str:
    """
    Calculate an arithmetic expression, such as (3 + 4) * 12 / 5 or sqrt(2) ** 3.

    Args:
        expression: Numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, round, min, max and log.
    """
    if len(expression) > MAX_CHARS:
        raise CannotCalculate(f"the expression has {len(expression)} characters, more than {MAX_CHARS}")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotCalculate(f"{expression!r:.80} is not an expression: {error}") from error
    except (ArithmeticError, TypeError) as error:
        raise CannotCalculate(str(error)) from error
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _value(node: ast.AST) -> Number:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return UNARY[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in BINARY:
            return _bounded(BINARY[type(node.op)](left, right))
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _called(node.func.id, [_value(argument) for argument in node.args])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        raise CannotCalculate("^ is not an operator; write ** for powers")
    raise CannotCalculate(f"{type(node).__name__} is not arithmetic")


def _called(name: str, arguments: list[Number]) -> Number:
    if name == "factorial":
        return _factorial(arguments)
    if name not in FUNCTIONS:
        raise CannotCalculate(f"there is no function {name!r}; there are factorial, {', '.join(FUNCTIONS)}")
    return _bounded(FUNCTIONS[name](*arguments))


def _factorial(arguments: list[Number]) -> int:
    if len(arguments) != 1 or not isinstance(arguments[0], int) or not 0 <= arguments[0] <= MAX_FACTORIAL:
        raise CannotCalculate(f"factorial takes one integer of 0 .. {MAX_FACTORIAL}")
    return math.factorial(arguments[0])


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and abs(base).bit_length() * abs(exponent) > MAX_BITS:
        raise CannotCalculate(f"{base} ** {exponent} is too large")
    value = base**exponent
    if isinstance(value, complex):
        raise CannotCalculate(f"{base} ** {exponent} is not a real number")
    return value


def _bounded(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise CannotCalculate(f"an integer has more than {MAX_BITS} bits")
    return value
