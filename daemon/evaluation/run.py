"""Play one evaluation and report it (log -> episodes -> log).

A `Spec` decides the result. Its digest, with those of the tasks, names the evaluation. A `Run` is
one pass over the tasks; the next run begins when every attempt of the last one has ended. A
rollout's id follows from digest, run, task, trial and try. A rollout in the tables is not played
again. The next command repeats an attempt that an infrastructure error spoiled (`TRIES` in all).

Guarantee: an attempt counts once, even if processes are killed. Not covered: two homes that play
one evaluation at the same time; both play, and one counts.
"""

import asyncio
import fcntl
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from daemon.evaluation.member_agents import MemberAgents
from daemon.evaluation.players import describe_composition, make_endpoint_chooser
from daemon.evaluation.similarity import GradedTask, report_similarity
from envs import grading, statistics
from envs.environment import Environment, UnknownTask
from envs.episode import REGULAR, Termination
from envs.evaluation import (
    UNJUDGED,
    Attempt,
    Setup,
    do_nothing,
    environment_code,
    make_environment_user,
    play_all,
)
from envs.task import GENERATED, TaskDefinition
from events import private
from events.canonical import exact_json, sha256
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import name_simulator
from events.messages import Message
from events.serving import Composition
from producers.gateway.routing.token_scores import select_prompt_fields
from producers.simulation import Provenance, append_rollouts, build_rollout_event

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.rollouts import Verdict
    from daemon.core.app import App
    from envs.endpoint import Endpoint
    from envs.players import Player

TRIES: Final = 3
"""Largest number of tries of an attempt that infrastructure errors spoil."""

Slot = tuple[str, int]
"""One attempt of a run: (task id, trial)."""


class EvaluationBusy(KintsugiError):
    """Another process of this home plays the same evaluation."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The tasks that an evaluation takes from an environment."""

    split: str = GENERATED
    first: int | None = None
    """Number of tasks to take; None: all."""
    ids: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    mix: Mapping[str, float] = field(default_factory=dict)

    def tasks(self, environment: Environment, seed: int) -> Iterator[TaskDefinition]:
        """Yield the tasks; `seed` draws a mixture. Raises UnknownTask, EnvironmentFailure."""
        with environment_code(environment, "while its tasks were made"):
            yield from islice(self._all(environment, seed), self.first)

    def _all(self, environment: Environment, seed: int) -> Iterator[TaskDefinition]:
        if self.ids:
            yield from map(environment.task, self.ids)
        elif self.mix:
            yield from environment.mixture(self.mix, seed)
        else:
            for task in environment.tasks(self.split):
                if not self.capabilities or task.capability in self.capabilities:
                    yield task


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """A model behind an endpoint, and how it is sampled."""

    base_url: str
    model: str
    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    moved_from: str | None = None
    """Address of the endpoint when the evaluation began; None: `base_url`."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that decides the result of an evaluation."""

    environment: str
    selection: Selection
    trials: int
    seed: int
    agent: ModelEndpoint
    user: ModelEndpoint | None
    """Model that plays the user; None: the environment's scripted user."""
    candidates: int
    """Number of candidate lines that the user's model writes for each line."""
    timeout: float
    alias: str
    base: str
    composition: Composition | None = None
    """Members and chooser of the version that the agent's model is; None for one policy."""

    def tasks(self, environment: Environment) -> Iterator[TaskDefinition]:
        """Yield the evaluation's tasks. Raises UnknownTask, EnvironmentFailure."""
        return self.selection.tasks(environment, self.seed)

    @property
    def provenance(self) -> Provenance:
        """Return the facts that each rollout of the evaluation records about its origin."""
        fields = {"alias": self.alias, "base": self.base, "policy": self.agent.model}
        if self.user is None:
            return Provenance(**fields, purpose="evaluate")
        simulator = name_simulator(self.user.model, self.candidates)
        return Provenance(**fields, purpose="evaluate", simulator=simulator)


@dataclass(frozen=True, slots=True)
class Means:
    """Settings of a run that do not belong to the evaluation's identity."""

    agent_key: str | None
    user_key: str | None
    concurrency: int
    retries: int


@dataclass(frozen=True, slots=True)
class Line:
    """The facts about a task that a report needs."""

    id: str
    capability: str
    digest: str
    scripted: bool
    """Whether the task has a script that plays the user."""
    categories: tuple[str, ...] = ()
    """Groups of the report that the task is in, besides its capability."""
    graded: bool = False
    """Whether the task's reward is a score between 0 and 1, not only pass or fail."""
    rules: str = "1"
    """Version of the task's grading rules."""


