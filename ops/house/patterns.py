"""Find uses of Python's backtracking `re`, and check which take linear time.

A pattern is linear if it has no open repeat, or if its one open repeat is of a set of characters
and ends the pattern. A person has to state why the time of any other pattern is bounded.
"""

import ast
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# CPython's pattern parser is private, but a second parser of the syntax would differ.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

from ops.house.imports import python_files

SEARCHES: Final = frozenset(
    ["compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"]
)
OTHERS: Final = frozenset(["difflib", "fnmatch", "rapidfuzz", "regex"])
"""Modules whose time on a text may grow faster than its length; an import counts as a use."""

_MOST_WAYS: Final = 100_000
"""Most ways in which a pattern without an open repeat may match from one position."""
_REPEATS: Final = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
_SETS: Final = (op.ANY, op.IN, op.LITERAL, op.NOT_LITERAL)


@dataclass(frozen=True, slots=True)
class Use:
    """A call that takes a pattern, or an import of one of OTHERS."""

    place: str
    line: int
    pattern: str | bytes | None
    """The pattern if it is a constant of the module, else None."""
    flags: int = 0


def list_uses(root: Path, packages: Sequence[str]) -> Iterator[Use]:
    """Yield every use in `packages` below `root`. Raise SyntaxError."""
    for package in packages:
        for path in python_files(root, package):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            yield from _Walk(module).collect(ast.parse(path.read_text(encoding="utf-8")))


def is_linear(use: Use) -> bool:
    """Return whether a search for the pattern provably takes linear time."""
    if use.pattern is None:
        return False
    return _has_bound(tree := parser.parse(use.pattern, use.flags)) or _ends_in_run(list(tree))


class _Walk:
    def __init__(self, module: str) -> None:
        self._module = module
        self._constants: dict[str, str | bytes] = {}

    def collect(self, tree: ast.Module) -> Iterator[Use]:
        for statement in tree.body:
            yield from self._visit(statement, "")
            for name, value in _list_bindings(statement):
                if (text := self._evaluate(value)) is not None:
                    self._constants[name] = text

    def _visit(self, node: ast.AST, symbol: str) -> Iterator[Use]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            symbol = f"{symbol}.{node.name}" if symbol else node.name
        elif not symbol and (bindings := _list_bindings(node)):
            symbol = bindings[0][0]
        yield from self._read(node, symbol)
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, symbol)

    def _read(self, node: ast.AST, symbol: str) -> Iterator[Use]:
        place = f"{self._module}:{symbol}"
        if isinstance(node, ast.Call) and _is_search(node.func):
            pattern = self._evaluate(node.args[0]) if node.args else None
            yield Use(place, node.lineno, pattern, _read_flags(node))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                # Calls under another name would be missed.
                if alias.name in OTHERS or (alias.name == "re" and alias.asname):
                    yield Use(f"{self._module}:{alias.name}", node.lineno, None)
        elif isinstance(node, ast.ImportFrom) and node.module in OTHERS | {"re"}:
            for alias in node.names:
                yield Use(f"{self._module}:{node.module}.{alias.name}", node.lineno, None)

    def _evaluate(self, node: ast.expr) -> str | bytes | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | bytes) else None
        if isinstance(node, ast.Name):
            return self._constants.get(node.id)
        if isinstance(node, ast.FormattedValue):
            return self._evaluate(node.value)
        if isinstance(node, ast.JoinedStr):
            parts = [self._evaluate(part) for part in node.values]
            texts = [part for part in parts if isinstance(part, str)]
            return "".join(texts) if len(texts) == len(parts) else None
        return None


def _list_bindings(node: ast.AST) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        return [(node.target.id, node.value)]
    if isinstance(node, ast.Assign):
        return [(name.id, node.value) for name in node.targets if isinstance(name, ast.Name)]
    return []


def _is_search(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in SEARCHES
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
    )


def _read_flags(call: ast.Call) -> int:
    names = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)]
    flags = [getattr(re, name) for name in names if isinstance(getattr(re, name, 0), re.RegexFlag)]
    return sum({int(flag) for flag in flags})


def _has_bound(tree: Iterable[tuple[Any, Any]]) -> bool:
    return _count_ways(tree) <= _MOST_WAYS


def _count_ways(tree: Iterable[tuple[Any, Any]]) -> float:
    return math.prod(_count_node(kind, value) for kind, value in tree)


def _count_node(kind: Any, value: Any) -> float:
    if kind in _REPEATS:
        least, most, tree = value
        if most == op.MAXREPEAT:
            return math.inf
        ways: float = (most - least + 1) * _count_ways(tree) ** min(int(most), _MOST_WAYS)
        return ways
    if kind is op.BRANCH:
        return sum(map(_count_ways, value[1]))
    if kind is op.SUBPATTERN:
        return _count_ways(value[3])
    if kind in (op.ASSERT, op.ASSERT_NOT):
        return _count_ways(value[1])
    return _count_ways(value) if kind is op.ATOMIC_GROUP else 1


def _ends_in_run(nodes: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether the only open repeat is of one character set and nothing after it may fail."""
    if not nodes:
        return True
    *before, (kind, value) = nodes
    if not _has_bound(before):
        return False
    if kind in _REPEATS:
        _, most, tree = value
        if most == op.MAXREPEAT:
            return kind is not op.MIN_REPEAT and len(tree) == 1 and tree[0][0] in _SETS
    if kind is op.BRANCH:
        return all(_ends_in_run(list(part)) for part in value[1])
    if kind is op.SUBPATTERN:
        return _ends_in_run(list(value[3]))
    return _has_bound([(kind, value)])
