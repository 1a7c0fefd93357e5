"""The rules of retail customer service: as text for the agent, and as a check of transcripts.

The rules are tau2-bench's in our words. The tools enforce only those about an order's status.
`violations` reads only a transcript: authentication, consent, and the owner of changed records.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from envs.tau2 import conduct
from events.messages import Message

POLICY: Final = """\
You serve the customers of an online shop. Work only with what the tools and the user tell you.

Who you help
1. First find out who the user is: look them up by e-mail address, or by first name, last name and \
zip code. Do this even when they give you a user id.
2. Help one user per conversation, with as many requests as they have. Refuse anything that \
concerns another user's account.

How you work
3. Make one tool call at a time. In one turn either call a tool or write to the user.
4. Before you change anything (cancel, modify, return, exchange, addresses), say exactly what will \
change and wait for an explicit yes.
5. Do not invent facts or procedures, and give no opinions of your own.
6. Refuse what these rules do not allow. Hand over to a person only if the request cannot be \
handled with your tools: call transfer_to_human_agents, then write: YOU ARE BEING TRANSFERRED TO A \
HUMAN AGENT. PLEASE HOLD ON.

What there is
7. A user has a default address, orders, and payment methods: gift card, PayPal or credit card.
8. A product has items that differ in options, price and availability. A product's id is never an \
item's id.
9. An order is pending, processed, delivered or cancelled; look before you act. Processed and \
cancelled orders cannot be changed.

Pending orders
10. Cancel: only for the reason 'no longer needed' or 'ordered by mistake', which the user must \
give. A gift card is refunded at once, anything else within 5 to 7 business days.
11. Change the payment: to one other method of the user's. A gift card must cover the whole amount.
12. Change the address: as the user says.
13. Change items: each to an available item of the same product with other options, never to \
another product. The user names the method that pays or receives the difference; a gift card must \
cover it. This works once per order, and the order can be neither cancelled nor modified \
afterwards, so ask whether the list of items is complete.

Delivered orders
14. Return: the user names the items and where the money goes, which is the method that paid the \
order or a gift card of theirs. They then get an e-mail about sending the items back.
15. Exchange: each item for an available one of the same product with other options; payment of \
the difference as in 13. Once per order, so ask whether the list of items is complete.
16. An order is returned or exchanged once, not both.
"""

AUTHENTICATING: Final = frozenset({"find_user_id_by_email", "find_user_id_by_name_zip"})
_FREE: Final = AUTHENTICATING | {
    "calculate",
    "get_item_details",
    "get_product_details",
    "list_all_product_types",
    "transfer_to_human_agents",
}
"""Tools that use no user's data, so that they need no authentication."""


def violations(messages: Sequence[Message], writes: frozenset[str]) -> tuple[str, ...]:
    """Return one sentence for each broken rule, in the order of the transcript."""
    return tuple(_violations(messages, writes))


def _violations(messages: Sequence[Message], writes: frozenset[str]) -> Iterator[str]:
    known: str | None = None
    yes = False
    for turn, message in enumerate(messages):
        if message.role == "user":
            yes = conduct.has_consent(message)
        if message.role != "assistant":
            continue
        own = message.sampled is not False
        yield from conduct.check_single_call(turn, message)
        for call, result in zip(message.tool_calls, messages[turn + 1 :], strict=False):
            succeeded = result.role == "tool" and not result.error
            if call.name in AUTHENTICATING and succeeded:
                if own:
                    yield from _second_user(known, result.text, turn)
                known = known or result.text
            elif not own:
                continue
            elif call.name not in _FREE and known is None:
                yield f"message {turn} calls {call.name} before the user is authenticated"
            elif call.name in writes and succeeded:
                of = conduct.owner(result.text)
                yield from conduct.bad_write(turn, call.name, of, known, yes)


def _second_user(known: str | None, user_id: str, turn: int) -> Iterator[str]:
    if known not in (None, user_id):
        yield f"message {turn} looks up {user_id} in a conversation with {known}"