@dataclass(slots=True)
class Run:
    """One pass over all tasks and trials."""

    digest: str
    number: int
    lines: Sequence[Line]
    trials: int
    ended: dict[Slot, "Verdict"] = field(default_factory=dict)
    """Attempt -> outcome of its last try; attempts without a recorded try are absent."""
    tries: Counter[Slot] = field(default_factory=Counter)
    resumed: int = 0
    """Number of attempts whose result was in the tables when the run was opened."""

    @property
    def slots(self) -> Iterator[Slot]:
        return ((line.id, trial) for line in self.lines for trial in range(self.trials))

    def waits(self, slot: Slot) -> bool:
        """Return whether an attempt has to be played, for the first time or again."""
        verdict = self.ended.get(slot)
        if verdict is None:
            return True
        spoilt = verdict.termination == Termination.INFRASTRUCTURE_ERROR
        return spoilt and self.tries[slot] < TRIES

    @property
    def pending(self) -> int:
        """Return the number of attempts still to be played."""
        return sum(map(self.waits, self.slots))

    def rollout(self, slot: Slot, number: int) -> str:
        """Return the rollout id of an attempt's try `number`, counted from 0."""
        task, trial = slot
        parts = [self.digest, str(self.number), task, str(trial)]
        return derive_id("evaluate", *parts, *([str(number)] if number else []))

    def plan(self, tasks: Iterable[TaskDefinition]) -> Iterator[tuple[TaskDefinition, int]]:
        """Yield each (task, trial) that has to be played; read the tasks one by one."""
        for task in tasks:
            for trial in range(self.trials):
                if self.waits((task.id, trial)):
                    yield task, trial


def survey(
    environment: Environment, spec: Spec, note: Callable[[TaskDefinition], None] | None = None
) -> list[Line]:
    """Return a `Line` for each task of an evaluation, and call `note` with each task. Raises
    UnknownTask, also if there are too few tasks."""
    lines = []
    for task in spec.tasks(environment):
        if note is not None:
            note(task)
        lines.append(
            Line(
                task.id,
                task.capability,
                task.digest(),
                task.script is not None,
                environment.categories(task),
                task.criteria.milestones is not None,
                grading.get_version(task),
            )
        )
    _check(environment, spec.selection, lines)
    return lines


def digest_of(spec: Spec, lines: Sequence[Line]) -> str:
    """Return the evaluation's digest. Equal specs, tasks and rules have equal digests."""
    tasks = [[line.id, line.digest] for line in lines]
    versions = "+".join(sorted({line.rules for line in lines}))
    fields = asdict(spec)
    for endpoint in (fields["agent"], fields["user"]):
        if endpoint is not None and (first := endpoint.pop("moved_from")) is not None:
            endpoint["base_url"] = first
    del fields["composition"]
    if spec.composition is not None:
        fields |= describe_composition(spec.composition)
    return sha256(exact_json([fields, tasks, versions]))


def open_run(connection: "Connection", digest: str, lines: Sequence[Line], trials: int) -> Run:
    """Return the first run with attempts to play, with the attempts that the tables have."""
    for number in count(1):
        run = load_run(connection, Run(digest, number, lines, trials))
        if run.pending:
            return run
    raise AssertionError("there is always a next run")


