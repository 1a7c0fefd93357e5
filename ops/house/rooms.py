"""Find code outside a method's rooms (its own folders) that names the method or imports from it.

A file names a method if its code does; docstrings and comments do not count. A room is a folder
whose name is in ROOMS. `attribution` matches only the module `envs.attribution`: elsewhere the word
is about the session of a request, and it names a stored field.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ops.house.imports import list_imports, python_files, reach

CORE: Final = ("daemon", "consumers", "producers", "events", "envs")

ROOMS: Final = frozenset(
    ["methods", "skills", "panels", "lessons", "reflection", "synthesis", "attribution", "users"]
)

METHODS: Final[Mapping[str, re.Pattern[str]]] = {
    "skills": re.compile(
        r"\b(panels?|skills?|routers?)\b|\b(Panel|Skill|Router)[A-Z]\w*"
        r"|(?<!help)_(panels?|skills?|routers?)\b"
    ),
    "lessons": re.compile(
        r"\b(lessons?|reflections?|reflecting)\w*|_(lesson|reflection)", re.IGNORECASE
    ),
    "synthesis": re.compile(
        r"\b(plan_sets?|synthesis|PlansWritten|user_gate|UserEvaluated|TrajectoryVerified|manners)\w*"
        r"|\benvs\.attribution\b|\bfrom envs import .*\battribution\b|daemon\.users",
        re.IGNORECASE,
    ),
}

HOMONYMS: Final[Mapping[str, str]] = {
    "envs/telecom/records.py": "'router'",
    "producers/gateway/server.py": "application.router",
}
"""File -> code that only looks like a method's name: a customer's device, Starlette's routes."""


def list_mentions(root: Path) -> dict[str, list[str]]:
    """Return method -> files outside all rooms whose code names it. Raise SyntaxError."""
    codes = {place: _drop_homonym(place, _read_code(root / place)) for place in _list_outside(root)}
    return {
        method: [place for place, code in codes.items() if pattern.search(code)]
        for method, pattern in METHODS.items()
    }


def list_entries(root: Path) -> dict[str, list[str]]:
    """Return file outside all rooms -> modules in rooms that it imports."""
    imports = list_imports(root, CORE)
    entries = {}
    for place in _list_outside(root):
        module = ".".join(Path(place).with_suffix("").parts).removesuffix(".__init__")
        inner = sorted(target for target in imports[module] if _is_room(target.split(".")))
        if inner:
            entries[place] = inner
    return entries


def is_wiring(name: str, target: str) -> bool:
    """Return whether module `name` is outside all rooms and imports `target` from a room."""
    return _is_room(target.split(".")) and not _is_room(name.split("."))


def count_imports(root: Path, packages: Sequence[str]) -> dict[str, int]:
    """Return module -> number of other modules of `packages` that its import loads."""
    graph = list_imports(root, packages, at_start=True)
    return {module: len(reach(graph, module) - {module}) for module in graph}


def _list_outside(root: Path) -> Iterator[str]:
    for package in CORE:
        for path in python_files(root, package):
            place = path.relative_to(root)
            if not _is_room(place.with_suffix("").parts):
                yield str(place)


def _drop_homonym(place: str, code: str) -> str:
    homonym = HOMONYMS.get(place)
    return code if homonym is None else code.replace(homonym, "")


def _is_room(parts: Sequence[str]) -> bool:
    return not ROOMS.isdisjoint(parts[:-1])


def _read_code(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [item for item in body if not is_text(item)] or [ast.Pass()]
    return ast.unparse(tree)


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a string that stands alone, such as a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
