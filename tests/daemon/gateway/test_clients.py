"""OpenAI's own client, pointed at the gateway and told nothing else."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam

from events.canonical import exact_json
from tests.daemon.gateway.conftest import Fronted

TOOL: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "get_user", "parameters": {"type": "object"}},
}


@pytest.fixture
def client(front: Fronted) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_conversation_is_one_session_of_deltas(front: Fronted, client: openai.OpenAI) -> None:
    messages: list[dict[str, object]] = [{"role": "system", "content": "Be brief."}]
    for number in range(4):
        messages.append({"role": "user", "content": f"Question {number}"})
        answer = client.chat.completions.create(
            model="tiny",
            messages=messages,  # type: ignore[arg-type]
            max_tokens=4,
            tools=[TOOL],
        )
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
    first, *later = front.started()
    assert {call.session for call in later} == {first.session}
    assert [call.attribution for call in front.started()] == ["none", *["prefix"] * 3]
    assert [call.parent for call in later] == [one.call for one in front.started()[:-1]]
    for number, call in enumerate(later, start=1):
        assert call.content is not None
        assert [message.text for message in call.content.messages] == [f"Question {number}"]
        assert (call.parent_messages, call.parent_tools) == (2 * number + 1, True)
        assert call.content.tools == ()
    assert front.gateway.metrics.value("kintsugi_gateway_unattributed_calls_total") == 1


def test_many_asynchronous_calls_are_all_recorded_once(front: Fronted) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="none") as asynchronous:
            raw = asynchronous.completions.with_raw_response
            answers = await asyncio.gather(
                *(raw.create(model="tiny", prompt=f"{n}", max_tokens=3) for n in range(32))
            )
        assert {answer.headers["x-kintsugi-recorded"] for answer in answers} == {"yes"}
        return [answer.headers["x-kintsugi-call"] for answer in answers]

    told = asyncio.run(ask())
    assert sorted(call.call for call in front.ended()) == sorted(told)
    assert sorted(call.call for call in front.started()) == sorted(told)
    assert front.log.commits < 64, "appends that wait at the same time share a commit"


def test_who_asks_is_told_by_headers_and_kept(front: Fronted, client: openai.OpenAI) -> None:
    named = {"x-kintsugi-session": "talk-1", "x-kintsugi-user": "rosa", "traceparent": TRACE}
    answer = client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "user", "content": "a"}],
        max_tokens=2,
        temperature=0.5,
        extra_headers=named,
    )
    assert answer.headers["x-kintsugi-session"] == "talk-1"
    assert answer.headers["x-kintsugi-adapter"] == "tiny"
    (call,) = front.started()
    assert (call.session, call.attribution, call.base) == ("talk-1", "header", "tiny")
    assert exact_json(call.sampling) == exact_json(
        {"temperature": 0.5, "top_p": 1.0, "top_k": 0, "max_tokens": 2}
    )
    for event in front.events():
        assert (event.envelope.person, event.envelope.traceparent) == ("rosa", TRACE)
    started, ended = front.events()
    assert ended.envelope.cause == started.envelope.id


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_base_url_names_a_session_for_who_can_set_no_header(front: Fronted) -> None:
    url = f"{front.url}/r/session/talk-2/user/rosa/v1"
    with openai.OpenAI(base_url=url, api_key="none") as client:
        client.completions.create(model="tiny", prompt="a", max_tokens=2)
        assert [model.id for model in client.models.list()] == ["tiny", "agent"]
    with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none~talk-3") as client:
        client.completions.create(model="tiny", prompt="a", max_tokens=2)
    found = [(call.session, call.attribution) for call in front.started()]
    assert found == [("talk-2", "path"), ("talk-3", "key")]
    assert front.events()[0].envelope.person == "rosa"
