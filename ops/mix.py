"""The mix of events for measuring folds: a small model of a day of gateway traffic.

40 % CallStarted, 40 % CallEnded with a head of about 2 KB, 5 % FeedbackReceived, 15 % RolloutEnded
with 20 messages and gold actions, a third of them failed. Each event depends on the seed and its
number only, so processes may make parts of the mix in any order.
"""

import random
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from events.codec import WireEvent, encode
from events.envelope import Envelope, derive_id
from events.learning import PatternsDiagnosed
from events.log import Entry
from events.messages import Action, Message, ToolCall
from events.position import Position
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    EventData,
    FeedbackReceived,
    RolloutContent,
    RolloutEnded,
    Task,
)
from events.sqlite.log import SqliteLog

_APPENDED: Final = 2_000
START: Final = datetime(2026, 1, 1, tzinfo=UTC)

PERIOD: Final = ("start", "end") * 8 + ("feedback",) + ("rollout",) * 3


def mix(count: int, seed: int = 0, start: int = 0) -> Iterator[Entry]:
    """Yield events `start` to `start + count` of the mix."""
    for number in range(start, start + count):
        yield event(number, seed).entry


def event(number: int, seed: int = 0) -> WireEvent:
    """Return event `number` of the mix."""
    period, place = divmod(number, len(PERIOD))
    chance = random.Random(f"{seed}/{number}")
    data, arrays = _data(PERIOD[place], period, place, chance)
    envelope = Envelope(
        id=derive_id("mix", str(seed), str(number)),
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=START + timedelta(milliseconds=100 * number),
    )
    recorded = int(START.timestamp() * 1000) + 100 * number
    return encode(envelope, data, recorded, arrays)


def write_log(path: Path, events: int) -> SqliteLog:
    """Return a log of the first `events` of the mix, written without fsync."""
    log = SqliteLog(path, durability="process")
    for start in range(0, events, _APPENDED):
        log.append(list(mix(min(_APPENDED, events - start), start=start)))
    return log


def make_round(position: Position, number: int, seed: int = 0) -> Entry:
    """Return the event that closes a round at `position`."""
    data = PatternsDiagnosed(trigger="diagnose", position=position)
    envelope = Envelope(
        id=derive_id("mix-round", str(seed), str(number)),
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=START + timedelta(days=1, seconds=number),
    )
    return encode(envelope, data, int(START.timestamp() * 1000)).entry


def _data(
    kind: str, period: int, place: int, chance: random.Random
) -> tuple[EventData, dict[str, "array[Any]"]]:
    session = f"session-{period}"
    call = f"call-{period}-{place // 2}"
    if kind == "start":
        return _make_call_start(call, session, chance), {}
    if kind == "end":
        tokens = array("i", (chance.randrange(150_000) for _ in range(60)))
        logprobs = array("f", (-chance.random() for _ in range(60)))
        return _make_call_end(call, session, chance), {"token_ids": tokens, "logprobs": logprobs}
    if kind == "feedback":
        tags = ("late", "rude") if chance.random() < 0.5 else ()
        return FeedbackReceived(session=session, score=chance.random(), tags=tags), {}
    return rollout(period, place, chance), {}


def _make_call_start(call: str, session: str, chance: random.Random) -> CallStarted:
    return CallStarted(
        call=call,
        session=session,
        alias="agent",
        base="base",
        policy="base",
        sampling={
            "temperature": 1.0,
            "top_p": 0.95,
            "max_tokens": 512,
            "seed": chance.randrange(9),
        },
        stream=True,
        content=CallStartContent(messages=(Message(role="user", content=_words(chance, 40)),)),
    )


def _make_call_end(call: str, session: str, chance: random.Random) -> CallEnded:
    failed = chance.random() < 0.1
    return CallEnded(
        call=call,
        session=session,
        outcome="failed" if failed else "completed",
        finish_reason=None if failed else "stop",
        prompt_tokens=chance.randrange(3_000),
        completion_tokens=60,
        duration_ms=chance.randrange(5_000),
        trainable=not failed,
        # Heads are large because of an engine's error text.
        error=_words(chance, 260),
        content=CallEndContent(messages=(Message(role="assistant", content=_words(chance, 30)),)),
    )


def rollout(period: int, place: int, chance: random.Random) -> RolloutEnded:
    """Return a conversation of 20 messages about one order; a third of them fail."""
    order = f"#W{chance.randrange(10_000):07d}"
    gold = Action(
        name="cancel_pending_order", arguments={"order_id": order, "reason": "ordered by mistake"}
    )
    mistake = chance.choice(("none", "none", "none", "none", "order", "missing", "reason", "loop"))
    written = {
        "none": {"order_id": order, "reason": "ordered by mistake"},
        "order": {"order_id": "#W9999999", "reason": "ordered by mistake"},
        "reason": {"order_id": order, "reason": "no longer needed"},
    }.get(mistake)
    reads = [
        ("get_order_details", {"order_id": order if mistake == "loop" else f"#W{n:07d}"})
        for n in range(5)
    ]
    messages = [Message(role="user", content=_words(chance, 25))]
    for name, arguments in (("find_user_id_by_email", {"email": "a@b.c"}), *reads):
        messages += _call(name, arguments, _words(chance, 60))
    if written is not None:
        messages += _call("cancel_pending_order", written, "cancelled")
    while len(messages) < 20:
        role = "assistant" if len(messages) % 2 else "user"
        messages.append(Message(role=role, content=_words(chance, 30)))
    return RolloutEnded(
        rollout=f"rollout-{period}-{place}",
        alias="agent",
        base="base",
        policy="base",
        source="mix",
        task=Task(
            id=f"retail/{chance.randrange(500)}",
            environment="retail",
            instruction=_words(chance, 40),
            gold_actions=(gold,),
        ),
        trial=place,
        success=mistake == "none",
        reward=float(mistake == "none"),
        termination="user_stop",
        content=RolloutContent(messages=tuple(messages)),
    )


def _call(name: str, arguments: dict[str, Any], result: str) -> list[Message]:
    return [
        Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),)),
        Message(role="tool", content=result, name=name, error=False),
    ]


_VOCABULARY: Final = (
    *("order", "ship", "late", "card", "return", "please"),
    *("cancel", "item", "color", "size", "refund", "address"),
)


def _words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(_VOCABULARY, k=count))
