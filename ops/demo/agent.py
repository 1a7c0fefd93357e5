"""The demo's agent: perfect but for known mistakes at known rates, in the environment shop.

Tools, users and verdicts are the environment's own; only the agent is a script.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from envs.agents import Agent
from envs.episode import Episode, play
from envs.grading import VERSION, grade
from envs.reward import conduct_of, shape
from envs.shop.environment import Shop
from envs.shop.oracle import ShopOracle
from envs.task import TaskDefinition
from events.messages import Message, ToolCall
from ops.demo.mistakes import RATES, Mistake, mistaken, slipped
from ops.demo.traffic import carelessness

NAME: Final = "scripted-agent"
SLIP: Final = 0.1
"""Share of conversations in which the zip code is mistyped first: an error that is no failure."""

_OPEN_QUESTIONS: Final = (
    "Which order do you mean?",
    "Could you tell me the number of the order?",
    "Would you like me to look at it?",
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rollout as a log would hold it, and what was done wrong in it."""

    record: dict[str, Any]
    mistake: Mistake | None


class Asker(ShopOracle):
    """Looks everything up and then only asks."""

    def closing(self) -> str:
        """A question, whatever the customer said before."""
        return _OPEN_QUESTIONS[len(self.actions) % len(_OPEN_QUESTIONS)]


def attempts(
    shop: Shop, tasks: Sequence[TaskDefinition], trials: int, seed: int
) -> Iterator[Attempt]:
    """Every task, `trials` times."""
    for trial in range(trials):
        for task in tasks:
            yield attempt(shop, task, trial, seed)


def attempt(shop: Shop, task: TaskDefinition, trial: int, seed: int) -> Attempt:
    """Play one conversation and judge it."""
    chance = Random(f"attempt {seed} {task.id} {trial}")
    mistake, taken = _taken(task, chance)
    if mistake is None and chance.random() < SLIP:
        taken = slipped(taken, chance)
    agent: Agent = (Asker if mistake is Mistake.ASKS else ShopOracle)(taken, shop.writes)
    episode = play(Episode(shop, task), agent, shop.user(task))
    return Attempt(_record(episode, trial, seed), mistake)


def _taken(task: TaskDefinition, chance: Random) -> tuple[Mistake | None, TaskDefinition]:
    """Which mistake is made, if any, and the task as the agent takes it."""
    for mistake, rate in RATES.items():
        if chance.random() < rate * carelessness(task):
            taken = mistaken(task, mistake, chance)
            if taken is not None:
                return mistake, taken
    return None, task


def _record(episode: Episode, trial: int, seed: int) -> dict[str, Any]:
    """The rollout in OpenAI's chat format, with the verdict."""
    shop, task = episode.environment, episode.task
    verdict = grade(shop, task, episode.messages, episode.termination)
    conduct = conduct_of(episode.messages, shop.catalog, episode.malformed)
    named = task.record().model_dump(mode="json", exclude={"definition"})
    system = Message(role="system", content=shop.policy(task))
    return {
        "messages": [_chat(message) for message in (system, *episode.messages)],
        "tools": [
            {"type": "function", "function": {"name": name}} for name in shop.toolset.tools()
        ],
        # Importing puts the environment's name in front, as it is in the task's own id.
        "task": named | {"id": task.id.removeprefix(f"{shop.name}/")},
        "base": NAME,
        "trial": trial,
        "seed": seed,
        "success": verdict.success,
        "reward": shape(verdict.reward or 0.0, conduct).total,
        "reward_parts": verdict.parts,
        "grader": f"envs.grading {VERSION}",
        "simulator": "scripted",
        "termination": episode.termination,
    }


def _chat(message: Message) -> dict[str, Any]:
    said = message.model_dump(mode="json", exclude_none=True, exclude={"tool_calls"})
    calls = [_wire(call) for call in message.tool_calls]
    return said | ({"tool_calls": calls} if calls else {})


def _wire(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}
