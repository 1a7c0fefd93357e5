"""The rules of diagnosis, one function each, which returns its evidence or nothing. Guarantee: time
and memory linear in the text and the calls, for any input, by stated bounds (`OUTPUTS`, `NAMED`,
matching.py, labels.py). detectors.py explains each rule."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from consumers.diagnosis.facts import Call, Facts, Finding
from consumers.diagnosis.matching import (
    AgentWrite,
    GoldWrite,
    Relation,
    parse_agent_write,
    value_key,
)
from consumers.diagnosis.response_patterns import asks, hands_over, overflows, refuses
from envs.catalog import Record
from envs.comparison.numerals import find_unsaid
from events.messages import Message
from events.rollouts import RolloutEnded

OUTPUTS: Final = 200
"""Most required outputs of a task that are searched for; the first ones are kept."""

NAMED: Final = 200
"""Most turns or calls that one finding names; the first ones are kept."""


def _context_overflow(facts: Facts) -> list[Finding]:
    termination = facts.rollout.termination
    if termination and overflows(termination):
        return [{"termination": termination}]
    last = facts.messages[-1] if facts.messages else None
    if last is not None and last.role == "tool" and last.error and overflows(last.text):
        return [{"turn": len(facts.messages) - 1}]
    return []


def tool_loops(calls: Sequence[Call]) -> list[Finding]:
    """Return the agent's repetitions: same name and arguments, or errors from one tool."""
    counts = Counter([call.name for call in calls])
    often = {name: count for name, count in counts.items() if count >= _IN_A_ROW}
    if not often:
        return []
    errors = Counter([call.name for call in calls if call.failed])
    keyed = [
        (call, (call.name, value_key(call.item.call.arguments) if call.name in often else b""))
        for call in calls
    ]
    return [
        *_rows(keyed, often),
        *_repeats(keyed, {name for name, count in often.items() if count >= _IN_ALL}),
        *(
            {"kind": "errors", "tool": name, "count": count}
            for name, count in sorted(errors.items())
            if count >= _ERRORS
        ),
    ]


_IN_A_ROW: Final = 3
_IN_ALL: Final = 4
_ERRORS: Final = 4


_Keyed = tuple[Call, tuple[str, bytes]]
"""A call, and a key that is equal for the same tool and arguments."""


def _rows(calls: Sequence[_Keyed], often: Collection[str]) -> list[Finding]:
    """Return a finding for each run of the same call without another call in between."""
    runs = (
        [call for call, _ in run]
        for (name, _), run in groupby(calls, key=itemgetter(1))
        if name in often
    )
    return [_describe_repeat("in a row", run) for run in runs if len(run) >= _IN_A_ROW]


def _repeats(calls: Sequence[_Keyed], names: Collection[str]) -> list[Finding]:
    """Return a finding for each call repeated anywhere, by tool, then in the order of the calls."""
    groups: dict[tuple[str, bytes], list[Call]] = {}
    for call, key in calls:
        if call.name in names:
            groups.setdefault(key, []).append(call)
    loops = [group for group in groups.values() if len(group) >= _IN_ALL]
    return [_describe_repeat("in all", group) for group in sorted(loops, key=lambda g: g[0].name)]


def _describe_repeat(kind: str, calls: Sequence[Call]) -> Finding:
    return {
        "kind": kind,
        "tool": calls[0].name,
        "arguments": calls[0].item.call.arguments,
        "turns": [call.item.turn for call in calls[:NAMED]],
    }


def _user_id_failure(facts: Facts) -> list[Finding]:
    reaching = facts.catalog.user_record
    if not reaching or not (facts.agent_texts or facts.calls):
        return []
    tried = [call for call in facts.calls if call.name in reaching]
    if any(call.is_success for call in tried):
        return []
    own = [call.describe() for call in tried if call.is_own]
    return [{"needed": sorted(reaching), "tried": own[:NAMED]}]


def _policy_violation(facts: Facts) -> list[Finding]:
    if facts.wrong_writes is None:
        return []
    return [_write(write) for write in facts.wrong_writes.surplus]


def _no_transfer(facts: Facts) -> list[Finding]:
    """Return evidence if gold only hands the user over and the agent did something else."""
    if facts.wrong_writes is None or not facts.gold_transfers or _expects_writes(facts):
        return []
    surplus = facts.wrong_writes.surplus
    if facts.transfer is not None and not surplus:
        return []
    return [
        {"gold": "only transfers", "transferred": facts.transfer is not None},
        *(_write(write) for write in surplus),
    ]


def _expects_writes(facts: Facts) -> bool:
    writes = facts.catalog.changes
    return any(a.requestor == "assistant" and a.name in writes for a in facts.gold or ())


