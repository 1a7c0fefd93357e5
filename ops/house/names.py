"""Find participles in names, and local names that are too vague.

A participle names a state, not the thing in it: `answered` may be a time, a flag, a message or a
function. Listed terms of the field (`training`, `embedding`), event types and Python's special
methods are exempt.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_WORD: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z]|$)|[A-Z]?[a-z0-9]+|[A-Z]+")

_IRREGULAR_WORDS: Final = (
    "begun bought broken brought built chosen done drawn driven eaten fallen fed felt "
    "forgotten fought found frozen given gone grown heard held hidden hung kept known "
    "laid led left lent lit lost made meant met paid risen said seen sent shown shut "
    "slept sold sought spent spoken stolen stood struck stuck sung sunk swept sworn taken "
    "taught thought thrown told torn understood woken won worn written "
)
_IRREGULAR: Final = frozenset(_IRREGULAR_WORDS.split())

_ENGLISH: Final = (
    "anything bed beginning bindings bring building ceiling deed embed evening everything "
    "exceed feed hundred king meaning morning need nothing proceed reading ring seed shed "
    "sibling siblings something speed spring string succeed thing things warning wing "
)

_FIELD: Final = (
    "batching binding decoding embedded embedding embeddings encoding fencing framing "
    "grading logging mapping ordering padding pending processing quoted ranking rating "
    "learning redacting rendezvous retraining routing sampling scheduling serving sealing setting "
    "settings shaping "
    "sharding shipping spelling staging streaming supervised tokenizing tracing training "
    "typed weighted "
)

TERMS: Final = frozenset((_ENGLISH + _FIELD).split())

VAGUE: Final = frozenset(["found", "given", "made", "one", "said", "told"])


@dataclass(frozen=True, slots=True)
class Name:
    """A name and its place."""

    name: str
    kind: str
    """`class`, `function`, `module` or `local`."""
    line: int


def split_words(name: str) -> list[str]:
    """Return the words of a name in lower case: `_asHTTPReply` gives as, http, reply."""
    return [word.lower() for part in name.split("_") for word in _WORD.findall(part)]


def has_participle(name: str) -> bool:
    """Return whether a word of the name is a participle and not a listed term."""
    return any(_is_participle(word) for word in split_words(name))


def _is_participle(word: str) -> bool:
    if word in TERMS:
        return False
    return word in _IRREGULAR or (len(word) > 4 and word.endswith(("ed", "ing")))


def definitions(tree: ast.Module) -> Iterator[Name]:
    """Yield a module's functions and classes except event types and special methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not _is_event(node):
            yield Name(node.name, "class", node.lineno)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            node.name.startswith("__") and node.name.endswith("__")
        ):
            yield Name(node.name, "function", node.lineno)


def local_names(tree: ast.Module) -> Iterator[Name]:
    """Yield every name that an assignment, a loop, a comprehension or a parameter binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield Name(node.id, "local", node.lineno)
        elif isinstance(node, ast.arg):
            yield Name(node.arg, "local", node.lineno)


def _is_event(node: ast.ClassDef) -> bool:
    """Return whether a class is an event type; its name in past tense is stored."""
    return any(isinstance(base, ast.Name) and base.id == "EventData" for base in node.bases)
