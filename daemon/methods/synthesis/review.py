"""Examine written tasks whose rollouts fail, and retire tasks that have a fault.

    review = review_tasks(app, environment, cycle, analyzer)
    review.decisions     TrajectoryVerified of each examined task; TaskRetired of those with a
                         fault, and of their siblings with one

A task of the buffer is examined once, when fewer than half of at least `LEAST` of its last `WINDOW`
rollouts passed. By simulation with 8 rollouts, that includes every unwinnable task, every task won
by luck one time in twenty, and half of the good ones; if all had to fail, a third of the lucky ones
would escape. The newest readable failure stands for the task (envs/attribution/examination.py). If
the task is at fault, its siblings are reviewed at once, each only once: tasks of the same plan, and
tasks that follow the same failed task. A configured model is asked too, and decides nothing.
Guarantee: tables and the cycle's id decide the examined tasks and the events, so a restart writes
the same ones, except a model's words. A verdict is recorded after its retirements. At most
`MOST_TASKS` tasks, `MOST_SIBLINGS` siblings and `MOST_OPINIONS` opinions a cycle. Not covered:
persons' sessions. Not covered for tasks without a fault: rollouts that were trimmed, made in
training or need a judge.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.methods.synthesis.verdicts import (
    FailureRecord,
    TaskOrigin,
    list_siblings,
    read_last_failures,
    read_reviewed_siblings,
    read_task_origins,
    read_tasks_with_verdict,
)
from consumers.reads import learning
from daemon.controller.model_answers import TokenBudget
from daemon.controller.sampling import order_key
from daemon.methods.synthesis.opinion import OpinionAnswer, ask_opinion
from daemon.sessions import transcript
from envs.attribution.examination import NoVerdict, RolloutFault, blame_task, find_fault_beside_task
from envs.attribution.task_faults import find_task_fault
from envs.environment import UnknownTask
from envs.evaluation import UNJUDGED, EnvironmentFailure, environment_code
from envs.grading import grade
from events.envelope import derive_id
from events.errors import LogTruncated
from events.learning import Decision, TaskRetired
from events.messages import Message
from events.rollouts import RolloutEnded, clip_reason
from events.synthesis.faults import TrajectoryVerified
from producers.gateway.privacy.redaction import Redaction
from producers.simulation import SCRIPTED

if TYPE_CHECKING:
    from consumers.reads.learning import CycleRow
    from daemon.config.settings import Model
    from daemon.core.app import App
    from envs.environment import Environment
    from envs.task import TaskDefinition

LEAST: Final = 4
"""Fewest rollouts of a task that is examined."""
WINDOW: Final = 8
"""Number of a task's last rollouts that count: a group of a job."""
MOST_TASKS: Final = 64
"""Most tasks that a cycle examines; if there are more, the cycle's id decides which."""
MOST_SIBLINGS: Final = 256
"""Most siblings that are reviewed in one cycle."""
MOST_OPINIONS: Final = 16
"""Most rollouts that a model is asked about in one cycle."""
_MOST_TROUBLES: Final = 2
"""Number of requests without an opinion after which the cycle does not ask the model again."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Review:
    """The decisions of a cycle on written tasks whose rollouts mostly fail."""

    decisions: dict[str, Decision] = field(default_factory=dict)
    """Event id -> decision, in the order in which they are appended."""
    retired: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Evidence:
    rollout: str
    messages: Sequence[Message]
    """The conversation without the system prompt."""
    data: RolloutEnded


def review_tasks(
    app: "App", environment: "Environment", cycle: "CycleRow", analyzer: "Model | None" = None
) -> Review:
    """Examine the failing tasks of a cycle's agent. `analyzer` is asked too if it has a URL. Raise
    LogError, DatabaseUnavailable, KeysUnavailable."""
    return _Reviewer(app, environment, cycle, analyzer).review()


class CycleReviews:
    """Keeps the review of each agent's last cycle for repeated ticks, since a model costs money."""

    def __init__(self, app: "App", *, asks_models: bool = True) -> None:
        """`asks_models` is False for a dry run."""
        self._app, self._asks_models = app, asks_models
        self._reviews: dict[str, tuple[str, Review]] = {}
        """Agent -> its last reviewed cycle and the review."""

    def review(self, environment: "Environment", cycle: "CycleRow") -> Review:
        """Return the review of a cycle, which is made once. Raise the errors of `review_tasks`."""
        last, review = self._reviews.get(cycle.alias, ("", Review()))
        if last != cycle.cycle:
            analyzer = self._app.settings.models.analyzer if self._asks_models else None
            review = review_tasks(self._app, environment, cycle, analyzer)
            self._reviews[cycle.alias] = (cycle.cycle, review)
        return review


