"""A dry run of an agent's next cycle that appends no event.

The real planner writes directive and tasks from copies of the round's tables
(consumers/diagnosis/preview.py) under the next cycle's id, so its random draws are the same. A
configured analyzer is asked. With `engines`, the answering policy plays the tasks, and this is not
recorded. Rules and templates replace `models.proposer`, which would cost tokens and write other
tasks in the cycle. Guarantee: no event is appended and no shared table written. It works whether or
not the roles run. Not covered: later rollouts, and other answers of the policy.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consumers.diagnosis.preview import preview_round
from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents, rollouts
from consumers.reads.learning import CycleRow
from consumers.reads.rollouts import PatternLine
from consumers.reads.scheduling import Scheduling
from daemon.config.settings import ConfigurationError
from daemon.core.app import App, explain_errors
from daemon.core.task_kinds import list_agent_kinds
from daemon.cycle.cost import count_gpus
from daemon.cycle.estimate import Estimate, History, estimate, read_history
from daemon.cycle.methods import bind_rule_parts
from daemon.cycle.outlook import read_facts, read_outlook
from daemon.cycle.planner import CyclePlanner
from daemon.cycle.proposal import Proposal, RetryLater
from daemon.proposer.candidate import CannotSample
from daemon.proposer.probe import Engine
from envs.endpoint import EndpointUnavailable
from events.envelope import derive_id, utc_now
from events.errors import WrongUsage
from events.learning import (
    DirectiveWritten,
    JobRequested,
    PatternsDiagnosed,
    TaskProposed,
    TaskRejected,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.cycle.outlook import Outlook
    from events.bodies import FindKey
    from events.log import Entry, EventLog


class UnknownAgent(WrongUsage):
    """No rollout of this agent is recorded."""


@dataclass(frozen=True, slots=True)
class CyclePlan:
    """The plan of an agent's next cycle, made by a dry run."""

    cycle: str
    number: int
    outlook: "Outlook"
    unread: Scheduling
    round: int
    """Number of the cycle's round; the last round's number if there is nothing new."""
    patterns: tuple[PatternLine, ...]
    directive: DirectiveWritten
    probed: bool
    """Whether the answering policy played the tasks."""
    accepted: tuple[TaskProposed, ...]
    rejected: tuple[TaskRejected, ...]
    jobs: tuple[JobRequested, ...]
    """One job, or one for each branch."""
    untaught: Mapping[str, str]
    """Branch -> why it would have no job."""
    retrained: Mapping[str, str]
    """Branch -> why it would be trained again, after its training on an earlier base."""
    preset: str | None
    """Published algorithm that the job uses, if the settings name one."""
    lacking: str | None
    """Reason why there would be no job; None if there would be."""
    estimate: Estimate
    """Cost of the cycle's jobs one after the other, without the chooser's."""
    seconds: float

    @property
    def job(self) -> JobRequested | None:
        """Return the first job, if any."""
        return self.jobs[0] if self.jobs else None


@dataclass(frozen=True, slots=True)
class _Draft:
    directive: DirectiveWritten
    patterns: list[PatternLine]
    round: int
    proposal: Proposal


class _PreviewApp(App):
    """The application of a dry run: it reads tables of one connection, and its log is read-only."""

    def __init__(self, app: App, connection: "Connection") -> None:
        super().__init__(app.settings)
        self._real, self._connection = app, connection

    @contextmanager
    def reading(self) -> Iterator["Connection"]:
        with explain_errors(self._real.engine):
            if self._connection.in_transaction():
                # A read within a read, such as a look-up of an event's key.
                yield self._connection
                return
            with self._connection.begin():
                yield self._connection

    @property
    def log(self) -> "EventLog":
        return self._real.readable_log

    @property
    def readable_log(self) -> "EventLog":
        return self._real.readable_log

    @property
    def find_key(self) -> "FindKey":
        return self._real.find_key

    def append(self, entries: "Sequence[Entry]") -> None:
        raise AssertionError(f"a dry run appends nothing, and {len(entries)} events were given")


