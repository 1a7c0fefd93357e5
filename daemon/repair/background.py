"""Search repairs of failed rollouts in the background, a few in each turn of the role `work`.

Each result is one event. Its id follows from the rollout and the version of the repair rules, so
two workers, or a restarted one, store one result. A rollout that cannot be replayed (unknown task,
broken environment, erased person) gets an event with the reason. Only `kintsugi diagnose --repair`
tries it again. Rollouts of a missing environment wait. Not covered: environment code that hangs.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.position import position
from consumers.reads.repairs import (
    REPAIR_RULES,
    RepairCandidate,
    filter_searched,
    read_repair_candidates,
)
from consumers.reads.rollouts import rollout_row
from consumers.tables import SKIPPED
from daemon.repair.proof import prove, skip
from daemon.sessions.closing import STOPS, WAITS, failure
from daemon.sessions.transcript import read
from daemon.sessions.verdict import EnvironmentsAway, open_task
from envs.environment import Environment
from events.codec import encode
from events.envelope import Envelope, derive_id, utc_now
from events.learning import RepairSearched
from events.log import Entry, now_ms
from events.position import Position
from events.privacy.keys import KeysUnavailable
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

AT_ONCE: Final = 8
"""Largest number of rollouts whose repair one turn of the role `work` searches."""

SECONDS: Final = 0.5
"""Seconds after which a turn begins no other search."""

BACKLOG_SECONDS: Final = 60.0
"""Seconds between two looks for rollouts that a round has counted; each look reads all failures."""

AWAY_SECONDS: Final = 600.0
"""Seconds until an absent environment is tried again."""


@dataclass(slots=True)
class RepairReport:
    """Counts of search results by outcome, and the reasons why rollouts wait."""

    outcomes: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)
    """Sentences that say why some rollouts have to wait."""

    @property
    def searches(self) -> int:
        """Return the number of results, including those of skipped rollouts."""
        return self.outcomes.total()

    def add(self, other: "RepairReport") -> None:
        """Add the counts and troubles of another report."""
        self.outcomes.update(other.outcomes)
        self.troubles += [text for text in other.troubles if text not in self.troubles]


class RepairQueue:
    """Finds failed rollouts that no search has covered, and searches their repairs."""

    def __init__(self, app: "App", clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._away: dict[str, float] = {}
        """Absent environment -> clock time of the next try."""
        self._held: dict[str, float] = {}
        """Rollout -> time of its next try (a resource is away), or infinity (result not folded)."""
        self._environments: dict[str, Environment] = {}
        self._idle_at: Position | None = None
        """Log position up to which rollouts were folded when a turn last found nothing to do."""
        self._backlog_at = -math.inf
        """Clock time of the next search for rollouts that a round has already counted."""

    def advance(self, limit: int = AT_ONCE, seconds: float = SECONDS) -> RepairReport:
        """Search the repairs of at most `limit` rollouts, and begin no search after `seconds`.
        Raise LogError, DatabaseUnavailable or KeysUnavailable."""
        now = self._clock()
        self._away = {name: until for name, until in self._away.items() if until > now}
        self._held = {name: until for name, until in self._held.items() if until > now}
        with self._app.reading() as connection:
            folded: Position = {ROLLOUTS.name: position(connection).get(ROLLOUTS.name, {})}
            candidates = self._read_candidates(connection, limit, folded, now)
        if not candidates and not self._away and not self._held:
            self._idle_at = folded
        return self._work(candidates, now + seconds)

    def _read_candidates(
        self, connection: "Connection", limit: int, folded: Position, now: float
    ) -> list[RepairCandidate]:
        """Return candidates that no round has counted, else counted ones; [] if none can be new."""
        candidates: list[RepairCandidate] = []
        if folded != self._idle_at:
            candidates = read_repair_candidates(
                connection, REPAIR_RULES, limit,
                without=self._held, away=self._away, uncounted=True,
            )  # fmt: skip
        if not candidates and now >= self._backlog_at:
            candidates = read_repair_candidates(
                connection, REPAIR_RULES, limit, without=self._held, away=self._away
            )
            self._backlog_at = -math.inf if candidates else now + BACKLOG_SECONDS
        return candidates

    def drain(self, progress: Callable[[int], None] = lambda _: None) -> RepairReport:
        """Search the repairs of all failed rollouts without one, also of those skipped before. Call
        `progress` with the number of results so far. Raise the errors of `advance`."""
        self._app.settle()
        with self._app.reading() as connection:
            candidates = read_repair_candidates(connection, REPAIR_RULES, None, with_skipped=True)
        total = RepairReport()
        for start in range(0, len(candidates), AT_ONCE):
            report = self._work(candidates[start : start + AT_ONCE], math.inf)
            total.add(report)
            progress(report.searches)
        return total

    def _work(self, candidates: Sequence[RepairCandidate], until: float) -> RepairReport:
        report = RepairReport()
        results: list[RepairSearched] = []
        for place, candidate in enumerate(candidates):
            if place and self._clock() > until:
                break
            if candidate.environment in self._away:
                continue
            result = self._search(candidate, report)
            if result is None:
                continue
            report.outcomes[result.outcome] += 1
            if result.outcome != SKIPPED or result.reason != candidate.reason:
                results.append(result)
        self._environments.clear()
        self._append(results)
        return report

    def _search(self, candidate: RepairCandidate, report: RepairReport) -> RepairSearched | None:
        """Search one rollout's repair; return None if the rollout has to wait."""
        rollout = candidate.rollout
        try:
            return _search_rollout(self._app, rollout, self._environments)
        except EnvironmentsAway as error:
            self._away[candidate.environment] = self._clock() + AWAY_SECONDS
            report.troubles.append(f"repairs in {candidate.environment} wait: {error}")
            return None
        except KeysUnavailable:
            raise
        except WAITS as error:
            self._held[rollout] = self._clock() + AWAY_SECONDS
            report.troubles.append(f"the repair of rollout {rollout} waits: {error}")
            return None
        except STOPS:
            raise
        except SystemExit:
            return skip(rollout, "its environment ends the program that replays it; mend its code")
        except Exception as error:  # the fault concerns this rollout alone: its result records it
            return skip(rollout, failure(rollout, error).reason)

    def _append(self, results: Sequence[RepairSearched]) -> None:
        if not results:
            return
        self._app.append([_entry(result) for result in results])
        self._app.settle()
        names = [result.rollout for result in results]
        with self._app.reading() as connection:
            stored = filter_searched(connection, REPAIR_RULES, names)
        self._held |= dict.fromkeys(set(names) - stored, math.inf)


def _search_rollout(
    app: "App", rollout: str, environments: dict[str, Environment]
) -> RepairSearched:
    with app.reading() as connection:
        row = rollout_row(connection, rollout)
    if row is None or row.line.task is None:
        return skip(rollout, "it names no task")
    transcript = read(row, app.readable_log, app.bodies)
    if transcript.erased:
        return skip(rollout, "what was said is erased: its person's key was destroyed")
    opened = open_task(app, row.line.task, environments)
    if opened is None:
        return skip(rollout, f"no environment here has its task {row.line.task}")
    environment, task = opened
    return prove(environment, task, transcript.data)


def _entry(data: RepairSearched) -> Entry:
    """Return the log entry of a result, with a deterministic event id. A skipped rollout may get a
    result later, so its id also contains the reason."""
    skipped = (data.outcome, data.reason) if data.outcome == SKIPPED else ()
    envelope = Envelope(
        id=derive_id("repair", data.rollout, data.rules, *skipped),
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=utc_now(),
        correlation=data.rollout,
    )
    return encode(envelope, data, now_ms()).entry