def _wrong_item_selection(facts: Facts) -> list[Finding]:
    selections = facts.catalog.selection_arguments
    return _stand_ins(facts, Relation.ARGUMENTS, lambda name: name in selections)


def _incorrect_arguments(facts: Facts) -> list[Finding]:
    if facts.gold is None:
        return _find_invalid_calls(facts)
    selections = facts.catalog.selection_arguments
    findings = _stand_ins(facts, Relation.ARGUMENTS, lambda name: name not in selections)
    for place, calls in facts.attempts.items():
        findings.append({"gold": place, "only_failed": [call.describe() for call in calls]})
    return findings


def _find_invalid_calls(facts: Facts) -> list[Finding]:
    """Return evidence without gold: malformed calls, unknown tools, tools that only failed."""
    known = frozenset(facts.rollout.known_tools or ())
    findings = [
        {"kind": "malformed" if isinstance(call.item.call.arguments, str) else "unknown tool"}
        | call.describe()
        for call in facts.own_calls
        if isinstance(call.item.call.arguments, str) or (known and call.name not in known)
    ]
    helped = {call.name for call in facts.calls if not call.failed}
    only_failed = [call for call in facts.own_calls if call.name not in helped]
    return findings + [{"kind": "only failed"} | call.describe() for call in only_failed]


def _find_early_transfer(facts: Facts) -> list[Finding]:
    """Return evidence if the agent handed the user over before the user made a gold step."""
    turn = _find_transfer_turn(facts) if facts.waits_for_user else None
    if turn is None or facts.gold_transfers:
        return []
    return [{"transferred": turn}, *find_user_omissions(facts)]


def find_user_omissions(facts: Facts) -> list[Finding]:
    """Return the gold steps that the user left out, if the agent made exactly its gold writes."""
    if not facts.waits_for_user:
        return []
    return [
        {"gold": place, "expected": action.name, "of": "user", "arguments": action.arguments}
        for place, action in facts.user_omissions[:NAMED]
    ]


def find_refusals(facts: Facts, omissions: Sequence[GoldWrite]) -> list[Finding]:
    """Return evidence if the agent handed over or refused instead of making `omissions`."""
    if not omissions:
        return []
    omitted = [_gold(write) for write in omissions]
    if not facts.gold_transfers and (turn := _find_transfer_turn(facts)) is not None:
        return [{"transferred": turn}, *omitted]
    refusals = [turn for turn, text in facts.agent_texts if refuses(text)]
    if not refusals:
        return []
    after = _find_writes_after(facts, omissions, refusals[-1])
    refused = [_gold(w) for w in omissions if (w.action.name, w.record) not in after]
    return [{"refused": refusals[:NAMED]}, *refused] if refused else []


def _find_writes_after(
    facts: Facts, omissions: Sequence[GoldWrite], turn: int
) -> set[tuple[str, Record | None]]:
    """Return (tool, record) of the writes that the agent made after its last refusal."""
    names = {write.action.name for write in omissions}
    return {
        (call.name, parse_agent_write(call.item, facts.catalog).record)
        for call in facts.calls
        if call.item.turn > turn and call.name in names and call.is_success
    }


def _find_transfer_turn(facts: Facts) -> int | None:
    """Return the turn that hands the user over, or None: a call of the tool, the agent's words, or
    the token ###TRANSFER### that tau2's simulated user says."""
    if facts.transfer is not None:
        return facts.transfer.item.turn
    if facts.messages and "###TRANSFER###" in facts.messages[-1].text:
        return len(facts.messages) - 1
    return next((turn for turn, text in facts.agent_texts if hands_over(text)), None)


def find_early_end(facts: Facts) -> list[Finding]:
    """Return evidence that the conversation was cut off, broke off, or ended on a question."""
    termination = facts.rollout.termination
    low = (termination or "").lower()
    if any(word in low for word in _CUT):
        return [{"termination": termination}]
    if not facts.messages:
        return []
    last = len(facts.messages) - 1
    if facts.transfer is None and not termination and _breaks_off(facts.messages[last]):
        return [{"turn": last, "kind": "broke off"}]
    # If the user left a step out and hung up, the open question is the user's.
    asked = None if facts.waits_for_user else _open_question(facts.messages)
    return [] if asked is None else [{"turn": asked, "kind": "open question"}]


_CUT: Final = (
    "max_",
    "limit",
    "timeout",
    "timed_out",
    "error",
    "abort",
    "cancel",
    "length",
    "exceed",
    "fail",
    "crash",
    "kill",
    "interrupt",
    "truncat",
)
"""Parts of termination reasons for an end that neither the user nor the agent chose. tau2 has
max_steps, timeout, too_many_errors, agent_error, user_error, infrastructure_error and
unexpected_error."""


