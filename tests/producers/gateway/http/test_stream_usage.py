"""What asking for usage changes in a stream is undone, whatever the engine's habits."""

from dataclasses import replace
from typing import Any

import pytest

from ops.fuzz.streams import STYLES, check, prove
from producers.gateway.http.stream_usage import StreamUsage, compare_streams, find_kind

Json = dict[str, Any]
VLLM = STYLES[0]


def test_a_client_reads_the_same_with_and_without_the_additions() -> None:
    streams, differences = check(seed=1, count=100)
    assert differences == []
    assert sum(streams.values()) == 100
    assert len(streams) == len(STYLES) >= 6


def of(delta: Json, **fields: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None} | fields]}


@pytest.mark.parametrize(
    ("chunk", "kind"),
    [
        ({"choices": []}, "bare"),
        ({"usage": {}}, "bare"),
        (of({}), "silent"),
        (of({"content": None}, logprobs={"content": []}, token_ids=[7]), "silent"),
        ({"choices": [{"index": 0, "text": ""}]}, "silent"),
        (of({"content": ""}), "words"),
        (of({}, timings={"a": 1}), "words"),
        ({"choices": ["x"]}, "words"),
        ({"choices": [{"index": 0, "text": "Hi"}]}, "words"),
        (of({}, finish_reason="stop"), "end"),
    ],
)
def test_the_kind_of_a_chunk_follows_from_what_its_choices_say(chunk: Json, kind: str) -> None:
    assert find_kind(chunk) == kind


def test_the_proof_shows_how_an_engine_tells_usage() -> None:
    shown = {style.name: prove(style).usage for style in STYLES}
    fingerprint = {"system_fingerprint": VLLM.fingerprint}
    assert shown["kintsugi"] == StreamUsage()
    assert shown["vllm"] == StreamUsage(moved=fingerprint)
    assert shown["mistral"] == StreamUsage(frozenset(("end",)), frozenset())
    assert shown["litellm"] == StreamUsage(frozenset(("silent",)), frozenset(("silent",)))
    for name in ("ollama", "forced", "empty choice"):
        assert shown[name] == StreamUsage(frozenset(), frozenset())


def test_an_engine_that_refuses_a_stream_shows_nothing() -> None:
    assert compare_streams([], [{"choices": []}]) is None
    assert compare_streams([{"choices": []}], []) is None


def test_an_engine_that_never_tells_usage_is_not_asked() -> None:
    chunks = [of({"content": "a"}, finish_reason="stop")]
    assert compare_streams(chunks, chunks) == StreamUsage(frozenset(), frozenset())


def test_a_chunk_without_usage_is_the_same_object() -> None:
    chunk = of({"content": "a"})
    assert StreamUsage().strip(chunk) is chunk
    assert not StreamUsage().is_own_chunk({"choices": [], "timings": {}})


def test_null_stays_where_an_engine_writes_it_unasked() -> None:
    usage = StreamUsage(null=True)
    assert usage.strip({"choices": [], "usage": {"completion_tokens": 1}})["usage"] is None
    assert "usage" not in replace(usage, null=False).strip(of({"content": "a"}) | {"usage": None})


def usage(chunk: Json) -> Json:
    return chunk | {"usage": {"completion_tokens": 1}}


def bare() -> Json:
    return {"choices": []}


END = of({}, finish_reason="stop")


@pytest.mark.parametrize(
    ("plain", "asked", "own"),
    [
        ([bare(), END], [bare(), END, usage(bare())], "bare"),
        ([bare(), END], [bare(), END, usage(bare()), usage(bare())], "bare"),
        ([END], [END, usage(END)], "end"),
        ([END], [usage(END)], None),
        ([END, bare()], [END, usage(bare())], None),
        ([of({}), END], [of({}), END, usage(of({}))], None),
    ],
    ids=["beside others", "twice", "a second end", "the end", "no chunk more", "silent as others"],
)
def test_chunks_that_only_one_stream_has_are_those_of_usage(
    plain: list[Json], asked: list[Json], own: str | None
) -> None:
    shown = compare_streams(plain, asked)
    assert shown is not None
    assert shown.own_chunks == (frozenset() if own is None else {own})


@pytest.mark.parametrize("delta", [{}, {"content": None}, {"content": ""}])
def test_a_chunk_of_usage_says_nothing_also_with_an_empty_text(delta: Json) -> None:
    silent = StreamUsage(frozenset(("silent",)), frozenset(("silent",)))
    assert silent.is_own_chunk(usage(of(delta)))
    assert not silent.is_own_chunk(of(delta))
    assert not silent.is_own_chunk(usage(of({"content": "a"})))
    assert not silent.is_own_chunk(usage(of({"content": ""}, finish_reason="stop")))


def test_an_engine_with_usage_in_all_chunks_keeps_its_empty_texts() -> None:
    each = compare_streams([END], [usage(of({"content": "a"})), usage(END), usage(bare())])
    assert each is not None
    assert not each.is_own_chunk(usage(of({"content": ""})))
