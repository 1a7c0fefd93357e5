"""The claims of the documents (tables with a column `proof` -> the tests that are to show them).

    | promise | means | proof |
    |---|---|---|
    | ... | ... | `tests/a.py::test_b`, `tests/c.py::test_d` (make long) |

Behind a test stands when it runs, where that is not in every `make test`: one of CONDITIONS. A row
without a test is a claim that nothing proves.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Condition = Literal["make long", "KINTSUGI_BENCHMARKS"]
CONDITIONS: Final[tuple[Condition, ...]] = get_args(Condition)
"""Marked `long`, so that `make test` leaves it out; marked `benchmarks`, so that it needs data."""

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
    """When it runs; None: in every `make test`."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of a table of promises."""

    promise: str
    document: str
    line: int
    """The line of the document, from 1."""
    proofs: tuple[Proof, ...]

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        return f"{self.document}:{self.line}"


def claims_of(root: Path) -> list[Claim]:
    """Every claim of the documents below a folder, in their order."""
    return [
        claim for name in DOCUMENTS for claim in claims_in(name, (root / name).read_text("utf-8"))
    ]


def claims_in(document: str, text: str) -> Iterator[Claim]:
    """The claims of one document."""
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
