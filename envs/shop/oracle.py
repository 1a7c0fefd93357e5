"""The perfect agent of shop. Its transcripts are demonstrations that train a policy."""

from collections.abc import Mapping, Sequence
from typing import Final

from envs.agents import GoldAgent, call, count_done
from envs.shop.policy import CONFIRM, DONE, REFUSED, output
from events.messages import Action, Message

_CLOSINGS: Final = {output(sentence): sentence for sentence in (DONE, REFUSED)}

QUESTIONS: Final[Mapping[str, str]] = {
    "cancel_order": "cancel order {order_id}?",
    "return_item": "return {item} of order {order_id}, refund to {payment_id}?",
    "exchange_item": "exchange {item} of order {order_id} for {colour}?",
    "modify_payment": "pay order {order_id} with {payment_id}?",
    "modify_address": "send order {order_id} to {street}?",
}
"""Write -> the agent's question for a yes."""


class ShopOracle(GoldAgent):
    """An oracle that looks up, answers, asks before each write and says one closing sentence."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next gold call, a text that must come before it, or the closing sentence."""
        done = count_done(messages, self.actions)
        action = self.actions[done] if done < len(self.actions) else None
        if action is not None and action.name not in self.writes:
            return call(action, done)
        texts = [message.text for message in messages if message.role == "assistant"]
        if (answer := self._unsaid(texts)) is not None:
            return Message(role="assistant", content=answer)
        if action is None:
            return Message(role="assistant", content=self.final_text())
        if texts[-1] != self.question(action) or messages[-1].role != "user":
            return Message(role="assistant", content=self.question(action))
        return call(action, done)

    def question(self, action: Action) -> str:
        """Return a short question for a yes to a write; it names every value."""
        return f"{CONFIRM} {QUESTIONS[action.name].format_map(action.arguments)}"

    def final_text(self) -> str:
        """Return the closing sentence that the task demands."""
        return next(_CLOSINGS[sentence] for sentence in self.outputs if sentence in _CLOSINGS)

    def _unsaid(self, texts: Sequence[str]) -> str | None:
        return next((o for o in self.outputs if o not in _CLOSINGS and o not in texts), None)