class _Reviewer:
    def __init__(
        self, app: "App", environment: "Environment", cycle: "CycleRow", analyzer: "Model | None"
    ) -> None:
        self._app, self._environment, self._cycle = app, environment, cycle
        with app.reading() as connection:
            self._origins = read_task_origins(connection, cycle.alias)
            closed = {
                *learning.read_inactive_tasks(connection, cycle.alias),
                *learning.read_sealed_tasks(connection, cycle.alias),
            }
            self._active = [task for task in self._origins if task not in closed]
            known = read_tasks_with_verdict(connection, cycle.alias)
            self._reviews = read_reviewed_siblings(connection, cycle.alias)
            new = [task for task in self._active if task not in known]
            self._records = read_last_failures(connection, cycle.alias, cycle.base, new, WINDOW)
        self._adviser = _Adviser(app, environment, analyzer)
        self._review = Review()
        self._siblings_left = MOST_SIBLINGS

    def review(self) -> Review:
        due = [task for task, record in self._records.items() if _is_due(record)]
        due.sort(key=lambda task: order_key(self._cycle.cycle, task))
        for task in due[:MOST_TASKS]:
            try:
                self._examine(self._origins[task], self._records[task])
            except UnknownTask:
                # The task is of the agent's former environment.
                continue
            except (EnvironmentFailure, NoVerdict) as error:
                log.warning("task %s was not examined: %s", task, error)
        return self._review

    def _examine(self, origin: TaskOrigin, record: FailureRecord) -> None:
        """Examine one task. Raise UnknownTask, EnvironmentFailure, NoVerdict."""
        definition = self._environment.task(origin.task)
        evidence = self._read_evidence(record)
        with environment_code(self._environment, f"task {origin.task}", definition):
            fault = find_task_fault(self._environment, definition)
        if fault is not None:
            verdict: RolloutFault | None = blame_task(fault)
        elif evidence is not None:
            verdict = self._find_other_fault(definition, evidence)
        else:
            return  # a later failure may be readable
        siblings = self._retire(origin, verdict) if fault is not None and verdict else ()
        answer = self._adviser.ask(definition, evidence)
        rollout = record.failures[0] if evidence is None else evidence.rollout
        event = derive_id("trajectory verified", self._cycle.cycle, rollout)
        self._review.decisions[event] = TrajectoryVerified(
            alias=self._cycle.alias,
            base=self._cycle.base,
            cycle=self._cycle.cycle,
            task=origin.task,
            rollout=rollout,
            plan=origin.plan,
            fault=None if verdict is None else verdict.fault,
            rule="" if verdict is None else verdict.rule,
            reason="" if verdict is None else clip_reason(verdict.reason),
            opinion=answer.opinion,
            trouble=answer.trouble,
            siblings=siblings,
        )

    def _read_evidence(self, record: FailureRecord) -> _Evidence | None:
        """Return the newest failure whose messages the log still has and can be read, or None."""
        for rollout in record.failures:
            with self._app.reading() as connection:
                row = transcript.find(connection, rollout)
            try:
                # Checked before the rollout is read: its key may be on another machine.
                if transcript.is_sealed(row, self._app.log):
                    continue
                whole = transcript.read(row, self._app.log, self._app.bodies)
            except LogTruncated:
                continue
            if whole.messages:
                messages = [item for item in whole.messages if item.role != "system"]
                return _Evidence(rollout, messages, whole.data)
        return None

    def _find_other_fault(
        self, definition: "TaskDefinition", evidence: _Evidence
    ) -> RolloutFault | None:
        """Return whose fault a rollout is if not its task's; None if nobody's. Raise NoVerdict."""
        environment, data = self._environment, evidence.data
        with environment_code(environment, f"task {definition.id}", definition):
            verdict = None
            if data.termination not in UNJUDGED:
                verdict = grade(environment, definition, evidence.messages, data.termination)
            try:
                return find_fault_beside_task(
                    environment, definition, evidence.messages, data.termination, verdict,
                    exact_user=data.simulator == SCRIPTED and not environment.users_err,
                )  # fmt: skip
            except NoVerdict as error:
                missing = error  # this is no fault of the environment's code
        raise missing

    def _retire(self, origin: TaskOrigin, verdict: RolloutFault) -> tuple[str, ...]:
        """Retire a task and its siblings with a fault; return the siblings that were reviewed."""
        siblings = [
            task
            for task in list_siblings(self._origins.values(), origin)
            if task not in self._reviews
        ][: self._siblings_left]
        self._siblings_left -= len(siblings)
        self._reviews.update(siblings)
        for sibling in siblings:
            reason = self._find_sibling_fault(sibling)
            if reason is not None:
                self._retire_task(sibling, f"{reason}; it was reviewed with {origin.task}")
        self._retire_task(origin.task, verdict.summary)
        return tuple(siblings)

    def _find_sibling_fault(self, task: str) -> str | None:
        if task not in self._active:
            return None
        try:
            definition = self._environment.task(task)
            with environment_code(self._environment, f"task {task}", definition):
                fault = find_task_fault(self._environment, definition)
        except UnknownTask:
            return None
        except EnvironmentFailure as error:
            log.warning("task %s was not reviewed: %s", task, error)
            return None
        return None if fault is None else fault.summary

    def _retire_task(self, task: str, reason: str) -> None:
        if task in self._review.retired:
            return
        self._review.retired.add(task)
        event = derive_id("task at fault", self._cycle.cycle, task)
        self._review.decisions[event] = TaskRetired(
            alias=self._cycle.alias, task=task, reason=clip_reason(reason)
        )


