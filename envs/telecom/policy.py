"""The rules of telecom customer service in our words, and which of them a transcript breaks.

The rules are tau2-bench's; no tool enforces them. `violations` reads a transcript alone: it sees
who was looked up, whether the user agreed before a change, and whose records were changed. It does
not judge what was said.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from envs.catalog import CATALOGS
from envs.task import TaskDefinition
from envs.tau2 import conduct
from events.messages import Message

POLICY: Final = """\
You serve the customers of a mobile phone company. Today is 2025-02-25. Work only with what the \
tools and the user tell you.

How you work
1. Find the customer first: by phone number, by customer id, or by full name and date of birth.
2. Make one tool call at a time. In one turn either call a tool or write to the user.
3. Before you change anything in the company's records, say exactly what will change and wait for \
an explicit yes.
4. You cannot touch the phone. The user can: ask for one step at a time, in plain words, and wait \
for what they see.
5. Try everything below before you give up. Hand over to a person only what you cannot or may not \
do: call transfer_to_human_agents, then write: YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE \
HOLD ON.

Bills and suspended lines
6. A suspended line has no service. It is suspended for an overdue bill, or because its contract \
has ended.
7. Overdue bill: look that it is overdue, send a payment request for it, ask the user to pay it, \
and look that it is paid. Only one bill at a time can wait for its payment.
8. When every overdue bill is paid, resume the line and have the phone restarted. A line whose \
contract end date is past may not be resumed, paid or not: hand over.
9. Suspend a line when its customer asks for it.

Data
10. A line that has used more than its plan's limit has no mobile data. Offer to add data: at most \
2 GB, at the plan's price per GB, as much as the user wants.
11. A line must have roaming enabled to be used abroad; it costs nothing. Ask where the user is.

No service. The user looks at each of these; what is wrong is put right
12. Airplane mode must be off.
13. The SIM card: missing, it is taken out and put in again; locked with PIN or PUK, hand over.
14. The APN settings: reset them, then restart the phone.
15. The line must be active (6 to 8).

Mobile internet is gone or slow. First whatever cuts the service off, then
16. Mobile data must be on; abroad, data roaming on the phone too, and the line's (11).
17. The line must have data left (10).
18. Data saver off; network mode 4g_5g_preferred; no VPN.
19. A speed test tells whether it is mended.

Picture messages do not go out. First whatever stops mobile internet, then
20. The network mode must allow more than 2G.
21. Wi-Fi calling off.
22. The messaging app needs the permissions sms and storage.
23. The APN settings must name an MMSC URL: reset them, then restart the phone.
24. The user can try whether pictures can be sent.
"""

SOLO: Final = """\
You work alone on a written ticket: no user answers. You have the tools of the phone as well, and \
the customer's leave for everything that the ticket needs. Write one message when the ticket is \
done, and none before.
"""

AUTHENTICATING: Final = CATALOGS["telecom"].authenticating


def violations(
    task: TaskDefinition, messages: Sequence[Message], writes: frozenset[str]
) -> tuple[str, ...]:
    """One sentence for each broken rule, in the order of the transcript; without a user no leave is
    asked for."""
    return tuple(_violations(messages, writes, task.solo))


def _violations(messages: Sequence[Message], writes: frozenset[str], solo: bool) -> Iterator[str]:
    known: set[str] = set()
    yes = solo
    for turn, message in enumerate(messages):
        if message.role == "user" and not message.tool_calls:
            yes = conduct.has_consent(message)
        if message.role != "assistant":
            continue
        yield from conduct.check_single_call(turn, message)
        for call, result in zip(message.tool_calls, messages[turn + 1 :], strict=False):
            if result.role != "tool" or result.error:
                continue
            if call.name in AUTHENTICATING:
                known |= _find_customers(result.text)
            elif call.name in writes and message.sampled is not False:
                arguments = call.arguments if isinstance(call.arguments, dict) else {}
                of = arguments.get("customer_id")
                if not known:
                    yield f"message {turn} calls {call.name} before the customer is found"
                elif of not in known:
                    yield f"message {turn} calls {call.name} on data of {of}, who was not found"
                if not yes:
                    yield f"message {turn} calls {call.name} without the user's yes"


def _find_customers(answer: str) -> set[str]:
    """The ids of the customers that a lookup found."""
    try:
        records = json.loads(answer)
    except ValueError:
        return set()
    rows = records if isinstance(records, list) else [records]
    return {
        str(row["customer_id"]) for row in rows if isinstance(row, dict) and "customer_id" in row
    }
