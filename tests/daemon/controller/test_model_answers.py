"""What a request to a model is taken to cost. The model is a real HTTP server."""

import asyncio
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.settings import Model
from daemon.controller.model_answers import (
    ANSWER_TOKENS,
    BYTES_PER_TOKEN,
    BudgetSpent,
    Question,
    TokenBudget,
    ask,
    build_format,
    build_object_schema,
    estimate_tokens,
    open_endpoint,
    strip_fence,
)
from events.messages import Message, ToolCall
from tests.envs.model_server import ModelServer, said


@pytest.mark.parametrize(
    ("text", "least"),
    [("cancel my order " * 100, 500), ("\u53d6\u6d88\u8ba2\u5355" * 100, 400), ("\ud800" * 3, 1)],
)
def test_an_estimate_is_high_in_any_script(text: str, least: int) -> None:
    """A character of Chinese is about a token, and a word of English too."""
    assert estimate_tokens([Message(role="user", content=text)]) >= least
    call = ToolCall(name="note", arguments={"text": text})
    assert estimate_tokens([Message(role="assistant", tool_calls=(call,))]) >= least
    assert estimate_tokens([Message(role="assistant", reasoning=text)]) >= least


_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n(.*?)\s*```\s*", re.DOTALL | re.IGNORECASE)


@given(st.lists(st.sampled_from(["```", "``", "json", "JSON", " ", "\t", "\n", "{}", "\u2003"])))
def test_what_stands_in_a_fence_is_read(pieces: list[str]) -> None:
    text = "".join(pieces)
    fence = _FENCE.fullmatch(text)
    assert strip_fence(text) == (text if fence is None else fence[1])


@pytest.mark.parametrize("piece", [" ", "\n", "```\n", "` "])
def test_no_answer_takes_long_to_take_out_of_its_fence(piece: str) -> None:
    """As one pattern, 20,000 spaces took a second, and four times as many sixteen."""
    text = f"```json\n{piece * 400_000}{{}}"
    assert strip_fence(text) == text


def test_the_schema_of_an_answer_is_paid_with_its_request() -> None:
    """Many servers put it into the prompt; one with the names of 200 tools is longer than most
    requests."""
    tools = {"type": "string", "enum": [f"look_up_record_{place}" for place in range(200)]}
    form = build_format("tools", build_object_schema({"tool": tools}))
    question = Question(json.loads, form)
    messages = [Message(role="user", content="Which tool?")]
    plain = estimate_tokens(messages) + ANSWER_TOKENS
    cost = plain + len(json.dumps(form)) // BYTES_PER_TOKEN

    async def ask_within(tokens: int, url: str) -> TokenBudget:
        budget = TokenBudget(tokens, "models.proposer.max_tokens")
        async with open_endpoint(Model(url=url, model="big"), "proposer") as endpoint:
            await ask(endpoint, "proposer", messages, question, budget)
        return budget

    with ModelServer(lambda _: said('{"tool": "look_up_record_0"}')) as server:
        with pytest.raises(BudgetSpent, match=rf"{plain} tokens are left .* raise models.proposer"):
            asyncio.run(ask_within(plain, server.url))
        assert server.requests == []
        assert asyncio.run(ask_within(cost, server.url)).left == 0
