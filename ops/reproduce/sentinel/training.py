"""From recorded rollouts to two jobs of one budget: general on traffic, targeted on failures.

Traffic is generated (envs/). Real tasks are only evaluated on, and read here to exclude training
tasks with the same calls.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from consumers.reads.learning import CycleRow
from consumers.reads.rollouts import last_round
from daemon.config.settings import Proposer, Settings
from daemon.core.app import App
from daemon.cycle.planner import CyclePlanner
from daemon.evaluation.run import (
    Means,
    ModelEndpoint,
    Run,
    Selection,
    Spec,
    digest_of,
    load_run,
    lock_evaluation,
    play_run,
    prepare_setup,
    survey,
)
from envs.environment import Environment
from events.errors import KintsugiError
from events.jobs import JobSpec, TaskPool
from events.learning import JobRequested, TaskRejected
from ops.reproduce.homes import ALIAS, build_settings, build_source, open_plan_environment
from ops.reproduce.jobs import build_training, change_spec
from ops.reproduce.sentinel.settings import TEMPERATURE, Reproduction
from producers.simulation import Provenance

_FIRST_RECORDED: Final = 1_000_000
"""Task seed of the first recorded rollout; seeds of evaluated generated tasks begin at 0."""
_FIRST_GENERAL: Final = 2_000_000
_RETRIES: Final = 5


class NoJob(KintsugiError):
    """The recorded rollouts gave no tasks to train on."""


class TrafficSpec(Spec):
    """Rollouts that stand for the agent's own traffic, which a round diagnoses."""

    @property
    def provenance(self) -> Provenance:
        """Return the provenance of live traffic."""
        return Provenance(alias=self.alias, base=self.base, policy=self.agent.model, purpose="live")


@dataclass(frozen=True, slots=True)
class Jobs:
    """The two jobs, and the numbers of excluded tasks."""

    general: JobSpec
    targeted: JobSpec
    excluded: int
    """Number of tasks left out because an evaluated task has the same calls."""
    rejected: int


def build_own_settings(plan: Reproduction, home: Path) -> Settings:
    """Return the settings of a home, with the budget and tasks of the targeted job."""
    counts = plan.counts
    return build_settings(
        plan,
        home,
        build_training(
            plan,
            rollouts=counts.rollouts - counts.recorded,
            groups=counts.groups,
            size=counts.size,
            temperature=TEMPERATURE,
            algorithm="sentinel",
        ),
        Proposer(tasks=counts.written, targeted_step=0.5, targeted_most=0.5, probe=False),
    )


def draw_traffic(
    plan: Reproduction, environment: Environment, first: int, count: int
) -> tuple[str, ...]:
    """Return ids of generated tasks in the shares of the traffic, with seeds from `first` on."""
    shares = plan.traffic or dict.fromkeys(environment.capabilities, 1.0)
    tasks = environment.mixture(shares, seed=plan.seed, first_task=first)
    return tuple(task.id for task in islice(tasks, count))


def record_traffic(plan: Reproduction, home: Path) -> int:
    """Play the recorded tasks with the base, after a kill only the missing ones; return their
    number."""
    environment = open_plan_environment(plan)
    spec = TrafficSpec(
        environment=plan.env,
        selection=Selection(
            ids=draw_traffic(plan, environment, _FIRST_RECORDED, plan.counts.recorded)
        ),
        trials=1,
        seed=plan.seed,
        agent=ModelEndpoint(
            plan.base_url,
            plan.model,
            TEMPERATURE,
            plan.max_tokens,
            moved_from=plan.first.base_url,
        ),
        user=None,
        candidates=1,
        timeout=300.0,
        alias=ALIAS,
        base=plan.model,
    )
    lines = survey(environment, spec)
    digest = digest_of(spec, lines)
    with App(build_own_settings(plan, home)) as app, lock_evaluation(app.home, digest):
        app.settle()
        with app.reading() as connection:
            run = load_run(connection, Run(digest, 1, lines, spec.trials))
        if run.pending:
            asyncio.run(_play(app, environment, spec, run, plan.concurrency))
        app.settle()
    return len(run.ended)