def plan_cycle(app: App, alias: str, engines: Sequence[Engine] = ()) -> CyclePlan:
    """Plan an agent's next cycle. If `engines` are given, the policy at the first one plays each
    task, as in a cycle. Raise UnknownAgent, ConfigurationError, EndpointUnavailable."""
    began = time.monotonic()
    app.settle()
    now = utc_now()
    with app.reading() as connection:
        pair = _find_pair(connection, app, alias)
        outlook = read_outlook(connection, app.settings, alias, now)
        assert outlook is not None, "the agent is among those that were seen"
        unread = read_facts(connection, app.settings, pair, now)
        if unread is None or outlook.environment is None:
            raise ConfigurationError(f"no cycle of {alias} can begin: {outlook.missing[0]}")
        history = read_history(connection, app.settings, pair.alias, pair.base)
    row = _build_row(unread, outlook.environment)
    draft = _draft(app, row, engines)
    return _assemble(app, row, outlook, unread, draft, history, bool(engines), began)


def _find_pair(connection: "Connection", app: App, alias: str) -> Pair:
    pairs = {pair.alias: pair for pair in agents.present(connection)}
    if alias in pairs:
        return pairs[alias]
    names = sorted(pairs)
    if alias in {agent.alias for agent in app.settings.agents}:
        raise UnknownAgent(
            f"no rollout of {alias!r} is recorded, so there is nothing to plan; bring some by the "
            "gateway or kintsugi import"
        )
    raise UnknownAgent(
        f"there is no agent {alias!r}; rollouts are recorded of {', '.join(names) or 'none'}"
    )


def _build_row(facts: Scheduling, environment: str) -> CycleRow:
    name = derive_id("cycle", facts.alias, facts.base, str(facts.number))
    return CycleRow(
        cycle=name, alias=facts.alias, base=facts.base, number=facts.number,
        environment=environment, trigger="operator", reason="planned",
        position=facts.position, slot=None, acted=None, round=None, directive=None, findings=(),
        summary=None, analyzer=None, trouble=None, accepted=0, rejected=0, job=None,
        outcome=None, ended_because=None, event=name, started=None, diagnosed=None, directed=None,
        ended=None,
    )  # fmt: skip


def _draft(app: App, row: CycleRow, engines: Sequence[Engine]) -> _Draft:
    data = PatternsDiagnosed(
        trigger="schedule",
        position=row.position,
        cycle=row.cycle,
        kinds=list_agent_kinds(app.settings),
    )
    with (
        explain_errors(app.engine),
        preview_round(app.engine, data, row.alias) as (connection, number),
    ):
        preview = _PreviewApp(app, connection)
        planner = CyclePlanner(preview, engines, record=False, make_parts=bind_rule_parts())
        with preview.reading():
            lines = [
                line
                for line in rollouts.pattern_lines(connection, row.alias)
                if line.base == row.base
            ]
        diagnosed = replace(row, round=number)
        directive = planner.write_directive(diagnosed)
        proposal = _propose(planner, replace(diagnosed, directive=directive.directive))
        return _Draft(directive, lines, number, proposal)


def _propose(planner: CyclePlanner, row: CycleRow) -> Proposal:
    try:
        return planner.propose_tasks(row)
    except RetryLater as error:
        if not isinstance(error.__cause__, CannotSample):
            raise
        raise EndpointUnavailable(
            f"{error.__cause__}; plan without the policy that answers: --no-probe"
        ) from error


def _assemble(
    app: App,
    row: CycleRow,
    outlook: "Outlook",
    unread: Scheduling,
    draft: _Draft,
    history: History,
    probed: bool,
    began: float,
) -> CyclePlan:
    decisions = draft.proposal.said.values()
    accepted = tuple(data for data in decisions if isinstance(data, TaskProposed))
    rejected = tuple(data for data in decisions if isinstance(data, TaskRejected))
    jobs = tuple(data for data in decisions if isinstance(data, JobRequested))
    probed = probed and app.settings.proposer.probe
    # V8 comes last, so a task that failed another check was never played.
    played = sum(data.check == "informative" for data in rejected) + len(accepted)
    settings = app.settings
    return CyclePlan(
        cycle=row.cycle,
        number=row.number,
        outlook=outlook,
        unread=unread,
        round=draft.round,
        patterns=tuple(draft.patterns),
        directive=draft.directive,
        probed=probed,
        accepted=accepted,
        rejected=rejected,
        jobs=jobs,
        untaught=draft.proposal.untaught,
        retrained=draft.proposal.retrained,
        preset=settings.training.algorithm or None,
        lacking=draft.proposal.lacking,
        estimate=estimate(
            history,
            played if probed else 0,
            [job.spec for job in jobs],
            settings.jobs.minutes,
            count_gpus(settings, settings.training.device),
        ),
        seconds=time.monotonic() - began,
    )
