"""Does what is due, round by round: sessions, jobs, cycles, canaries and replicas (role `work`).

    sessions    ends idle sessions, and makes ended ones into rollouts
    canaries    judges canary adapters by live traffic
    holdouts    adjusts the share of sessions that the base answers
    jobs        starts, adopts and stops training jobs, and makes their results into adapters
    cycles      stages and evaluates the adapters of cycles, and gives them their first sessions
    users       stages and gates adapters that play users
    gateways    deletes the rows of killed gateways
    keys        destroys again the keys of erased persons that a backup brought back
    replicas    loads adapters as the routes need; moves routes if the engines have another base
    repairs     searches for the smallest change of calls that repairs a failed rollout

Each part reads its work from the tables, so the next round finishes interrupted work, and two
workers at once do the work once. Guarantee: a failure in one part (a session, a job, a cycle) keeps
no other part from its turn; it is logged, counted, and tried again. If log or database is away, the
round ends, and the next one begins with the parts that had no turn.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from consumers import database
from consumers.reads import gateways
from consumers.reads.cycle_state import find_job_cancellations
from daemon.core.isolation import PARTS, Breaks
from daemon.core.serving_lock import HomeLockBusy, hold_serving_lock
from daemon.cycle.methods import bind_composer, build_user_worker, open_user_trials
from daemon.cycle.worker import CycleWorker
from daemon.jobs.runner_factory import jobs_of, trials_of
from daemon.jobs.training_runs import advance
from daemon.maintenance.erasure import sweep
from daemon.repair.background import RepairQueue
from daemon.serving.bases import move
from daemon.serving.canary_monitor import Guards
from daemon.serving.fleet import Fleet
from daemon.serving.publisher import Publisher
from daemon.serving.reconciler import Reconciler
from daemon.sessions.closing import close_sessions
from events.envelope import utc_now

if TYPE_CHECKING:
    from daemon.core.app import App

_FORGOTTEN_SECONDS: Final = 3600.0
"""Least seconds without a report after which a gateway's row is deleted."""


@dataclass(slots=True)
class RoundResult:
    """The results of a round."""

    ended: int = 0
    """Number of sessions that were ended."""
    rollouts: int = 0
    loaded: list[str] = field(default_factory=list)
    """Names of loaded adapters, once for each replica; `unloaded` and `collected` likewise."""
    unloaded: list[str] = field(default_factory=list)
    collected: list[str] = field(default_factory=list)
    routed: list[str] = field(default_factory=list)
    """Aliases with a decided canary, another base or a changed held-out share."""
    told: list[str] = field(default_factory=list)
    """Sentences about jobs and cycles that advanced."""
    troubles: list[str] = field(default_factory=list)
    """Failed steps, as sentences; they are tried again."""
    set_aside: list[str] = field(default_factory=list)
    """Class of the error of each session that became a dead letter."""
    repairs: int = 0
    """Number of failed rollouts for which a repair was searched."""
    failed: list[str] = field(default_factory=list)
    """Parts of the round that failed; the next round does their work."""


class Worker:
    """One worker of a home."""

    def __init__(self, app: "App", fleet: Fleet, clock: Callable[[], datetime] = utc_now) -> None:
        self._app = app
        self._clock = clock
        self._guards = Guards(app)
        self._publisher = Publisher(app, fleet, clock)
        self._jobs = jobs_of(app.settings)
        self._trials = trials_of(app.settings)
        self._fleet = fleet
        self._cycles = CycleWorker(app, fleet, self._trials, clock, bind_composer(fleet))
        self._user_trials = open_user_trials(app.settings)
        self._users = build_user_worker(app, fleet, self._user_trials, clock)
        self._reconciler = Reconciler(app, fleet, clock)
        self._repairs = RepairQueue(app)
        self._lost: set[str] = set()
        """Appended rollouts that did not reach the tables."""
        self._next = 0
        """Index of the part that has the first turn."""

    def work(self) -> RoundResult:
        """Do one round. Raises the errors in `isolation.HALTS`, which concern every part."""
        parts: dict[str, Callable[[RoundResult], None]] = {
            "sessions": self._close_sessions,
            "canaries": self._watch_canaries,
            "holdouts": self._adjust_holdouts,
            "jobs": self._advance_jobs,
            "cycles": self._advance_cycles,
            "users": self._advance_users,
            "gateways": self._forget_gateways,
            "keys": self._sweep_keys,
            "replicas": self._reconcile,
            "repairs": self._search_repairs,
        }
        result, first = RoundResult(), self._next
        breaks = Breaks(result.failed, result.troubles)
        for name in (*PARTS[first:], *PARTS[:first]):
            self._next = (PARTS.index(name) + 1) % len(PARTS)
            breaks.attempt(name, partial(parts[name], result))
        self._next = 0
        return result

    def check(self) -> None:
        """Raise RunnerUnavailable if the runner of jobs cannot be used."""
        self._jobs.check()

    def close(self) -> None:
        """Close the runners of jobs and trials, which themselves go on running."""
        self._jobs.close()
        self._trials.close()
        self._user_trials.close()

    def _close_sessions(self, result: RoundResult) -> None:
        closed = close_sessions(self._app, self._clock(), self._lost)
        result.ended, result.rollouts = closed.ended, closed.rollouts
        result.troubles += closed.troubles
        for failure in closed.failures:
            result.set_aside.append(failure.error)
            result.troubles.append(
                f"session {failure.session} is a dead letter: {failure.reason}; once that is "
                "mended: kintsugi dlq retry"
            )

    def _watch_canaries(self, result: RoundResult) -> None:
        result.routed += [route.alias for route in self._guards.watch(self._clock())]

    def _adjust_holdouts(self, result: RoundResult) -> None:
        try:
            with hold_serving_lock(self._app.home, patience=0):
                result.routed += self._publisher.hold_out()
        except HomeLockBusy:
            # Another process stages or routes now; it is due in the next round.
            return

    def _advance_jobs(self, result: RoundResult) -> None:
        with self._app.reading() as connection:
            called_off = find_job_cancellations(connection)
        result.told += advance(
            self._app, self._jobs, called_off, Breaks(result.failed, result.troubles)
        )

    def _advance_cycles(self, result: RoundResult) -> None:
        result.told += self._cycles.advance(Breaks(result.failed, result.troubles))

    def _advance_users(self, result: RoundResult) -> None:
        result.told += self._users.advance(Breaks(result.failed, result.troubles))

    def _sweep_keys(self, _: RoundResult) -> None:
        sweep(self._app)

    def _reconcile(self, result: RoundResult) -> None:
        try:
            with hold_serving_lock(self._app.home, patience=0):
                result.routed += [route.alias for route in move(self._app, self._fleet)]
                done = self._reconciler.tick()
        except HomeLockBusy:
            # Another process stages or routes now; the rest is due in the next round.
            return
        result.loaded, result.unloaded, result.collected = (
            done.loaded, done.unloaded, done.collected,
        )  # fmt: skip
        result.troubles += done.troubles

    def _search_repairs(self, result: RoundResult) -> None:
        report = self._repairs.advance()
        result.repairs = report.searches
        result.troubles += report.troubles

    def _forget_gateways(self, _: RoundResult) -> None:
        from daemon.core.app import explain_errors

        gone_after = self._app.settings.serving.gateway_timeout_seconds
        seconds = max(_FORGOTTEN_SECONDS, gone_after)
        with self._app.reading() as connection:
            if not gateways.silent(connection, seconds):
                return
        engine = self._app.engine
        with explain_errors(engine), database.write_transaction(engine) as connection:
            gateways.forget(connection, seconds)
