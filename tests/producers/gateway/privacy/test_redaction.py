"""What rules find, what stands in its place, and what that says of a call."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.messages import Message, ToolCall
from producers.gateway.capture.answer import make_capture
from producers.gateway.http.wire import EMBEDDED, ExtraFields, ModelRequest
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.privacy.rules import BadRule, BuiltIn, find_builtin, own

NAMES: tuple[BuiltIn, ...] = get_args(BuiltIn)
ALL = Redaction([find_builtin(name) for name in NAMES], b"salt")
MAIL = "rosa.diaz@example.com"


def chat(*messages: Any, **given: Any) -> ModelRequest:
    return ModelRequest("chat", {"messages": list(messages), **given})


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("Write to rosa.diaz@example.com.", "Write to [redacted:email]."),
        ("jürgen@müller.de, please", "[redacted:email], please"),
        ("4111 1111 1111 1111 it is", "[redacted:card] it is"),
        ("4111111111111111", "[redacted:card]"),
        ("of 2: 5500-0055-5555-5559", "of 2: [redacted:card]"),
        ("DE89 3704 0044 0532 0130 00 AND MORE", "[redacted:iban] AND MORE"),
        ("gb29nwbk60161331926819", "[redacted:iban]"),
        ("call +44 20 7946 0958 now", "call [redacted:phone] now"),
        ("sk-abcdefghijklmnop1234", "[redacted:secret]"),
        ("Authorization: Bearer abc.def-123", "Authorization: [redacted:secret]"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIa+b/c=\n-----END RSA PRIVATE KEY-----",
            "[redacted:secret]",
        ),
    ],
)
def test_built_in_rules_find_what_they_are_called(text: str, safe: str) -> None:
    assert ALL.redact_text(text) == safe


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",  # the checksum is wrong
        "1700000000000 and 3.14159265358979",
        "DE88 3704 0044 0532 0130 00",
        "user@localhost and @rosa",
        "order 1234567890123456",
        "a task is sk-ipped",
        "+1 is not enough",
    ],
)
def test_built_in_rules_leave_what_only_looks_alike(text: str) -> None:
    assert ALL.redact_text(text) == text


def test_what_overlaps_is_replaced_as_one() -> None:
    rules = Redaction([own("first", "abcd"), own("second", "cdef")])
    assert rules.redact_text("xabcdefx") == "x[redacted:first]x"


@pytest.mark.parametrize(
    "written",
    [
        json.dumps({"a": MAIL}),
        json.dumps({MAIL: 1}),
        json.dumps({"a": json.dumps({"b": [MAIL]})}),
        '{"a": "rosa.diaz\\u0040example.com"}',
        '{"a": "rosa.diaz\\u0040example.com"',  # cut off, so no JSON
        json.dumps(json.dumps({"a": "rosa.diaz\\u0040example.com"}))[:-3],
        '{"a": "rosa.diaz\\u0040example.com", "a": 1}',
    ],
)
def test_text_is_read_through_the_json_that_it_is_written_in(written: str) -> None:
    safe = ALL.redact_text(written)
    assert "[redacted:email]" in safe
    assert "example" not in safe


def test_keys_numbers_and_parts_of_one_content_are_text() -> None:
    parts = [{"type": "text", "text": "4111 1111 "}, {"type": "text", "text": "1111 1111"}]
    call = {"id": "1", "function": {"name": "pay", "arguments": '{"card": 4111111111111111}'}}
    asked = chat(
        user(parts),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        tools=[{"type": "function", "function": {"name": "f", "enum": {MAIL: 1, "a@b.de": 2}}}],
        stop=[MAIL],
        user=MAIL,
        **{f"of {MAIL}": MAIL},
    )
    kept = ALL.redact_request(asked)
    written = json.dumps(kept.request.document)
    for secret in ("4111", "1111", "example", "a@b"):
        assert secret not in written
    assert kept.because == "redaction rules matched: card, email"
    messages = kept.request.messages()
    assert messages is not None
    assert messages[1].tool_calls[0].arguments == {"card": "[redacted:card]"}
    assert kept.request.sampling["stop"] == ["[redacted:email]"]
    assert kept.request.sampling["of [redacted:email]"] == "[redacted:email]"


def test_a_request_without_a_match_is_as_it_was() -> None:
    asked = chat(user("Hi"), temperature=0.5, n=2, tools=[{"a": {"b": [1, None, True]}}])
    kept = ALL.redact_request(asked)
    assert (kept.request.document, kept.because) == (asked.document, None)


def test_a_models_name_is_replaced_and_says_nothing_of_the_tokens() -> None:
    kept = ALL.redact_request(chat(user("Hi"), model=MAIL))
    assert (kept.request.model, kept.because) == ("[redacted:email]", None)


def test_a_prompt_of_token_ids_is_not_written_where_there_are_rules() -> None:
    asked = ModelRequest("completions", {"prompt": [5, 6, 7]})
    assert Redaction().redact_request(asked).request.prompts == ((5, 6, 7),)
    for prompt in ([5, 6, 7], ["text", [5, 6]], [[5], [6]]):
        kept = ALL.redact_request(ModelRequest("completions", {"prompt": prompt}))
        assert kept.because == "the redaction rules cannot read a prompt of token ids"
        assert all(isinstance(one, str) for one in kept.request.prompts)


def test_what_cannot_be_read_to_its_end_is_not_written_at_all() -> None:
    deep: Any = MAIL
    for _ in range(5000):
        deep = [deep]
    kept = ALL.redact_request(chat(user("Hi"), metadata=deep))
    assert kept.request.document == {}
    assert "nested too deeply" in (kept.because or "")


def test_an_answer_is_judged_by_all_that_is_known_of_it() -> None:
    said = Message(role="assistant", content="Hi", tool_calls=(ToolCall(name="f"),))
    assert ALL.redact_answer((said,), ["Hi"]) == ((said,), None)
    assert ALL.redact_answer((said,), ["Hi", f"dropped {MAIL}"]) == (
        (said,),
        "redaction rules matched: email",
    )
    secret = Message(role="assistant", content="a", reasoning=MAIL, tool_calls=(
        ToolCall(name="f", arguments={"to": MAIL}),))  # fmt: skip
    (safe,), because = ALL.redact_answer((secret,), [])
    assert (safe.reasoning, safe.tool_calls[0].arguments) == (
        "[redacted:email]",
        {"to": "[redacted:email]"},
    )
    assert because == "redaction rules matched: email"


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def test_a_streams_chunks_are_read_together() -> None:
    capture = make_capture(chat(user("Hi")), ExtraFields(True, True), EMBEDDED)
    for half in halves(MAIL):
        capture.chunk({"choices": [{"index": 0, "delta": {"content": half}}]})
    (safe,), because = ALL.redact_answer(capture.build_record().messages, capture.collect_texts())
    assert (safe.content, because) == ("[redacted:email]", "redaction rules matched: email")


def test_what_tokens_spell_and_a_parser_dropped_is_known() -> None:
    capture = make_capture(chat(user("Hi")), ExtraFields(True, True), EMBEDDED)
    for half in halves("jürgen@müller.de"):
        for byte in half.encode():
            scores = [{"token": "\ufffd", "bytes": [byte], "logprob": -0.5}]
            said = {"index": 0, "delta": {}, "token_ids": [5], "logprobs": {"content": scores}}
            capture.chunk({"choices": [said]})
    found = capture.build_record()
    messages, because = ALL.redact_answer(found.messages, capture.collect_texts())
    assert (messages, because) == (found.messages, "redaction rules matched: email")


def test_anthropics_words_thoughts_and_arguments_are_read_as_well() -> None:
    asked = ModelRequest(
        "messages", {"system": MAIL, "messages": [user([{"type": "text", "text": MAIL}])]}
    )
    kept = ALL.redact_request(asked)
    messages = kept.request.messages()
    assert messages is not None
    assert [one.text for one in messages] == ["[redacted:email]"] * 2
    capture = make_capture(asked, ExtraFields(), None)
    first, last = halves(json.dumps({"to": MAIL}))
    for delta in (
        {"type": "thinking_delta", "thinking": MAIL},
        {"type": "input_json_delta", "partial_json": first},
        {"type": "input_json_delta", "partial_json": last},
    ):
        capture.chunk({"type": "content_block_delta", "index": 0, "delta": delta})
    (safe,), _ = ALL.redact_answer(capture.build_record().messages, capture.collect_texts())
    assert safe.reasoning == "[redacted:email]"
    assert safe.tool_calls[0].arguments == {"to": "[redacted:email]"}


def test_a_name_gets_the_same_pseudonym_from_the_same_salt() -> None:
    one, other = (
        ALL.redact_name(MAIL),
        Redaction([find_builtin("email")], b"other salt").redact_name(MAIL),
    )
    assert one == ALL.redact_name(MAIL)
    assert one != other
    assert one is not None
    assert one.startswith("redacted-email-")
    assert ALL.redact_name(one) == one, "a pseudonym that comes back is not replaced again"
    assert ALL.redact_name("rosa.diaz") == "rosa.diaz"
    assert ALL.redact_name(None) is None


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing \\)"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a*", "matches the empty text"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_the_reason(pattern: str, why: str) -> None:
    with pytest.raises(BadRule, match=f"rule 'mine'.*{why}"):
        own("mine", pattern)


def test_a_pattern_that_explodes_elsewhere_takes_time_in_proportion_to_the_text() -> None:
    rules = Redaction([own("mine", "(a+)+$")])
    assert rules.redact_text("a" * 1_000_000 + "b") == "a" * 1_000_000 + "b"


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
), st.sampled_from([MAIL, "4111 1111 1111 1111", "DE89370400440532013000"]), st.data())  # fmt: skip
def test_wherever_a_secret_stands_in_json_it_is_not_in_what_is_kept(
    value: Any, secret: str, data: st.DataObject
) -> None:
    planted = _planted(value, secret, data)
    written = json.dumps(
        ALL.redact_request(ModelRequest("chat", {"x": planted})).request.document,
        ensure_ascii=False,
    )
    assert secret not in written
    assert secret in json.dumps(planted, ensure_ascii=False)


def _planted(value: Any, secret: str, data: st.DataObject) -> Any:
    """The value with a secret somewhere in it."""
    if isinstance(value, list) and value:
        place = data.draw(st.integers(0, len(value) - 1))
        return [*value[:place], _planted(value[place], secret, data), *value[place + 1 :]]
    if isinstance(value, dict) and value:
        name = data.draw(st.sampled_from(sorted(value)))
        return {**value, name: _planted(value[name], secret, data)}
    return data.draw(st.sampled_from([secret, f"({secret})", [secret], {secret: value}]))


def test_without_rules_nothing_is_touched() -> None:
    asked = chat(user(MAIL))
    none = Redaction()
    assert none.redact_request(asked).request is asked
    assert (none.redact_text(MAIL), none.redact_name(MAIL)) == (MAIL, MAIL)
    assert not none.active
