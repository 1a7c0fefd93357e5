"""Tokens to text to pieces: the same whatever is cut where, and nothing taken back."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import parse_answer
from daemon.engine.streaming import (
    Answer,
    CallArguments,
    CallStart,
    Delta,
    Detokenizer,
    StopStrings,
    ToolCallStream,
    Words,
    byte_tokens,
    calls,
)

CALL = '<tool_call>\n{"name": "get_user", "arguments": {"user_id": "Ü1"}}\n</tool_call>'
PIECES = (
    CALL,
    CALL.replace("get_user", "list"),
    "<tool_call>",
    "</tool_call>",
    "<tool_call>{broken</tool_call>",
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": []}</tool_call>',
    "<tool",
    "<",
    "l>",
    " ",
    "\n",
    "Wait. ",
    "é",
    "😀",
)

texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


@st.composite
def cut(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the same in pieces."""
    text = draw(texts)
    places = draw(st.lists(st.integers(0, len(text)), max_size=12))
    bounds = sorted({0, len(text), *places})
    return text, [text[a:b] for a, b in pairwise(bounds)]


def words(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Words))


@given(cut())
def test_the_stream_is_the_message_however_the_text_is_cut(given: tuple[str, list[str]]) -> None:
    text, pieces = given
    stream = ToolCallStream()
    deltas = [delta for piece in pieces for delta in stream.push(piece)]
    assert all(isinstance(delta, Words) for delta in deltas)
    deltas += stream.flush()
    whole = parse_answer(text)
    assert words(deltas) == whole.text
    assert [delta for delta in deltas if not isinstance(delta, Words)] == calls(whole)


def test_calls_are_streamed_as_name_and_arguments() -> None:
    stream = ToolCallStream()
    assert stream.push("Wait. " + CALL) == [Words("Wait.")]
    assert stream.flush() == [
        CallStart(0, "get_user"),
        CallArguments(0, json.dumps({"user_id": "Ü1"}, ensure_ascii=False)),
    ]


def test_what_may_begin_a_call_waits_and_other_words_do_not() -> None:
    stream = ToolCallStream()
    assert stream.push("a <too") == [Words("a")]
    assert stream.push("l>") == [Words(" <tool>")]
    assert stream.push("b") == [Words("b")]


def test_a_call_that_cannot_be_read_makes_words_of_all() -> None:
    text = CALL + "<tool_call>{broken</tool_call>"
    stream = ToolCallStream()
    assert stream.push(text) == []
    assert stream.flush() == [Words(text)]


@pytest.mark.parametrize("piece", ["a", " ", "<", "<tool_call>"])
def test_a_long_answer_is_not_read_again_for_every_piece(piece: str) -> None:
    stream = ToolCallStream()
    shown = "".join(words(stream.push(piece)) for _ in range(400_000))
    assert shown + words(stream.flush()) == piece * 400_000


@given(cut(), st.lists(st.sampled_from((*PIECES, "t", "ai", "it. ")), min_size=1, max_size=3))
def test_text_ends_before_the_stop_string_that_is_complete_first(
    given: tuple[str, list[str]], strings: list[str]
) -> None:
    text, pieces = given
    stops = StopStrings(strings)
    shown = "".join(map(stops.push, pieces)) + stops.flush()
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in strings)]
    if not ends:
        assert (shown, stops.found) == (text, None)
        return
    found = max((s for s in strings if text[: ends[0]].endswith(s)), key=len)
    assert (shown, stops.found) == (text[: ends[0] - len(found)], found)


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A tokenizer of Qwen's kind: every byte a character, and a few words."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def shown(decode: Callable[[Sequence[int]], str], held: frozenset[int], ids: list[int]) -> str:
    detokenizer = Detokenizer(decode, held)
    return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


@given(data=st.data())
def test_any_bytes_come_out_as_the_tokenizer_decodes_them_whole(
    data: st.DataObject, byte_level: Tokenizer
) -> None:
    begun = st.tuples(st.sampled_from("€😀é"), st.integers(1, 4)).map(
        lambda drawn: byte_level.encode(drawn[0]).ids[: drawn[1]]
    )
    parts = data.draw(st.lists(begun | st.integers(0, 255).map(lambda byte: [byte]), max_size=40))
    ids = [byte for part in parts for byte in part]
    assert shown(byte_level.decode, frozenset(), ids) == byte_level.decode(ids)


@given(data=st.data())
def test_any_tokens_come_out_as_the_tokenizer_decodes_them_whole(
    data: st.DataObject, shop_tokens: PreTrainedTokenizerFast
) -> None:
    """Bytes often: those of é and 😀, and others."""
    held = byte_tokens(shop_tokens.get_vocab().items())
    some = [shop_tokens.get_vocab()[f"<0x{byte:02X}>"] for byte in "é😀".encode()]
    ids = data.draw(
        st.lists(
            st.sampled_from(some) | st.sampled_from(sorted(held)) | st.integers(0, 600),
            max_size=24,
        )
    )

    def decode(ids: Sequence[int]) -> str:
        return str(shop_tokens.decode(list(ids), skip_special_tokens=False))

    assert shown(decode, held, ids) == decode(ids)


def test_half_a_character_is_held_back(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level.decode)
    first, second = byte_level.encode("é").ids
    assert [detokenizer.push(first), detokenizer.push(second)] == ["", "é"]


def test_bytes_that_are_no_character_are_not_held_back_for_ever(byte_level: Tokenizer) -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return str(byte_level.decode(list(ids)))

    broken = byte_level.encode("é").ids[:1] * 2_000
    assert shown(decode, frozenset(), broken) == "\ufffd" * 2_000
    assert max(lengths) < 20


class TestAnswer:
    """Tokens are characters here."""

    @staticmethod
    def write(text: str, finish: str, *, tools: bool = True, **options: Sequence[str]) -> Answer:
        answer = Answer(lambda ids: "".join(map(chr, ids)), tools=tools, **options)  # type: ignore[arg-type]
        for place, character in enumerate(text):
            last = place == len(text) - 1
            answer.take(ord(character), finish if last else None)  # type: ignore[arg-type]
        return answer

    def test_it_ends_with_calls_only_when_it_is_whole(self) -> None:
        assert self.write(CALL + "\0", "stop").finish == "tool_calls"
        assert self.write(CALL, "length").finish == "length"
        assert self.write("Done.\0", "stop").finish == "stop"

    def test_calls_that_nobody_reads_are_words(self) -> None:
        assert self.write(CALL + "\0", "stop", tools=False).finish == "stop"

    def test_a_stop_string_ends_it_in_the_middle(self) -> None:
        answer = self.write("one two", "length", stops=["e t"])
        assert (answer.finish, answer.stop_string) == ("stop", "e t")

    def test_the_token_that_stops_is_no_text(self) -> None:
        answer = Answer(lambda ids: "".join(map(chr, ids)))
        assert answer.take(ord("a"), None) == [Words("a")]
        assert answer.take(ord("!"), "stop") == []

    def test_what_was_held_back_comes_at_the_end(self) -> None:
        answer = Answer(lambda ids: "".join(map(chr, ids)), stops=["ab"], tools=True)
        assert answer.take(ord("<"), None) == []
        assert answer.take(ord("a"), "length") == [Words("<a")]
