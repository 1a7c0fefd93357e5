"""What an agent says to itself is kept apart from what others read."""

import re

from hypothesis import given
from hypothesis import strategies as st

from envs.asides import AsideSplitter, split_aside, write_aside

_PIECES = st.sampled_from(
    ["<reflect>", "</reflect>", "<REFLECT>", "<ref", "lect>", "</", "<", " ", "\n", "a", "W1", "İ"]
)


def test_a_reflection_is_taken_out_with_the_space_behind_it() -> None:
    text = "<reflect>order_id was W1, it is W2.</reflect>\n\nLet me look again."
    assert split_aside(text) == ("order_id was W1, it is W2.", "Let me look again.")


def test_a_text_without_a_reflection_comes_back_unchanged() -> None:
    for text in ("", "  Hello. ", "a < b", "</reflect> late", "<reflects>", "1 <ref"):
        assert split_aside(text) == (None, text)


def test_an_unclosed_reflection_hides_what_follows_it() -> None:
    assert split_aside("Well. <reflect>it was\nW") == ("it was\nW", "Well. ")


def test_several_blocks_are_lines_of_one_reflection() -> None:
    text = "<reflect> one </reflect> A <Reflect>two</REFLECT>B"
    assert split_aside(text) == ("one\ntwo", "A B")


def test_an_empty_reflection_is_none_and_its_tags_are_not_visible() -> None:
    assert split_aside("<reflect> </reflect>Yes.") == (None, "Yes.")


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
