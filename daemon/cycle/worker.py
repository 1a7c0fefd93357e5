"""The role `work` for open cycles, from a job's adapter to its first sessions.

It stages an adapter, evaluates it in a separate process, composes members that passed, and routes
the first of `canary.shares` to it. Level-triggered: each turn takes the next step by the tables
(state_machine.py), so an interrupted step is taken again. Failed steps are reported and tried
again; an adapter that can never be staged is rejected with the reason.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from consumers.database import DatabaseError
from consumers.reads import agents, learning, serving
from consumers.reads.cycle_state import CycleState
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import BadName
from daemon.adapters.compatibility import BadBase
from daemon.adapters.directory import BadAdapter
from daemon.core.decision_log import Decisions
from daemon.core.isolation import Breaks
from daemon.core.serving_lock import hold_serving_lock
from daemon.cycle.branches import VersionRefusal
from daemon.cycle.methods import compose_version, find_user, hold_out_slice
from daemon.cycle.state_machine import Step
from daemon.cycle.views import list_passed_adapters, read_due_steps
from daemon.evaluation.candidate_evaluation import CandidateEvaluation
from daemon.evaluation.gate_trials import CannotExamine
from daemon.evaluation.gate_waits import GateWait
from daemon.jobs.runner import JobRunner
from daemon.serving.desired_state import roles
from daemon.serving.fleet import Fleet
from daemon.serving.publisher import Publisher
from daemon.serving.reconciler import observe
from daemon.serving.residency import NoRoom
from daemon.serving.staging import StageRefusal, Staging
from envs.registry import EnvironmentBroken, UnknownEnvironment
from events.errors import KintsugiError, LogError
from events.rollouts import clip_reason
from events.serving import AdapterMoved

if TYPE_CHECKING:
    from daemon.core.app import App
    from daemon.cycle.methods import VersionComposer

_FINAL: Final = (BadAdapter, BadBase, BadName)
"""Errors after which an adapter can never be staged; other errors may pass."""


class CycleWorker:
    """Takes the steps of a home's open cycles, over its replicas."""

    def __init__(
        self, app: "App", fleet: Fleet, runner: JobRunner, clock: Callable[[], datetime],
        compose: "VersionComposer | None" = None,
    ) -> None:  # fmt: skip
        """`compose` makes a version of adapters (methods.py). Without it no version is composed."""
        self._app = app
        self._compose_version = compose
        self._clock = clock
        self._fleet = fleet
        self._runner = runner
        self._staging = Staging(app, fleet, clock)
        self._publisher = Publisher(app, fleet, clock)
        self._decisions = Decisions(app)
        self._held_out = hold_out_slice()

    def advance(self, breaks: Breaks) -> list[str]:
        """Take the next step of every waiting cycle; return sentences on the progress. `breaks`
        isolates errors. Raise LogError, DatabaseUnavailable."""
        notes: list[str] = []
        adapters, cycles = self._list_due_steps()
        for row, step in adapters:
            work = partial(self._take_step, row, step)
            breaks.attempt("cycles", partial(self._advance, work, notes), row.adapter)
        for state in cycles:
            work = partial(self._compose, state)
            breaks.attempt("cycles", partial(self._advance, work, notes), state.cycle.cycle)
        return notes

    def _advance(self, work: Callable[[], Iterator[str]], notes: list[str]) -> None:
        try:
            for event in work():
                notes.append(event)
        except (LogError, DatabaseError):
            raise
        except KintsugiError as error:
            # The error concerns this adapter and may pass; the others go on.
            notes.append(str(error))

    def _take_step(self, row: AdapterRow, step: Step) -> Iterator[str]:
        match step:
            case Step.STAGE:
                yield from self._stage(row)
            case Step.EVALUATE:
                yield from self._evaluate(row)
            case Step.ROUTE:
                yield self._route(row)

    def _list_due_steps(self) -> tuple[list[tuple[AdapterRow, Step]], list[CycleState]]:
        """Return the open cycles' adapters with their steps, and the cycles to compose."""
        steps: list[tuple[AdapterRow, Step]] = []
        cycles: list[CycleState] = []
        with self._app.reading() as connection:
            for pair in agents.present(connection):
                cycle = learning.open_cycle(connection, pair.alias)
                if cycle is None:
                    continue
                state, due = read_due_steps(connection, self._app.settings, cycle, pair)
                for step, branch in due:
                    adapter = state.adapter if branch is None else branch.adapter
                    if step is Step.COMPOSE:
                        cycles.append(state)
                    elif adapter is not None:
                        steps.append((adapter, step))
        return steps, cycles

    def _stage(self, row: AdapterRow) -> Iterator[str]:
        try:
            with hold_serving_lock(self._app.home, patience=0):
                self._staging.stage(row, row.cause)
        except StageRefusal as error:
            if isinstance(error.__cause__, _FINAL):
                yield self._reject(row, error)
                return
            raise
        except _FINAL as error:
            yield self._reject(row, error)
            return
        except NoRoom as error:
            if not self._fills_its_own_room(row):
                raise
            yield self._reject(row, error)
            return
        yield f"{row.adapter} is staged"

    def _fills_its_own_room(self, row: AdapterRow) -> bool:
        """Return whether a branch's adapter, or a version, waits for slots that only adapters of
        its own cycle hold."""
        with self._app.reading() as connection:
            job = None if row.job is None else learning.job(connection, row.job)
        of_version = not row.has_files or (
            job is not None and (job.branch is not None or job.teaches is not None)
        )
        if not of_version:
            return False
        situation = observe(self._app, self._fleet.look(), self._clock())
        return not {"draining", "canary"} & set(roles(situation).values())

    def list_gate_waits(self) -> list[GateWait]:
        """Return the gates of open cycles that wait, with the reason: an endpoint, a setting, or
        something that cannot be opened. Raise RunnerUnavailable, DatabaseUnavailable."""
        waits: list[GateWait] = []
        for row, step in self._list_due_steps()[0]:
            if step is not Step.EVALUATE:
                continue
            try:
                wait = self._build_evaluation(row).find_wait()
            except CannotExamine:
                continue  # the next turn rejects it
            except (EnvironmentBroken, StageRefusal, UnknownEnvironment) as error:
                wait = GateWait(row.adapter, row.alias, "agent", str(error))
            if wait is not None:
                waits.append(wait)
        return waits

    def _evaluate(self, row: AdapterRow) -> Iterator[str]:
        try:
            examination = self._build_evaluation(row)
        except CannotExamine as error:
            yield self._reject(row, error)
            return
        yield from examination.advance()

    def _build_evaluation(self, row: AdapterRow) -> CandidateEvaluation:
        """Return the evaluation of a candidate against the present incumbent, with the present
        users. Raise StageRefusal, CannotExamine, UnknownEnvironment, EnvironmentBroken."""
        agent = self._app.settings.find_agent(row.alias)
        if agent is None:
            raise StageRefusal(
                f"{row.alias} is no longer in the setting agents, so {row.adapter} is not evaluated"
            )
        incumbent = self._read_incumbent(row)
        with self._app.reading() as connection:
            user = find_user(connection, self._app.settings, row.alias, row.base)
            gates = serving.count_gate_passes(connection, row.adapter)
        return CandidateEvaluation(
            self._app, self._runner, agent, row, incumbent, gates, self._held_out, user
        )

    def _compose(self, state: CycleState) -> Iterator[str]:
        """Compose a cycle's version. If that is impossible, reject its members."""
        try:
            yield from compose_version(self._app, state, self._compose_version)
        except VersionRefusal as error:
            for member in list_passed_adapters(state):
                yield self._reject(member, error)

    def _read_incumbent(self, row: AdapterRow) -> AdapterRow | None:
        name = self._publisher.route(row.alias, row.base).incumbent
        if name is None:
            return None
        with self._app.reading() as connection:
            return serving.find_adapter(connection, name)

    def _route(self, row: AdapterRow) -> str:
        share = self._app.settings.canary.shares[0]
        self._publisher.canary(row.adapter, share)
        return f"{row.adapter} answers {share:.0%} of the sessions of {row.alias}"

    def _reject(self, row: AdapterRow, error: KintsugiError) -> str:
        moved = AdapterMoved(adapter=row.adapter, state="rejected", reason=clip_reason(str(error)))
        self._decisions.take(moved, f"rejected {row.adapter}", row.cause)
        return f"{row.adapter} is rejected: {error}"
