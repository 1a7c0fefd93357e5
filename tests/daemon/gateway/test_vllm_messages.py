"""Anthropic's Messages API over a real vLLM, by HTTP and by their own client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, MessageParam, ToolParam

from tests.daemon.gateway.conftest import Fronted, fronting, post
from tests.daemon.gateway.test_messages import HELLO, MESSAGES

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

Json = dict[str, Any]
TOOLS: list[ToolParam] = [{"name": "get_user", "input_schema": {"type": "object"}}]
ALONE: list[ToolParam] = [{"name": "get_order", "input_schema": {"type": "object"}}]


def without_chance(value: Any) -> Any:
    if isinstance(value, list):
        return [without_chance(one) for one in value]
    if isinstance(value, dict):
        return {k: without_chance(v) for k, v in value.items() if k not in ("id", "signature")}
    return value


def events(url: str, body: Json) -> list[tuple[str, Any]]:
    """The named events of a stream."""
    found = []
    with httpx2.stream("POST", f"{url}{MESSAGES}", json=body, timeout=300) as response:
        assert response.status_code == 200, response.read()
        for event in response.read().decode().split("\n\n"):
            if event.strip():
                name, data = event.strip().split("\n")
                said = without_chance(json.loads(data.removeprefix("data: ")))
                found.append((name.removeprefix("event: "), said))
    return found


def joined(stream: list[tuple[str, Any]]) -> list[Any]:
    """Events with the deltas of a block as one: how many tokens share an event is vLLM's chance."""
    found: list[Any] = []
    for name, said in stream:
        delta = said.get("delta") if name == "content_block_delta" else None
        last = found[-1] if found else None
        words = {"text_delta": "text", "input_json_delta": "partial_json"}
        if delta and last and last[:2] == [name, said["index"]]:
            last[2] += delta[words[delta["type"]]]
        elif delta:
            found.append([name, said["index"], delta[words[delta["type"]]]])
        else:
            found.append([name, said])
    return found


@pytest.fixture
def front_vllm(vllm: str, tmp_path: Path) -> Iterator[Fronted]:
    with fronting(tmp_path, [vllm], patience=300) as found:
        yield found


@pytest.fixture
def client(front_vllm: Fronted) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=front_vllm.url, api_key="none", max_retries=0) as made:
        yield made


REQUESTS: list[Json] = [
    {"temperature": 0},
    {"temperature": 0, "tools": TOOLS},
    {"temperature": 0, "stop_sequences": ["get_"]},
    {"temperature": 0, "system": [{"type": "text", "text": "Be brief."}], "tools": ALONE},
    {"temperature": 0, "max_tokens": 2},
]


@pytest.mark.parametrize("body", REQUESTS)
def test_an_answer_is_vllms(front_vllm: Fronted, vllm: str, body: Json) -> None:
    direct, through = (post(u, MESSAGES, **HELLO | body) for u in (vllm, front_vllm.url))
    assert through.status_code == direct.status_code == 200
    assert without_chance(through.json()) == without_chance(direct.json())
    (started,), (ended,) = front_vllm.started(), front_vllm.ended()
    assert (started.endpoint, started.base) == ("messages", "tiny")
    assert (ended.outcome, ended.trainable) == ("completed", False)
    assert "/v1/messages" in (ended.untrainable_because or "")
    assert ended.completion_tokens == direct.json()["usage"]["output_tokens"]


@pytest.mark.parametrize("body", REQUESTS)
def test_a_stream_is_vllms(front_vllm: Fronted, vllm: str, body: Json) -> None:
    asked = HELLO | body | {"stream": True}
    direct, through = (joined(events(url, asked)) for url in (vllm, front_vllm.url))
    assert through == direct
    assert through[-1][0] == "message_stop"
    (ended,) = front_vllm.ended()
    assert (ended.outcome, ended.untrainable_because is None) == ("completed", False)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "none"},
        {"max_tokens": 0},
        {"max_tokens": 100_000},
        {"messages": "Hi"},
        {"messages": [{"role": "wizard", "content": "Hi"}]},
    ],
)
def test_a_refusal_is_vllms(front_vllm: Fronted, vllm: str, body: Json) -> None:
    direct, through = (post(u, MESSAGES, **HELLO | body) for u in (vllm, front_vllm.url))
    assert direct.status_code >= 400
    assert (through.status_code, through.json()) == (direct.status_code, direct.json())
    (ended,) = front_vllm.ended()
    assert (ended.outcome, ended.status) == ("failed", direct.status_code)
    assert ended.error == direct.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_client_has_a_conversation_with_tools(
    front_vllm: Fronted, client: anthropic.Anthropic, stream: bool
) -> None:
    said: list[MessageParam] = [{"role": "user", "content": "Hi"}]
    for number in range(3):
        asked: Json = {"model": "tiny", "max_tokens": 40, "tools": TOOLS, "messages": said}
        asked["system"] = "Be brief."
        if stream:
            with client.messages.stream(**asked) as answering:
                answer: Message = answering.get_final_message()
        else:
            answer = client.messages.create(**asked)
        words, use = answer.content
        assert (words.type, use.type, answer.stop_reason) == ("text", "tool_use", "tool_use")
        assert use.type == "tool_use"
        assert use.input == {"user_id": "U12"}
        said.append({"role": "assistant", "content": answer.content})
        told = f"Rosa {number}"
        result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": told}
        said.append({"role": "user", "content": [result]})
    first, *later = front_vllm.started()
    assert [call.attribution for call in front_vllm.started()] == ["none", "prefix", "prefix"]
    assert {call.session for call in later} == {first.session}
    for number, call in enumerate(later, start=1):
        assert call.content is not None
        (message,) = call.content.messages
        assert (message.role, message.content) == ("tool", f"Rosa {number - 1}")
        # The system prompt, and per turn what was said and what was answered.
        assert (call.parent_messages, call.parent_tools) == (1 + 2 * number, True)
    for ended in front_vllm.ended():
        assert ended.content is not None
        (message,) = ended.content.messages
        (made,) = message.tool_calls
        assert (message.content, made.name, made.arguments) == (
            "L",
            "get_user",
            {"user_id": "U12"},
        )
        assert (ended.finish_reason, ended.invalid_tool_calls) == ("tool_use", 0)


def test_tokens_are_counted_and_nothing_is_recorded(
    front_vllm: Fronted, client: anthropic.Anthropic
) -> None:
    counted = client.messages.count_tokens(model="tiny", messages=HELLO["messages"])
    answer = client.messages.create(**HELLO)
    assert counted.input_tokens == answer.usage.input_tokens
    assert len(front_vllm.ended()) == 1
