"""Hostile records among good ones, folded into SQLite and into PostgreSQL.

    python -m ops.faults.fold_poison --count 1000

Each of the `count` hostile records is of a kind that halted a fold or could halt it: values that no
index, column or number of a table can hold, different ids that are stored as the same id, origins
that no log can have, words that are slow to read. Passes when both databases fold everything, have
the same dead letters and the same hash, and equal their rebuilds. Every good record must be stored,
and exactly the records that no table can hold must be dead letters.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, select

from consumers import database
from consumers.digest import digest, first_difference
from consumers.rebuild import rebuild
from consumers.runner import Runner
from consumers.tables import DeadLetter, Rollout
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.learning import CycleStarted, LeaderClaimed, TaskProposed
from events.log import Entry
from events.memory import MemoryLog
from events.messages import Action, Message, ToolCall
from events.privacy.sealing import Key
from events.rollouts import (
    CallEnded,
    CallStarted,
    EventData,
    FeedbackReceived,
    Labels,
    RolloutContent,
    RolloutEnded,
    SessionEnded,
    Task,
)
from events.serving import OperatorActed, RouteChanged, RouteShare
from ops.command_line import run_command
from ops.faults.folding import DATABASES, scene

LONG: Final = 6_000
"""Number of characters that is too large for an index row."""

_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Poison:
    """A hostile record to append, and whether it must become a dead letter."""

    entry: Entry
    letter: bool
    """Whether the record must become a dead letter."""
    source: str | None = None
    """Source of the record if it is not the log, with the record's sequence there."""
    sequence: int = 0
    headers: bool = True
    """Whether its headers are readable; if not, its dead letter has no type."""


Make = Callable[[random.Random, str], Poison]


