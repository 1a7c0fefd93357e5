"""What each arm trains on, from one diagnosis: pools of tasks, replay, references.

    a   traffic alone
    b   references and their siblings first (supervised), then as d
    c   that supervised part alone
    d   targets, each with a pool of its own, and replay of what passed

b and d share seeds, pools and replay, so that they differ in the warm start alone.
"""

from collections.abc import Iterator, Mapping
from itertools import islice

from daemon.engine.policy import Policy
from daemon.solver.sampling.local import Attempt, InProcess, Rollout
from envs import evaluation
from envs.endpoint import Usage
from envs.environment import Environment
from envs.evaluation import episode_seed
from envs.reward import conduct_of, shape
from envs.task import TaskDefinition
from events.jobs import TaskPool, WarmStart
from events.messages import StrictModel
from ops.learning.seeds import PART, Seeds
from ops.learning.settings import Settings
from ops.learning.targets import Target, Targets, fresh


class Plan(StrictModel):
    """What an arm trains on; each pool has as many tasks as the budget can have groups."""

    pools: tuple[TaskPool, ...]
    warm_start: WarmStart | None = None


def plan_general(
    environment: Environment, mix: Mapping[str, float], seeds: Seeds, run: int, groups: int
) -> Plan:
    """Arm (a)."""
    tasks = environment.mixture(mix, seed=run, first_task=seeds.training)
    ids = tuple(task.id for task in islice(tasks, groups))
    return Plan(pools=(TaskPool(name="traffic", tasks=ids),))


def plan_targets(
    environment: Environment,
    targets: Targets,
    settings: Settings,
    seeds: Seeds,
    run: int,
    groups: int,
    *,
    warm: bool,
) -> Plan:
    """Arms (b), (c) and (d)."""
    step = PART // settings.rule.most
    if groups > step:
        raise ValueError(
            f"{groups} groups exceed the {step} task seeds that each of {settings.rule.most} "
            "targets has; lower the budget or rule.most"
        )
    shown = settings.warm_start.references if warm else 0
    pools = [
        TaskPool(
            name=target.pool,
            share=(1 - settings.replay) / len(targets.targets),
            tasks=_fresh(environment, target, seeds.training + place * step, groups, run),
            references=_fresh(environment, target, seeds.references + place * step, shown, run),
        )
        for place, target in enumerate(targets.targets)
    ]
    replay = fresh(environment, weigh_replay(targets, settings), seeds.replay, groups, run)
    pools.append(TaskPool(name="replay", share=settings.replay, tasks=replay, replay=True))
    return Plan(
        pools=tuple(pools),
        warm_start=_warm_start(environment, targets, settings, seeds, run) if warm else None,
    )


def _fresh(
    environment: Environment, target: Target, first: int, count: int, run: int
) -> tuple[str, ...]:
    return fresh(environment, {target.generator: 1}, first, count, run)


def _warm_start(
    environment: Environment, targets: Targets, settings: Settings, seeds: Seeds, run: int
) -> WarmStart:
    """Return the warm start for all targets, which comes before anything else."""
    wanted = settings.warm_start
    count = round(wanted.references * wanted.siblings) * len(targets.targets)
    siblings = fresh(environment, targets.siblings, seeds.siblings, count, run)
    return WarmStart(mode="always", siblings=siblings, sft=wanted.sft)


def weigh_replay(targets: Targets, settings: Settings) -> dict[str, float]:
    """Generator -> its weight in the replay."""
    parts = ((settings.siblings, targets.siblings), (1 - settings.siblings, targets.kept))
    weights = dict.fromkeys(targets.kept, 0.0)
    for share, counts in parts:
        whole = sum(counts.values())
        for name, count in counts.items():
            weights[name] += share * count / whole if whole else 0.0
    return weights


def make_attempts(tasks: Iterator[TaskDefinition], run: int, purpose: str) -> Iterator[Attempt]:
    """One attempt at each task."""
    for task in tasks:
        yield Attempt(
            task=task,
            group=task.id,
            seed=episode_seed(run, task.id, 0),
            rollout=f"{purpose}/{task.id}",
        )


def convert_rollout(rollout: Rollout) -> evaluation.Attempt:
    """A rollout of this process as simulated rollouts are recorded."""
    episode, tokens = rollout.episode, rollout.trajectory.tokens
    assert episode.termination is not None, "a finished episode says why it ended"
    assert rollout.grade.reward is not None, "these environments leave nothing to a judge"
    catalog = episode.environment.catalog
    conduct = conduct_of(episode.messages, catalog, episode.malformed, tokens)
    reward = shape(rollout.grade.reward, conduct)
    return evaluation.Attempt(
        task=episode.task,
        trial=0,
        seed=episode.seed,
        messages=tuple(episode.messages),
        termination=episode.termination,
        reason=episode.reason,
        grade=rollout.grade,
        reward=reward,
        penalties={name: v for name, v in reward.components.items() if name != "task"},
        usage=Usage(completion_tokens=tokens),
        user_usage=Usage(),
    )


def play_traffic(
    player: InProcess,
    environment: Environment,
    policy: Policy,
    mix: Mapping[str, float],
    seeds: Seeds,
    run: int,
    count: int,
) -> list[evaluation.Attempt]:
    """The policy on its first tasks of traffic."""
    tasks = islice(environment.mixture(mix, seed=run, first_task=seeds.traffic), count)
    return [
        convert_rollout(r)
        for r in player.play(environment, make_attempts(tasks, run, "traffic"), policy)
    ]
