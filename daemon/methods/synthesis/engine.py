"""The data engine: plans, tasks written by them, and rounds that revise plans after failures.

    for event, data in synthesize(environment, request, make_parts(environment)): append it

    PlansWritten
    a first part of the places: TaskProposed, TaskRejected, TrajectoryVerified
    up to three times: a further part, in which changed plans are tried, and PlansRevised
    the places that are left, by the plans as they are then

A place is a task that is wanted. Places take the plans in turn; each has at most
`SynthesisRequest.tries` tries. With R rounds, the places are divided into R + 1 equal parts. Before
a part begins, failures change plans (reflection.py). The part tries the old and the changed
version, and `PlansRevised` at its end records the result; an undecided change is tried again. No
round follows once one gained too little and decided all changes. A set of an earlier cycle may be
used again, with its counts, failures and remaining rounds, and without `PlansWritten`. If a killed
leader of this cycle wrote a set, the cycle keeps it, whatever the settings or a model say now.
Guarantee: everything is drawn from the cycle's id and the pattern, so a restart with the same parts
writes the same events under the same ids. Not covered: appending the events (the cycle).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from daemon.methods.synthesis.planner import (
    find_plan_problem,
    list_tool_gaps,
    measure_overlap,
    plan_by_rule,
)
from daemon.methods.synthesis.protocols import (
    Failure,
    NoPlans,
    PlanDrafts,
    PlanHistory,
    Planner,
    PlanRequest,
    Reviser,
    RevisionDraft,
    TaskWriter,
)
from daemon.methods.synthesis.reflection import (
    Arm,
    Evidence,
    RuleReviser,
    Trial,
    choose_arm,
    compute_chance,
    decide_trials,
    find_least_gain,
    is_hopeless,
    measure_gain,
)
from daemon.methods.synthesis.stages import Event, Stages, SynthesisRequest
from daemon.methods.synthesis.template_writer import TemplateWriter
from daemon.proposer.candidate import CandidateFacts
from daemon.proposer.verification import Verdict, verify
from envs.environment import Environment
from events.envelope import derive_id
from events.learning import PlanName, TaskRejected
from events.rollouts import clip_reason
from events.synthesis.plans import Plan, PlanRevision, PlansRevised, PlansWritten


@dataclass(frozen=True, slots=True)
class Parts:
    """The components of the data engine: planner, writer, reviser and checks."""

    planner: Planner
    writer: TaskWriter
    reviser: Reviser
    check: Callable[[CandidateFacts], Verdict] = verify
    """Runs the ten checks of a written task."""


def make_parts(environment: Environment) -> Parts:
    """Return components that need neither a model nor an inference server."""
    return Parts(plan_by_rule, TemplateWriter(environment), RuleReviser())


def synthesize(
    environment: Environment, request: SynthesisRequest, parts: Parts
) -> Iterator[Event]:
    """Yield the events of a set of plans and its tasks, in order; an earlier set has no
    `PlansWritten`. The environment must look up bodies in `request.bodies`. Raise CannotSample."""
    if request.earlier is not None:
        # The plans tried least come first, since there may be fewer places than plans.
        earlier = sorted(request.earlier.entries, key=lambda entry: entry.tries)
        yield from _Synthesis(environment, request, parts, map(_resume, earlier)).run()
        return
    if request.written is not None:
        yield request.plan_set, request.written
        written = request.written.entries
        yield from _Synthesis(environment, request, parts, map(_PlanState, written)).run()
        return
    wanted = PlanRequest(request.plan_set, min(request.plans, request.tasks), request.kinds)
    try:
        drafts = parts.planner(environment, wanted)
    except NoPlans as error:
        event = derive_id("synthesis", request.plan_set, "plans")
        yield event, reject_set(request, str(error))
        return
    yield _record_plans(environment, request, drafts)
    yield from _Synthesis(environment, request, parts, map(_PlanState, drafts.entries)).run()


def _record_plans(environment: Environment, request: SynthesisRequest, drafts: PlanDrafts) -> Event:
    return request.plan_set, PlansWritten(
        plans=request.plan_set,
        alias=request.alias,
        base=request.base,
        environment=environment.name,
        cycle=request.cycle,
        patterns=(request.pattern,),
        entries=drafts.entries,
        overlap=measure_overlap(drafts.entries),
        uncovered=list_tool_gaps(environment, drafts.entries),
        writer=drafts.writer,
        refused=tuple(map(clip_reason, drafts.refused)),
        trouble=clip_reason(drafts.trouble),
    )


def reject_set(request: SynthesisRequest, reason: str) -> TaskRejected:
    """Return the event which says that no set of plans was written, or that one is not used."""
    return TaskRejected(
        cycle=request.cycle,
        alias=request.alias,
        base=request.base,
        pattern=request.pattern,
        mode="synthesize",
        check="synthesis",
        reason=clip_reason(reason),
    )


@dataclass(slots=True)
class _PlanState:
    plan: Plan
    revision: int = 0
    arm: Arm = field(default_factory=Arm)
    failures: list[Failure] = field(default_factory=list)
    refused: list[Plan] = field(default_factory=list)


def _resume(entry: PlanHistory) -> _PlanState:
    arm, revision = Arm(entry.tries, entry.accepted), entry.name.revision
    return _PlanState(entry.plan, revision, arm, list(entry.failures), list(entry.refused))


@dataclass(slots=True)
class _PlanTrial:
    draft: RevisionDraft
    number: int
    """Position among the changed plans."""
    trial: Trial
    failures: list[Failure] = field(default_factory=list)
    """Failures of tasks written by the changed plan."""


class _Synthesis:
    def __init__(
        self,
        environment: Environment,
        request: SynthesisRequest,
        parts: Parts,
        states: Iterable[_PlanState],
    ) -> None:
        self._environment, self._request, self._reviser = environment, request, parts.reviser
        self._stages = Stages(environment, request, parts.writer, parts.check)
        self._states = list(states)
        self._evidence = Evidence()
        self._common = [failure for state in self._states for failure in state.failures]
        """Failures of tasks written by unchanged plans, in all rounds."""
        self._rounds = request.most_rounds
        """Most rounds of the set, over all cycles."""
        self._number = 0 if request.earlier is None else request.earlier.rounds
        """Number of rounds so far."""
        self._trouble: list[str] = []

    def run(self) -> Iterator[Event]:
        tasks, earlier = self._request.tasks, self._request.earlier
        is_over = self._number >= self._rounds or (earlier is not None and earlier.is_over)
        parts = 1 if is_over else self._rounds - self._number + 1
        size = -(-tasks // parts)
        place = min(size, tasks)
        yield from self._fill(range(place), {})
        while place < tasks:
            end = tasks if is_over else min(place + size, tasks)
            trials = {} if is_over else self._open_trials(range(place, end))
            yield from self._fill(range(place, end), trials)
            place = end
            if any(self._has_tries(trial) for trial in trials.values()):
                self._number += 1
                event, data = self._close_round(self._number, trials)
                is_over = bool(data.stopped)
                yield event, data

    def _open_trials(self, places: range) -> dict[int, _PlanTrial]:
        """Return plan number -> trial, for plans with one of these places: models cost money."""
        trials: dict[int, _PlanTrial] = {}
        self._trouble = []
        due = {place % len(self._states) for place in places}
        for number in sorted(due):
            draft = self._revise(self._states[number])
            if draft is not None:
                trials[number] = _PlanTrial(draft, len(trials), Trial(draft.checks))
        return trials

    def _revise(self, state: _PlanState) -> RevisionDraft | None:
        if not self._common:
            return None
        arm = state.arm
        history = PlanHistory(
            self._name(state, 0),
            state.plan,
            arm.tries,
            arm.accepted,
            tuple(state.failures),
            tuple(state.refused),
            self._common,
        )
        draft = self._reviser.revise(self._environment, history)
        if self._reviser.trouble:
            self._trouble.append(self._reviser.trouble)
        if draft is None:
            return None
        problem = self._find_problem(state.plan, draft)
        if problem is not None:
            self._trouble.append(problem)
        return draft if problem is None else None

    def _find_problem(self, plan: Plan, draft: RevisionDraft) -> str | None:
        """Return why a changed plan cannot be tried, or None."""
        if draft.plan.plan != plan.plan:
            return f"the revision of plan {plan.plan} calls it {draft.plan.plan}; keep its name"
        if not draft.failures:
            return f"the revision of plan {plan.plan} cites no failure; name the events"
        others = [state.plan for state in self._states if state.plan is not plan]
        return find_plan_problem(self._environment, draft.plan, others)

    def _fill(self, places: range, trials: dict[int, _PlanTrial]) -> Iterator[Event]:
        for place in places:
            lap, number = divmod(place, len(self._states))
            state, trial = self._states[number], trials.get(number)
            is_changed = trial is not None and choose_arm(trial.number + lap)
            plan = trial.draft.plan if trial is not None and is_changed else state.plan
            name = self._name(state, int(is_changed))
            for attempt_number in range(self._request.tries):
                attempt = self._stages.attempt(plan, name, place, attempt_number)
                yield from attempt.events
                checks = {failure.check for failure in attempt.failures}
                arm = Arm(1, int(attempt.is_accepted), Counter(checks))
                self._count(state, trial, arm, attempt.failures, is_changed=is_changed)
                if attempt.is_accepted:
                    break

    def _count(
        self,
        state: _PlanState,
        trial: _PlanTrial | None,
        arm: Arm,
        failures: Sequence[Failure],
        *,
        is_changed: bool,
    ) -> None:
        if trial is not None and is_changed:
            trial.trial.after += arm
            trial.failures += failures
            return
        state.arm += arm
        state.failures += failures
        self._common += failures
        if trial is not None:
            trial.trial.before += arm

    def _has_tries(self, trial: _PlanTrial) -> bool:
        return trial.trial.after.tries > 0

    def _close_round(self, number: int, trials: dict[int, _PlanTrial]) -> tuple[str, PlansRevised]:
        """Apply the changes that are kept; return the event of the round."""
        request = self._request
        for trial in trials.values():
            self._evidence.add(trial.trial)
        counts = [trial.trial for trial in trials.values()]
        kept = decide_trials(counts, self._evidence)
        verdicts = [
            (place, trial, is_kept)
            for (place, trial), is_kept in zip(trials.items(), kept, strict=True)
            if self._has_tries(trial)
        ]
        revisions = tuple(
            self._settle(self._states[place], trial, is_kept) for place, trial, is_kept in verdicts
        )
        writers = (trial.draft.writer for _, trial, _ in verdicts)
        data = PlansRevised(
            plans=request.plan_set,
            alias=request.alias,
            base=request.base,
            cycle=request.cycle,
            round=number,
            revisions=revisions,
            writer=next(filter(None, writers), None),
            trouble=clip_reason("; ".join(dict.fromkeys(self._trouble))),
            stopped=self._explain_stop(number, counts, kept),
        )
        # With another number of rounds a part has other tries, and the result may differ.
        parts = f"of {self._rounds} rounds"
        return derive_id("plans revised", request.plan_set, str(number), parts), data

    def _explain_stop(self, number: int, trials: Sequence[Trial], kept: Sequence[bool]) -> str:
        """Return why no further round follows; "" if one may follow, perhaps in a later cycle."""
        gain, least = measure_gain(trials, len(self._states)), find_least_gain(trials)
        is_settled = all(
            is_kept or is_hopeless(trial, self._evidence)
            for trial, is_kept in zip(trials, kept, strict=True)
        )
        if gain < least and is_settled:
            points = f"{100 * gain:.1f} points of acceptance"
            return f"the changes of round {number} gained {points}, and {100 * least:.1f} are due"
        if number >= self._rounds:
            return f"{number} rounds are all that are made"
        return ""

    def _settle(self, state: _PlanState, trial: _PlanTrial, is_kept: bool) -> PlanRevision:
        """Replace a plan by its changed version if that is kept; return the trial's record."""
        counts, draft = trial.trial, trial.draft
        chance = compute_chance(counts.before, counts.after)
        less = self._evidence.compute_less(draft.checks)
        worse = self._evidence.compute_worse(draft.checks)
        revision = PlanRevision(
            before=self._name(state, 0),
            plan=draft.plan,
            reason=clip_reason(
                f"{draft.reason}; side by side {counts.before.accepted} of {counts.before.tries} "
                f"as it was and {counts.after.accepted} of {counts.after.tries} as changed: better "
                f"with chance {chance:.2f}; in all plans and rounds {', '.join(draft.checks)} less "
                f"with {less:.2f}, acceptance worse with {worse:.2f}"
            ),
            failures=draft.failures,
            tries_before=state.arm.tries,
            accepted_before=state.arm.accepted,
            tries=counts.after.tries,
            accepted=counts.after.accepted,
            kept=is_kept,
        )
        if is_kept:
            state.plan, state.arm, state.failures = draft.plan, counts.after, trial.failures
            state.revision += 1
            state.refused = []
        elif is_hopeless(counts, self._evidence):
            state.refused.append(draft.plan)
        return revision

    def _name(self, state: _PlanState, later: int) -> PlanName:
        """Return the name of a plan, `later` revisions after the present one."""
        return PlanName(
            plans=self._request.plan_set,
            plan=state.plan.plan,
            revision=state.revision + later,
        )
