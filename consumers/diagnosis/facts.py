"""A failed rollout as the rules see it: its calls, its gold, and the outcome of both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import merge
from itertools import dropwhile, islice
from operator import attrgetter, itemgetter
from typing import Any, Final

from consumers.diagnosis.matching import (
    GoldWrite,
    WriteMatch,
    gold_writes,
    match,
    parse_agent_write,
)
from envs.catalog import Record, ToolCatalog, infer_catalog
from events.messages import Action, ExecutedCall, Message, executed_calls
from events.rollouts import RolloutEnded

Finding = dict[str, Any]
"""One piece of evidence, as JSON: the turn, call or gold action that shows it."""


TRIED: Final = 200
"""Most failed calls that the evidence names for one gold write; the first ones are kept."""

SAID_CHARACTERS: Final = 1_000_000
"""Most characters that are read of the agent's words in a rollout, from the beginning."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the agent, and whether it failed."""

    item: ExecutedCall
    name: str
    failed: bool

    @property
    def is_success(self) -> bool:
        return not self.failed and self.item.result is not None

    @property
    def is_own(self) -> bool:
        """Return whether the agent made the call in this rollout, not in the task's prefix."""
        return self.item.sampled

    def describe(self) -> Finding:
        return {
            "turn": self.item.turn,
            "tool": self.name,
            "arguments": self.item.call.arguments,
        }


def agent_calls(messages: Sequence[Message]) -> list[Call]:
    """Return the agent's calls in a conversation, in order; the user's calls are left out."""
    return [
        Call(item, item.call.name, _is_failure(item))
        for item in executed_calls(messages)
        if item.requestor == "assistant"
    ]


