"""The perfect agent of generated tasks: it asks for the user's id before it looks at anything."""

from collections.abc import Sequence
from typing import Final

from envs.agents import GoldAgent, calls_made
from events.messages import Message

WHO: Final = "Please tell me your user id."


class AirlineOracle(GoldAgent):
    """Plays the gold actions, the first of which shows the user's record."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """The question for the user's id, until it was told; then as any oracle."""
        if not calls_made(messages) and not self._told(messages):
            return Message(role="assistant", content=WHO)
        return super().reply(messages)

    def _told(self, messages: Sequence[Message]) -> bool:
        user_id = str(self.actions[0].arguments["user_id"])
        return any(user_id in message.text for message in messages if message.role == "user")
