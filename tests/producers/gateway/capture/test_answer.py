"""The pure core of a capture, also in vLLM's dialect (chunks as its source writes them)."""

import json
import math
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from producers.gateway.capture.answer import Capture, make_capture
from producers.gateway.http import sse
from producers.gateway.http.wire import (
    EMBEDDED,
    VLLM,
    Dialect,
    ExtraFields,
    ModelRequest,
    parse_request,
)
from producers.gateway.routing.engine_proof import check_logprobs

Json = dict[str, Any]
BOTH = ExtraFields(token_ids=True, logprobs=True)


def chat(**given: Any) -> ModelRequest:
    return ModelRequest("chat", {"messages": [{"role": "user", "content": "Hi"}], **given})


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
    capture = Capture(chat(n=len(choices)), BOTH, EMBEDDED)
    capture.whole({"choices": list(choices), "prompt_token_ids": list(prompt)})
    return capture.build_record()


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


def through(dialect: Dialect, given: ModelRequest, *chunks: Json) -> list[Json]:
    capture = Capture(given, given.choose_extras(dialect), dialect)
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
    given = ModelRequest("completions", {"prompt": "a", "stream": True})
    sent = through(VLLM, given, {"choices": [one]})
    assert sent == [{"choices": [one | {"token_ids": None}]}]
    assert through(EMBEDDED, given, {"choices": [one]}) == []


def test_an_engine_of_another_kind_is_asked_for_nothing() -> None:
    given = chat(temperature=0.5)
    assert ModelRequest("chat", {"n": 1}).choose_extras(EMBEDDED) == ExtraFields()
    assert given.choose_extras(None) == ExtraFields()
    assert json.loads(given.encode_for_engine(given.choose_extras(None))) == given.document


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
    sent = json.loads(given.encode_for_engine(given.choose_extras(EMBEDDED)))
    del sent["messages"]
    assert sent == expected


def test_unknown_fields_and_strange_text_are_forwarded_as_they_came() -> None:
    body = b'{"messages": [], "new_field": {"x": [1, 2.50, "\\ud83d", "\xc3\xa9"]}}'
    given = parse_request("chat", body)
    assert json.loads(given.encode_for_engine(ExtraFields())) == json.loads(body)


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


@given(
    st.lists(st.tuples(st.sampled_from(["\n", "\r\n"]), st.sampled_from(["\n", "\r\n"]))),
    st.integers(1, 7),
)
def test_an_empty_line_ends_an_event_however_each_line_ends(
    ends: list[tuple[str, str]], size: int
) -> None:
    sent = "".join(f"data: {n}{end}{empty}" for n, (end, empty) in enumerate(ends)).encode()
    splitter = sse.Splitter()
    cut = (sent[at : at + size] for at in range(0, len(sent), size))
    events = [event for data in cut for event in splitter.feed(data)]
    assert [sse.data(event) for event in events] == [b"%d" % n for n in range(len(ends))]
    assert (b"".join(events), splitter.rest()) == (sent, b"")


@pytest.mark.parametrize("empty", [{}, {"delta": {}}, {"delta": None, "finish_reason": None}])
def test_an_empty_choice_beside_usage_is_no_choice(empty: Json) -> None:
    streamed = choice([5], [-0.5], delta={"content": "a"})
    capture = Capture(chat(stream=True, n=2), BOTH, EMBEDDED)
    for number in range(2):
        capture.chunk({"choices": [streamed | {"index": number}], "prompt_token_ids": [1, 2]})
    capture.chunk({"choices": [empty], "usage": {"prompt_tokens": 2, "completion_tokens": 2}})
    assert capture.build_record().untrainable_because is None


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (None, {"include_usage": True}),
        ({"include_usage": False}, {"include_usage": True}),
        ({"include_obfuscation": True}, {"include_obfuscation": True, "include_usage": True}),
        (
            {"include_usage": None, "continuous_usage_stats": False},
            {"include_usage": True, "continuous_usage_stats": False},
        ),
        ({"continuous_usage_stats": True}, {"continuous_usage_stats": True}),
        ({"include_usage": True}, {"include_usage": True}),
        ({"include_usage": 0}, {"include_usage": 0}),
        ("x", "x"),
    ],
)
def test_usage_is_asked_for_beside_options_that_do_not_change_it(options: Any, sent: Any) -> None:
    request = chat(stream=True, **({} if options is None else {"stream_options": options}))
    body = json.loads(request.encode_for_engine(request.choose_extras(VLLM)))
    assert body["stream_options"] == sent


