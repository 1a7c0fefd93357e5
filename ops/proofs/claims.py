"""Read the claims of the documents: tables with a column `proof` that names tests.

    | promise | means | proof |
    |---|---|---|
    | ... | ... | `tests/a.py::test_b`, `tests/c.py::test_d` (make long) |

A condition (CONDITIONS) follows a test that some `make test` leaves out. A row without a test is a
claim without proof.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Condition = Literal["make long", "KINTSUGI_BENCHMARKS"]
CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
"""Conditions: of a test marked `long`, which `make test` leaves out; of a test marked `benchmarks`,
which needs recorded data."""

DOCUMENTS: Final = ("README.md", "docs/guarantees.md")

_COLUMN: Final = "proof"
_TEST: Final = re.compile(
    r"`(?P<test>tests/[\w/]+\.py::\w+)`(?: \((?P<condition>" + "|".join(CONDITIONS) + r")\))?"
)
_CELL: Final = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Proof:
    """A test that a claim names."""

    test: str
    """`tests/file.py::test_function`."""
    condition: Condition | None
    """Condition under which the test runs; None if `make test` always runs it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of a table of promises."""

    promise: str
    document: str
    line: int
    proofs: tuple[Proof, ...]

    @property
    def place(self) -> str:
        """Return the claim's place as DOCUMENT:LINE."""
        return f"{self.document}:{self.line}"


def claims_of(root: Path) -> list[Claim]:
    """Return every claim of the documents below `root`, in order."""
    return [
        claim for name in DOCUMENTS for claim in claims_in(name, (root / name).read_text("utf-8"))
    ]


def claims_in(document: str, text: str) -> Iterator[Claim]:
    """Yield the claims of one document."""
    column: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("|"):
            column = None
            continue
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
        if column is None:
            column = cells.index(_COLUMN) if _COLUMN in cells else -1
        elif column >= 0 and not set("".join(cells)) <= set("-: "):
            proof = cells[column] if column < len(cells) else ""
            yield Claim(cells[0], document, number, tuple(_proofs(proof)))


def _proofs(cell: str) -> Iterator[Proof]:
    for named in _TEST.finditer(cell):
        (condition,) = [
            candidate for candidate in (*CONDITIONS, None) if candidate == named["condition"]
        ]
        yield Proof(named["test"], condition)
