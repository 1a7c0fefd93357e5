"""Search text with the patterns of tasks, in time that grows with the length of the text.

Patterns have the syntax of Python's `re` and ignore case. `re` takes quadratic time or worse for
common patterns, and the agent writes the text. So patterns are translated for RE2 (docs/adr/0023).
They keep their meaning: `\\w`, `\\b` and the other classes cover every language.

Guarantee: the same answer as `re.search(pattern, text, re.IGNORECASE)`, in linear time. RE2 has no
look-around but where the text begins, no back-reference and no atomic group. `re` searches such a
pattern in the last `MOST_CHARACTERS` characters, and in fewer where its repeats multiply.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

# CPython's parser of patterns is private, but a second parser of the same syntax would differ.
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final

import re2

from envs.patterns.backtracking import LOOKS, bound_text

_FLAGS: Final = re.IGNORECASE | re.UNICODE | re.MULTILINE | re.DOTALL
REMEDY: Final = "write it without, in the syntax of RE2"
"""Advice for a pattern that RE2 does not take."""


class _Untranslatable(Exception):
    """RE2 has no equivalent for a part of a pattern. The text names the part."""


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern matches somewhere in a text, ignoring case."""
    return _compile(pattern)(text)


def find_fault(pattern: str) -> str | None:
    """Return the reason why RE2 does not take a pattern, or None."""
    try:
        _translate(pattern)
    except _Untranslatable as fault:
        return f"the pattern {pattern[:80]!r} has {fault}, which is not searched in linear time"
    return None


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> Callable[[str], bool]:
    try:
        expressions = _translate(pattern)
    except _Untranslatable:
        backtracking = re.compile(pattern, re.IGNORECASE)
        most = bound_text(parser.parse(pattern, re.IGNORECASE))
        return lambda text: backtracking.search(text[-most:]) is not None
    return lambda text: _search_all(expressions, _encode(text))


def _search_all(expressions: Iterable[tuple[Any, bool]], text: str) -> bool:
    return all((item.search(text) is not None) == is_wanted for item, is_wanted in expressions)


# RE2's `\b` knows only the word characters of ASCII. An encoded text therefore has each other word
# character between two underscores; an underscore itself becomes `_MARK` between two. Then RE2's
# `\b` is right in every language.

_MARK: Final = "\ue000"
_WORD: Final = re.compile(r"[^\W0-9A-Za-z]")
_FOLDED: Final = str.maketrans({"\u212a": "k", "\u017f": "s", "\u0130": "i", "\u0131": "i"})
"""Characters that `re` treats as equal to an ASCII letter when it ignores case."""
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


def _encode(text: str) -> str:
    if text.isascii():
        return text.replace("_", f"_{_MARK}_")
    text = _HALF_PAIR.sub("\ufffd", text.translate(_FOLDED))
    return _WORD.sub(lambda word: f"_{word[0].replace('_', _MARK)}_", text)


def _translate(pattern: str) -> list[tuple[Any, bool]]:
    """Return a pattern as RE2 expressions and whether each must match. Raise _Untranslatable."""
    tree = parser.parse(pattern, re.IGNORECASE)
    options = re2.Options()
    options.log_errors = False  # raised instead
    expressions = []
    for nodes, is_wanted in _split_looks(list(tree), tree.state.flags):
        # The first part steps over whole characters of an encoded text.
        written = rf"(?i)\A(?s:[^_]|_._)*?(?:{_write(nodes, tree.state.flags, True)})"
        try:
            expressions.append((re2.compile(written, options), is_wanted))
        except re2.error:
            raise _Untranslatable("repeats that are too many or too large") from None
    return expressions


def _split_looks(nodes: list[Any], flags: int) -> Iterator[tuple[list[Any], bool]]:
    """Yield the parts of a pattern that looks ahead at the text's start, such as `^(?!.*no).*yes`.
    Each part is searched separately, with whether it must match."""
    starts = [(op.AT, op.AT_BEGINNING_STRING)]
    starts += [] if flags & re.MULTILINE else [(op.AT, op.AT_BEGINNING)]
    while nodes[:1] in ([start] for start in starts) and len(nodes) > 1 and _is_ahead(*nodes[1]):
        kind, (_, tree) = nodes.pop(1)
        yield [nodes[0], *tree], kind is op.ASSERT
    yield nodes, True


def _is_ahead(kind: Any, value: Any) -> bool:
    return kind in LOOKS and value[0] > 0


def _write(tree: Iterable[Any], flags: int, is_last: bool) -> str:
    """Return a tree in RE2's syntax. `is_last`: no part follows it. Raise _Untranslatable."""
    if flags & ~_FLAGS:
        raise _Untranslatable("the flag `a`, `L` or `x`")
    nodes = list(tree)
    return "".join(
        _write_node(kind, value, flags, is_last and place == len(nodes))
        for place, (kind, value) in enumerate(nodes, start=1)
    )


