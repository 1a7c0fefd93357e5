"""The pure core of a capture, also in vLLM's dialect (chunks as its source writes them)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.gateway import sse
from producers.gateway.capture import Capture
from producers.gateway.proof import not_processed
from producers.gateway.wire import EMBEDDED, VLLM, Added, Asked, Dialect, asked

Json = dict[str, Any]
BOTH = Added(token_ids=True, logprobs=True)


def chat(**given: Any) -> Asked:
    return Asked("chat", {"messages": [{"role": "user", "content": "Hi"}], **given})


def scores(*logprobs: float) -> Json:
    return {"content": [{"token": "a", "logprob": one, "top_logprobs": []} for one in logprobs]}


def choice(ids: list[int], logprobs: list[float], **fields: Any) -> Json:
    given = {"index": 0, "message": {"role": "assistant", "content": "ab"}}
    return {
        **given,
        "token_ids": ids,
        "logprobs": scores(*logprobs),
        "finish_reason": "stop",
    } | fields


def captured(*choices: Json, prompt: Any = (1, 2)) -> Any:
    capture = Capture(chat(), BOTH, EMBEDDED)
    capture.whole({"choices": list(choices), "prompt_token_ids": list(prompt)})
    return capture.captured()


def test_exact_tokens_are_kept() -> None:
    found = captured(choice([5, 6], [-0.5, -1.0]))
    assert found.untrainable_because is None
    assert {name: list(values) for name, values in found.arrays.items()} == {
        "prompt_token_ids": [1, 2], "token_ids": [5, 6], "logprobs": [-0.5, -1.0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (choice([5, 6], [-0.5]), "2 token ids and 1 log-probabilities"),
        (choice([5], [-9999.0]), "no finite number"),
        (choice([], []), "has no tokens"),
        (choice([2**31], [-0.5]), "no number of 32 bits"),
        (choice([True], [-0.5]), "no number of 32 bits"),
        (choice([5], [-0.5], finish_reason="abort"), "ended with abort"),
        (choice([5], [-0.5], finish_reason=None), "ended with None"),
        (choice([5], [-0.5]) | {"token_ids": None}, "gave no token ids"),
        (choice([5], [-0.5]) | {"logprobs": None}, "gave no log-probabilities"),
    ],
)
def test_anything_less_has_no_arrays_and_a_reason(bad: Json, why: str) -> None:
    for found in (captured(bad), captured(choice([5], [-0.5]), bad | {"index": 1})):
        assert why in (found.untrainable_because or "")
        assert found.arrays == {}
    assert "of the prompt" in captured(choice([5], [-0.5]), prompt=()).untrainable_because


def through(dialect: Dialect, given: Asked, *chunks: Json) -> list[Json]:
    capture = Capture(given, given.added(dialect), dialect)
    return [out for chunk in chunks if (out := capture.chunk(chunk)) is not None]


def delta(said: Json, ids: Any, logprobs: Any, **fields: Any) -> Json:
    one = {"index": 0, "delta": said, "logprobs": logprobs, "finish_reason": None, "token_ids": ids}
    return {"id": "x", "choices": [one | fields]}


def test_vllms_fields_become_null_and_its_silent_chunks_go() -> None:
    first = {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""},
             "logprobs": None, "finish_reason": None}], "prompt_token_ids": [1, 2]}  # fmt: skip
    sent = [
        first,
        delta({"content": "a"}, [5], scores(-0.5)),
        delta({}, [6], scores(-0.1)),
        delta({}, [7], scores(-0.1), finish_reason="stop"),
    ]
    assert through(VLLM, chat(stream=True), *sent) == [
        first | {"prompt_token_ids": None},
        delta({"content": "a"}, None, None),
        delta({}, None, None, finish_reason="stop"),
    ]


def test_who_asked_for_them_gets_them_all() -> None:
    sent = [delta({"content": "a"}, [5], scores(-0.5)), delta({}, [6], scores(-0.1))]
    wanted = chat(stream=True, logprobs=True, return_token_ids=True)
    assert through(VLLM, wanted, *sent) == sent
    only_scores = through(VLLM, chat(stream=True, logprobs=True), *sent)
    assert only_scores == [
        delta({"content": "a"}, None, scores(-0.5)), delta({}, None, scores(-0.1)),
    ]  # fmt: skip


def test_text_without_words_is_sent_where_the_engine_sends_it() -> None:
    one = {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "token_ids": [5]}
    given = Asked("completions", {"prompt": "a", "stream": True})
    sent = through(VLLM, given, {"choices": [one]})
    assert sent == [{"choices": [one | {"token_ids": None}]}]
    assert through(EMBEDDED, given, {"choices": [one]}) == []


def test_an_engine_of_another_kind_is_asked_for_nothing() -> None:
    given = chat(temperature=0.5)
    assert Asked("chat", {"n": 1}).added(EMBEDDED) == Added()
    assert given.added(None) == Added()
    assert json.loads(given.forwarded(given.added(None))) == given.given


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"return_token_ids": True, "logprobs": True}),
        ({"logprobs": False}, {"return_token_ids": True, "logprobs": True}),
        ({"top_logprobs": 3}, {"return_token_ids": True, "top_logprobs": 3}),
        ({"logprobs": "x"}, {"return_token_ids": True, "logprobs": "x"}),
        ({"return_token_ids": 1}, {"return_token_ids": 1, "logprobs": True}),
    ],
)
def test_nothing_is_added_that_would_mend_a_bad_request(fields: Json, expected: Json) -> None:
    given = chat(**fields)
    sent = json.loads(given.forwarded(given.added(EMBEDDED)))
    del sent["messages"]
    assert sent == expected


def test_unknown_fields_and_strange_text_are_forwarded_as_they_came() -> None:
    body = b'{"messages": [], "new_field": {"x": [1, 2.50, "\\ud83d", "\xc3\xa9"]}}'
    given = asked("chat", body)
    assert json.loads(given.forwarded(Added())) == json.loads(body)


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 7))
def test_events_come_out_whole_however_the_network_cuts_them(
    payloads: list[bytes], size: int
) -> None:
    clean = [payload.replace(b"\r", b" ").replace(b"\n", b" ") for payload in payloads]
    sent = b": a comment\r\n\r\n" + b"".join(map(sse.event, clean)) + b"the rest"
    splitter = sse.Splitter()
    found = [
        event for at in range(0, len(sent), size) for event in splitter.feed(sent[at : at + size])
    ]
    assert b"".join(found) + splitter.rest() == sent
    assert [sse.data(event) for event in found] == [None, *clean]


def first_token(drawn: float | None, *likeliest: float) -> tuple[Json, Json]:
    """A probe's answers with top_k=1 and without parameters."""
    top = {str(number): value for number, value in enumerate(likeliest)}
    return (
        {"logprobs": {"token_logprobs": [drawn]}},
        {"logprobs": {"token_logprobs": [likeliest[0]], "top_logprobs": [top]}},
    )


@pytest.mark.parametrize(
    ("probes", "why"),
    [
        ([first_token(0.0, -1.0, -2.0)], None),
        ([first_token(0.0, -1.0, -2.0), first_token(-6.76, -6.76, -6.76)], None),
        ([first_token(-1.0, -1.0, -2.0)], "processed_logprobs"),
        ([first_token(0.0, -1.0, -2.0), first_token(-0.3, -0.3, -4.0)], "processed_logprobs"),
        ([first_token(0.0, 0.0, -30.0)], "show nothing"),
        ([first_token(-6.76, -6.76, -6.76)], "show nothing"),
        ([first_token(None, -1.0, -2.0)], "no log-probabilities"),
    ],
)
def test_an_engine_is_believed_by_what_top_k_makes_of_its_numbers(
    probes: list[tuple[Json, Json]], why: str | None
) -> None:
    found = not_processed([one for one, _ in probes], [other for _, other in probes])
    assert (found is None) if why is None else why in (found or "")
