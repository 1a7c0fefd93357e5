"""The steps of the role `work` for adapters that play users: from a job's files to the replicas.

    UserWorker(app, fleet, runner).advance(breaks)    repeatedly; returns sentences

    retire      an unmeasured adapter of another base goes out of service
    evaluate    it plays dialogues whose exact user is known in a separate process (gate.py)
    stage       every replica loads it and is proven to answer with it

If the files of a playing adapter are damaged, it goes out of service and the script plays: jobs and
gates could not read it. Jobs run as usual (jobs/training_runs.py). The work is level-triggered:
each turn reads the tables (views.py), so the next turn makes up for an interrupted one, and two
workers do the work once. Nothing here touches a cycle.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from consumers.database import DatabaseError
from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import BadName, intact
from daemon.adapters.compatibility import BadBase, RankTooHigh
from daemon.adapters.directory import BadAdapter
from daemon.core.decision_log import Decisions
from daemon.core.isolation import Breaks
from daemon.core.serving_lock import hold_serving_lock
from daemon.evaluation.gate_waits import GateWait
from daemon.jobs.runner import JobRunner
from daemon.jobs.runner_factory import make_runner
from daemon.methods.synthesis.users.gate import DIALOGUES, UserGate
from daemon.methods.synthesis.users.state_machine import UserStep
from daemon.methods.synthesis.users.views import UserState, read_user_state
from daemon.serving.fleet import Fleet
from daemon.serving.staging import StageRefusal, Staging
from events.errors import KintsugiError, LogError
from events.lifecycle import State
from events.rollouts import clip_reason
from events.serving import AdapterMoved, Retired

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.core.app import App

TRIAL: Final = "daemon.methods.synthesis.users.trial"

_FINAL: Final = (BadAdapter, BadBase, BadName)
"""Errors after which an adapter will never be staged; other errors may pass."""


def _is_final(error: BaseException | None) -> bool:
    """Return whether an error of staging is permanent."""
    return isinstance(error, _FINAL) and not isinstance(error, RankTooHigh)


def user_trials_of(settings: "Settings") -> JobRunner:
    """Return the runner for the gates of adapters that play users, in a home."""
    return make_runner(settings, "user-trials", TRIAL)


class UserWorker:
    """Takes the steps for a home's adapters that play users, over its replicas."""

    def __init__(
        self, app: "App", fleet: Fleet, runner: JobRunner, clock: Callable[[], datetime],
        dialogues: int = DIALOGUES,
    ) -> None:  # fmt: skip
        """`runner` runs gates (`user_trials_of`), each with this number of `dialogues`."""
        self._count = dialogues
        self._app = app
        self._runner = runner
        self._staging = Staging(app, fleet, clock)
        self._decisions = Decisions(app)
        self._intact: dict[str, tuple[tuple[str, int, int], ...]] = {}
        """Adapter -> names, change times and sizes of its files when last found intact."""
        self._gates: dict[str, tuple[tuple[str, str, str | None], UserGate]] = {}
        """Agent -> key and last gate; it is kept so that its tasks are drawn only once."""

    def advance(self, breaks: Breaks) -> list[str]:
        """Take the next step for each agent; return sentences. `breaks` isolates agents' errors.
        Raise LogError, DatabaseUnavailable."""
        notes: list[str] = []
        with self._app.reading() as connection:
            pairs = agents.present(connection)
        for pair in pairs:
            breaks.attempt("users", partial(self._advance, pair, notes), f"users of {pair.alias}")
        return notes

    def _advance(self, pair: Pair, notes: list[str]) -> None:
        with self._app.reading() as connection:
            state = read_user_state(connection, self._app.settings, pair)
        try:
            for event in self._stop_gate(state):
                notes.append(event)
            for event in self._retire_on_damage(state) or self._take_step(state):
                notes.append(event)
        except (LogError, DatabaseError):
            raise
        except KintsugiError as error:
            # The error concerns this adapter alone and may pass.
            notes.append(str(error))

    def _stop_gate(self, state: UserState) -> Iterator[str]:
        """Stop the gate of an adapter that was retired, or that the settings no longer want."""
        (adapter, _, _), gate = self._gates.get(state.alias, (("", "", None), None))
        candidate = None if state.candidate is None else state.candidate.adapter
        if gate is None or (state.step is UserStep.EVALUATE and adapter == candidate):
            return
        del self._gates[state.alias]
        yield from gate.stop(f"{adapter} is not to be measured any more")

    def _retire_on_damage(self, state: UserState) -> list[str]:
        """Take the playing adapter out of service if its files are damaged; return sentences."""
        row = state.plays
        if row is None or state.view.setting != "trained":
            return []
        damage = self._find_damage(row)
        return [] if damage is None else [self._move(row, "draining", damage)]

    def _find_damage(self, row: AdapterRow) -> str | None:
        """Return how an adapter's files are damaged, or None. Return None also if the folder of all
        adapters is missing. Files are read only after a change. Raise OSError."""
        folder = self._app.settings.adapter_paths.locate(row.path)
        if not folder.parent.is_dir():
            return None
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        stats = [(file.name, file.stat()) for file in files]
        seen = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
        if seen and self._intact.get(row.adapter) == seen:
            return None
        try:
            intact(folder, row.sha256, None, None)
        except BadAdapter as error:
            return f"its files are damaged: {error}"
        self._intact[row.adapter] = seen
        return None

    def _take_step(self, state: UserState) -> Iterator[str]:
        match state.step:
            case UserStep.RETIRE:
                for row in state.outdated:
                    yield self._retire(row, state.base)
            case UserStep.EVALUATE:
                assert state.candidate is not None, "something is to be evaluated"
                yield from self._evaluate(state.candidate, state.plays)
            case UserStep.STAGE:
                assert state.plays is not None, "something is to be staged"
                yield from self._stage(state.plays)

    def _retire(self, row: AdapterRow, base: str) -> str:
        reason = f"it plays users on {row.base}, and {row.alias} runs on {base} now"
        return self._move(row, "rejected" if row.state is State.PRODUCED else "draining", reason)

    def list_gate_waits(self) -> list[GateWait]:
        """Return gates that wait for a setting. Raise RunnerUnavailable, DatabaseUnavailable."""
        waits = []
        with self._app.reading() as connection:
            settings, pairs = self._app.settings, agents.present(connection)
            states = [read_user_state(connection, settings, pair) for pair in pairs]
        for state in states:
            if state.step is not UserStep.EVALUATE or state.candidate is None:
                continue
            wait = self._find_gate(state.candidate, state.plays).find_wait()
            if wait is not None:
                waits.append(wait)
        return waits

    def _evaluate(self, row: AdapterRow, previous: AdapterRow | None) -> Iterator[str]:
        yield from self._find_gate(row, previous).advance()

    def _find_gate(self, row: AdapterRow, previous: AdapterRow | None) -> UserGate:
        """Return the gate of an adapter; the last gate of each agent is kept."""
        agent = self._app.settings.find_agent(row.alias)
        assert agent is not None, "an agent without an obstacle is in the settings"
        key = row.adapter, row.cause, None if previous is None else previous.adapter
        known, gate = self._gates.get(row.alias, (None, None))
        if gate is None or known != key:
            gate = UserGate(self._app, self._runner, agent, row, previous, self._count)
            self._gates[row.alias] = key, gate
        return gate

    def _stage(self, row: AdapterRow) -> Iterator[str]:
        try:
            with hold_serving_lock(self._app.home, patience=0):
                self._staging.stage(row, row.cause)
        except StageRefusal as error:
            if not _is_final(error.__cause__):
                raise
            yield self._move(row, "draining", str(error))
            return
        except _FINAL as error:
            if not _is_final(error):
                raise
            yield self._move(row, "draining", str(error))
            return
        yield f"{row.adapter} plays the users of {row.alias}"

    def _move(self, row: AdapterRow, state: Retired, reason: str) -> str:
        moved = AdapterMoved(adapter=row.adapter, state=state, reason=clip_reason(reason))
        self._decisions.take(moved, f"{state} {row.adapter}", row.cause)
        return f"{row.adapter} is {state}: {reason}"
