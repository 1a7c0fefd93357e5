"""What an engine's answers to the probes show of its counts."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from ops.fuzz.streams import STYLES, answer_probe
from producers.gateway.routing.engine_proof import Probes, run_probes

Json = dict[str, Any]
Change = Callable[[Json], Json]
VLLM = STYLES[0]


def probe(
    change: Change = lambda document: document,
    refuses_streams: bool = False,
    chat: tuple[int, bytes] = (400, b'{"error": {}}'),
) -> Probes:
    """The proof of an engine each document of which is changed, and which answers a chat so."""

    async def complete(body: Json) -> tuple[int, bytes]:
        if "messages" in body:
            return chat
        if body.get("stream") and refuses_streams:
            return 400, b'{"error": {}}'
        raw = answer_probe(VLLM, body)
        if not body.get("stream"):
            return 200, json.dumps(change(json.loads(raw))).encode()
        events = raw.decode().removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
        changed = [change(json.loads(event.removeprefix("data: "))) for event in events]
        return 200, b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in changed)

    probes = asyncio.run(run_probes(complete))
    assert isinstance(probes, Probes)
    return probes


def with_counts(completion: Any, streamed: bool) -> Change:
    """Change the count of tokens in whole answers, or in streams."""

    def change(document: Json) -> Json:
        whole = len(document["choices"]) > 1
        if document.get("usage") is None or whole is streamed:
            return document
        return document | {"usage": {"completion_tokens": completion}}

    return change


def test_an_engine_whose_counts_are_those_of_its_ids_is_proven() -> None:
    assert probe().unproven() is None


@pytest.mark.parametrize(("streamed", "told"), [(False, 4), (True, 2), (True, 0)])
def test_an_engine_that_counts_other_tokens_than_its_ids_is_not(streamed: bool, told: int) -> None:
    why = probe(with_counts(told, streamed)).unproven()
    assert why is not None
    assert f"counts {told} completion tokens; update it" in why


@pytest.mark.parametrize("told", [None, "3", -1])
def test_an_engine_that_counts_nothing_contradicts_nothing(told: Any) -> None:
    assert probe(with_counts(told, False)).unproven() is None


def test_an_engine_that_streams_nothing_contradicts_nothing() -> None:
    probes = probe(refuses_streams=True)
    assert (probes.unproven(), probes.usage) == (None, None)


def test_a_stop_string_ends_the_streams_of_the_proof() -> None:
    asked: list[Json] = []

    async def complete(body: Json) -> tuple[int, bytes]:
        asked.append(body)
        return (400, b"") if "messages" in body else (200, answer_probe(VLLM, body))

    asyncio.run(run_probes(complete))
    plain, counted = (body for body in asked if body.get("stream"))
    assert plain["stop"] == counted["stop"] == ["a"], "the likeliest first token"
    assert "stream_options" not in plain
    assert counted["stream_options"] == {"include_usage": True}


def chat_with(*likeliest: tuple[Any, Any]) -> tuple[int, bytes]:
    """The answer to the chat whose first token has these likeliest ones."""
    top = [{"token": token, "logprob": logprob} for token, logprob in likeliest]
    choice = {"logprobs": {"content": [{"token": "x", "logprob": 0, "top_logprobs": top}]}}
    return 200, json.dumps({"choices": [choice]}).encode()


def test_an_engine_that_makes_a_grammar_of_every_tool_is_not_proven() -> None:
    probes = probe(chat=chat_with(("<tool_call>", -0.1), ('"', -4.5), ("a", -9999.0)))
    why = probes.unproven()
    assert why is not None
    assert "without --tool-strict-level" in why


@pytest.mark.parametrize(
    ("chat", "masks"),
    [
        (chat_with(('"', -0.5), ('"~', -2.0), (' "', -3.0), ("", -4.0), ("a", -9999.0)), False),
        (chat_with(("a", -0.5), ('"', -2.0)), None),
        (chat_with(("a", -9999.0)), None),
        (chat_with((None, None), (3, "x")), None),
        (chat_with(), None),
        ((200, b'{"choices": [{"logprobs": []}]}'), None),
        ((200, b'{"choices": [{"logprobs": {"content": [1]}}]}'), None),
        ((200, b"[]"), None),
        ((200, b"{"), None),
        ((400, chat_with(("<", -0.1), ("a", -9999.0))[1]), None),
        ((503, b""), None),
    ],
    ids=["guided", "not guided", "nothing is allowed", "no numbers", "no tokens", "a list",
         "no objects", "no object", "no json", "refused", "away"],
)  # fmt: skip
def test_an_engine_whose_chat_shows_no_such_grammar_is_proven(
    chat: tuple[int, bytes], masks: bool | None
) -> None:
    probes = probe(chat=chat)
    assert (probes.masks_tools, probes.unproven()) == (masks, None)


def test_the_proof_asks_for_one_chat_with_a_tool_that_is_not_strict() -> None:
    asked: list[Json] = []

    async def complete(body: Json) -> tuple[int, bytes]:
        asked.append(body)
        return (400, b"") if "messages" in body else (200, answer_probe(VLLM, body))

    asyncio.run(run_probes(complete))
    (chat,) = (body for body in asked if "messages" in body)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["kintsugi_probe"]
    assert "strict" not in json.dumps(chat)
    assert (chat["tool_choice"], chat["top_k"], chat["temperature"]) == ("auto", 0, 1.0)
