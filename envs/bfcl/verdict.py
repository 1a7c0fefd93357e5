"""BFCL's verdict on a conversation. It tests each turn of the user that has gold calls:

    1. the agent made at least one call
    2. the public attributes of every object equal those of objects on which the gold calls ran
    3. each result of this turn's gold calls is among all results so far, as often as it is there

Any order is right, and extra calls are allowed if they leave no trace. Calls without readable
arguments do not count. `needless` is a check that BFCL lacks: no call in a turn without gold calls.

Guarantee: everything is run again on the verdict's own objects, whatever the transcript's answers.
Unlike BFCL's, a case that is cut off in its last turn has failed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envs.bfcl.cases import Case, Turn
from envs.bfcl.tools import BfclTools
from envs.users import STOP
from events.messages import Message, ToolCall

Calls = list[ToolCall]


def turns_of(messages: Sequence[Message]) -> list[Calls]:
    """Return the agent's calls after each message of the user, except the message that hangs up."""
    turns: list[Calls] = []
    for message in messages:
        if message.role == "user" and STOP not in message.text:
            turns.append([])
        elif message.role == "assistant" and turns:
            turns[-1] += [c for c in message.tool_calls if not isinstance(c.arguments, str)]
    return turns


def mistakes(
    case: Case, messages: Sequence[Message], fresh: Callable[[], BfclTools]
) -> Iterator[str]:
    """Yield the faults of the first wrong turn, or nothing if the agent made none."""
    turns = turns_of(messages)
    if len(turns) < len(case.turns):
        yield f"the conversation ended after {len(turns)} of {len(case.turns)} turns"
        return
    agent, perfect = fresh(), fresh()
    results: Counter[str] = Counter()
    for number, (turn, calls) in enumerate(zip(case.turns, turns, strict=False)):
        results.update(agent.call(call.name, call.arguments).content for call in calls)
        expected = _results_of_gold(perfect, turn)
        if not turn.gold:
            continue
        if not calls:
            yield f"turn {number} made no call"
            return
        problems = [*_differences(perfect.objects, agent.objects), *_find_absent(expected, results)]
        if problems:
            yield from (f"turn {number}: {what}" for what in problems)
            return


def needless(case: Case, messages: Sequence[Message]) -> Iterator[str]:
    """Yield a fault for each turn with calls but without gold calls. The prefix is exempt."""
    own = [m for m in messages if m.role == "user" or m.sampled is not False]
    for number, (turn, calls) in enumerate(zip(case.turns, turns_of(own), strict=False)):
        if calls and not turn.gold:
            yield f"turn {number} calls {calls[0].name}, but what it needs was not there"


def _results_of_gold(tools: BfclTools, turn: Turn) -> Counter[str]:
    return Counter(tools.call(action.name, action.arguments).content for action in turn.gold)


def _differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    for name, instance in expected.items():
        for attribute, value in vars(instance).items():
            if not attribute.startswith("_") and getattr(actual[name], attribute) != value:
                yield f"{name}.{attribute} is not as expected"


def _find_absent(expected: Counter[str], results: Counter[str]) -> Iterator[str]:
    for result in expected - results:
        yield f"no call gave {result[:200]!r}"
