"""Measure the structure and the prose of the code and hold them to their goals.

    python -m ops.house [--root .] [--json] [--list MEASURE]

Counted are the packages that are installed and `ops`, not the tests, whose names are sentences.
Exit code 0 when every goal holds, else 1; the goals are those of `GOALS`.
"""

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from ops.house.imports import import_circles, python_files
from ops.house.names import VAGUE, Name, definitions, has_participle, local_names
from ops.house.prose import find_hard_prose
from ops.house.rooms import METHODS, count_imports, is_text, is_wiring, list_entries, list_mentions

PACKAGES: Final = ("events", "envs", "producers", "consumers", "migrations", "daemon", "ops")

GOALS: Final = {
    "participles_percent": 3.0,
    "vague_locals_percent": 0.5,
    "longest_function_lines": 60,
    "imports_90th_percentile": 83,
    "circles": 0,
    "hard_prose": 0,
    "readme_lines": 170,
    "lines": 154_999,
    "ops_lines": 22_400,
    "statements": 78_750,
    "skills_files": 12,
    "lessons_files": 10,
    "synthesis_files": 10,
    "entry_files": 8,
}

LISTS: Final = ("participles", "vague", "long", "circles", "prose", *METHODS, "entries")

DECLARATIONS: Final = frozenset({"producers/gateway/metrics/registry.py:__init__"})
"""Functions that only declare tables or metrics; they may be as long as these declarations."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of the code. Percentages are shares of all definitions, or of all local names."""

    definitions: int
    participles_percent: float
    locals: int
    vague_locals_percent: float
    longest_function_lines: int
    imports_90th_percentile: int
    """90th percentile over modules: number of product modules that its import loads."""
    circles: int
    hard_prose: int
    """Number of hard openings and of overlong sentences in docstrings (prose.py)."""
    readme_lines: int
    lines: int
    ops_lines: int
    statements: int
    """Number of statements; docstrings and other standalone strings do not count."""
    skills_files: int
    """Files outside all methods' folders that name this method; so the next two (rooms.py)."""
    lessons_files: int
    synthesis_files: int
    entry_files: int
    """Files outside all methods' folders (rooms) that import a module from one."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A place in the code that counts in a measure."""

    measure: str
    place: str
    name: str


@dataclass(slots=True)
class _Tally:
    names: int = 0
    locals: int = 0
    longest: int = 0
    lines: Counter[str] = field(default_factory=Counter)
    statements: int = 0
    findings: list[Occurrence] = field(default_factory=list)

    def add(self, path: Path, place: str) -> None:
        """Add a module's figures to the tally."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        self.lines[place.partition("/")[0]] += len(text.splitlines())
        self.statements += sum(
            isinstance(node, ast.stmt) and not is_text(node) for node in ast.walk(tree)
        )
        self._add_names([*definitions(tree), Name(path.stem, "module", 1)], place)
        self._add_locals(list(local_names(tree)), place)
        for line, text in find_hard_prose(tree, place):
            self._note("prose", place, line, text)
        for name, line, length in _functions(tree, place):
            if length > GOALS["longest_function_lines"]:
                self._note("long", place, line, f"{name} ({length} lines)")
            self.longest = max(self.longest, length)

    def _add_names(self, names: Sequence[Name], place: str) -> None:
        self.names += len(names)
        for name in names:
            if has_participle(name.name):
                self._note("participles", place, name.line, name.name)

    def _add_locals(self, names: Sequence[Name], place: str) -> None:
        self.locals += len(names)
        for name in names:
            if name.name in VAGUE:
                self._note("vague", place, name.line, name.name)

    def _note(self, measure: str, place: str, line: int, name: str) -> None:
        self.findings.append(Occurrence(measure, f"{place}:{line}", name))


def measure(root: Path) -> tuple[Measures, list[Occurrence]]:
    """Measure everything below `root`. Raise SyntaxError for a module that is not valid Python."""
    tally = _Tally()
    for path in _modules(root):
        tally.add(path, str(path.relative_to(root)))
    circles, mentions, entries = (
        import_circles(root, PACKAGES, is_wiring),
        list_mentions(root),
        list_entries(root),
    )
    findings = [
        *tally.findings,
        *(Occurrence("circles", circle[0], " - ".join(circle)) for circle in circles),
        *(
            Occurrence(method, place, method)
            for method, places in mentions.items()
            for place in places
        ),
        *(Occurrence("entries", place, ", ".join(inner)) for place, inner in entries.items()),
    ]
    counts = Counter(finding.measure for finding in findings)
    imports = sorted(count_imports(root, PACKAGES).values())
    measures = Measures(
        definitions=tally.names,
        participles_percent=_percent(counts["participles"], tally.names),
        locals=tally.locals,
        vague_locals_percent=_percent(counts["vague"], tally.locals),
        longest_function_lines=tally.longest,
        imports_90th_percentile=imports[int(0.9 * len(imports))] if imports else 0,
        circles=len(circles),
        hard_prose=counts["prose"],
        readme_lines=_lines(root / "README.md"),
        lines=tally.lines.total(),
        ops_lines=tally.lines["ops"],
        statements=tally.statements,
        skills_files=len(mentions["skills"]),
        lessons_files=len(mentions["lessons"]),
        synthesis_files=len(mentions["synthesis"]),
        entry_files=len(entries),
    )
    return measures, findings


def check_goals(measures: Measures) -> dict[str, str]:
    """Return missed goal -> a text of its value and its limit."""
    values = asdict(measures)
    return {
        name: f"{values[name]:g}, at most {limit:g}"
        for name, limit in GOALS.items()
        if values[name] > limit
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the measures; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m ops.house", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--list", choices=LISTS)
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
    """Yield (name, line, lines without signature) of each function except DECLARATIONS."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if f"{place}:{node.name}" not in DECLARATIONS:
            last = node.end_lineno or node.lineno
            yield node.name, node.lineno, last - node.body[0].lineno + 1


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
