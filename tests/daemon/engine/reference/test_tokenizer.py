"""The tokenizer of the reference policy: lossless, stable, and made for extending conversations."""

import json
from itertools import chain
from string import ascii_letters

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from daemon.engine.reference.tokenizer import (
    SPECIAL,
    START,
    build,
    chat,
    encode,
    load,
    render,
    token_id,
)
from daemon.methods.lessons.reference.repairs import make_held_out_lessons
from daemon.solver.reference.demonstrations import DEVELOPMENT, VOCABULARY_SEEDS, transcript
from envs.asides import CLOSING, OPENING
from envs.lessons.checks import get_lesson
from envs.lessons.gold import render_gold
from envs.shop.environment import Shop
from envs.shop.policy import POLICY
from envs.shop.vocabulary import POOLS
from events.messages import Message, ToolCall

ENTITIES = tuple(chain(*POOLS.values()))
FRAGMENTS = st.one_of(
    st.text(),
    st.sampled_from(
        (*SPECIAL, *ENTITIES, POLICY, '"}}\n</tool_call>', "<0x41>", '", "', " ", "\n", "\\")
    ),
)
SHOP = Shop()


def decoded(tokens: PreTrainedTokenizerFast, text: str) -> str:
    back = tokens.decode(encode(tokens, text), skip_special_tokens=False)
    assert isinstance(back, str)
    return back


def odd_conversation() -> list[Message]:
    """What no oracle says: text beside calls, two calls at once, broken arguments, odd letters."""
    calls = (
        ToolCall(name="find_user", arguments={"name": "Zoë", "zip": "日本"}, id="a"),
        ToolCall(name="nothing", arguments="{broken", id="b"),
    )
    return [
        Message(role="system", content="Be brief, und höflich."),
        Message(role="assistant", content="Welcome!", sampled=False),
        Message(role="user", content=' <tool_call> "O12", O12x, xAda  \r\n'),
        Message(role="assistant", content="Let me see.", tool_calls=calls),
        Message(role="tool", content='{"a": [1, 2]}', tool_call_id="a"),
        Message(role="tool", content="", tool_call_id="b"),
        Message(role="assistant", content=None, tool_calls=calls[:1]),
        Message(role="tool", content="no such user", tool_call_id="a"),
        Message(role="assistant", content="Sorry, not possible."),
        Message(role="user", content="Why?"),
    ]


CONVERSATIONS = {
    "odd": odd_conversation(),
    **{
        kind: transcript(SHOP, SHOP.generate(kind, DEVELOPMENT.stop - 1))
        for kind in Shop.capabilities
    },
}


