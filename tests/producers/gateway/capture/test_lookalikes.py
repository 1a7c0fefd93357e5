"""Unnamed conversations of many customers that say the same, in any order, over restarts, ends and
all that is forgotten: no two are ever in one session, and one that is like no other is in one."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from events.codec import encode
from events.envelope import Envelope, new_id
from events.log import now_ms
from events.memory import MemoryLog
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    EventData,
    Outcome,
    SessionEnded,
)
from producers.conversation import parse_messages
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.session_recovery import (
    MAX_RECORDS,
    recover_sessions,
    to_client_message,
)
from producers.gateway.capture.sessions import MAX_KNOWN, CallAttribution, Sessions

SCOPE = ("agent", None)
WORDS = ("Yes", "No")
CUSTOMERS = 4

Trouble = Literal["ends", "forgets", "restarts", "rewrites"]
"""Clients end sessions; memory is small; of a log that is read again, some is left out; answers
differ in white space and in their ends, and clients hold less of them than was sent."""
TROUBLES: Final[tuple[frozenset[Trouble], ...]] = (
    frozenset(),
    frozenset(("ends",)),
    frozenset(("forgets",)),
    frozenset(("restarts",)),
    frozenset(("rewrites",)),
    frozenset(("ends", "forgets", "restarts", "rewrites")),
)


def answer_to(messages: list[Any]) -> dict[str, Any]:
    """What a model without chance says: a call whose id repeats, or words that do."""
    if len(messages) % 3 == 0:
        function = {"name": "look", "arguments": "{}"}
        call = {"id": "call_0", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"role": "assistant", "content": f"Well, {messages[-1]['content']}"}


class World:
    """A gateway's memory and its log."""

    def __init__(self, troubles: frozenset[Trouble] = frozenset()) -> None:
        self.troubles = troubles
        self.log = MemoryLog()
        self.sessions = Sessions(12 if "forgets" in troubles else MAX_KNOWN)
        self.open: dict[str, tuple[list[Any], CallAttribution]] = {}
        self._calls = 0

    def begin(self, messages: list[Any]) -> tuple[str, str]:
        """A call comes: its id and its session."""
        self._calls += 1
        call, conversation = f"c{self._calls}", Conversation.of(messages)
        found = self.sessions.attribute(None, SCOPE, conversation, f"s{self._calls}")
        known = found.parent.messages if found.parent else 0
        content = CallStartContent(messages=parse_messages(messages[known:]))
        started = CallStarted(
            call=call, session=found.session, alias="agent", base="b", policy="b", client=SCOPE[0],
            parent=found.parent.call if found.parent else None, parent_messages=known,
            attribution=found.by, content=content,
        )  # fmt: skip
        self._append(started)
        self.sessions.remember_request(found.session, call, conversation)
        self.open[call] = messages, found
        return call, found.session

    def end(self, call: str, outcome: Outcome, answer: Any = None) -> None:
        """It is answered, or comes to nothing."""
        messages, found = self.open.pop(call)
        said = parse_messages([answer]) if answer is not None else ()
        ended = CallEnded(
            call=call, session=found.session, outcome=outcome,
            content=CallEndContent(messages=said) if said else None,
        )  # fmt: skip
        self._append(ended)
        conversation = Conversation.of(messages)
        self.sessions.settle(found.claim, outcome == "completed")
        for message in said:
            heard = conversation.digest_answer(to_client_message(message))
            where = found.session, SCOPE, conversation, heard
            if outcome == "completed":
                self.sessions.remember_answer(where[0], call, *where[1:])
            else:
                self.sessions.remember_possible_answer(*where)

    def kill(self) -> None:
        """The gateway ends with what is open, and another one begins; some answers were recorded
        and never heard."""
        for place, (call, (messages, _)) in enumerate(list(self.open.items())):
            if (place + len(messages)) % 2:
                self.end(call, "completed", answer_to(messages))
        self.open.clear()
        most = 4 if "restarts" in self.troubles else MAX_RECORDS
        self.sessions = recover_sessions(self.log, most=most)  # type: ignore[arg-type]

    def over(self, session: str) -> None:
        """A client says that a session is over, and may go on nevertheless."""
        self._append(SessionEnded(session=session, because="feedback"))
        self.sessions.end_session(session)

    def _append(self, data: EventData) -> None:
        envelope = Envelope(id=new_id(), type=data.TYPE, version=1, subject=data.key())
        self.log.append([encode(envelope, data, now_ms()).entry])


