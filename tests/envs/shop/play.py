"""Playing episodes of shop to their end, and agents that are not what they should be."""

from collections.abc import Sequence

from envs.agents import Agent, call, count_calls
from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.shop.environment import Shop
from envs.shop.oracle import ShopOracle
from envs.shop.policy import CONFIRM, DONE, REFUSED
from envs.shop.vocabulary import STATUSES, STREETS
from envs.task import TaskDefinition
from events.messages import Message


def played(shop: Shop, task: TaskDefinition, agent: Agent) -> Episode:
    """The episode of an agent with the scripted user."""
    return play(Episode(shop, task), agent, shop.user(task))


def verdict(episode: Episode) -> Grade:
    """What it was worth."""
    return grade(episode.environment, episode.task, episode.messages, episode.termination)


def graded(shop: Shop, task: TaskDefinition, agent: Agent) -> Grade:
    """What the episode of an agent is worth."""
    return verdict(played(shop, task, agent))


class Refuser:
    """Refuses whatever it is asked."""

    def __init__(self, text: str = REFUSED) -> None:
        self.text = text

    def reply(self, messages: Sequence[Message]) -> Message:
        return Message(role="assistant", content=self.text)


class LookingRefuser(ShopOracle):
    """Looks everything up, then refuses, or says another text."""

    text = REFUSED

    def reply(self, messages: Sequence[Message]) -> Message:
        done = count_calls(messages)
        if done < len(self.actions) and self.actions[done].name.startswith(("find_", "get_")):
            return super().reply(messages)
        return Message(role="assistant", content=self.text)


class Lister(LookingRefuser):
    """Looks everything up, then lists streets and statuses as answers, without the colon."""

    text = " ".join([*(f"Answer - {value}." for value in (*STREETS, *STATUSES)), DONE])


class Hedger(ShopOracle):
    """Does everything right and closes with both sentences."""

    def final_text(self) -> str:
        return f"{DONE} {REFUSED}"


class Rusher(ShopOracle):
    """Does everything right but does not ask before it writes."""

    def reply(self, messages: Sequence[Message]) -> Message:
        reply = super().reply(messages)
        if not reply.text.startswith(CONFIRM):
            return reply
        done = count_calls(messages)
        return call(self.actions[done], done)
