"""One job's training history in memory: the daemon's tables, folded from the job's own rollouts.

    with JobTables(spec) as tables:
        number = tables.close_round(events)      a round, by the rules of consumers/diagnosis
        with tables.reading() as connection:     for the Controller and the Proposer
            ...

The tables begin with the patterns in the spec, so a round continues the alias' training history.
Guarantees: the same events in the same order give the same rows (times follow their order), and
nothing outside the process is read or written. Use it in one thread. Memory grows with the job's
rollouts: their conversations are held beside their tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from sqlalchemy import Connection

from consumers import database
from consumers.batch import upsert
from consumers.diagnosis.priority import PatternState, Status, apply_overrides
from consumers.position import position
from consumers.reads.rollouts import last_round
from consumers.runner import Runner
from consumers.tables import Pattern, create_tables
from events.canonical import exact_json
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.errors import KintsugiError
from events.jobs import JobSpec, KnownPattern
from events.learning import PatternsDiagnosed
from events.log import now_ms
from events.memory import MemoryLog
from events.rollouts import EventData, RolloutEnded
from events.streams import ROLLOUTS

_BEGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Time of the first event; each later event is one second later."""


class NotFolded(KintsugiError):
    """No fold could read a rollout of the job."""


class JobTables:
    """Tables in memory about one job's rollouts."""

    def __init__(self, spec: JobSpec) -> None:
        """Create the tables, with the spec's patterns as their only content."""
        assert spec.rounds is not None, "only a job with rounds has tables"
        self._job, self._alias, self._base = spec.job, spec.rounds.alias, spec.base
        self._log = MemoryLog()
        self._engine = database.open_database("sqlite://")
        create_tables(self._engine)
        self._runner = Runner(self._log, self._engine)
        self._events = 0
        with database.write_transaction(self._engine) as connection:
            _store_patterns(connection, self._alias, self._base, spec.rounds.patterns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the tables."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection to read the tables."""
        with database.read_transaction(self._engine) as connection:
            yield connection

    def close_round(self, rollouts: Sequence[RolloutEnded]) -> int:
        """Fold rollouts in order, close a round, and return its number from 0. Raise NotFolded."""
        for data in rollouts:
            self._append(data, data.rollout)
        self._runner.catch_up()
        with self.reading() as connection:
            reached = {ROLLOUTS.name: position(connection).get(ROLLOUTS.name, {})}
        number = self._runner.counters.folded
        self._append(
            PatternsDiagnosed(trigger="diagnose", position=reached),
            derive_id(self._job, "diagnosed", str(number)),
        )
        self._runner.catch_up()
        if letters := self._runner.counters.dead_letters:
            raise NotFolded(
                f"job {self._job}: {sum(letters.values())} of its rollouts could not be read "
                f"({', '.join(sorted(letters))}); run it with training.rounds = 1"
            )
        with self.reading() as connection:
            return _last_round(connection)

    def _append(self, data: EventData, name: str) -> None:
        envelope = Envelope(
            id=name, type=data.TYPE, version=data.VERSION, subject=data.key(),
            time=_BEGIN + timedelta(seconds=self._events),
        )  # fmt: skip
        self._log.append([encode(envelope, data, now_ms()).entry])
        self._events += 1


def _last_round(connection: Connection) -> int:
    line = last_round(connection)
    assert line is not None, "a round was closed"
    return line.round


def _store_patterns(
    connection: Connection, alias: str, base: str, patterns: Sequence[KnownPattern]
) -> None:
    if not patterns:
        return
    states = {item.pattern: _read_state(item) for item in patterns}
    priorities = apply_overrides(
        {name: state.priority for name, state in states.items()},
        {item.pattern: item.operator for item in patterns if item.operator is not None},
    )
    upsert(connection, Pattern, [_pattern_row(alias, base, item, priorities) for item in patterns])


def _pattern_row(
    alias: str, base: str, item: KnownPattern, priorities: Mapping[str, float]
) -> dict[str, Any]:
    category, pivot = item.pattern.split("|", 1)
    return {
        **item.model_dump(exclude={"anchors"}),
        "alias": alias,
        "base": base,
        "category": category,
        "pivot": pivot,
        "failures": 0,
        "priority": priorities[item.pattern],
        "anchors": exact_json(item.anchors),
        "examples": "[]",
        "operator_reason": None,
        "first_round": 0,
        "round": 0,
    }


def _read_state(item: KnownPattern) -> PatternState:
    values = item.model_dump(exclude={"pattern", "anchors", "operator", "status"})
    return PatternState(**values, status=Status(item.status))
