"""The role `schedule`: one process leads, begins cycles and advances them.

A tick holds the lease, takes each agent's next steps (scheduler.py, state_machine.py), and appends
events whose ids follow from the cycle, with the leader's epoch. Guarantee: the next tick completes
one that was cut short. A tick done twice counts once. Not covered: the role `work`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents, learning
from consumers.reads.cycle_state import read_cycle_state
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import Scheduling
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.core.isolation import Breaks
from daemon.core.leadership import Leadership
from daemon.core.span_contexts import Contexts
from daemon.core.task_kinds import list_agent_kinds
from daemon.cycle.job_spec import NotTrainable
from daemon.cycle.methods import find_free_request, list_late_versions
from daemon.cycle.outlook import read_facts
from daemon.cycle.proposal import Proposal, RetryLater, Skip, Study
from daemon.cycle.scheduler import Due, NotDue, decide
from daemon.cycle.state_machine import OWNER, CycleEnd, Step
from daemon.cycle.views import find_environment, read_next_step
from events.envelope import derive_id, utc_now
from events.jobs import CHOOSER
from events.learning import (
    CycleEnded,
    CycleStarted,
    Decision,
    DirectiveWritten,
    JobRequested,
    PatternsDiagnosed,
    TaskProposed,
    TaskRejected,
    TaskRetired,
)
from events.lifecycle import WAITING
from events.rollouts import clip_reason
from events.serving import AdapterMoved

if TYPE_CHECKING:
    from daemon.core.app import App


class Planner(Protocol):
    """Writes directives and tasks from the log alone, so asking again gives the same."""

    def study_round(self, cycle: CycleRow) -> Study | None:
        """Study a round before its directive; return None if nothing is due. Raise Skip."""

    def write_directive(self, cycle: CycleRow) -> DirectiveWritten:
        """Return the directive of a cycle whose round is closed."""

    def propose_tasks(self, cycle: CycleRow) -> Proposal:
        """Return the tasks and jobs of a cycle that has a directive."""

    def request_chooser(self, cycle: CycleRow) -> JobRequested:
        """Return the job that trains the version's chooser. Raise RetryLater, NotTrainable."""


@dataclass(slots=True)
class TickResult:
    """The result of one tick, which is one turn of the leader over all agents."""

    epoch: int | None
    """Epoch of this leader; None if another process leads."""
    told: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """Sentences on errors; the steps that raised them are tried again."""
    failed: list[str] = field(default_factory=list)
    """`agents` or `users`, once for each agent whose steps an unexpected error broke off."""