def message_of(*events: Json) -> Any:
    """The message that events of Anthropic's protocol come to."""
    request = ModelRequest("messages", {"messages": []})
    capture = make_capture(request, ExtraFields(), None)
    for event in events:
        capture.chunk(event)
    (message,) = capture.build_record().messages
    return message


def begin(number: int, **block: Any) -> Json:
    return {"type": "content_block_start", "index": number, "content_block": block}


def go_on(number: int, text: str) -> Json:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": number, "delta": delta}


def test_the_input_of_deltas_is_in_place_of_that_at_the_start_of_a_block() -> None:
    use = begin(0, type="tool_use", id="A", name="look_up", input={"order": "W1"})
    for deltas, order in (((), "W1"), (("",), "W1"), (('{"order": ', '"W7"}'), "W7")):
        (call,) = message_of(use, *(go_on(0, text) for text in deltas)).tool_calls
        assert (call.name, call.arguments) == ("look_up", {"order": order})


def test_a_tool_that_the_engine_runs_itself_is_no_call_of_the_client() -> None:
    own = begin(0, type="server_tool_use", id="S", name="web_search", input={})
    use = begin(0, type="tool_use", id="A", name="look_up", input={})
    message = message_of(
        own, go_on(0, '{"query": "x"}'), use, go_on(0, "{}"), own, go_on(0, '{"query": "y"}')
    )
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("look_up", {})]


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
    found = check_logprobs([one for one, _ in probes], [other for _, other in probes])
    assert (found is None) if why is None else why in (found or "")


HUGE = 10**400

