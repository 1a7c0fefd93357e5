"""Rollouts of generated tasks of shop that a test writes call by call, graded as any other."""

from collections.abc import Sequence
from typing import Any

from envs.environment import Environment
from envs.episode import Termination
from envs.grading import grade
from envs.registry import open_environment
from envs.task import TaskDefinition
from events.messages import Message, ToolCall
from events.rollouts import RolloutContent, RolloutEnded

Write = tuple[str, dict[str, Any]]
"""Tool and arguments."""

SHOP = open_environment("shop")


def gold(task: TaskDefinition, environment: Environment = SHOP) -> list[Write]:
    """The writes of a perfect agent."""
    return [
        (action.name, dict(action.arguments))
        for action in task.criteria.gold_actions or ()
        if action.name in environment.writes
    ]


def transcript(
    task: TaskDefinition,
    calls: Sequence[Write],
    says: Sequence[str] = ("Done.",),
    *,
    login: bool = True,
    environment: Environment = SHOP,
) -> tuple[Message, ...]:
    """A conversation in which the agent makes these calls and says this; the tools answer."""
    database = environment.reset(task)
    tools = environment.toolset(database)
    messages = [Message(role="user", content="Hello, it is me.")]
    if login:
        user = next(iter(database["users"].values()))
        calls = [("find_user", {"name": user["name"], "zip": user["zip"]}), *calls]
    for name, arguments in calls:
        answer = tools.call(name, arguments)
        call = ToolCall(name=name, arguments=arguments)
        messages.append(Message(role="assistant", tool_calls=(call,)))
        messages.append(Message(role="tool", content=answer.content, error=answer.error))
    messages += [Message(role="assistant", content=text) for text in says]
    return (*messages, Message(role="user", content="###STOP###"))


def failure(
    task: TaskDefinition,
    calls: Sequence[Write],
    says: Sequence[str] = ("Done.",),
    *,
    rollout: str = "r1",
    login: bool = True,
    environment: Environment = SHOP,
    **fields: Any,
) -> RolloutEnded:
    """A graded rollout that failed."""
    messages = transcript(task, calls, says, login=login, environment=environment)
    verdict = grade(environment, task, messages, Termination.USER_STOP)
    assert verdict.success is False, "the test's rollout did not fail"
    values: dict[str, Any] = {
        "alias": "agent",
        "base": "tiny",
        "policy": "tiny",
        "source": "test",
        "purpose": "live",
        "task": task.record(),
        "success": False,
        "reward": 0.0,
        "reward_parts": {str(name): value for name, value in verdict.parts.items()},
        "termination": "user_stop",
        "content": RolloutContent(messages=messages),
    }
    return RolloutEnded(rollout=rollout, **{**values, **fields})
