"""An agent of pydantic-ai that serves one customer of `shop`, as anybody would write it.

    python framework_agent.py BASE_URL TASK [--stream]

Runs in an environment of its own (ops/isolated.py), and knows nothing of the gateway but its
address. The customer is the environment's scripted one, the tools are the environment's own over a
fresh database, whose digest is printed at the end with how often the agent spoke.
"""

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Agent, Tool  # type: ignore[import-not-found, unused-ignore]
from pydantic_ai.models.openai import (  # type: ignore[import-not-found, unused-ignore]
    OpenAIChatModel,
)
from pydantic_ai.profiles.openai import (  # type: ignore[import-not-found, unused-ignore]
    OpenAIModelProfile,
)
from pydantic_ai.providers.openai import (  # type: ignore[import-not-found, unused-ignore]
    OpenAIProvider,
)

from envs.environment import Environment
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.tools import Toolset
from envs.users import STOP_TOKENS
from events.messages import Message

Speak = Callable[[str, Any], Awaitable[tuple[str, Any]]]
"""What the customer said and the history so far -> what the agent says, and the history."""


def agent_of(url: str, shop: Environment, task: TaskDefinition, tools: Toolset) -> Any:
    """The agent with the policy and the tools of the environment. Its tools are not strict: an
    engine makes a grammar of those that are."""
    provider = OpenAIProvider(base_url=url, api_key="none")
    profile = OpenAIModelProfile(openai_supports_strict_tool_definition=False)
    return Agent(
        OpenAIChatModel("reference", provider=provider, profile=profile),
        system_prompt=shop.policy(task),
        tools=[tool(tools, schema["function"]) for schema in shop.schemas(task)],
        model_settings={"temperature": 0.0},
    )


def tool(tools: Toolset, function: dict[str, Any]) -> Any:
    """One tool as the framework knows it."""

    def call(**arguments: Any) -> str:
        return tools.call(function["name"], arguments).content

    return Tool.from_schema(
        call, function["name"], function.get("description"), function["parameters"]
    )


def speaking(agent: Any, stream: bool) -> Speak:
    """One turn of the agent, its tool calls included."""

    async def whole(said: str, history: Any) -> tuple[str, Any]:
        result = await agent.run(said, message_history=history)
        return result.output, result.all_messages()

    async def streamed(said: str, history: Any) -> tuple[str, Any]:
        async with agent.run_stream(said, message_history=history) as result:
            return await result.get_output(), result.all_messages()

    return streamed if stream else whole


async def serve(url: str, task_id: str, stream: bool) -> dict[str, Any]:
    """The whole conversation."""
    shop = Shop()
    task = shop.task(task_id)
    tools = shop.toolset(shop.reset(task))
    customer = shop.user(task)
    speak = speaking(agent_of(url, shop, task, tools), stream)
    said: list[Message] = []
    history = None
    while True:
        said.append(customer.reply(said))
        if any(token in said[-1].text for token in STOP_TOKENS):
            return {"state": tools.database.digest(), "turns": len(said) // 2}
        text, history = await speak(said[-1].text, history)
        said.append(Message(role="assistant", content=text))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("task")
    parser.add_argument("--stream", action="store_true")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(serve(given.url, given.task, given.stream))))
