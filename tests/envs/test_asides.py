"""What an agent says to itself is kept apart from what others read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.asides import AsideSplitter, split_aside, write_aside

_PIECES = st.sampled_from(
    ["<reflect>", "</reflect>", "<REFLECT>", "<ref", "lect>", "</", "<", " ", "\n", "a", "W1", "İ"]
)


def test_a_written_reflection_is_read_again() -> None:
    assert split_aside(write_aside("It was W1.") + "\nNo.") == ("It was W1.", "No.")


@given(st.lists(_PIECES, max_size=12))
def test_a_stream_says_what_the_whole_text_says(pieces: list[str]) -> None:
    text = "".join(pieces)
    whole = split_aside(text)
    for parts in (pieces, list(text), [text[:3], text[3:]]):
        splitter = AsideSplitter()
        visible = "".join(map(splitter.feed, parts)) + splitter.close()
        assert (splitter.aside, visible) == whole


@given(st.lists(_PIECES, max_size=12))
def test_blocks_are_where_the_splitter_hides(pieces: list[str]) -> None:
    text = "".join(pieces)
    block = r"(?is)<reflect>.*?(?:</reflect>\s*|\Z)"
    assert re.sub(block, "", text) == split_aside(text)[1]


@pytest.mark.parametrize(
    ("text", "aside", "visible"),
    [
        ("<reflect>It is W2.</reflect>\n\nLet me look.", "It is W2.", "Let me look."),
        ("Well. <reflect>it was\nW", "it was\nW", "Well. "),
        ("<reflect> one </reflect> A <Reflect>two</REFLECT>B", "one\ntwo", "A B"),
        ("<reflect> </reflect>Yes.", None, "Yes."),
        ("  Hello. ", None, "  Hello. "),
        ("</reflect> late", None, "</reflect> late"),
        ("<reflects>", None, "<reflects>"),
        ("1 <ref", None, "1 <ref"),
    ],
)
def test_a_reflection_is_told_from_what_others_read(
    text: str, aside: str | None, visible: str
) -> None:
    assert split_aside(text) == (aside, visible)