@contextmanager
def lock_evaluation(home: Path, digest: str) -> Iterator[None]:
    """Hold a lock, so that one process of a home plays an evaluation. Raises EvaluationBusy."""
    path = home / "evaluations" / f"{digest[:16]}.lock"
    private.make_folder(path.parent)
    with private.open_lock(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EvaluationBusy(
                f"another process plays this evaluation (it holds {path}); wait for it, or give "
                "another --seed"
            ) from error
        yield


async def prepare_setup(
    stack: AsyncExitStack, environment: Environment, spec: Spec, means: Means
) -> Setup:
    """Return the environment with its agent and user, after a check of their endpoints."""
    import stamina.instrumentation

    from envs.endpoint import Endpoint, Sampling
    from envs.players import ModelAgent
    from envs.simulator import ModelUser

    # The library would log each retry; the rollout's reason has the result of the retries.
    stamina.instrumentation.set_on_retry_hooks(())

    async def endpoint(served: ModelEndpoint, key: str | None) -> "Endpoint":
        client = Endpoint(
            served.base_url,
            served.model,
            api_key=key,
            concurrency=means.concurrency,
            timeout=spec.timeout,
            attempts=means.retries + 1,
        )
        await stack.enter_async_context(client)
        await client.check()
        return client

    def make_agent(client: "Endpoint", task: TaskDefinition, seed: int) -> ModelAgent:
        return ModelAgent(client, partial(environment.select_schemas, task), seed, sampling)

    def list_fields(task: TaskDefinition, messages: Sequence[Message]) -> dict[str, Any]:
        tools = list(environment.select_schemas(task, messages))
        return select_prompt_fields({**spec.agent.extra, "tools": tools or None})

    sampling = Sampling(spec.agent.temperature, spec.agent.max_tokens, spec.agent.extra)
    agent: Callable[[TaskDefinition, int], Player]
    if spec.composition is None:
        agent = partial(make_agent, await endpoint(spec.agent, means.agent_key))
    else:
        names = (*spec.composition.adapters, None)
        answering = [replace(spec.agent, model=name or spec.base) for name in names]
        clients = [await endpoint(served, means.agent_key) for served in answering]
        endpoints = dict(zip(names, clients, strict=True))
        agent = MemberAgents(
            make_endpoint_chooser(spec.composition, endpoints, list_fields),
            lambda choice, task, seed: make_agent(endpoints[choice.adapter], task, seed),
        )
    user = make_environment_user(environment)
    if spec.user is not None:
        simulator = await endpoint(spec.user, means.user_key)
        user = lambda task, seed: ModelUser(  # noqa: E731
            simulator,
            task,
            seed,
            candidates=spec.candidates,
            tools=environment.user_schemas(task),
        )
    may_err = spec.user is not None
    return Setup(environment, agent=agent, user=user, seed=spec.seed, user_may_err=may_err)


async def play_run(
    app: "App", setup: Setup, spec: Spec, run: Run, concurrency: int
) -> AsyncGenerator[list[tuple[str, Attempt]], None]:
    """Play the missing attempts. Yield lists of (rollout id, attempt) when they are durable in the
    log. Raises the errors of `play_all`, after every finished attempt was recorded."""
    environment, provenance = setup.environment, spec.provenance
    tasks = spec.tasks(environment)
    choices = setup.agent.choices if isinstance(setup.agent, MemberAgents) else {}
    async with aclosing(play_all(setup, run.plan(tasks), concurrency=concurrency)) as finished:
        async for attempts in finished:
            named = [(run.rollout(_slot(a), run.tries[_slot(a)]), a) for a in attempts]
            rollouts = [
                build_rollout_event(attempt, environment, provenance, rollout).model_copy(
                    update={"member": choices.get((attempt.task.id, attempt.seed))}
                )
                for rollout, attempt in named
            ]
            # In another thread, because a sync of the disk must not delay the episodes.
            await asyncio.to_thread(append_rollouts, app.spool, app.blobs, rollouts)
            for attempt in attempts:
                _note(run, attempt)
            yield named


def passive(
    environment: Environment, spec: Spec, progress: Callable[[int], None] = lambda _: None
) -> dict[str, grading.Grade]:
    """Return task -> the verdict on an agent that does nothing. Nothing is recorded."""
    grades = {}
    for task in spec.tasks(environment):
        grades[task.id] = do_nothing(environment, task)
        progress(1)
    return grades


def report(
    spec: Spec,
    run: Run,
    idle: Mapping[str, grading.Grade],
    add: Callable[[Sequence[Line]], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the document of `kintsugi eval --json`. `add` gets the tasks that count and returns
    more fields.

    pass^k counts only tasks without a part for a judge, because others could only fail here. The
    others are listed, and `without_judge` counts all tasks without the judge's part.
    """
    open_tasks = {task for task, grade in idle.items() if grade.open_parts}
    judged = [line for line in run.lines if line.id not in open_tasks]
    document: dict[str, Any] = {
        "tasks": len(run.lines),
        "trials": spec.trials,
        "pass_hat": by_k(statistics.pass_hat, outcomes_of(run, judged)),
        "per_capability": {
            capability: {
                "tasks": len(lines),
                "pass_hat": by_k(statistics.pass_hat, outcomes_of(run, lines)),
            }
            for capability, lines in _by_capability(judged).items()
        },
        "repair_at": by_k(statistics.repair_at, outcomes_of(run, judged)),
        "do_nothing": _do_nothing(idle, judged),
        "unjudged": sum(verdict.termination in UNJUDGED for verdict in run.ended.values()),
        "unevaluated": _group_judge_tasks(idle),
        "terminations": dict(
            sorted(Counter(str(v.termination) for v in run.ended.values()).items())
        ),
        "run": {"evaluation": run.digest[:16], "number": run.number, "resumed": run.resumed},
    }
    if graded := [_collect_scores(run, line, idle) for line in run.lines if line.graded]:
        document |= report_similarity(graded)
    if add is not None:
        document |= add(judged)
    if open_tasks:
        outcomes = outcomes_of(run, run.lines, without_judge=True)
        document["without_judge"] = {
            "tasks": len(run.lines),
            "pass_hat": by_k(statistics.pass_hat, outcomes),
        }
    return document


def report_overall(played: Mapping[str, tuple[Run, Mapping[str, grading.Grade]]]) -> dict[str, Any]:
    """Return pass^k over all tasks of several environments (name -> run and verdicts of `passive`).
    Tasks count equally, as in tau2-bench. Tasks that need a judge are left out."""
    outcomes: dict[str, list[bool | None]] = {}
    for name, (run, idle) in played.items():
        judged = [line for line in run.lines if not idle[line.id].open_parts]
        for task, verdicts in outcomes_of(run, judged).items():
            outcomes[f"{name} {task}"] = verdicts
    return {"tasks": len(outcomes), "pass_hat": by_k(statistics.pass_hat, outcomes)}


def _collect_scores(run: Run, line: Line, idle: Mapping[str, grading.Grade]) -> GradedTask:
    """Return a graded task's scores; attempts without a verdict are left out."""
    ended = [run.ended.get((line.id, trial)) for trial in range(run.trials)]
    judged = [v for v in ended if v is not None and v.success is not None and v.reward is not None]
    return GradedTask(
        categories=line.categories,
        scores=tuple(verdict.reward or 0.0 for verdict in judged),
        idle_score=idle[line.id].reward or 0.0,
    )


def _check(environment: Environment, selection: Selection, lines: Sequence[Line]) -> None:
    missing = sorted(set(selection.capabilities) - {line.capability for line in lines})
    if missing:
        raise UnknownTask(
            f"split {selection.split!r} of environment {environment.name} has no task of "
            f"capability {missing[0]!r}; it can generate {', '.join(environment.capabilities)}"
        )
    if not lines:
        raise UnknownTask(
            f"split {selection.split!r} of environment {environment.name} has no tasks; "
            f"it has {', '.join(environment.splits)}"
        )
    if selection.first is not None and len(lines) < selection.first:
        raise UnknownTask(
            f"there are only {len(lines)} such tasks, {selection.first} were asked for; a mixture "
            f"has any number, such as --mix {lines[0].capability}=1 --tasks {selection.first}"
        )
    doubled = [task for task, times in Counter(line.id for line in lines).items() if times > 1]
    if doubled:
        raise UnknownTask(f"task {doubled[0]!r} is there twice; name each task once")


def load_run(connection: "Connection", run: Run) -> Run:
    """Add to a run the outcomes of its attempts in the tables, and return it."""
    from consumers.reads.rollouts import verdicts

    ids = {run.rollout(slot, tried): slot for slot in run.slots for tried in range(TRIES)}
    for rollout, verdict in verdicts(connection, list(ids)).items():
        slot = ids[rollout]
        run.tries[slot] += 1
        known = run.ended.get(slot)
        if known is None or known.termination == Termination.INFRASTRUCTURE_ERROR:
            run.ended[slot] = verdict
    run.resumed = len(run.ended)
    return run


def _note(run: Run, attempt: Attempt) -> None:
    from consumers.reads.rollouts import Verdict

    slot = _slot(attempt)
    run.tries[slot] += 1
    reward = None if attempt.reward is None else attempt.reward.total
    run.ended[slot] = Verdict(attempt.success, attempt.termination, reward)


def _slot(attempt: Attempt) -> Slot:
    return attempt.task.id, attempt.trial


def outcomes_of(
    run: Run, lines: Sequence[Line], without_judge: bool = False
) -> dict[str, list[bool | None]]:
    """Return task -> verdicts of its trials, without tasks that have no verdict at all."""
    outcomes = {}
    for line in lines:
        ended = [run.ended.get((line.id, trial)) for trial in range(run.trials)]
        verdicts = [None if v is None else _success(v, without_judge) for v in ended]
        if any(success is not None for success in verdicts):
            outcomes[line.id] = verdicts
    return outcomes


def _success(verdict: "Verdict", without_judge: bool) -> bool | None:
    """Return the success. `without_judge` counts a missing verdict as one: other parts were 1."""
    if without_judge and verdict.success is None and verdict.termination in REGULAR:
        return True
    return verdict.success


def by_k(
    estimate: Callable[[statistics.Outcomes, int], statistics.Interval],
    outcomes: statistics.Outcomes,
) -> dict[str, dict[str, float]]:
    """Return k -> the estimate, for each k up to the number of trials that every task has."""
    most = statistics.most_trials(outcomes)
    return {str(k): asdict(estimate(outcomes, k)) for k in range(1, most + 1)}


def _do_nothing(
    idle: Mapping[str, grading.Grade], lines: Sequence[Line]
) -> dict[str, float] | None:
    outcomes = {line.id: [idle[line.id].success] for line in lines}
    return asdict(statistics.pass_hat(outcomes, 1)) if outcomes else None


def _by_capability(lines: Sequence[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = {}
    for line in sorted(lines, key=lambda line: line.capability):
        groups.setdefault(line.capability, []).append(line)
    return groups


def _group_judge_tasks(idle: Mapping[str, grading.Grade]) -> dict[str, list[str]]:
    tasks: dict[str, list[str]] = {}
    for task, grade in idle.items():
        for basis in grade.open_parts:
            tasks.setdefault(basis, []).append(task)
    return tasks
