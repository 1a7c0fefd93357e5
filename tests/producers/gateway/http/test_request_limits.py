"""How much of one thing a request may hold, and what it is told beyond that."""

import json
from typing import Any

import pytest

from producers.gateway.http.request_limits import (
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_PROMPTS,
    MAX_STOPS,
    MAX_TOOL_CALLS,
    MAX_TOOLS,
)
from producers.gateway.http.wire import Endpoint, ModelRequest, Refused, parse_request

Json = dict[str, Any]
HELLO = {"role": "user", "content": "Hi"}
PART = {"type": "text", "text": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}


def calls(count: int, arguments: Any = "{}") -> Json:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call] * count}


def parse(endpoint: Endpoint, document: Json) -> ModelRequest:
    return parse_request(endpoint, json.dumps(document).encode())


COUNTS: list[tuple[Endpoint, str, int, Any]] = [
    ("chat", "messages", MAX_MESSAGES, lambda n: {"messages": [HELLO] * n}),
    ("messages", "messages", MAX_MESSAGES, lambda n: {"messages": [HELLO] * n}),
    (
        "messages",
        "messages",
        MAX_MESSAGES,
        lambda n: {"messages": [{"role": "user", "content": [RESULT] * (n - 1)}]},
    ),
    (
        "chat",
        "messages",
        MAX_PARTS,
        lambda n: {"messages": [{"role": "user", "content": [PART] * n}]},
    ),
    (
        "messages",
        "messages",
        MAX_PARTS,
        lambda n: {
            "messages": [{"role": "user", "content": [{**RESULT, "content": [PART] * (n - 1)}]}]
        },
    ),
    ("chat", "messages", MAX_TOOL_CALLS, lambda n: {"messages": [calls(n)]}),
    ("chat", "tools", MAX_TOOLS, lambda n: {"tools": [{"type": "function"}] * n}),
    ("messages", "tools", MAX_TOOLS, lambda n: {"tools": [{"name": "a"}] * n}),
    ("chat", "stop", MAX_STOPS, lambda n: {"stop": ["a"] * n}),
    ("chat", "stop_token_ids", MAX_STOPS, lambda n: {"stop_token_ids": [1] * n}),
    ("messages", "stop_sequences", MAX_STOPS, lambda n: {"stop_sequences": ["a"] * n}),
    ("completions", "prompt", MAX_PROMPTS, lambda n: {"prompt": ["a"] * n}),
    ("completions", "prompt", MAX_PROMPTS, lambda n: {"prompt": [[1]] * n}),
    ("completions", "n", MAX_CHOICES, lambda n: {"prompt": [1, 2], "n": n}),
    ("chat", "n", MAX_CHOICES, lambda n: {"messages": [HELLO], "n": n}),
    ("completions", "n", MAX_CHOICES // 2, lambda n: {"prompt": ["a", "b"], "n": n}),
]


@pytest.mark.parametrize(("endpoint", "param", "most", "build"), COUNTS)
def test_more_of_something_than_is_taken_is_refused_by_its_number(
    endpoint: Endpoint, param: str, most: int, build: Any
) -> None:
    assert parse(endpoint, build(most)).document
    with pytest.raises(Refused, match=r"[\d,]+ .*at most [\d,]+ are taken; send fewer") as refused:
        parse(endpoint, build(most + 1))
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "document",
    [
        {"messages": [HELLO], "metadata": [[]] * 1_000_000},
        {"messages": [HELLO], "metadata": {str(n): "" for n in range(400_000)}},
        {"messages": [{"role": "user", "content": [PART] * 500_000}]},
        {"messages": [HELLO], "stop": [1] * 5_000_000},
        {"prompt": [1] * 4_000_000},
    ],
)
def test_a_body_that_holds_more_than_is_taken_is_refused_before_it_is_parsed(
    document: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps(document).encode()
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(Refused, match=r"the body holds more than .* send less") as refused:
        parse_request("chat", body)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "arguments",
    [
        [json.dumps([[]] * 1_000_000)],
        ['"', *[json.dumps([[]] * 30_000)] * 10],
    ],
)
def test_arguments_that_are_text_hold_no_more_than_a_body(arguments: list[str]) -> None:
    messages = [calls(1, written) for written in arguments]
    with pytest.raises(Refused, match="the arguments of the tool calls hold more than"):
        parse("chat", {"messages": messages})
    older = [{"role": "assistant", "function_call": {"name": "f", "arguments": arguments[-1] * 5}}]
    assert parse("chat", {"messages": [{**older[0], "function_call": {"name": "f"}}]})


def test_a_large_agent_of_good_faith_is_within_every_limit() -> None:
    noise = '",[]{}:\\' * 1_000_000
    properties = {f"p{n}": {"type": "string", "enum": ["a", "b"]} for n in range(100)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": schema}}
        for n in range(128)
    ]
    turns = [HELLO, calls(2, '{"a": [1, 2]}'), {"role": "tool", "content": '{"b": []}'}] * 667
    document = {"messages": [{"role": "system", "content": noise}, *turns], "tools": tools}
    assert parse("chat", document).messages() is not None
    assert parse("completions", {"prompt": list(range(262_144))}).prompts
