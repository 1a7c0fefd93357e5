"""The calculator of tau2-bench's tools: arithmetic on text, with its results and error texts.

The original passes the text to Python's `eval`. Here it is parsed and evaluated without recursion,
and every intermediate integer is bounded, so no expression takes long. Error texts are those of
Python 3.12, with which the recordings were made.

Guarantee: any text of up to `MAX_CHARACTERS` gives the original's result, or an exception with its
error text. Not covered: expressions beyond the limits, which the original may compute.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

ALLOWED: Final = frozenset("0123456789+-*/(). ")

MAX_CHARACTERS: Final = 1_000
"""Largest length of an expression: enough for a sum of a hundred prices."""

MAX_BITS: Final = 65_536
"""Largest size of an intermediate integer in bits. A result must fit a float, which holds 1,024."""

_MAX_NESTING: Final = 200
_OPERATORS: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_DIVISIONS: Final = {
    ast.Div: ("division by zero", "float division by zero"),
    ast.FloorDiv: ("integer division or modulo by zero", "float floor division by zero"),
}
"""Error texts of division by zero: for two integers, and if a float is involved."""

_TOKEN: Final = re.compile(r"\d+\.?\d*|\.\d+|\.\.\.|\*\*|//|.")
_GENERIC: Final = "invalid syntax"
_COMMA: Final = "invalid syntax. Perhaps you forgot a comma?"
_UNMATCHED: Final = "unmatched ')'"
_UNCLOSED: Final = "'(' was never closed"
_NESTED: Final = "too many nested parentheses"
_ZEROS: Final = (
    "leading zeros in decimal integer literals are not permitted; "
    "use an 0o prefix for octal integers"
)


def calculate(expression: str) -> str:
    """Return the value, rounded to two digits, as the text of a float: "4.0" for "2+2". Raise
    ValueError, TypeError, ArithmeticError or SyntaxError with the text that the tool answers."""
    if not all(character in ALLOWED for character in expression):
        raise ValueError("Invalid characters in expression")
    if not isinstance(expression, str):
        raise TypeError("eval() arg 1 must be a string, bytes or code object")
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression is longer than {MAX_CHARACTERS} characters; split it")
    return str(round(float(_evaluate(_parse(expression))), 2))


def _parse(expression: str) -> ast.expr:
    try:
        return ast.parse(expression.lstrip(" "), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError):
        line = 1 if expression.strip() else 0
        raise ValueError(f"{_fault(expression)} (<string>, line {line})") from None


def _evaluate(root: ast.expr) -> Any:
    waiting: list[ast.expr] = [root]
    ordered: list[ast.expr] = []
    while waiting:
        ordered.append(waiting.pop())
        waiting.extend(_operands(ordered[-1]))
    values: list[Any] = []
    for node in reversed(ordered):
        count = len(_operands(node))
        operands = values[len(values) - count :]
        del values[len(values) - count :]
        values.append(_apply(node, operands))
    return values[0]


def _operands(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Call):
        return [node.func, *node.args]
    return [node.value] if isinstance(node, ast.Starred) else []


def _apply(node: ast.expr, operands: Sequence[Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return -operands[0] if isinstance(node.op, ast.USub) else +operands[0]
    if isinstance(node, ast.BinOp):
        return _combine(type(node.op), *operands)
    if isinstance(node, ast.Call):  # "2(3)"
        raise TypeError(f"'{type(operands[0]).__name__}' object is not callable")
    if isinstance(node, ast.Tuple):  # "()"
        return ()
    raise ValueError(f"{_GENERIC} (<string>, line 1)")


def _combine(kind: type[ast.operator], left: Any, right: Any) -> Any:
    if isinstance(left, int | float) and isinstance(right, int | float):
        _check_zero(kind, left, right)
    if isinstance(left, int) and isinstance(right, int) and _bits(kind, left, right) > MAX_BITS:
        raise OverflowError("the numbers are too large")
    return _OPERATORS[kind](left, right)


def _check_zero(kind: type[ast.operator], left: float, right: float) -> None:
    if kind is ast.Pow and left == 0 and right < 0:
        raise ZeroDivisionError("0.0 cannot be raised to a negative power")
    if kind in _DIVISIONS and right == 0:
        whole, fraction = _DIVISIONS[kind]
        integers = isinstance(left, int) and isinstance(right, int)
        raise ZeroDivisionError(whole if integers else fraction)


def _bits(kind: type[ast.operator], left: int, right: int) -> int:
    """Return an upper bound on the bits of an operation's result."""
    if kind is ast.Pow:
        return left.bit_length() * right if abs(left) > 1 and right > 0 else 1
    if kind is ast.Mult:
        return left.bit_length() + right.bit_length()
    return max(left.bit_length(), right.bit_length()) + 1


def _fault(expression: str) -> str:
    """Return Python's error text. Faults of tokens come before faults of grammar."""
    tokens = [token for token in _TOKEN.findall(expression) if token != " "]
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if re.fullmatch(r"0\d+", token) and token.strip("0"):
            return _ZEROS
        if depth < 0:
            return _UNMATCHED
        if depth >= _MAX_NESTING:
            return _NESTED
    return _misplacement(tokens)


def _misplacement(tokens: Sequence[str]) -> str:
    """Return Python's error text for grammar. Missing text at the end is an open parenthesis."""
    place = _find_misfit(tokens)
    if place is None:
        return _UNCLOSED if tokens.count("(") > tokens.count(")") else _GENERIC
    if not _is_number(tokens[place]):
        return _GENERIC
    if _find_misfit(tokens[place:]) is None and tokens.count("(") > tokens.count(")"):
        return _UNCLOSED
    inside = tokens[:place].count("(") > tokens[:place].count(")")
    return _COMMA if inside else _GENERIC


def _find_misfit(tokens: Sequence[str]) -> int | None:
    """Return the position of the first token that does not fit; None if only the end is missing."""
    complete, depth, before = False, 0, ""
    for place, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        number = _is_number(token)
        if complete:
            fits = not number and token != "."
        else:
            fits = number or token in "(+-" or before + token in ("()", "(*", "(**")
        if not fits or depth < 0:
            return place
        complete, before = number or token == ")", token
    return None


def _is_number(token: str) -> bool:
    return token[0].isdigit() or (token[0] == "." and token != ".")
