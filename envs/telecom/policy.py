"""The rules of telecom customer service: as text for the agent, and as a check of transcripts.

The rules are tau2-bench's in our words; no tool enforces them. `violations` reads a transcript
alone: look-up of the customer, consent, and the owner of changed records. In a task with rules, the
need for a repair and the reason for a transfer must also have been seen.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from envs.catalog import CATALOGS
from envs.task import TaskDefinition
from envs.tau2 import conduct
from envs.telecom.customer import read_requests
from envs.telecom.signs import is_beyond_repair, is_needed
from events.messages import Message, executed_calls

POLICY: Final = """\
You serve the customers of a mobile phone company. Today is 2025-02-25. Work only with what the \
tools and the user tell you.

How you work
1. Find the customer first: by phone number, by customer id, or by full name and date of birth.
2. Make one tool call at a time. In one turn either call a tool or write to the user.
3. Before you change anything in the company's records, say exactly what will change and wait for \
an explicit yes.
4. You cannot touch the phone. The user can: ask for one step at a time, in plain words, and wait \
for what they see. First have them look. Ask for a repair only after something that they saw has \
shown that it is needed; a restart needs no reason.
5. Try everything below before you give up. Hand over to a person only what you cannot or may not \
do, once you have found the customer and seen the reason: call transfer_to_human_agents with the \
customer's id in the summary, then write: YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD \
ON.

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
the customer's leave for everything that the ticket needs. Look before you repair, as rule 4 asks \
of the user. Write one message when the ticket is done, and none before.
"""

AUTHENTICATING: Final = CATALOGS["telecom"].authenticating
TRANSFERS: Final = CATALOGS["telecom"].transfer


def violations(
    task: TaskDefinition, messages: Sequence[Message], writes: frozenset[str]
) -> tuple[str, ...]:
    """Return one sentence for each broken rule, in transcript order; those about repairs and
    transfers come last. A task without a user needs no consent."""
    broken = [*_check_changes(messages, writes, task.solo)]
    if task.criteria.rules is not None:
        broken += [*_check_repairs(task, messages), *_check_transfer(task, messages)]
    return tuple(broken)


def _check_changes(
    messages: Sequence[Message], writes: frozenset[str], solo: bool
) -> Iterator[str]:
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


def _check_repairs(task: TaskDefinition, messages: Sequence[Message]) -> Iterator[str]:
    """Yield the repairs that the agent requested or made before their need was seen. Repairs by the
    user after a message of the agent count as requested in it."""
    answers: list[str] = []
    earlier: list[str] = []
    for turn, message in enumerate(messages):
        if message.role == "tool":
            # A failed call shows nothing: its error repeats what the agent wrote into the call.
            answers += () if message.error else (message.text,)
            continue
        if message.role == "assistant":
            earlier = [*answers]
        if message.sampled is False:
            continue
        repairs = [(call.name, call.arguments) for call in message.tool_calls]
        if message.role == "assistant" and not repairs and not task.solo:
            repairs = [
                (item.acts, dict(item.arguments))
                for item in read_requests(message.text)
                if item.acts
            ]
        for tool, arguments in repairs:
            if isinstance(arguments, dict) and not is_needed(tool, arguments, earlier):
                yield f"message {turn} has {tool}, and nothing seen before shows that it is needed"


def _check_transfer(task: TaskDefinition, messages: Sequence[Message]) -> Iterator[str]:
    transfers = 0
    known: set[str] = set()
    answers: list[str] = []
    for item in executed_calls(messages):
        if item.failed or item.result is None:
            continue
        answers.append(item.result.text)
        if item.call.name in AUTHENTICATING:
            known |= _find_customers(item.result.text)
        elif item.call.name in TRANSFERS and item.sampled:
            transfers += 1
            if not known:
                yield f"message {item.turn} hands over before the customer is found"
            elif not any(customer in str(item.call.arguments) for customer in known):
                yield f"message {item.turn} hands over without the customer's id in the summary"
            if not is_beyond_repair(answers):
                yield f"message {item.turn} hands over, and nothing seen before gives a reason"
    gold = task.criteria.gold_actions or ()
    if not transfers and any(action.name in TRANSFERS for action in gold):
        yield "the user was not handed over"


def _find_customers(answer: str) -> set[str]:
    try:
        records = json.loads(answer)
    except (ValueError, RecursionError):
        return set()
    rows = records if isinstance(records, list) else [records]
    return {
        str(row["customer_id"]) for row in rows if isinstance(row, dict) and "customer_id" in row
    }