class Leader:
    """A process that leads cycles, or waits while another process leads."""

    def __init__(
        self,
        app: "App",
        author: Planner,
        leadership: Leadership,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._app = app
        self._author = author
        self._leadership = leadership
        self._clock = clock

    def tick(self) -> TickResult:
        """Take the next steps of every agent. An error stops only its agent, except the errors in
        `isolation.HALTS`, which are raised."""
        epoch = self._leadership.lead()
        led = TickResult(epoch)
        breaks = Breaks(led.failed, led.troubles)
        if epoch is None:
            return led
        self._app.settle()
        with self._app.reading() as connection:
            pairs = agents.present(connection)
        for pair in pairs:
            breaks.attempt(
                "agents", partial(self._advance, pair, epoch, led), f"agent {pair.alias}"
            )
            breaks.attempt(
                "users", partial(self._request_users, pair, epoch, led), f"users of {pair.alias}"
            )
        return led

    def _request_users(self, pair: Pair, epoch: int, led: TickResult) -> None:
        """Request a due job that trains an adapter to play the agent's users. It runs beside cycles
        and within the day's budget."""
        if self._app.settings.improve.users != "trained" or not self._leadership.holds():
            return
        try:
            with self._leadership.keep_lease():
                request = find_free_request(self._app, pair, self._clock())
            if request is None:
                return
            Decisions(self._app, epoch).record({request.event: request.data}, request.data.job)
        except (Skip, DecisionRefusal) as error:
            led.troubles.append(str(error))
            return
        led.told.append(request.says)

    def _advance(self, pair: Pair, epoch: int, led: TickResult) -> None:
        try:
            for event in self._advance_steps(pair, epoch):
                led.told.append(event)
        except (RetryLater, DecisionRefusal) as error:
            led.troubles.append(str(error))

    def _advance_steps(self, pair: Pair, epoch: int) -> Iterator[str]:
        decisions = Decisions(self._app, epoch)
        last_step: Step | None = None
        begun = False
        while self._leadership.holds():
            with self._app.reading() as connection:
                cycle = learning.open_cycle(connection, pair.alias)
                if cycle is None:
                    facts = read_facts(connection, self._app.settings, pair, self._clock())
                else:
                    step = read_next_step(connection, self._app.settings, cycle, pair).step
            if cycle is None:
                if facts is None:
                    return
                yield from self._reject_late_versions(decisions, pair)
                decision = decide(facts, self._app.settings.scheduler, self._clock())
                if isinstance(decision, NotDue) or begun or last_step is not None:
                    # The new cycle is not open, so its event did not count: another process leads.
                    return
                yield self._begin(decisions, facts, decision)
                begun = True
                continue
            if isinstance(step, CycleEnd):
                yield self._end(decisions, cycle, step)
                return
            if OWNER[step] != "schedule" or step is last_step:
                # A step just taken is still due, so its event did not count: another leads.
                return
            yield from self._take_step(decisions, cycle, step)
            last_step = step

    def _begin(self, decisions: Decisions, facts: Scheduling, due: Due) -> str:
        """Begin a cycle and return a sentence. The event names the position of `facts`."""
        environment = find_environment(self._app.settings, facts.alias)
        assert environment is not None, "an agent whose tasks cannot be played has no facts"
        name = derive_id("cycle", facts.alias, facts.base, str(facts.number))
        started = CycleStarted(
            cycle=name, alias=facts.alias, base=facts.base, number=facts.number,
            environment=environment, trigger=due.trigger, reason=clip_reason(due.reason),
            position=facts.position, slot=due.slot, acted=due.acted,
        )  # fmt: skip
        with self._app.reading() as connection:
            newest = Contexts(connection, self._app.log).newest(facts.alias, facts.base)
        decisions.take(started, "started", due.acted or name, origin=name, within=newest)
        return f"cycle {facts.number} of {facts.alias} began ({due.trigger}): {due.reason}"

    def _take_step(self, decisions: Decisions, cycle: CycleRow, step: Step) -> Iterator[str]:
        match step:
            case Step.DIAGNOSE:
                round_ = PatternsDiagnosed(
                    trigger="schedule",
                    position=cycle.position,
                    cycle=cycle.cycle,
                    kinds=list_agent_kinds(self._app.settings),
                )
                decisions.take(round_, "diagnosed", cycle.event, origin=cycle.cycle)
                yield f"cycle {cycle.number} of {cycle.alias}: a round was closed"
            case Step.DIRECT:
                yield from self._study_round(decisions, cycle)
                with self._leadership.keep_lease():
                    written = self._author.write_directive(cycle)
                decisions.take(written, "directed", cycle.event, origin=cycle.cycle)
                yield f"cycle {cycle.number} of {cycle.alias}: a directive was written"
            case Step.CHOOSER:
                yield self._request_chooser(decisions, cycle)
            case _:
                yield from self._propose(decisions, cycle)

    def _study_round(self, decisions: Decisions, cycle: CycleRow) -> Iterator[str]:
        """Study the round if a study is due. The cycle goes on if it fails."""
        name = f"cycle {cycle.number} of {cycle.alias}"
        try:
            with self._leadership.keep_lease():
                study = self._author.study_round(cycle)
        except Skip as error:
            yield f"{name}: {error}"
            return
        if study is not None:
            decisions.take(study.data, study.step, cycle.event, origin=cycle.cycle)
            yield f"{name}: {study.says}"

    def _propose(self, decisions: Decisions, cycle: CycleRow) -> Iterator[str]:
        with self._leadership.keep_lease():
            proposal = self._author.propose_tasks(cycle)
        events = dict(proposal.said)
        ended = None
        if proposal.lacking is not None:
            # Recorded in one append: a process killed between two appends would propose again.
            ended = CycleEnd("nothing_learnable", proposal.lacking)
            events |= self._list_end_events(cycle, ended)
        if events:
            decisions.record(events, cycle.event)
        counts = Counter(data.TYPE for data in proposal.said.values())
        yield (
            f"cycle {cycle.number} of {cycle.alias}: {counts[TaskProposed.TYPE]} tasks were "
            f"written, {counts[TaskRejected.TYPE]} rejected"
        )
        if counts[TaskRetired.TYPE]:
            yield (
                f"cycle {cycle.number} of {cycle.alias}: {counts[TaskRetired.TYPE]} tasks were "
                "retired, for no agent can win them; see kintsugi tasks show"
            )
        for branch, reason in proposal.retrained.items():
            yield f"cycle {cycle.number} of {cycle.alias}: {branch} is {reason}"
        for branch, reason in proposal.untaught.items():
            yield f"cycle {cycle.number} of {cycle.alias} has no job for {branch}: {reason}"
        if ended is not None:
            yield _describe_end(cycle, ended)

    def _request_chooser(self, decisions: Decisions, cycle: CycleRow) -> str:
        """Request the chooser's job. End the cycle if no chooser can tell the branches apart."""
        name = f"cycle {cycle.number} of {cycle.alias}"
        try:
            with self._leadership.keep_lease():
                job = self._author.request_chooser(cycle)
        except NotTrainable as error:
            return self._end(decisions, cycle, CycleEnd("failed", f"its {CHOOSER}: {error}"))
        decisions.record({derive_id(f"{CHOOSER} job requested", cycle.cycle): job}, cycle.event)
        return f"{name}: a job that teaches a {CHOOSER} was requested"

    def _end(self, decisions: Decisions, cycle: CycleRow, ended: CycleEnd) -> str:
        decisions.record(self._list_end_events(cycle, ended), cycle.event)
        return _describe_end(cycle, ended)

    def _list_end_events(self, cycle: CycleRow, ended: CycleEnd) -> dict[str, Decision]:
        data = CycleEnded(
            cycle=cycle.cycle, outcome=ended.outcome, reason=clip_reason(ended.reason)
        )
        steps: dict[str, Decision] = {"ended": data}
        for number, left in enumerate(self._list_idle_adapters(cycle, ended)):
            # No later step would remove it, and engines keep adapters that are staged.
            step = f"given up {number}" if number else "given up"
            steps[step] = AdapterMoved(adapter=left, state="rejected", reason=data.reason)
        return {derive_id(cycle.cycle, step): data for step, data in steps.items()}

    def _reject_late_versions(self, decisions: Decisions, pair: Pair) -> Iterator[str]:
        """Reject versions that were composed after their cycle's end: else their members' files
        would stay for ever."""
        with self._app.reading() as connection:
            late = list_late_versions(connection, pair.alias)
        for row, cycle in late:
            reason = clip_reason(f"its cycle was over when it was composed: {cycle.ended_because}")
            moved = AdapterMoved(adapter=row.adapter, state="rejected", reason=reason)
            decisions.take(moved, f"rejected {row.adapter}", row.cause)
            yield f"{row.adapter} is rejected: {reason}"

    def _list_idle_adapters(self, cycle: CycleRow, ended: CycleEnd) -> list[str]:
        """Return the cycle's waiting adapters without sessions, except a version's members."""
        with self._app.reading() as connection:
            state = read_cycle_state(connection, cycle)
        branches = () if state.adapter is not None else state.all_branches
        rows = [branch.adapter for branch in branches]
        if ended.outcome == "cancelled":
            rows.append(state.adapter)
        return [row.adapter for row in rows if row is not None and row.state in WAITING]


def _describe_end(cycle: CycleRow, ended: CycleEnd) -> str:
    return f"cycle {cycle.number} of {cycle.alias} ended, {ended.outcome}: {ended.reason}"