def _write_node(kind: Any, value: Any, flags: int, is_last: bool) -> str:
    if kind is op.LITERAL:
        return _write_set([(op.LITERAL, value)])
    if kind is op.NOT_LITERAL:
        return _write_set([(op.NEGATE, None), (op.LITERAL, value)])
    if kind is op.ANY:
        return _write_set([(op.NEGATE, None), *([] if flags & re.DOTALL else [(op.LITERAL, 10)])])
    if kind is op.IN:
        return _write_set(value)
    if kind is op.AT:
        return _write_place(value, flags, is_last)
    if kind is op.BRANCH:
        return f"(?:{'|'.join(_write(branch, flags, is_last) for branch in value[1])})"
    if kind is op.SUBPATTERN:
        _, added, removed, tree = value
        if removed & re.IGNORECASE:
            raise _Untranslatable("a part that regards case")
        return f"(?:{_write(tree, (flags | added) & ~removed, is_last)})"
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        least, most, tree = value
        limit = "" if most == op.MAXREPEAT else most
        return f"(?:{_write(tree, flags, False)}){{{least},{limit}}}"
    raise _Untranslatable(_NAMES.get(kind, "a look-around, a back-reference or an atomic group"))


_NAMES: Final = {
    op.ASSERT: "a look-around",
    op.ASSERT_NOT: "a look-around",
    op.GROUPREF: "a back-reference",
    op.GROUPREF_EXISTS: "a back-reference",
    op.ATOMIC_GROUP: "an atomic group",
    op.POSSESSIVE_REPEAT: "a possessive repeat",
}


def _write_place(place: Any, flags: int, is_last: bool) -> str:
    if flags & re.MULTILINE and place in (op.AT_BEGINNING, op.AT_END):
        return "(?m:^)" if place is op.AT_BEGINNING else "(?m:$)"
    if place is op.AT_END and not is_last:
        raise _Untranslatable("`$` before other parts")
    return _PLACES[place]


_PLACES: Final = {
    op.AT_BEGINNING: r"\A",
    op.AT_BEGINNING_STRING: r"\A",
    op.AT_END: r"\n?\z",
    op.AT_END_STRING: r"\z",
    op.AT_BOUNDARY: r"\b",
    op.AT_NON_BOUNDARY: r"\B",
}


def _write_set(items: Iterable[tuple[Any, Any]]) -> str:
    """Return a set of characters: plain ones, or one between two underscores."""
    is_negated = False
    plain: list[str] = []
    marked: list[str] = []
    for kind, value in items:
        if kind is op.NEGATE:
            is_negated = True
        elif kind is op.CATEGORY:
            plain.append(_CATEGORIES[value][0])
            marked.append(_CATEGORIES[value][1])
        else:
            first, last = (value, value) if kind is op.LITERAL else value
            folded = ord(chr(first).translate(_FOLDED))
            first, last = (folded, folded) if first == last else (first, last)
            plain += _write_ranges(first, last)
            marked.append(_write_range(max(first, 0x80), last))
            marked.append(_MARK if first <= ord("_") <= last else "")
    if is_negated:
        return f"(?:[^_{''.join(plain)}]|_{_negate(''.join(marked))}_)"
    choices = [f"[{''.join(plain)}]"] if any(plain) else []
    choices += [f"_[{''.join(marked)}]_"] if any(marked) else []
    return f"(?:{'|'.join(choices)})"


def _negate(characters: str) -> str:
    return f"[^{characters}]" if characters else "(?s:.)"


def _write_ranges(first: int, last: int) -> Iterator[str]:
    yield _write_range(first, min(last, ord("_") - 1))
    yield _write_range(max(first, ord("_") + 1), last)


def _write_range(first: int, last: int) -> str:
    return rf"\x{{{first:x}}}-\x{{{last:x}}}" if first <= last else ""


_SPACES: Final = (
    r"\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
_NO_SPACES: Final = (
    r"\x00-\x08\x0e-\x1b\x21-\^`-\x{84}\x{86}-\x{9f}\x{a1}-\x{17e}\x{180}-\x{167f}"
    r"\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2129}"
    r"\x{212b}-\x{2fff}\x{3001}-\x{10ffff}"
)
_BEYOND: Final = r"\x{80}-\x{17e}\x{180}-\x{2129}\x{212b}-\x{10ffff}"
"""Characters beyond ASCII, without those that RE2 treats as equal to an ASCII letter."""

_CATEGORIES: Final = {
    op.CATEGORY_DIGIT: ("0-9", r"\p{Nd}"),
    op.CATEGORY_NOT_DIGIT: (rf"\x00-/:-\^`-\x7f{_BEYOND}", r"\P{Nd}"),
    op.CATEGORY_SPACE: (_SPACES, ""),
    op.CATEGORY_NOT_SPACE: (_NO_SPACES, r"\x00-\x{10ffff}"),
    op.CATEGORY_WORD: ("0-9A-Za-z", r"\x00-\x{10ffff}"),
    op.CATEGORY_NOT_WORD: (rf"\x00-/:-@\[-\^`\{{-\x7f{_BEYOND}", ""),
}
"""Class -> its plain characters, and its characters that stand between underscores."""
