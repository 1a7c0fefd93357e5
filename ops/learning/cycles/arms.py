"""What the arms beside the loop train on: specs of jobs, as the loop's own planner builds them.

    build_general(place, settings)    GRPO from the base on tasks as customers bring them
    build_sft(place, settings)        the oracle's trajectories of weak and of plain kinds

Each seed of the demo has task seeds of its own for these, which no customer, written or held-out
task has.
"""

from itertools import islice
from typing import Final

from daemon.config.settings import Settings as HomeSettings
from daemon.cycle.job_spec import build_job_spec
from daemon.proposer.buffer import TRAFFIC
from envs.shop.environment import Shop
from events.envelope import derive_id
from events.jobs import JobSpec, TaskPool, WarmStart
from ops.demo import general
from ops.demo.place import Place
from ops.learning.cycles.settings import Settings

PER_SEED: Final = 1_000_000
"""Task seeds of one seed's arms."""
_REFERENCES: Final = 100_000
"""Of these, the place of the first weak kind's references."""
_PER_KIND: Final = 50_000
_PLAIN: Final = 900_000
"""Place of the references of plain kinds."""


def first_task(seed: int) -> int:
    """The first task seed of a demo seed's arms; the million before is general RL's of the demo."""
    return general.FIRST_TASK + (1 + seed) * PER_SEED


def build_general(place: Place, settings: Settings) -> JobSpec:
    """The spec of the arm `general`: the home's own, from the base, with all cycles' rollouts."""
    home, seed = place.settings(), place.size.seed
    groups = max(home.training.groups, settings.rollouts // home.training.size)
    tasks = islice(Shop().mixture(settings.mixture, seed, first_task(seed)), groups)
    pool = TaskPool(name=TRAFFIC, tasks=tuple(task.id for task in tasks))
    return _build(home, settings, "general", seed, [pool], settings.rollouts)


def build_sft(place: Place, settings: Settings) -> JobSpec:
    """The spec of the arm `sft`: a warm start and nothing else, over references of all kinds."""
    home, seed, shop = place.settings(), place.size.seed, Shop()
    each, rest = count_references(settings)
    pools = [
        _build_pool(shop, kind, first_task(seed) + _REFERENCES + number * _PER_KIND, each)
        for number, kind in enumerate(settings.weak)
    ]
    plain = {kind: 1.0 for kind in settings.mixture if kind not in settings.weak}
    siblings = islice(shop.mixture(plain, seed, first_task(seed) + _PLAIN), rest) if plain else ()
    total = each * len(settings.weak) + rest
    spec = _build(home, settings, "sft", seed, pools, total)
    warm = WarmStart(mode="always", siblings=tuple(task.id for task in siblings), sft=settings.sft)
    return JobSpec.model_validate({**spec.model_dump(), "grpo": False, "warm_start": warm})


def count_references(settings: Settings) -> tuple[int, int]:
    """References of each weak kind, and of all plain kinds together. Raises ValueError where they
    exceed their task seeds."""
    total = round(settings.references * settings.rollouts)
    each = max(1, round((1 - settings.plain) * total / len(settings.weak)))
    rest = total - each * len(settings.weak)
    room = (_PLAIN - _REFERENCES) // _PER_KIND
    if each >= _PER_KIND or rest > PER_SEED - _PLAIN or len(settings.weak) > room:
        raise ValueError(
            f"{each} references of {len(settings.weak)} weak kinds and {rest} of plain ones exceed "
            "their task seeds; lower cycles or references"
        )
    return each, rest


def _build_pool(shop: Shop, kind: str, first: int, count: int) -> TaskPool:
    """A pool of one kind: `count` references, and the one task that a pool must have."""
    names = [shop.generate(kind, seed).id for seed in range(first, first + count + 1)]
    return TaskPool(name=kind, tasks=tuple(names[:1]), references=tuple(names[1:]))


def _build(
    home: HomeSettings,
    settings: Settings,
    arm: str,
    seed: int,
    pools: list[TaskPool],
    rollouts: int,
) -> JobSpec:
    """The home's spec of a job over these pools: GRPO alone, from the base."""
    training = home.training.model_copy(update={"rollouts": rollouts, "warm_start": "off"})
    return build_job_spec(
        training,
        home.agents[0],
        job=derive_id("cycles", settings.digest, arm, str(seed)),
        base=settings.base_model,
        pools=pools,
    )
