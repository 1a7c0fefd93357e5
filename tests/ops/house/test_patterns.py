"""Every pattern that reads text is RE2's, proves that it is linear, or stands here with its bound.

A pattern over text that a model, a customer, a tool or a client wrote must take linear time. Write
a new one for RE2 (`import re2`, docs/adr/0023; envs/patterns for Python's syntax), or in such a
way that `is_linear` sees it, or name its place below with the reason why its time is bounded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from ops.house.__main__ import PACKAGES
from ops.house.patterns import Use, is_linear, list_uses
from tests.ops.house.test_house import plant

ROOT = Path(__file__).parents[3]
PRODUCT = tuple(package for package in PACKAGES if package != "ops")

BOUNDED: Final[Mapping[str, tuple[str, ...]]] = {
    "it is used with `match` or `fullmatch` alone: one place, and runs that share no character": (
        "daemon.cli.log:_position",
        "daemon.cli.log:_starts",
        "daemon.controller.model_answers:_FENCE_BEGINS",
        "envs.evidence.spelling:_DECIMAL",
        "envs.evidence.spelling:_MEASURE",
        "envs.evidence.task_facts:_NUMBER",
        "envs.evidence.utterances:_NO",
        "envs.evidence.utterances:_YES",
        "envs.comparison.numerals:_QUANTITY",
        "envs.reflection.official:_BARE_CLOSE",
        "envs.shop.policy:_AGREES",
    ),
    "it begins where the text begins, once": (
        "daemon.methods.synthesis.manners:_GREETING",
        "daemon.methods.synthesis.manners:_YES",
        "consumers.diagnosis.response_patterns:_NO_REFUSAL",
    ),
    "a run begins behind a character that is in no run, so that no two read the same": (
        "consumers.storage:_ESCAPED_NUL",
        "daemon.methods.synthesis.manners:_split_sentences",
        "envs.lessons.reflections:_TAG",
        "envs.reflection.mended:_CALL_BEGINS",
        "envs.reflection.official:_BARE_OPEN",
        "envs.reflection.official:_CALL_CLOSE",
        "envs.reflection.official:_CALL_OPEN",
        "envs.tau2.golden:_LINK",
        "envs.toolsandbox.scenarios:_SENTENCE",
        "producers.importers.documents:_OBJECT_IN_ARRAY",
        "producers.importers.tau2:_HIDDEN",
    ),
    "a run of letters begins where a word begins, or behind fixed words, and ends with the word": (
        "consumers.diagnosis.response_patterns:_REFUSALS",
        "envs.evidence.spelling:_NUMBER_WORD",
        "envs.evidence.utterances:_NEGATES",
        "envs.evidence.utterances:_REFUSES",
    ),
    "it fails nowhere behind its first run: what it reads, it takes": (
        "consumers.diagnosis.response_patterns:_SENTENCE",
        "daemon.proposer.siblings:_WORD",
        "envs.evidence.words:WORD",
        "envs.comparison.numerals:_DIGIT_RUN",
        "envs.comparison.numerals:_PART",
        "envs.comparison.numerals:_RUN",
        "envs.reflection.official:_BLANK_LINES",
        "envs.reflection.parse:_BRACKET",
        "envs.shop.policy:_ANSWER",
        "producers.importers.documents:_BRACKET_OR_STRING",
    ),
    "it is made of fixed words, tags or marks": (
        "daemon.engine.chat:Chat.__init__",
        "daemon.engine.chat:_BEGINS",
        "daemon.engine.chat:_ASIDE_ENDS",
        "daemon.engine.prompts.control_tokens:ControlTokens.__init__",
        "daemon.engine.prompts.control_tokens:ControlTokens._agents",
        "daemon.engine.prompts.control_tokens:ControlTokens._split",
        "envs.evidence.spelling:_DIGIT_WORD",
        "envs.reflection.parse:_compile_tag",
        "envs.asides:_TAGS",
        "envs.telecom.customer:_TOOL_NAME",
    ),
    "its patterns stand in this module: fixed words, or they begin where the text begins": (
        "envs.telecom.customer:ActingUser._report",
        "envs.telecom.signs:is_beyond_repair",
        "envs.telecom.signs:is_needed",
        "envs.telecom.customer:ActingUser._steps",
        "envs.telecom.customer:_Switch.read",
        "envs.telecom.customer:_find_switch",
        "envs.telecom.customer:_read_clause",
        "envs.telecom.customer:_read_mode",
        "envs.telecom.customer:_read_permission",
    ),
    "its text has at most 1,000 characters (MAX_CHARACTERS)": ("envs.tau2.arithmetic:_TOKEN",),
    "its text has at most 2,000 characters (MOST_CHARACTERS)": (
        "envs.lessons.reflections:_quotes_call",
        "envs.patterns.search:_compile",
    ),
    "its text has at most 500 characters": ("producers.importers.tau_bench:_POLICY_TITLE",),
    "it searches nothing: it compiles, or it is the tree of a pattern": (
        "envs.patterns.backtracking:re._constants",
        "envs.patterns.search:re._constants",
        "envs.patterns.search:re._parser",
        "envs.task:_compiles",
    ),
    "its texts are names: of settings, of variables, of environments": (
        "daemon.config.settings:_SERVICE_LINK",
        "daemon.config.settings:difflib.get_close_matches",
        "envs.registry:difflib.get_close_matches",
    ),
    "one of the two texts is cut, to 1,000 and to 200 characters (_LONGEST)": (
        "envs.toolsandbox.device.search:rapidfuzz.fuzz",
        "envs.toolsandbox.device.search:rapidfuzz.utils",
        "envs.toolsandbox.device.tools:rapidfuzz.fuzz",
        "envs.toolsandbox.device.tools:rapidfuzz.utils",
    ),
}
"""Why the time is bounded -> places in which a pattern does not prove it."""


def test_every_pattern_is_linear_or_stands_here_with_its_bound() -> None:
    listed = [place for places in BOUNDED.values() for place in places]
    unproven = {use.place: use.line for use in list_uses(ROOT, PRODUCT) if not is_linear(use)}
    assert {place: line for place, line in unproven.items() if place not in listed} == {}, (
        "write it for RE2, or list its place above with its bound"
    )
    assert [place for place in listed if place not in unproven] == [], "these are used no longer"
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("pattern", "linear"),
    [
        ("a{3}b?", True),
        (r"\d+", True),
        (r"(?i)\bzip\b|e-?mail", True),
        (r"#[^\n]*", True),
        ("(ab|c)(d+)", True),
        (r"\s*(.*?)\s*</call>", False),
        ("zip[^.]*x", False),
        ("(?:a+)+", False),
        ("a*?", False),
        ("a(?:b*c)?", False),
        (r"\w+-\w+", False),
        ("(?:a{0,50}b){0,50}c{0,50}", False),
        ("(?=.*a)b", False),
    ],
)
def test_a_pattern_proves_that_it_is_linear(pattern: str, linear: bool) -> None:
    assert is_linear(Use("m:_P", 1, pattern)) == linear


def test_every_way_to_use_a_pattern_is_seen(tmp_path: Path) -> None:
    text = """
import re
import re as other
import fnmatch
from re import search
from difflib import SequenceMatcher

_WORD = r"a+b"
_JOINED: str = rf"{_WORD}c"
_P = re.compile(_WORD, re.IGNORECASE)

class C:
    def m(self, pattern, text):
        re.sub(_JOINED, "", text)
        return [re.findall(pattern, text) for _ in text]

def f(text):
    return re.search("x+y", text) or {"k": re.split("z", text)}
"""
    plant(tmp_path, events__planted=text)
    uses = list(list_uses(tmp_path, ("events",)))
    assert [(use.place.removeprefix("events.planted:"), use.pattern) for use in uses] == [
        ("re", None),
        ("fnmatch", None),
        ("re.search", None),
        ("difflib.SequenceMatcher", None),
        ("_P", "a+b"),
        ("C.m", "a+bc"),
        ("C.m", None),
        ("f", "x+y"),
        ("f", "z"),
    ]
    assert [use.place for use in uses if is_linear(use)] == ["events.planted:f"]