@given(st.lists(FRAGMENTS, max_size=8).map("".join))
@settings(max_examples=500, deadline=None)
def test_any_text_comes_back_as_it_was(tokens: PreTrainedTokenizerFast, text: str) -> None:
    assert decoded(tokens, text) == text


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_what_is_read_before_an_answer_is_a_prefix_of_what_holds_it(
    tokens: PreTrainedTokenizerFast, name: str
) -> None:
    messages = CONVERSATIONS[name]
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        before = encode(tokens, render(tokens, messages[:place], prompt=True))
        after = encode(tokens, render(tokens, messages[: place + 1]))
        assert after[: len(before)] == before
        assert after.count(tokens.eos_token_id) == before.count(tokens.eos_token_id) + 1
        assert after[-1] == tokens.eos_token_id


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_chat_template_gives_the_same_ids(tokens: PreTrainedTokenizerFast, name: str) -> None:
    messages = CONVERSATIONS[name]
    ours = encode(tokens, render(tokens, messages, prompt=True))
    theirs = tokens.apply_chat_template(
        chat(messages), tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert ours == theirs


def test_arguments_may_be_objects_instead_of_texts(tokens: PreTrainedTokenizerFast) -> None:
    messages = chat(CONVERSATIONS["exchange"])
    parsed = json.loads(json.dumps(messages))
    for call in chain.from_iterable(message.get("tool_calls", ()) for message in parsed):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert parsed != messages
    assert tokens.apply_chat_template(parsed) == tokens.apply_chat_template(messages)


@pytest.mark.parametrize("context", ["{}", "x {}.", '"{}"', '{{"a": "{}"}}', "<tool_call>{}\n"])
def test_an_entity_is_one_token_and_the_same_in_every_context(
    tokens: PreTrainedTokenizerFast, context: str
) -> None:
    ids = tokens.get_vocab()
    split = [e for e in ENTITIES if ids[e] not in encode(tokens, context.format(e))]
    assert split == []


def test_conversations_of_shop_do_not_fall_apart(tokens: PreTrainedTokenizerFast) -> None:
    """Nothing that is said in tasks of other seeds has to be spelled."""
    spelled = {token_id(tokens, letter) for letter in map(chr, range(ord("A"), ord("z")))}
    spelled |= set(range(len(SPECIAL), len(SPECIAL) + 256))
    spelled -= {token_id(tokens, "I")}
    for kind in Shop.capabilities:
        for seed in DEVELOPMENT[:20]:
            text = render(tokens, transcript(SHOP, SHOP.generate(kind, seed)))
            found = sorted(spelled.intersection(encode(tokens, text)))
            assert found == [], (kind, seed, tokens.convert_ids_to_tokens(found))


def test_special_tokens_are_single(tokens: PreTrainedTokenizerFast) -> None:
    assert [encode(tokens, token) for token in SPECIAL] == [[n] for n in range(len(SPECIAL))]
    assert encode(tokens, START["user"] + "Hello") == [3, token_id(tokens, "Hello")]


def test_the_order_of_conversations_does_not_matter() -> None:
    some = [
        transcript(SHOP, SHOP.generate(kind, seed))
        for kind in ("refund", "cancel", "question")
        for seed in VOCABULARY_SEEDS[:5]
    ]
    once, again = build(some), build(reversed(some))
    assert once.backend_tokenizer.to_str() == again.backend_tokenizer.to_str()


def test_a_saved_tokenizer_is_the_same(
    tokens: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    tokens.save_pretrained(folder)
    loaded = load(folder)
    assert loaded.chat_template == tokens.chat_template
    assert (loaded.eos_token, loaded.pad_token) == (tokens.eos_token, tokens.pad_token)
    for messages in CONVERSATIONS.values():
        text = render(tokens, messages)
        assert loaded(text)["input_ids"] == encode(tokens, text)


@given(
    st.lists(FRAGMENTS | st.sampled_from(("<reflect>", "</reflect>", "<")), max_size=8).map("".join)
)
@settings(max_examples=300, deadline=None)
def test_an_extended_tokenizer_gives_any_text_back(
    extended: PreTrainedTokenizerFast, text: str
) -> None:
    assert decoded(extended, text) == text


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_an_extended_tokenizer_reads_conversations_as_its_base_does(
    tokens: PreTrainedTokenizerFast, extended: PreTrainedTokenizerFast, name: str
) -> None:
    before = tokens.get_vocab()
    assert {piece: extended.get_vocab()[piece] for piece in before} == before
    text = render(tokens, CONVERSATIONS[name])
    if name != "odd":  # it has letters that only the extension knows as words
        assert encode(extended, text) == encode(tokens, text)
    assert render(extended, CONVERSATIONS[name]) == text


def test_lessons_do_not_fall_apart_in_an_extended_tokenizer(
    tokens: PreTrainedTokenizerFast, extended: PreTrainedTokenizerFast
) -> None:
    """Of other seeds than those whose words it has."""
    letters = {token_id(tokens, letter) for letter in ascii_letters if letter != "I"}
    spelled = letters | set(range(len(SPECIAL), len(SPECIAL) + 256))
    for lesson in make_held_out_lessons(SHOP, DEVELOPMENT[800_000:], 80):
        text = render_gold(get_lesson(lesson))
        ids = encode(extended, text)
        assert spelled.isdisjoint(ids), extended.convert_ids_to_tokens(ids)
        assert [ids.count(token_id(extended, tag)) for tag in (OPENING, CLOSING)] == [1, 1]