ODD: dict[str, list[Json]] = {
    "an index below 0": [choice([5], [-0.5], index=-1)],
    "an index beyond what was asked for": [choice([5], [-0.5], index=1)],
    "a huge index": [choice([5], [-0.5], index=HUGE)],
    "an index that is true": [choice([5], [-0.5], index=True)],
    "an index that is text": [choice([5], [-0.5], index="0")],
    "an index that is a fraction": [choice([5], [-0.5], index=0.0)],
    "an index that is a list": [choice([5], [-0.5], index=[])],
    "no index": [choice([5], [-0.5], index=None)],
    "the same index twice": [choice([5], [-0.5]), choice([6], [-0.25])],
    "a choice that is text": [choice([5], [-0.5]), "x"],  # type: ignore[list-item]
    "a log-probability that float32 has not": [choice([5], [1e300])],
    "one that it has not below 0": [choice([5], [-1e300])],
    "a probability above 1": [choice([5], [0.5])],
    "a log-probability that is true": [choice([5], [True])],
    "a huge whole number": [choice([5], [HUGE])],
    "a huge whole number below 0": [choice([5], [-HUGE])],
    "no number": [choice([5], [float("nan")])],
    "minus infinity": [choice([5], [float("-inf")])],
    "text for a number": [choice([5], ["-0.5"])],  # type: ignore[list-item]
    "an id beyond 32 bits": [choice([HUGE], [-0.5])],
    "an id below 0": [choice([-1], [-0.5])],
    "an id that is a fraction": [choice([5.0], [-0.5])],  # type: ignore[list-item]
    "ids that are text": [choice("5", [-0.5])],  # type: ignore[arg-type]
    "a score that is none": [
        choice([5], [-0.5]) | {"logprobs": {"content": ["x", *scores(-0.5)["content"]]}}
    ],
    "scores that are a list": [choice([5], [-0.5]) | {"logprobs": [-0.5]}],
    "a call's index below 0": [
        choice([5], [-0.5], message={"tool_calls": [{"index": -1, "function": {"name": "a"}}]})
    ],
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_no_engine_says_is_not_trained_on(case: str, streamed: bool) -> None:
    capture = Capture(chat(), BOTH, EMBEDDED)
    sent = {"choices": ODD[case], "prompt_token_ids": [1, 2]}
    if streamed:
        for one in (one for one in ODD[case] if isinstance(one, dict)):
            one["delta"] = one.get("message")
        assert capture.chunk(sent) is not None
    else:
        capture.whole(sent)
    found = capture.build_record()
    assert found.untrainable_because
    assert found.arrays == {}
    assert capture.collect_texts()


def test_tokens_of_a_prompt_that_was_told_twice_and_otherwise_are_not_kept() -> None:
    capture = Capture(chat(), BOTH, EMBEDDED)
    capture.chunk({"choices": [], "prompt_token_ids": [1, 2]})
    capture.chunk({"choices": [], "prompt_token_ids": [1, 3]})
    capture.chunk(delta({"content": "a"}, [5], scores(-0.5), finish_reason="stop"))
    assert "prompt" in (capture.build_record().untrainable_because or "")


def test_an_answer_that_goes_on_after_its_end_is_not_trained_on() -> None:
    capture = Capture(chat(), BOTH, EMBEDDED)
    end = delta({"content": "a"}, [5], scores(-0.5), finish_reason="stop")
    capture.chunk(end | {"prompt_token_ids": [1, 2]})
    assert capture.build_record().untrainable_because is None
    capture.chunk(delta({"content": "b"}, [6], scores(-0.5)))
    assert "after its end" in (capture.build_record().untrainable_because or "")


def test_a_prompt_of_several_that_is_missing_moves_no_other_into_its_place() -> None:
    given = ModelRequest("completions", {"prompt": ["a", "b", "c"]})
    capture = Capture(given, BOTH, EMBEDDED)
    choices = [
        {"index": n, "text": "x", "token_ids": [n], "finish_reason": "stop",
         "logprobs": {"token_logprobs": [-0.5], "tokens": ["x"]}, "prompt_token_ids": [n]}
        for n in range(3)
    ]  # fmt: skip
    del choices[1]["prompt_token_ids"]
    capture.whole({"choices": choices})
    found = capture.build_record()
    assert "prompt" in (found.untrainable_because or "")
    choices[1]["prompt_token_ids"] = [1]
    capture = Capture(given, BOTH, EMBEDDED)
    capture.whole({"choices": choices})
    assert list(capture.build_record().arrays["prompt_token_ids.1"]) == [1]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["index", "token_ids", "logprobs", "content", "message", "delta", "text",
                 "finish_reason", "prompt_token_ids", "tool_calls", "function", "name", "id",
                 "arguments", "logprob", "bytes", "token", "token_logprobs", "tokens",
                 "reasoning"]
            ),
            inner,
            max_size=5,
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_whatever_an_engine_says_is_passed_on_and_never_stored_as_what_it_is_not(
    said: Any,
) -> None:
    for endpoint in ("chat", "completions", "messages"):
        given = ModelRequest(endpoint, {"messages": [], "prompt": "a"})
        odd = {"choices": [said], "usage": said, "prompt_token_ids": [1]}
        for document, take in product((odd, {"choices": said}), ("whole", "chunk")):
            capture = make_capture(given, BOTH, VLLM)
            getattr(capture, take)(document)
            found = capture.build_record()
            capture.collect_texts()
            for values in found.arrays.values():
                assert all(math.isfinite(value) for value in values)


