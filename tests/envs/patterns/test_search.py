"""Patterns of tasks: the meaning that Python's `re` gives them, in linear time."""

import re
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envs.patterns.backtracking import MOST_CHARACTERS
from envs.patterns.search import find_fault, matches

LETTERS = "abAéÉ_1٣ \n\u2003-.?ſK\u212akKsSßẞ中’\x0b\x1cİiıжЖ\ud800\ufffd\ue000"
ATOMS = st.sampled_from(
    [
        *("a", "b", "é", "_", "1", "k", "s", "i", "ß", "中", "ж", "-", r"\.", ".", "’"),
        *(r"\w", r"\W", r"\s", r"\S", r"\d", r"\D", r"[\D]", r"[^\D]", r"[\S\n]", r"[\W_]"),
        *("[a-c]", "[^a]", r"[^\w]", r"[\wé-]", r"[^\s.?]", "[^_]", "[A-z]", r"[^\W\d_]", "[а-я]"),
    ]
)
PLACES = st.sampled_from([r"\b", r"\B", "^", "$", r"\A", r"\Z"])
REPEATS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{,2}", "*?"])
PATTERNS = st.recursive(
    ATOMS | PLACES,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda items: f"(?:{'|'.join(items)})")
        | st.tuples(inner, REPEATS).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
        | st.lists(inner, min_size=2, max_size=4).map("".join)
    ),
    max_leaves=12,
)
LOOKS = st.tuples(st.sampled_from(["?=", "?!"]), PATTERNS).map(lambda look: f"({look[0]}{look[1]})")
WHOLE = st.tuples(
    st.sampled_from(["", "(?m)", "(?s)"]),
    st.just("") | st.lists(LOOKS, max_size=2).map(lambda looks: f"^{''.join(looks)}"),
    PATTERNS,
).map("".join)


@given(WHOLE, st.text(st.sampled_from(LETTERS), min_size=1, max_size=12))
@example(r"\bändern", "Soll ich es ändern?")
@example(r"\bum\b", "résumé")
@example(r"don.t\b", "Don’t")
@example("^yes$", "Yes\n")
@example(r"(?s)^(?!.*\bconfirm).*(bag)[^.?]*\?", "How many\nbags?")
def test_a_pattern_means_to_re2_what_it_means_to_python(pattern: str, text: str) -> None:
    try:
        expected = re.compile(pattern, re.IGNORECASE).search(text) is not None
    except re.error:
        return
    if find_fault(pattern) is None:
        assert matches(pattern, text) == expected


@pytest.mark.parametrize("name", [r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"[^\w]", r"\b."])
def test_a_class_has_the_characters_that_python_gives_it(name: str) -> None:
    pattern = re.compile(name, re.IGNORECASE)
    for number in (*range(0x3100), *range(0xFE00, 0x10000), *range(0x1F600, 0x1F640), 0x10FFFF):
        character = chr(number)
        assert matches(name, character) == (pattern.search(character) is not None), hex(number)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=.*order)now", "look-around"),
        (r"(?<!not )\byes\b", "look-around"),
        (r"(\w+) \1", "back-reference"),
        ("(?>a+)b", "atomic"),
        ("a++b", "possessive"),
        ("(?:a{1000}){1000}", "repeats"),
        ("(?-i:Yes)", "case"),
        ("(?a)yes", "flag"),
    ],
)
def test_what_re2_does_not_take_is_searched_at_the_end_of_a_text(pattern: str, why: str) -> None:
    fault = find_fault(pattern)
    assert fault is not None
    assert why in fault
    for text in ("now", "order now", "yes", "not yes", "a a", "b", "aab", "Yes"):
        assert matches(pattern, text) == (re.search(pattern, text, re.IGNORECASE) is not None)


def test_of_a_long_text_the_end_is_searched_where_re2_takes_no_pattern() -> None:
    pattern = r"\bconfirm\b(?! nothing)"
    assert matches(pattern, "confirm " + "x" * (MOST_CHARACTERS - 8))
    assert not matches(pattern, "confirm " + "x" * MOST_CHARACTERS)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(e-?mail|zip)[^.!]*\?",
        r"\s*(.*?)\s*</tool_call>",
        "(a+)+$",
        pytest.param(r"(?!x)(a+)+b", marks=pytest.mark.long),
        r"(a|a|a)*\1b",
        r"(.*)(.*)(.*)\1x",
        "(a?){20}a{20}(?!x)b",
        r"(?=.*a)(?=.*b).*c",
    ],
)
@pytest.mark.parametrize("piece", ["zip", "a", "\n", "é", "1a"])
def test_no_text_takes_a_pattern_long(pattern: str, piece: str) -> None:
    """With `re`, on the whole of such a text, most of these take minutes to millennia."""
    assert matches(pattern, piece * 20_000) in (True, False)


def test_a_pattern_in_many_brackets_is_searched() -> None:
    depth = sys.getrecursionlimit() // 20
    assert matches("(?:" * depth + "a" + ")" * depth, "a")