class Topic(MemoryLog):
    """A log that also holds records of other origins."""

    def __init__(self) -> None:
        super().__init__()
        self._own: Counter[tuple[str, int]] = Counter()

    def take(self, entry: Entry, source: str | None = None, sequence: int = 0) -> None:
        """Append one record, under another `source` and `sequence` if given."""
        at = (entry.stream, entry.partition)
        super().append([entry])
        records = self._records[at]
        if source is None:
            source, sequence = self.source, self._own[at]
            self._own[at] += 1
        records[-1] = replace(records[-1], source=source, sequence=sequence)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Fold `count` hostile records among as many good ones, on each kind of database."""
    topic, letters, good = build_poison_log(count, seed)
    with ExitStack() as stack:
        engines = {
            kind: stack.enter_context(scene(kind, folder / kind)).engine for kind in DATABASES
        }
        results = {kind: fold_topic(topic, engine) for kind, engine in engines.items()}
        difference = _difference(*engines.values())
    (first, other) = results.values()
    alike = difference is None and first["hash"] == other["hash"]
    whole = all(
        result["equal"] and result["letters"] == letters and result["good"] == good
        for result in results.values()
    )
    for result in results.values():
        result["letters"] = sum(result["letters"].values())
    return {
        "fault": "hostile records",
        "poison": count,
        "dead_letters": sum(letters.values()),
        **results,
        "difference": difference,
        "passed": alike and whole,
    }


def _difference(first: Engine, other: Engine) -> str | None:
    with database.read_transaction(first) as left, database.read_transaction(other) as right:
        difference = first_difference(left, right)
    return None if difference is None else difference.between(*DATABASES)


def build_poison_log(count: int, seed: int) -> tuple[Topic, dict[str | None, int], int]:
    """Return a log, event type -> expected dead letters, and the number of good rollouts."""
    chance, topic, letters = random.Random(seed), Topic(), Counter[str | None]()
    names = sorted(KINDS)
    for number in range(count):
        poison = KINDS[names[(seed + number) % len(names)]](chance, f"{seed}-{number}")
        topic.take(poison.entry, poison.source, poison.sequence)
        if poison.letter:
            letters[_type(poison.entry) if poison.headers else None] += 1
        topic.take(_entry(_rollout(f"good-{number}", session=f"s{number}"), f"good {number}"))
    return topic, dict(letters), count


def fold_topic(topic: Topic, engine: Engine) -> dict[str, Any]:
    """Fold the log into one database and return what the driver reports about it."""
    runner = Runner(topic, engine, patience_seconds=5)
    slowest = 0.0
    began = time.monotonic()
    for stream, partition in sorted({at for at in topic._records if topic._records[at]}):
        moved = 1
        while moved:
            step = time.monotonic()
            moved = runner.step(stream, partition, limit=50)
            slowest = max(slowest, time.monotonic() - step)
    seconds = time.monotonic() - began
    table, rollouts = DeadLetter.table().c, Rollout.table().c
    with database.read_transaction(engine) as connection:
        letters = Counter(connection.execute(select(table.type)).scalars())
        good = connection.execute(
            select(rollouts.rollout).where(rollouts.rollout.startswith("good-"))
        ).all()
        live = digest(connection)
    again = rebuild(topic, engine)
    return {
        "letters": dict(letters),
        "good": len(good),
        "hash": live[:16],
        "equal": bool(again.equal) and again.hash == live,
        "seconds": round(seconds, 2),
        "slowest_batch_seconds": round(slowest, 2),
    }


def _long(chance: random.Random) -> str:
    return chance.randbytes(LONG // 2).hex()


def _rollout(name: str, **fields: Any) -> RolloutEnded:
    known: dict[str, Any] = {
        "rollout": name, "alias": "agent", "base": "base", "policy": "base", "source": "test",
        "task": Task(id="t"), "success": False, "reward": 0.0,
        "content": RolloutContent(messages=(Message(role="user", content=name),)),
    }  # fmt: skip
    return RolloutEnded.model_validate({**known, **fields})


def _entry(data: EventData, name: str, owner: Key | None = None, event: str | None = None) -> Entry:
    envelope = Envelope(
        id=event or derive_id("poison", name), type=data.TYPE, version=data.VERSION,
        subject=data.key()[:40], time=_AT,
    )  # fmt: skip
    return encode(envelope, data, recorded_ms=1, owner=owner).entry


def _with_header(entry: Entry, name: str, value: bytes) -> Entry:
    return replace(entry, headers=tuple((n, value if n == name else v) for n, v in entry.headers))


def _type(entry: Entry) -> str:
    return next(raw.decode() for name, raw in entry.headers if name == "ce_type")


def _make_rollout_entry(name: str, *messages: Message, **fields: Any) -> Entry:
    return _entry(_rollout(name, content=RolloutContent(messages=messages), **fields), name)


def _calls(number: int, make: Callable[[int], ToolCall]) -> Message:
    return Message(role="assistant", tool_calls=tuple(make(place) for place in range(number)))


def _event_id_too_long(chance: random.Random, name: str) -> Poison:
    kinds: tuple[EventData, ...] = (
        SessionEnded(session="s", because="asked"),
        FeedbackReceived(session="s", score=1.0),
    )
    return Poison(_entry(chance.choice(kinds), name, event=_long(chance)), True)


def _secret_labels(chance: random.Random, name: str) -> Poison:
    field = chance.choice(("pivot", "trace_key"))
    labels = Labels.model_validate(
        {
            "messages": 1, "tool_calls": 1, "tool_errors": 0, "malformed_calls": 0, "loops": 0,
            "category": "tool_loop", "categories": ("tool_loop",), "pivot": "p", "trace_key": "k",
            field: _long(chance),
        }
    )  # fmt: skip
    key = Key("k1", "somebody", bytes(32))
    return Poison(_entry(_rollout(name, labels=labels), name, owner=key), True)


def _one_id_with_and_without_nul(chance: random.Random, name: str) -> Poison:
    mark = chance.choice(("\x00", "\ufffd"))
    kinds: tuple[EventData, ...] = (
        _rollout(f"{mark}nul", session="s"),
        CallStarted(call=f"c{mark}", session="s", alias="a", base="b", policy="p"),
        CallEnded(call=f"c{mark}", session="s", outcome="completed"),
        _rollout(name, task=Task(id=f"t{mark}"), session="s"),
    )
    return Poison(_entry(chance.choice(kinds), name), False)


def _event_id_with_nul(chance: random.Random, name: str) -> Poison:
    entry = _entry(FeedbackReceived(session="s", score=1.0), name)
    mark = chance.choice((b"\x00", "\ufffd".encode()))
    return Poison(_with_header(entry, "ce_id", b"feedback" + mark), False)


def _foreign_origin(chance: random.Random, name: str) -> Poison:
    entry = _entry(_rollout(name), name)
    source, sequence = chance.choice(
        ((_long(chance), 0), ("a\x00b", 0), ("far", 2**63), ("far", 2**64), ("", 0), ("far", -1))
    )
    return Poison(entry, False, source, sequence)


def _number_too_large(chance: random.Random, name: str) -> Poison:
    claim = LeaderClaimed(epoch=2**70, holder="nobody")
    cycle = CycleStarted(
        cycle=f"cycle {name}", alias="a", base="b", number=2**70, environment="shop",
        trigger="age", reason="", position={},
    )  # fmt: skip
    entry = _entry(chance.choice((claim, cycle)), name)
    # Neither record has the next sequence, so nothing is written and nothing may break.
    return Poison(entry, False)


def _odd_number(chance: random.Random, name: str) -> Poison:
    reward = chance.choice((-0.0, 5e-324, 1.7e308, -1.7e308, 0.1 + 0.2, 1e16, 1e22))
    return Poison(_entry(_rollout(name, reward=reward, session="s"), name), False)


def _odd_time(chance: random.Random, name: str) -> Poison:
    text, letter = chance.choice(
        (
            (b"0001-01-01T00:00:00Z", False),
            (b"9999-12-31T23:59:59.999999Z", False),
            (b"0000-01-01T00:00:00Z", True),
            (b"10000-01-01T00:00:00Z", True),
            (b"0001-01-01T00:00:00+14:00", True),
            (b"9999-12-31T23:59:59-14:00", True),
            (b"2026-13-01T00:00:00Z", True),
            (b"\xff", True),
        )
    )
    entry = _with_header(_entry(_rollout(name, session="s"), name), "ce_time", text)
    return Poison(entry, letter, headers=not letter)


def _wrong_stream(chance: random.Random, name: str) -> Poison:
    entry = _entry(_rollout(name, session="s"), name)
    return Poison(_with_header(entry, "ce_type", b"LeaderClaimed"), True)


def _odd_sampling(chance: random.Random, name: str) -> Poison:
    nested: Any = 1
    for _ in range(100):
        nested = [nested]
    sampling = {"n": 10**400, "m": -(10**30), "deep": nested, "nul": "\x00", "e": "\U0001f600"}
    data = CallStarted(
        call=f"call {name}", session="s", alias="a", base="b", policy="p", sampling=sampling
    )
    return Poison(_entry(data, name), False)


def _decision_with_nul(chance: random.Random, name: str) -> Poison:
    kinds: tuple[EventData, ...] = (
        OperatorActed(actor="a\x00", action="pause", arguments={"n\x00": "\\\x00"}, reason="\x00"),
        RouteChanged(
            alias="a\x00", base="b", shares=(RouteShare(adapter="x\x00", share=1.0),),
            why="operator", reason="",
        ),
        TaskProposed(alias="a", base="b", pattern="p\x00", task=Task(id=f"t\x00{name}")),
    )  # fmt: skip
    return Poison(_entry(chance.choice(kinds), name), False)


def _decision_too_long(chance: random.Random, name: str) -> Poison:
    data = OperatorActed(actor="a", action="pause", reason="")
    return Poison(_entry(data, name, event=_long(chance)), True)


def _many_different_calls(chance: random.Random, name: str) -> Poison:
    message = _calls(2_000, lambda n: ToolCall(name="get", arguments={"n": n * (2**61 - 1)}))
    return Poison(_make_rollout_entry(name, message, session="s"), False)


def _writes_and_gold(chance: random.Random, name: str) -> Poison:
    gold = tuple(Action(name="set_x", arguments={"id": str(n)}) for n in range(400))
    messages = [
        message
        for n in range(400)
        for message in (
            _calls(1, lambda _, n=n: ToolCall(name="set_x", arguments={"id": f"-{n}"})),  # type: ignore[misc]
            Message(role="tool", content="ok", error=bool(n % 2)),
        )
    ]
    return Poison(
        _make_rollout_entry(name, *messages, task=Task(id="t", gold_actions=gold), session="s"),
        False,
    )


def _slow_words(chance: random.Random, name: str) -> Poison:
    words = chance.choice(("exceed", "a.", "i can not ", "e\u0301\u0316", "please ", "not be xly "))
    answer = Message(role="assistant", content=words * 20_000)
    failed = Message(role="tool", content="exceed" * 20_000, error=True)
    call = _calls(
        1, lambda _: ToolCall(name="x" * 50_000, arguments={"a": "\u0301\u0316" * 20_000})
    )
    gold = (Action(name="set_x", arguments={}),)
    return Poison(
        _make_rollout_entry(name, answer, call, failed, task=Task(id="t", gold_actions=gold),
        session="s",
                termination="exceed" * 20_000),
        False,
    )  # fmt: skip


_IMPOSSIBLE: Final[Mapping[str, Callable[[random.Random], dict[str, Any]]]] = {
    "session_too_long": lambda chance: {"session": _long(chance)},
    "session_of_wide_letters": lambda chance: {
        "session": "".join(chr(chance.randrange(0x20000, 0x2A000)) for _ in range(1_000))
    },
    "call_too_long": lambda chance: {"session": "s", "calls": ("c", _long(chance))},
    "calls_of_no_session": lambda _: {"calls": ("c",)},
    "text_too_long": lambda _: {"termination": "x" * 5_000_000},
    "head_too_large": lambda _: {"termination": "x" * (17 << 20)},
    "too_many_calls": lambda _: {"calls": ("c",) * 200_001},
}
"""Kind -> fields of a rollout that no table can hold."""


def _make_poison(fields: Callable[[random.Random], dict[str, Any]]) -> Make:
    return lambda chance, name: Poison(_entry(_rollout(name, **fields(chance)), name), True)


KINDS: Final[Mapping[str, Make]] = {
    **{name: _make_poison(fields) for name, fields in _IMPOSSIBLE.items()},
    "event_id_too_long": _event_id_too_long,
    "secret_labels": _secret_labels,
    "one_id_with_and_without_nul": _one_id_with_and_without_nul,
    "event_id_with_nul": _event_id_with_nul,
    "foreign_origin": _foreign_origin,
    "number_too_large": _number_too_large,
    "odd_number": _odd_number,
    "odd_time": _odd_time,
    "wrong_stream": _wrong_stream,
    "odd_sampling": _odd_sampling,
    "decision_with_nul": _decision_with_nul,
    "decision_too_long": _decision_too_long,
    "many_different_calls": _many_different_calls,
    "writes_and_gold": _writes_and_gold,
    "slow_words": _slow_words,
}


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