class _Adviser:
    def __init__(self, app: "App", environment: "Environment", analyzer: "Model | None") -> None:
        self._environment = environment
        self._analyzer = analyzer if analyzer is not None and analyzer.url else None
        self._redact = Redaction(app.settings.redaction.build_rules()).redact_text
        tokens = 0 if analyzer is None else analyzer.max_tokens
        self._budget = TokenBudget(tokens, "models.analyzer.max_tokens")
        self._requests = 0
        self._troubles: list[str] = []

    def ask(self, task: "TaskDefinition", evidence: _Evidence | None) -> OpinionAnswer:
        """Return the model's opinion of a rollout, or the reason why there is none."""
        if self._analyzer is None:
            return OpinionAnswer(None)
        if evidence is None:
            return OpinionAnswer(None, "what was said in its rollouts cannot be read any more")
        if self._requests == MOST_OPINIONS:
            return OpinionAnswer(None, f"a model is asked about {MOST_OPINIONS} rollouts a cycle")
        if len(self._troubles) == _MOST_TROUBLES:
            return OpinionAnswer(None, clip_reason(f"not asked again after {self._troubles[-1]}"))
        self._requests += 1
        answer = ask_opinion(
            self._analyzer, self._environment, task, evidence.messages, self._redact, self._budget
        )
        if answer.trouble:
            self._troubles.append(answer.trouble)
        return answer


def _is_due(record: FailureRecord) -> bool:
    return record.attempts >= LEAST and 2 * len(record.failures) > record.attempts
