"""The perfect agent of generated tasks: it asks who the user is before its first lookup."""

from collections.abc import Sequence

from envs.agents import GoldAgent, count_calls
from envs.task import TaskDefinition
from events.messages import Message


class IdentityOracle(GoldAgent):
    """Plays the gold actions; the first one names the user by what they said."""

    def __init__(self, task: TaskDefinition, writes: frozenset[str], who: str) -> None:
        super().__init__(task, writes)
        self.who = who
        """The question who they are."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """The question, until they said it; then as any oracle."""
        if not count_calls(messages) and not self._has_identity(messages):
            return Message(role="assistant", content=self.who)
        return super().reply(messages)

    def _has_identity(self, messages: Sequence[Message]) -> bool:
        text = " ".join(message.text for message in messages if message.role == "user")
        return all(str(value) in text for value in self.actions[0].arguments.values())
