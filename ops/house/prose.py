"""Find docstrings that are hard to read, as far as a machine can see it.

A sentence has too many words, or a docstring begins with a word that hides its subject. Indented
lines (tables, formulas, commands) are not prose. Whether functions begin with a verb is ruff's
D401.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Final

from ops.house.rooms import is_text

MOST_WORDS: Final = 35

OPENINGS: Final = re.compile(r"(?:What|Who|Whoever|Whose|Those|That|Of|To)\b")

EXCEPTIONS: Final[Mapping[str, str]] = {
    "envs/airline/records.py": "the agent reads them in the schemas of its tools",
}
"""Module -> why its docstrings stay as they are."""

_BLANK: Final = re.compile(r"\n\s*\n")

_END: Final = re.compile(r"(?<=[.!?:;])\s+")


def find_hard_prose(tree: ast.Module, place: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring's hard opening and overlong sentences."""
    if place in EXCEPTIONS:
        return
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if _is_scope(node) else ():
            if is_text(statement):
                text = statement.value.value
                if OPENINGS.match(text):
                    yield statement.lineno, text.partition("\n")[0]
                for sentence in _split_sentences(text, statement.col_offset):
                    if len(sentence.split()) > MOST_WORDS:
                        yield statement.lineno, " ".join(sentence.split())


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def _split_sentences(text: str, indent: int) -> Iterator[str]:
    first, *rest = text.split("\n")
    lines = [first, *(line if _is_prose(line, indent) else "" for line in rest)]
    for paragraph in _BLANK.split("\n".join(lines)):
        yield from _END.split(paragraph)


def _is_prose(line: str, indent: int) -> bool:
    rest = line[indent:]
    return "  " not in rest and not rest.startswith((" ", "- ", "* "))