class Facts:
    """The facts about a rollout that the rules read, by the tool catalog of its environment."""

    def __init__(self, rollout: RolloutEnded, catalog: ToolCatalog | None) -> None:
        self.rollout = rollout
        self.task = rollout.task
        self.gold = rollout.task.gold_actions if rollout.task else None
        self.messages: Sequence[Message] = rollout.content.messages if rollout.content else ()
        self.calls = agent_calls(self.messages)
        """The agent's calls, including those in the task's prefix."""
        self.own_calls = [call for call in self.calls if call.is_own]
        self.catalog = catalog if catalog is not None else self._infer_catalog()

    def _infer_catalog(self) -> ToolCatalog:
        gold = self.gold or ()
        names = {call.name for call in self.calls} | {action.name for action in gold}
        arguments = {name for action in gold for name in action.arguments}
        return infer_catalog(
            names.union(self.rollout.known_tools or ()), self.rollout.write_tools, arguments
        )

    @cached_property
    def write_match(self) -> WriteMatch | None:
        """Return how gold and executed writes match, or None without gold. Writes in the task's
        prefix count as made. Calls of the user's tools by an agent that works alone are never
        surplus."""
        if self.gold is None:
            return None
        changes = self.catalog.changes
        matched = match(
            gold_writes(self.gold, self.catalog),
            [
                parse_agent_write(call.item, self.catalog)
                for call in self.calls
                if call.name in changes and call.is_success
            ],
        )
        matched = self._leave_prefix_out(matched)
        own = tuple(write for write in matched.surplus if write.tool in self.catalog.writes)
        return matched if len(own) == len(matched.surplus) else replace(matched, surplus=own)

    def _leave_prefix_out(self, matched: WriteMatch) -> WriteMatch:
        """Return the match without wrong writes in the task's prefix, because the agent did not
        make them. A gold write that such a write stood for becomes missing."""
        foreign = {call.item.turn for call in self.calls if not call.is_own}
        if not foreign:
            return matched
        left = [pair.gold for pair in matched.pairs if pair.executed.turn in foreign]
        return replace(
            matched,
            pairs=tuple(pair for pair in matched.pairs if pair.executed.turn not in foreign),
            missing=tuple(sorted((*matched.missing, *left), key=attrgetter("place"))),
            surplus=tuple(write for write in matched.surplus if write.turn not in foreign),
        )

    @property
    def pivot(self) -> str:
        return self.write_match.pivot if self.write_match else "*"

    @cached_property
    def wrong_writes(self) -> WriteMatch | None:
        """Return how the writes match, or None if the grader found the final state right."""
        return None if self.state_verdict == 1.0 else self.write_match

    @cached_property
    def attempts(self) -> dict[int, list[Call]]:
        """Return, by the index of a missing gold write, the failed calls that tried to make it."""
        if self.wrong_writes is None or not self.wrong_writes.missing:
            return {}
        writes = gold_writes(self.gold or (), self.catalog)
        names = {write.action.name for write in writes}
        meant = self._group_failures(names, {(write.action.name, write.record) for write in writes})
        tried = {
            write.place: self._select_attempts(meant, write)
            for write in self.wrong_writes.missing
            if write.action.name in names
        }
        return {place: calls for place, calls in tried.items() if calls}

    def _group_failures(
        self, names: set[str], records: set[tuple[str, Record | None]]
    ) -> dict[tuple[str, Record | None, bool], list[tuple[int, Call]]]:
        """Return failed writes as (index, call), by (tool, record, whether gold has that write). A
        call on any other record has record None, because it may have meant any gold write."""
        meant: dict[tuple[str, Record | None, bool], list[tuple[int, Call]]] = {}
        for place, call in enumerate(self.calls):
            if call.failed and call.is_own and call.name in names:
                record = parse_agent_write(call.item, self.catalog).record
                known = (call.name, record) in records
                key = (call.name, record if known else None, known)
                meant.setdefault(key, []).append((place, call))
        return meant

    def _select_attempts(
        self,
        meant: dict[tuple[str, Record | None, bool], list[tuple[int, Call]]],
        write: GoldWrite,
    ) -> list[Call]:
        """Return the first `TRIED` failed calls that may have meant this gold write, in order."""
        name = write.action.name
        on_it = meant.get((name, write.record, True), [])
        on_none = meant.get((name, None, False), [])
        both = merge(on_it, on_none, key=itemgetter(0))
        return [call for _, call in islice(both, TRIED)]

    @cached_property
    def omissions(self) -> list[GoldWrite]:
        """Return gold writes that were neither made, replaced nor tried."""
        if self.wrong_writes is None:
            return []
        return [write for write in self.wrong_writes.missing if write.place not in self.attempts]

    @cached_property
    def user_omissions(self) -> list[tuple[int, Action]]:
        """Return (index in gold, action) of the user's gold actions that the user did not make."""
        made = [
            (item.call.name, item.call.arguments)
            for item in executed_calls(self.messages)
            if item.requestor == "user" and not item.failed
        ]
        return [
            (place, action)
            for place, action in enumerate(self.gold or ())
            if action.requestor == "user"
            and not any(_is_made(action, name, arguments) for name, arguments in made)
        ]

    @property
    def waits_for_user(self) -> bool:
        """Return whether the agent made exactly its gold writes, but the user left one out."""
        matched = self.wrong_writes
        return bool(self.user_omissions) and matched is not None and matched.exact

    @cached_property
    def transfer(self) -> Call | None:
        """Return the agent's first call that handed the user over; it may have no answer."""
        transfers = self.catalog.transfer
        return next((c for c in self.own_calls if c.name in transfers and not c.failed), None)

    @cached_property
    def tried_else(self) -> bool:
        """Return whether the agent called a tool that writes or hands over, even if it failed."""
        names = self.catalog.changes | self.catalog.transfer
        return any(call.name in names for call in self.own_calls)

    @cached_property
    def gold_transfers(self) -> bool:
        transfers = self.catalog.transfer
        return any(
            action.requestor == "assistant" and action.name in transfers
            for action in self.gold or ()
        )

    @property
    def state_verdict(self) -> float | None:
        """Return the grader's verdict on the final state: 1 if the records and the task's
        assertions are right; None if neither was graded."""
        parts = self.rollout.reward_parts
        if "DB" not in parts:
            return parts.get("r_actions")
        records, asserted = parts["DB"], parts.get("ENV_ASSERTION", 1.0)
        return None if records is None or asserted is None else min(records, asserted)

    @cached_property
    def prefix_texts(self) -> list[str]:
        """Return the agent's texts in the task's prefix, from the user's first word on."""
        return [
            message.text
            for message in dropwhile(lambda message: message.role != "user", self.messages)
            if message.role == "assistant" and message.content and message.sampled is False
        ]

    @cached_property
    def agent_texts(self) -> list[tuple[int, str]]:
        """Return (turn, text) of the agent's own words, up to `SAID_CHARACTERS`."""
        texts: list[tuple[int, str]] = []
        left = SAID_CHARACTERS
        for turn, message in enumerate(self.messages):
            if message.role == "assistant" and message.content and message.sampled is not False:
                texts.append((turn, message.text[:left]))
                left -= len(texts[-1][1])
                if left <= 0:
                    break
        return texts


def _is_made(action: Action, name: str, arguments: dict[str, Any] | str) -> bool:
    """Return whether a call makes the gold `action`: same tool, and equal compared arguments."""
    if name != action.name or isinstance(arguments, str):
        return False
    names = action.arguments.keys() if action.compare is None else action.compare
    return all(arguments.get(key) == action.arguments.get(key) for key in names)


def _is_failure(item: ExecutedCall) -> bool:
    """Return whether the call failed, by its error flag or else the start of the tool's answer."""
    if item.result is None or item.result.error is not None:
        return item.failed
    return item.result.text.startswith(("Error", "ERROR", "error:", '{"error"'))