async def _play(app: App, environment: Environment, spec: Spec, run: Run, most: int) -> None:
    means = Means(None, None, most, _RETRIES)
    async with AsyncExitStack() as stack:
        setup = await prepare_setup(stack, environment, spec, means)
        async with aclosing(play_run(app, setup, spec, run, most)) as batches:
            async for _ in batches:
                pass


def plan_jobs(plan: Reproduction, home: Path) -> Jobs:
    """Write tasks for diagnosed failures as a first cycle does. Return both jobs. Raise NoJob."""
    environment = open_plan_environment(plan)
    with App(build_own_settings(plan, home)) as app:
        row = _describe_cycle(app, plan)
        planner = CyclePlanner(app)
        directive = planner.write_directive(row).directive
        proposal = planner.propose_tasks(replace(row, directive=directive))
    events = list(proposal.said.values())
    jobs = [event.spec for event in events if isinstance(event, JobRequested)]
    if not jobs:
        raise NoJob(f"{home} gave no job: {proposal.lacking}; record more, or another --seed")
    evaluated = read_signatures(plan, environment)
    pools, excluded = exclude_evaluated(environment, jobs[0].pools, evaluated)
    targeted = _fit(plan, jobs[0], "targeted", plan.counts.rollouts - plan.counts.recorded, pools)
    groups = plan.counts.rollouts // plan.counts.size
    drawn = draw_traffic(plan, environment, _FIRST_GENERAL, groups)
    own, others = exclude_evaluated(environment, [TaskPool(name="traffic", tasks=drawn)], evaluated)
    return Jobs(
        general=_fit(plan, jobs[0], "general", plan.counts.rollouts, own),
        targeted=targeted,
        excluded=excluded + others,
        rejected=sum(isinstance(event, TaskRejected) for event in events),
    )


def _describe_cycle(app: App, plan: Reproduction) -> CycleRow:
    with app.reading() as connection:
        closed = last_round(connection)
    if closed is None:
        raise NoJob(f"{app.home} has no diagnosed round; run the stage diagnose first")
    return CycleRow(
        cycle=f"reproduce-{plan.digest[:12]}", alias=ALIAS, base=plan.model, number=1,
        environment=plan.env, trigger="operator", reason="reproduction", position={}, slot=None,
        acted=None, round=closed.round, directive=None, findings=(), summary=None, analyzer=None,
        trouble=None, accepted=0, rejected=0, job=None, version=None, outcome=None,
        ended_because=None, event="reproduce", started=None, diagnosed=None,
        directed=None, ended=None,
    )  # fmt: skip


def read_signatures(plan: Reproduction, environment: Environment) -> frozenset[str]:
    """Return the signatures of all evaluated tasks."""
    tasks = Selection(**plan.select_evaluated()).tasks(environment, plan.seed)
    return frozenset(task.signature for task in tasks if task.signature is not None)


def exclude_evaluated(
    environment: Environment, pools: Sequence[TaskPool], evaluated: frozenset[str]
) -> tuple[tuple[TaskPool, ...], int]:
    """Return the pools without tasks that have the same calls as an evaluated task, and the number
    of removed tasks. Empty pools are dropped. Raise NoJob if only replay pools are left."""
    kept = [tuple(_keep(environment, pool.tasks, evaluated)) for pool in pools]
    excluded = sum(len(pool.tasks) for pool in pools) - sum(map(len, kept))
    left = tuple(
        pool.model_copy(update={"tasks": tasks})
        for pool, tasks in zip(pools, kept, strict=True)
        if tasks
    )
    if not any(not pool.replay for pool in left):
        raise NoJob(f"all {excluded} tasks to train on ask for the calls of an evaluated one")
    return left, excluded


def _keep(
    environment: Environment, tasks: Sequence[str], evaluated: frozenset[str]
) -> Iterator[str]:
    return (task for task in tasks if environment.task(task).signature not in evaluated)


def _fit(
    plan: Reproduction, spec: JobSpec, name: str, rollouts: int, pools: tuple[TaskPool, ...]
) -> JobSpec:
    source = build_source(plan, spec.sampler.source)
    sampler = spec.sampler.model_copy(update={"source": source})
    whole = spec.model_copy(update={"sampler": sampler})
    return change_spec(plan, whole, name, rollouts, seed=plan.seed, pools=pools)