def _breaks_off(last: Message) -> bool:
    """Return whether the record ends at the agent's or a tool's turn. The simulated user of
    tau-bench and tau2 says goodbye with a token such as ###STOP###."""
    if last.role == "user":
        return "###" not in last.text
    return last.role == "tool" or (last.role == "assistant" and bool(last.tool_calls))


def _open_question(messages: Sequence[Message]) -> int | None:
    """Return the turn of the agent's last message if it asks and only a goodbye follows."""
    for turn in range(len(messages) - 1, -1, -1):
        message = messages[turn]
        if message.role == "user":
            continue
        waits = (
            message.role == "assistant" and not message.tool_calls and message.sampled is not False
        )
        return turn if waits and asks(message.text) else None
    return None


def _information_error(facts: Facts) -> list[Finding]:
    task = facts.task
    if task is None or not task.outputs or not _state_is_right(facts):
        return []
    if facts.rollout.reward_parts.get("COMMUNICATE") == 1.0:
        return []
    outputs = task.outputs[:OUTPUTS]
    texts = facts.prefix_texts + [text for _, text in facts.agent_texts]
    if _has_rules(facts.rollout):
        unsaid = list(find_unsaid(outputs, texts))
    else:
        speech = "\n".join(texts).lower().replace(",", "")
        unsaid = [output for output in outputs if output.lower() not in speech]
    return [{"unsaid": unsaid}] if unsaid else []


def _has_rules(rollout: RolloutEnded) -> bool:
    """Return whether the environment's own grader judged and reads outputs as values. Its name is
    then `ENVIRONMENT/VERSION`; version 1 only searches for characters (envs/grading.py)."""
    name, _, version = (rollout.grader or "").partition("/")
    is_own = rollout.task is not None and name == rollout.task.environment
    return is_own and version.isdecimal() and version not in ("0", "1")


def _state_is_right(facts: Facts) -> bool:
    verdict = facts.state_verdict
    if verdict is not None:
        return verdict == 1.0
    return facts.write_match is not None and facts.write_match.exact


def _stand_ins(
    facts: Facts, relation: Relation, counts: Callable[[str], bool] | None = None
) -> list[Finding]:
    """Return a finding for each write that stands for a gold write in this relation. If `counts` is
    given, a pair needs a differing argument for which it is true."""
    if facts.wrong_writes is None:
        return []
    findings: list[Finding] = []
    for pair in facts.wrong_writes.pairs:
        if pair.relation is not relation:
            continue
        differing = [name for name in pair.differing if counts is None or counts(name)]
        if counts is not None and not differing:
            continue
        wanted, actual = pair.gold.arguments, pair.executed.arguments
        findings.append(
            {
                "gold": pair.gold.place,
                "expected": pair.gold.action.name,
                "turn": pair.executed.turn,
                "tool": pair.executed.tool,
                "record": _record(pair.executed.record),
                "differs": {
                    name: {"gold": wanted.get(name), "executed": actual.get(name)}
                    for name in differing
                },
            }
        )
    return findings


def _write(write: AgentWrite) -> Finding:
    return {"turn": write.turn, "tool": write.tool, "arguments": dict(write.arguments)}


def _gold(write: GoldWrite) -> Finding:
    return {
        "gold": write.place,
        "expected": write.action.name,
        "arguments": dict(write.arguments),
    }


def _record(record: tuple[str, str] | None) -> dict[str, str] | None:
    return None if record is None else {record[0]: record[1]}


RULES: Final[Mapping[str, Callable[[Facts], list[Finding]]]] = {
    "context_overflow": _context_overflow,
    "tool_loop": lambda facts: tool_loops(facts.own_calls),
    "user_id_failure": _user_id_failure,
    "policy_violation": _policy_violation,
    "wrong_tool": lambda facts: _stand_ins(facts, Relation.TOOL) or _no_transfer(facts),
    "wrong_entity": lambda facts: _stand_ins(facts, Relation.ENTITY),
    "wrong_item_selection": _wrong_item_selection,
    "incorrect_arguments": _incorrect_arguments,
    "over_cautious": lambda facts: (
        find_refusals(facts, facts.omissions) or _find_early_transfer(facts)
    ),
    "premature_termination": find_early_end,
    "missing_write_action": lambda facts: [_gold(write) for write in facts.omissions],
    "information_error": _information_error,
}
"""Name -> rule, in the order in which the primary label is chosen."""
