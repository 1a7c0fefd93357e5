"""The four stages of one try of a plan, each of which ends in an event with its reason.

    1. synthesis                 the writer gives a task, or `TaskRejected` (synthesis)
    2. task verification         the ten checks pass, or `TaskRejected` (the check)
    3. trajectory rollout        the task is played
    4. trajectory verification   `TrajectoryVerified` of each rollout; then `TaskProposed`, or
                                 `TaskRejected` (trajectory) if one shows a fault of the task

Guarantee: a try's random choices follow from the cycle, the set, the plan with its revision, the
place and the try's number, so a restart with pure parts gives the same events under the same ids.
Another number of rounds gives other ids, since revisions differ. Source: AReaL-SEA, arXiv
2601.22607, section 3.1.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from daemon.methods.synthesis.protocols import Draft, Failure, NoTask, PlanHistory, TaskWriter
from daemon.proposer.candidate import (
    FIRST_SEED,
    LAST_SEED,
    MOST_BODY,
    Candidate,
    CandidateFacts,
    Evaluation,
    PriorTask,
    Sampler,
)
from daemon.proposer.verification import Verdict, verify
from envs.attribution.examination import NoVerdict, examine
from envs.environment import Environment
from envs.episode import Episode
from envs.grading import grade
from envs.task import TaskDefinition, write_body
from events.envelope import derive_id
from events.learning import Check, Decision, PlanName, TaskProposed, TaskRejected, Verified
from events.rollouts import clip_reason
from events.synthesis.faults import TrajectoryVerified
from events.synthesis.plans import MOST_ROUNDS, Plan, PlansWritten

Event = tuple[str, Decision]

_MOST_INSTRUCTION: Final = 4096
_MOST_HARD: Final = 0.3
"""Largest share of tasks that the current policy never passes."""


@dataclass(frozen=True, slots=True)
class EarlierSet:
    """A set of plans of an earlier cycle that is used again."""

    plans: str
    """Id of the set."""
    entries: tuple[PlanHistory, ...]
    """The set's present plans, in order."""
    rounds: int = 0
    """Number of rounds that have revised it so far."""
    is_over: bool = False
    """Whether no further round follows."""


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """The tasks that are wanted for a pattern, and the data for their checks."""

    cycle: str
    alias: str
    base: str
    pattern: str
    tasks: int
    """Number of tasks that are wanted."""
    tries: int = 3
    """Most tries for one task."""
    plans: int = 64
    """Number of plans wanted."""
    rounds: int = 3
    """Most rounds that revise plans; 0 for none."""
    kinds: dict[str, float] = field(default_factory=dict)
    """Kind of task -> weight of its plans; empty for all kinds with equal weights."""
    known: Sequence[PriorTask] = ()
    """Tasks that are in the buffer already."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    sampler: Sampler | None = None
    """Samples the current policy for the check `informative`; None leaves the check out."""
    bodies: MutableMapping[str, str] = field(default_factory=dict)
    """The body of each task is put here before its checks, for Environment.use_definitions."""
    earlier: EarlierSet | None = None
    """The earlier set to use again; None for a new one."""
    written: PlansWritten | None = None
    """The cycle's set in the log, from a killed leader; None: the planner writes it."""

    @property
    def plan_set(self) -> str:
        """Return the id of the set of plans."""
        if self.earlier is not None:
            return self.earlier.plans
        return name_plan_set(self.cycle, self.pattern)

    @property
    def most_rounds(self) -> int:
        """Return the most rounds of the set, over all cycles."""
        return min(self.rounds, MOST_ROUNDS)


