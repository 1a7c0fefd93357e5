"""Measure the structure of the code and hold it to its goals.

    python -m ops.house [--root .] [--json] [--list participles|vague|long]

Counted are the packages that are installed and `ops`, not the tests, whose names are sentences.
Exit code 0 when every goal holds, else 1; the goals are those of `GOALS`.
"""

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ops.house.imports import import_circles, python_files
from ops.house.names import VAGUE, Name, definitions, has_participle, local_names

PACKAGES: Final = ("events", "envs", "producers", "consumers", "migrations", "daemon", "ops")

GOALS: Final = {
    "participles_percent": 3.0,
    "vague_locals_percent": 0.5,
    "longest_function_lines": 60,
    "most_modules_in_a_folder": 20,
    "circles": 0,
    "readme_lines": 170,
}
"""The most that each measure may be."""

WIDE: Final = frozenset({"daemon/cli", "ops/faults", "migrations/versions"})
"""Folders of one module per command, fault or revision: they may hold any number."""

DECLARATIONS: Final = frozenset(
    {
        "migrations/versions/0001_the_projection_tables.py:upgrade",
        "migrations/versions/0003_adapters_and_routes.py:upgrade",
        "producers/gateway/metrics/registry.py:__init__",
    }
)
"""Functions that only declare tables or metrics; they may be as long as what they declare."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What was counted; percentages are of all definitions, or of all locals."""

    definitions: int
    participles_percent: float
    locals: int
    vague_locals_percent: float
    longest_function_lines: int
    most_modules_in_a_folder: int
    circles: int
    readme_lines: int


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that a measure counted, and where it stands."""

    measure: str
    place: str
    name: str


def measure(root: Path) -> tuple[Measures, list[Occurrence]]:
    """Count everything below `root`. Raises SyntaxError for a module that is no Python."""
    findings: list[Occurrence] = []
    names: list[Name] = []
    bound: list[Name] = []
    longest = 0
    for path in _modules(root):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        place = str(path.relative_to(root))
        defined = [*definitions(tree), Name(path.stem, "module", 1)]
        names += defined
        findings += [
            Occurrence("participles", f"{place}:{name.line}", name.name)
            for name in defined
            if has_participle(name.name)
        ]
        here = list(local_names(tree))
        bound += here
        findings += [
            Occurrence("vague", f"{place}:{name.line}", name.name)
            for name in here
            if name.name in VAGUE
        ]
        for name, line, length in _functions(tree, place):
            if length > GOALS["longest_function_lines"]:
                findings.append(Occurrence("long", f"{place}:{line}", f"{name} ({length} lines)"))
            longest = max(longest, length)
    circles = import_circles(root, PACKAGES)
    findings += [Occurrence("circles", circle[0], " - ".join(circle)) for circle in circles]
    counts = Counter(finding.measure for finding in findings)
    folders = _folders(root)
    measures = Measures(
        definitions=len(names),
        participles_percent=_percent(counts["participles"], len(names)),
        locals=len(bound),
        vague_locals_percent=_percent(counts["vague"], len(bound)),
        longest_function_lines=longest,
        most_modules_in_a_folder=max(folders.values(), default=0),
        circles=len(circles),
        readme_lines=_lines(root / "README.md"),
    )
    return measures, findings


def check_goals(measures: Measures) -> dict[str, str]:
    """The goals that do not hold: measure -> what it is and what it may be."""
    values = asdict(measures)
    return {
        name: f"{values[name]:g}, at most {limit:g}"
        for name, limit in GOALS.items()
        if values[name] > limit
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the measures; 1 where a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m ops.house", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", choices=("participles", "vague", "long", "circles"))
    options = parser.parse_args(arguments)
    measures, findings = measure(options.root)
    missed = check_goals(measures)
    if options.json:
        print(json.dumps({**asdict(measures), "missed": missed}))
    else:
        for name, value in asdict(measures).items():
            goal = f"  missed: {missed[name]}" if name in missed else ""
            print(f"{name:28} {value:10g}{goal}")
    for finding in findings:
        if finding.measure == options.list:
            print(f"{finding.place}: {finding.name}", file=sys.stderr)
    return 1 if missed else 0


def _modules(root: Path) -> Iterator[Path]:
    return (path for package in PACKAGES for path in python_files(root, package))


def _functions(tree: ast.Module, place: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and length of every function that does more than declare. The length runs from
    the first statement to the last: a signature declares."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if f"{place}:{node.name}" not in DECLARATIONS:
            last = node.end_lineno or node.lineno
            yield node.name, node.lineno, last - node.body[0].lineno + 1


def _folders(root: Path) -> Counter[str]:
    """Modules per folder, `__init__` and the wide ones left out."""
    return Counter(
        str(path.parent.relative_to(root))
        for path in _modules(root)
        if path.name != "__init__.py" and str(path.parent.relative_to(root)) not in WIDE
    )


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
