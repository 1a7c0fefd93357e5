"""Have plans write the tasks of a directive's quotas that are given to plans.

Plans are for the kinds of the failed tasks that the directive names, by the environment's
definitions; no label of a rollout is read. Guarantee: the cycle and the tables at its beginning
decide everything, so a restart writes the same events under the same ids, except a model's words.
"""

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from consumers.reads import learning
from daemon.controller.directive import describe_directive
from daemon.methods.synthesis.engine import Parts, make_parts, reject_set, synthesize
from daemon.methods.synthesis.models.parts import make_model_parts
from daemon.methods.synthesis.plan_sets import SetChoice, SetDemand, build_history, choose_set
from daemon.methods.synthesis.stages import EarlierSet, SynthesisRequest
from daemon.proposer.candidate import PriorTask, Source
from daemon.proposer.proposer import ProposalRequest
from events.envelope import derive_id
from events.learning import Decision, Quota, TaskProposed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumers.reads.learning import CycleRow
    from daemon.config.settings import Settings
    from daemon.core.app import App
    from envs.environment import Environment

MakeParts = Callable[["Environment", "Settings", str], Parts]
"""Builds a cycle's data engine from the environment, the settings and the directive's text."""


def choose_parts(
    environment: "Environment",
    settings: "Settings",
    directive: str,
    stopping: Callable[[], bool] = lambda: False,
) -> Parts:
    """Return the data engine with the settings' model, or by rule. `stopping` ends requests."""
    return make_model_parts(environment, settings, directive, stopping) or make_parts(environment)


def make_rule_parts(environment: "Environment", settings: "Settings", directive: str) -> Parts:
    """Return the parts of the data engine by rule, even if the settings name a model."""
    return make_parts(environment)


class CycleParts:
    """Keeps the data engine of each agent's last cycle. If a tick had to wait, the next one uses
    the same parts, and so the same budget and the model's earlier answers."""

    def __init__(self, make: MakeParts) -> None:
        self._make = make
        self._parts: dict[str, tuple[str, Parts]] = {}
        """Agent -> its last cycle, and the parts for that cycle."""

    def bind(self, cycle: "CycleRow") -> MakeParts:
        """Return a function that builds the cycle's data engine once."""

        def make(environment: "Environment", settings: "Settings", directive: str) -> Parts:
            last, parts = self._parts.get(cycle.alias, ("", None))
            if parts is None or last != cycle.cycle:
                parts = self._make(environment, settings, directive)
                self._parts[cycle.alias] = cycle.cycle, parts
            return parts

        return make


@dataclass(frozen=True, slots=True)
class FilledQuotas:
    """The tasks and rejections that plans gave for a directive, and what is left to write."""

    decisions: dict[str, Decision]
    """Event id -> decision, in order."""
    request: ProposalRequest
    """The request with the places that were filled and the tasks that are now known."""


def fill_quotas(
    app: "App",
    environment: "Environment",
    cycle: "CycleRow",
    wanted: ProposalRequest,
    bodies: MutableMapping[str, str],
    make: MakeParts = choose_parts,
) -> FilledQuotas:
    """Have plans write a directive's tasks. The environment must look up bodies in `bodies`. Raise
    CannotSample, LogError, DatabaseUnavailable."""
    decisions: dict[str, Decision] = {}
    known, full = list(wanted.known), dict(wanted.full)
    counts = [
        (quota, sum(choice.tasks for choice in quota.modes if choice.mode == "synthesize"))
        for quota in wanted.directive.quotas
    ]
    if not any(tasks for _, tasks in counts):
        return FilledQuotas(decisions, wanted)
    parts = make(environment, app.settings, describe_directive(wanted.directive))
    for quota, tasks in counts:
        if not tasks:
            continue
        kinds = _weigh_kinds(environment, wanted.sources.get(quota.pattern, ()))
        writer = _PlanQuota(app, environment, cycle, quota, tasks, kinds)
        request = writer.build_request(replace(wanted, known=known), bodies)
        for event, data in writer.write(request, parts):
            decisions[event] = data
            if isinstance(data, TaskProposed):
                known.append(_describe_prior(environment, data))
                full[quota.pattern] = full.get(quota.pattern, 0) + 1
    return FilledQuotas(decisions, replace(wanted, known=known, full=full))


class _PlanQuota:
    def __init__(
        self,
        app: "App",
        environment: "Environment",
        cycle: "CycleRow",
        quota: Quota,
        tasks: int,
        kinds: dict[str, float],
    ) -> None:
        self._app, self._environment, self._cycle = app, environment, cycle
        self._quota, self._tasks, self._kinds = quota, tasks, kinds
        self._choice = self._choose_set()

    def _choose_set(self) -> SetChoice:
        cycle, improve = self._cycle, self._app.settings.improve
        demand = SetDemand(
            min(improve.synthesis_plans, self._tasks), self._kinds, improve.synthesis_rounds
        )
        with self._app.reading() as connection:
            before = learning.read_cycle_offsets(connection).get(cycle.cycle)
            return choose_set(
                self._app, connection, self._environment, cycle, self._quota.pattern, before, demand
            )

    def build_request(
        self, wanted: ProposalRequest, bodies: MutableMapping[str, str]
    ) -> SynthesisRequest:
        improve, past = self._app.settings.improve, self._choice.past
        earlier = None
        if past is not None:
            earlier = EarlierSet(
                past.line.plans, tuple(build_history(past)), past.line.rounds,
                is_over=bool(past.line.stopped),
            )  # fmt: skip
        return SynthesisRequest(
            cycle=wanted.cycle,
            alias=wanted.alias,
            base=wanted.base,
            pattern=self._quota.pattern,
            tasks=self._tasks,
            plans=improve.synthesis_plans,
            rounds=improve.synthesis_rounds,
            kinds=self._kinds,
            known=wanted.known,
            evaluation=wanted.evaluation,
            sampler=wanted.sampler,
            bodies=bodies,
            earlier=earlier,
            written=self._choice.written,
        )

    def write(self, request: SynthesisRequest, parts: Parts) -> "Iterator[tuple[str, Decision]]":
        """Yield the events; the first one tells why an earlier set is not used, if so."""
        if self._choice.refusal:
            yield (
                derive_id("synthesis", request.plan_set, "refused", self._choice.refusal),
                reject_set(request, self._choice.refusal),
            )
        yield from synthesize(self._environment, request, parts)


def _weigh_kinds(environment: "Environment", sources: Sequence[Source]) -> dict[str, float]:
    """Return kind -> number of failed tasks; {} (for all kinds) if no such kind can be drawn."""
    counts = Counter(
        source.task.capability
        for source in sources
        if source.task.capability in environment.capabilities
    )
    return {str(kind): float(count) for kind, count in sorted(counts.items())}


def _describe_prior(environment: "Environment", data: TaskProposed) -> PriorTask:
    return PriorTask.of(environment.task(data.task.id))
