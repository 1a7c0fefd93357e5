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


def probe(change: Change = lambda document: document, refuses_streams: bool = False) -> Probes:
    """The proof of an engine each document of which is changed."""

    async def complete(body: Json) -> tuple[int, bytes]:
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
        return 200, answer_probe(VLLM, body)

    asyncio.run(run_probes(complete))
    plain, counted = (body for body in asked if body.get("stream"))
    assert plain["stop"] == counted["stop"] == ["a"], "the likeliest first token"
    assert "stream_options" not in plain
    assert counted["stream_options"] == {"include_usage": True}
