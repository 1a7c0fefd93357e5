"""Clients that know nothing of this engine: OpenAI's own, our endpoint, `kintsugi eval`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletionToolParam, ChatCompletionUserMessageParam

from daemon.engine.chat import Chat
from envs.endpoint import AnswerFailure, Completion, Endpoint, EndpointRefusal, Sampling
from envs.episode import Termination
from envs.shop.tools import ShopTools
from events.messages import Message
from tests.daemon.commands import write_lines
from tests.daemon.conftest import Kintsugi
from tests.daemon.engine.conftest import LENGTH, Live, Recite

CALL = 'L<tool_call>\n{"name": "get_user", "arguments": {"user_id": "U12"}}\n</tool_call>'
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_user", "parameters": {"type": "object", "properties": {}}},
}
HELLO = (Message(role="system", content="Be kind."), Message(role="user", content="Hello"))


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_openais_client_chats(client: openai.OpenAI, served_chat: Chat) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=8,
        seed=1,
        logprobs=True,
        top_logprobs=2,
        extra_body={"return_token_ids": True, "top_k": 50},
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == len(choice.model_extra["token_ids"])  # type: ignore[index]
    assert answer.model_extra is not None
    assert answer.model_extra["prompt_token_ids"] == list(
        served_chat.prompt([{"role": "user", "content": "Hello"}])
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_openais_client_streams(client: openai.OpenAI) -> None:
    asked: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello"}]
    whole = client.chat.completions.create(model="tiny", messages=asked, max_tokens=24, seed=3)
    stream = client.chat.completions.create(
        model="tiny", messages=asked, max_tokens=24, seed=3, stream=True
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert streamed == whole.choices[0].message.content != ""


def test_openais_client_gathers_a_streamed_call(recite: Recite) -> None:
    async def ask(url: str) -> tuple[str, str, str | None, int]:
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
            client.chat.completions.stream(
                model="tiny",
                messages=[{"role": "user", "content": "Who is U12?"}],
                tools=[TOOL],
                max_tokens=64,
                stream_options={"include_usage": True},
            ) as stream,
        ):
            final = await stream.get_final_completion()
        (choice,) = final.choices
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert final.usage is not None
        arguments = call.function.arguments
        return call.function.name, arguments, choice.finish_reason, final.usage.total_tokens

    name, arguments, finish, total = asyncio.run(ask(recite(CALL).url))
    assert (name, json.loads(arguments), finish) == ("get_user", {"user_id": "U12"}, "tool_calls")
    assert total > 8


def test_openais_client_completes_lists_and_understands_errors(client: openai.OpenAI) -> None:
    text = client.completions.create(model="tiny", prompt=[[5, 6], [7]], max_tokens=4, logprobs=1)
    assert [choice.index for choice in text.choices] == [0, 1]
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="none", prompt="a")
    with pytest.raises(openai.BadRequestError, match="logit_bias is not supported"):
        client.completions.create(model="tiny", prompt="a", logit_bias={"1": 5})


def test_openais_client_learns_of_an_engine_that_breaks(recite: Recite) -> None:
    live = recite("abc")
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        stream = client.completions.create(
            model="tiny",
            prompt="a",
            max_tokens=100,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        live.engine.cache.keys.clear()
        with pytest.raises(openai.APIError, match="the engine failed"):
            list(stream)


def ask(live: Live, text: str = "Hello", model: str = "tiny") -> Completion:
    async def run() -> Completion:
        async with Endpoint(f"{live.url}/v1", model, attempts=1) as endpoint:
            await endpoint.check()
            return await endpoint.complete(
                (*HELLO, Message(role="user", content=text)),
                tools=ShopTools.schemas(),
                sampling=Sampling(temperature=1.0, max_tokens=32),
                seed=4,
            )

    return asyncio.run(run())


def test_our_endpoint_reads_calls(recite: Recite) -> None:
    completion = ask(recite(CALL))
    (call,) = completion.message.tool_calls
    assert (call.name, call.arguments) == ("get_user", {"user_id": "U12"})
    assert (completion.message.content, completion.finish_reason) == ("L", "tool_calls")
    assert completion.usage.completion_tokens is not None


def test_our_endpoint_understands_refusals(live: Live) -> None:
    with pytest.raises(AnswerFailure) as found:
        ask(live, "Rosa " * LENGTH)
    assert found.value.termination is Termination.CONTEXT_OVERFLOW
    with pytest.raises(EndpointRefusal, match="does not exist"):
        ask(live, model="none")


def test_kintsugi_evaluates_what_the_engine_serves(
    recite: Recite, kintsugi: Kintsugi, home: object
) -> None:
    """This model calls the same tool for ever; its context ends before anybody's patience."""
    live = recite(CALL)
    arguments = ["--env", "shop", "--base-url", f"{live.url}/v1", "--model", "tiny"]
    result = kintsugi("eval", *arguments, "--tasks", "4", "--trials", "2", "--json")
    assert result.code == 0, result.err
    found = result.json
    assert (found["tasks"], found["trials"]) == (4, 2)
    assert found["terminations"] == {"context_window_exceeded": 8}
    assert found["pass_hat"]["1"]["value"] == 0.0
    first = kintsugi("rollouts", "ls", "--json", "--limit", "1").json[0]
    assert "get_user" in kintsugi("rollouts", "show", first["rollout"]).out


def test_kintsugi_scores_the_repairs_of_what_the_engine_serves(
    recite: Recite, kintsugi: Kintsugi, home: object, tmp_path: Path
) -> None:
    live = recite(CALL)
    messages = [{"role": "user", "content": "Hello"}]
    golds = {"argument": CALL, "swap": CALL.replace("U12", "U13")}
    path = write_lines(
        tmp_path / "items.jsonl",
        *({"messages": messages, "ground_truth": g, "operator": o} for o, g in golds.items()),
    )
    arguments = ["--base-url", f"{live.url}/v1", "--model", "tiny", "--max-tokens", "64"]
    result = kintsugi("bench", "reflection", path, *arguments, "--samples", "3", "--json")
    assert result.code == 0, result.err
    for operator, value in (("argument", 1.0), ("swap", 0.0)):
        for rule in ("official", "mended"):
            repairs = result.json["per_operator"][operator][rule]["repair_at"]
            assert {k: entry["value"] for k, entry in repairs.items()} == {"1": value, "3": value}
