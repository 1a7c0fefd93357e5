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
from daemon.solver.rollouts import Attempt, InProcess, Rollout
from envs import evaluation
from envs.endpoint import Usage
from envs.environment import Environment
from envs.evaluation import episode_seed
from envs.reward import conduct_of, shape
from envs.task import TaskDefinition
from events.messages import Frozen
from ops.learning.seeds import PART, Seeds
from ops.learning.settings import Settings
from ops.learning.targets import Targets, fresh


class Pool(Frozen):
    """Tasks that groups are drawn from."""

    name: str
    tasks: tuple[str, ...]


class Plan(Frozen):
    """What an arm trains on; each pool has as many tasks as the budget can have groups."""

    pools: tuple[Pool, ...]
    replay: Pool | None = None
    references: tuple[str, ...] = ()
    """Tasks of the targets that the oracle plays."""
    siblings: tuple[str, ...] = ()
    """Tasks with the opposite answer that it plays."""

    @property
    def shown(self) -> int:
        """Reference trajectories, all of which count."""
        return len(self.references) + len(self.siblings)


def general(
    environment: Environment, mix: Mapping[str, float], seeds: Seeds, run: int, groups: int
) -> Plan:
    """Arm (a)."""
    tasks = environment.mixture(mix, seed=run, first_task=seeds.training)
    return Plan(pools=(_pool("traffic", (task.id for task in islice(tasks, groups))),))


def targeted(
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
    places = range(len(targets.targets))
    step = PART // settings.rule.most
    if groups > step:
        raise ValueError(
            f"{groups} groups exceed the {step} task seeds that each of {settings.rule.most} "
            "targets has; lower the budget or rule.most"
        )
    names = [target.generator for target in targets.targets]
    shown = settings.warm_start.references if warm else 0
    opposite = round(shown * settings.warm_start.siblings) * len(names)
    return Plan(
        pools=tuple(
            Pool(
                name=target.pool,
                tasks=fresh(
                    environment,
                    {target.generator: 1},
                    seeds.training + place * step,
                    groups,
                    run,
                ),
            )
            for place, target in zip(places, targets.targets, strict=True)
        ),
        replay=Pool(
            name="replay",
            tasks=fresh(environment, replayed(targets, settings), seeds.replay, groups, run),
        ),
        references=tuple(
            task
            for place, name in zip(places, names, strict=True)
            for task in fresh(environment, {name: 1}, seeds.references + place * shown, shown, run)
        ),
        siblings=fresh(environment, targets.siblings, seeds.siblings, opposite, run),
    )


def replayed(targets: Targets, settings: Settings) -> dict[str, float]:
    """Generator -> its weight in the replay."""
    parts = ((settings.siblings, targets.siblings), (1 - settings.siblings, targets.kept))
    found = dict.fromkeys(targets.kept, 0.0)
    for share, counts in parts:
        whole = sum(counts.values())
        for name, count in counts.items():
            found[name] += share * count / whole
    return found


def _pool(name: str, tasks: Iterator[str]) -> Pool:
    return Pool(name=name, tasks=tuple(tasks))


def sampled(tasks: Iterator[TaskDefinition], run: int, purpose: str) -> Iterator[Attempt]:
    """One attempt at each task."""
    for task in tasks:
        yield Attempt(
            task=task,
            group=task.id,
            seed=episode_seed(run, task.id, 0),
            rollout=f"{purpose}/{task.id}",
        )


def recorded(rollout: Rollout) -> evaluation.Attempt:
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


def diagnosed_traffic(
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
    return [recorded(r) for r in player.play(environment, sampled(tasks, run, "traffic"), policy)]
