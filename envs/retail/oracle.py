"""The perfect agent of generated tasks: it asks who the user is before it looks anybody up."""

from collections.abc import Sequence
from typing import Final

from envs.agents import GoldAgent, calls_made
from events.messages import Message

WHO: Final = "Please tell me your e-mail address, or your name and zip code."


class RetailOracle(GoldAgent):
    """Plays the gold actions, the first of which identifies the user by what they said."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """The question who they are, until they said it; then as any oracle."""
        if not calls_made(messages) and not self._told(messages):
            return Message(role="assistant", content=WHO)
        return super().reply(messages)

    def _told(self, messages: Sequence[Message]) -> bool:
        said = " ".join(message.text for message in messages if message.role == "user")
        return all(value in said for value in self.actions[0].arguments.values())