@dataclass
class Customer:
    """Who says one thing after the other."""

    history: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    """What it waits for, or has to send again."""
    call: str | None = None
    sessions: list[str] = field(default_factory=list)
    steady: bool = False
    """Whether it never says anything else where it got no answer."""

    def step(self, world: World, chance: random.Random) -> None:
        """Say something, or hear what became of it."""
        if "ends" in world.troubles and self.sessions and chance.random() < 0.1:
            world.over(self.sessions[-1])
        if self.call is None:
            if not self.asked or (not self.steady and chance.random() < 0.2):
                words = {"role": "user", "content": chance.choice(WORDS)}
                self.asked = [*self.history, words]
            self.call, session = world.begin(self.asked)
            self.sessions.append(session)
        elif self.call not in world.open:
            self.call = None  # its gateway was killed
        elif chance.random() < 0.1:
            self.call = None  # it waits no more; the gateway does not know yet
        else:
            self._hear(world, self.call, chance)
            self.call = None

    def _hear(self, world: World, call: str, chance: random.Random) -> None:
        answer, outcome = answer_to(self.asked), chance.random()
        rewrites = "rewrites" in world.troubles
        if rewrites and answer["content"]:
            text = chance.choice(("Well", answer["content"])) + chance.choice(("", "\n"))
            answer = {**answer, "content": text}
        if outcome < 0.15:
            world.end(call, "failed")
            return
        if outcome < 0.3:
            # Cut off, after all of it or in the middle; who had enough goes on from there.
            if answer["content"] and chance.random() < 0.5:
                answer = {**answer, "content": answer["content"][:4]}
            world.end(call, "aborted", answer)
            if rewrites and answer["content"]:
                answer = {**answer, "content": answer["content"][: chance.randint(1, 4)]}
            if chance.random() < 0.6:
                return
        else:
            world.end(call, "completed", answer)
            if chance.random() < 0.1:
                answer = {"role": "assistant", "content": "As the client rewrote it"}
            elif rewrites and answer["content"] and chance.random() < 0.7:
                answer = {**answer, "content": answer["content"].strip()}
        self.history, self.asked = [*self.asked, answer], []


Seeds = st.integers(0, 2**32)


def talk(
    chance: random.Random, customers: list[Customer], troubles: frozenset[Trouble] = frozenset()
) -> Iterator[tuple[World, Customer]]:
    """Whose turn it is; calls that nobody waits for end, and gateways are killed."""
    world = World(troubles)
    for _ in range(60):
        if chance.random() < 0.04:
            world.kill()
        waited = {customer.call for customer in customers}
        forgotten = [call for call in world.open if call not in waited]
        if forgotten and chance.random() < 0.3:
            world.end(forgotten[0], "aborted")
        yield world, chance.choice(customers)


@pytest.mark.parametrize("troubles", TROUBLES, ids=lambda names: "+".join(sorted(names)))
@settings(max_examples=30, deadline=None)
@given(seed=Seeds)
@example(seed=100_000_000)
def test_no_two_customers_are_ever_in_one_session(troubles: frozenset[Trouble], seed: int) -> None:
    chance = random.Random(seed)
    customers = [Customer() for _ in range(chance.randint(2, CUSTOMERS))]
    for world, customer in talk(chance, customers, troubles):
        customer.step(world, chance)
    whose: dict[str, int] = {}
    for number, customer in enumerate(customers):
        for session in customer.sessions:
            assert whose.setdefault(session, number) == number, session


@settings(max_examples=40, deadline=None)
@given(Seeds)
def test_who_begins_like_nobody_else_is_in_one_session_whatever_happens(seed: int) -> None:
    """Also where answers are made anew."""
    chance = random.Random(seed)
    customers = [Customer(steady=True) for _ in range(CUSTOMERS)]
    for world, customer in talk(chance, customers):
        if not customer.history:
            system = {"role": "system", "content": f"You serve customer {id(customer)}"}
            opening = [system, {"role": "user", "content": "Hi"}]
            call, session = world.begin(opening)
            world.end(call, "completed", answer_to(opening))
            customer.history = [*opening, answer_to(opening)]
            customer.sessions.append(session)
        elif customer.call is None and not customer.asked and chance.random() < 0.1:
            # The last answer, made anew; the one before it is the first that has a session.
            if len(customer.history) > 3:
                customer.asked, customer.history = customer.history[:-1], customer.history[:-2]
        else:
            customer.step(world, chance)
    assert max(len(set(customer.sessions)) for customer in customers) == 1