def name_plan_set(cycle: str, pattern: str) -> str:
    """Return the id of the set of plans that a cycle writes for a pattern."""
    return derive_id("plans", cycle, pattern)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The result of one try to write a task by a plan."""

    events: tuple[Event, ...]
    is_accepted: bool
    failures: tuple[Failure, ...]


class Stages:
    """Makes the tries of a set of plans, each in four stages."""

    def __init__(
        self,
        environment: Environment,
        request: SynthesisRequest,
        writer: TaskWriter,
        check: Callable[[CandidateFacts], Verdict] = verify,
    ) -> None:
        """Take the function that runs the checks V1 to V10 of docs/proposing.md as `check`."""
        self._environment, self._request = environment, request
        self._writer, self._check = writer, check
        self._known = list(request.known)
        self._accepted: set[str] = set()
        self._hard = int(_MOST_HARD * request.tasks)
        """Number of further tasks that may be accepted though the policy never passes them."""

    def attempt(self, plan: Plan, name: PlanName, place: int, number: int) -> Attempt:
        """Try once to write a task by `plan`; return the result. Raise CannotSample."""
        # A new set's id follows from the cycle; an earlier set may have the same revision.
        again = () if self._request.earlier is None else (self._request.cycle,)
        origin = (*again, name.plans, name.plan, str(name.revision), str(place), str(number))
        event = derive_id("synthesis", *origin, f"of {self._request.most_rounds} rounds")
        seed = Random(f"synthesize {' '.join(origin)}").randrange(FIRST_SEED, LAST_SEED + 1)
        try:
            draft = self._writer.write(plan, seed)
        except NoTask as error:
            return self._reject(name, event, "synthesis", str(error), None)
        examined = self._open(draft)
        verdict = self._verify(draft, examined)
        if verdict.failed is not None:
            return self._reject(name, event, verdict.failed, verdict.reason, draft.task)
        rollout = derive_id("synthesis", "oracle", event)
        try:
            examination = self._examine(draft.task, name, rollout, examined.oracle)
        except Exception as error:  # an environment's own code may raise anything
            raised = f"the examination raised {type(error).__name__}: {error}"
            return self._reject(name, event, "trajectory", raised, draft.task)
        own = derive_id("synthesis", "trajectory", event, rollout)
        if examination.fault == "task":
            reason = f"{examination.rule}: {examination.reason}"
            rejection = self._reject(name, event, "trajectory", reason, draft.task)
            return Attempt(((own, examination), *rejection.events), False, rejection.failures)
        self._known.append(PriorTask.of(draft.task))
        self._accepted.add(draft.task.id)
        self._hard -= any(check.note.startswith("0 of") for check in verdict.passed)
        proposal = self._propose(draft, name, verdict.passed)
        failures = _list_failures(own, examination, draft.task)
        return Attempt(((own, examination), (event, proposal)), True, failures)

    def _open(self, draft: Draft) -> CandidateFacts:
        self._request.bodies[draft.task.id] = write_body(draft.task.dump_body())
        return CandidateFacts(
            self._environment,
            Candidate(draft.task, "synthesize", None, draft.drawn),
            self._known,
            self._request.evaluation,
            self._request.sampler,
            hard=self._hard > 0,
        )

    def _verify(self, draft: Draft, examined: CandidateFacts) -> Verdict:
        size = len(self._request.bodies[draft.task.id])
        if size > MOST_BODY:
            reason = f"its definition has {size:,} bytes, and {MOST_BODY:,} are stored; shorten it"
            return Verdict((), "schema", reason)
        return self._check(examined)

    def _reject(
        self, name: PlanName, event: str, check: Check, reason: str, task: TaskDefinition | None
    ) -> Attempt:
        request = self._request
        if task is not None and task.id not in self._accepted:
            request.bodies.pop(task.id, None)
        text = "" if task is None else task.scenario.text()[:_MOST_INSTRUCTION]
        rejection = TaskRejected(
            cycle=request.cycle,
            alias=request.alias,
            base=request.base,
            pattern=request.pattern,
            mode="synthesize",
            check=check,
            reason=clip_reason(reason),
            instruction=text,
            plan=name,
        )
        failure = Failure(event, "writing", check, reason, text)
        return Attempt(((event, rejection),), False, (failure,))

    def _examine(
        self, task: TaskDefinition, name: PlanName, rollout: str, episode: Episode
    ) -> TrajectoryVerified:
        """Return the rules' verdict on the perfect agent's episode with the scripted user: who is
        at fault if it fails. If only a judge can tell, there is no fault, and `trouble` says so."""
        environment, messages, ending = self._environment, episode.messages, episode.termination
        verdict = grade(environment, task, messages, ending)
        fault, trouble = None, ""
        try:
            fault = examine(environment, task, messages, ending, verdict, exact_user=True)
        except NoVerdict as error:
            trouble = clip_reason(str(error))
        return TrajectoryVerified(
            alias=self._request.alias,
            base=self._request.base,
            cycle=self._request.cycle,
            task=task.id,
            rollout=rollout,
            plan=name,
            fault=None if fault is None else fault.fault,
            rule="" if fault is None else fault.rule,
            reason="" if fault is None else clip_reason(fault.reason),
            trouble=trouble,
        )

    def _propose(self, draft: Draft, name: PlanName, passed: tuple[Verified, ...]) -> TaskProposed:
        return TaskProposed(
            alias=self._request.alias,
            base=self._request.base,
            task=draft.task.record(),
            pattern=self._request.pattern,
            cycle=self._request.cycle,
            mode="synthesize",
            verified=passed,
            text_by=draft.text_by,
            definition=draft.task.dump_body(),
            plan=name,
        )


def _list_failures(
    event: str, examination: TrajectoryVerified, task: TaskDefinition
) -> tuple[Failure, ...]:
    """Return the failures that the examination of an accepted task shows: faults of the user."""
    if examination.fault != "user":
        return ()
    text = task.scenario.text()[:_MOST_INSTRUCTION]
    return (Failure(event, "rollout", examination.rule, examination.reason, text),)