def test_an_endless_answer_is_kept_to_a_bound_and_passed_on_beyond_it() -> None:
    capture = Capture(chat(stream=True), BOTH, EMBEDDED, most=10_000)
    capture.chunk({"choices": [], "prompt_token_ids": [1, 2]})
    for _ in range(1_000):
        piece = delta({"content": "x" * 50}, [5], scores(-0.5))
        assert capture.chunk(piece) is not None
    capture.chunk(delta({}, [6], scores(-0.5), finish_reason="stop"))
    found = capture.build_record()
    assert "more than" in (found.untrainable_because or "")
    assert (found.arrays, found.finished) == ({}, True)
    assert sum(map(len, capture.collect_texts())) < 20_000
    (message,) = found.messages
    assert len(str(message.content)) < 11_000


def operations(work: Callable[[], object]) -> int:
    """How many operations of Python's machine some work takes."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("finish", [None, "tool_calls"])
def test_a_streamed_call_costs_the_same_however_many_came_before(finish: str | None) -> None:
    capture = Capture(chat(stream=True), BOTH, EMBEDDED)

    def stream(first: int) -> Callable[[], None]:
        pieces = [
            delta(
                {"tool_calls": [{"index": n, "function": {"name": "a", "arguments": "{}"}}]},
                None, None, finish_reason=finish,
            )
            for n in range(first, first + 100)
        ]  # fmt: skip

        def take() -> None:
            for piece in pieces:
                capture.chunk(piece)

        return take

    early = operations(stream(0))
    for first in (100, 200, 300):
        stream(first)()
    assert operations(stream(400)) < 1.5 * early
    assert len(capture.build_record().messages[0].tool_calls) == 500


def test_beyond_its_bound_an_answer_costs_the_same_however_many_choices_it_has() -> None:
    def beyond(choices: int) -> int:
        capture = Capture(chat(stream=True, n=choices), BOTH, EMBEDDED, most=choices * 1_000)
        capture.chunk({"choices": [{"index": n, "delta": {}} for n in range(choices)]})
        piece = delta({"content": "a"}, [5], scores(-0.5))
        capture.chunk(piece)
        cost = operations(lambda: [capture.chunk(piece) for _ in range(20)])
        assert "more than" in (capture.build_record().untrainable_because or "")
        return cost

    assert beyond(2_000) < 1.5 * beyond(20)


@pytest.mark.parametrize("streamed", [False, True])
def test_choices_that_nobody_asked_for_are_passed_on_and_a_few_are_kept(streamed: bool) -> None:
    indices: list[list[int]] = [
        [*range(5_000)], [*range(-5_000, 0)], [*range(1, 5_000), 0],
    ]  # fmt: skip
    for index in indices:
        capture = Capture(chat(), ExtraFields(), EMBEDDED)
        said = {"role": "assistant", "content": "a"}
        name = "delta" if streamed else "message"
        one: Json = {name: said, "finish_reason": "stop"}
        sent: Json = {"choices": [one | {"index": number} for number in index]}
        assert (capture.chunk if streamed else capture.whole)(sent) == sent
        found = capture.build_record()
        assert "none of 1 from 0" in (found.untrainable_because or "")
        assert found.finished
        assert 0 < len(found.messages) < 100
        assert len(capture.collect_texts()) < 500
    capture = Capture(chat(n=200), BOTH, EMBEDDED)
    sent = {"prompt_token_ids": [1], "choices": [choice([5], [-0.5], index=n) for n in range(200)]}
    capture.whole(sent)
    assert len(capture.build_record().messages) == 200
    assert capture.build_record().untrainable_because is None


@pytest.mark.parametrize("name", [["x"], {"a": 1}, 5, None, True])
def test_a_tool_whose_name_is_no_text_is_no_tool_to_call(name: Any) -> None:
    tools = [{"type": "function", "function": {"name": one}} for one in (name, "get")]
    capture = Capture(chat(tools=tools), ExtraFields(), EMBEDDED)
    calls = [
        {"id": one, "function": {"name": one, "arguments": "{}"}} for one in ("get", "other", "x")
    ]
    said = {"role": "assistant", "tool_calls": calls}
    capture.whole({"choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}]})
    assert capture.build_record().invalid_tool_calls == 2
