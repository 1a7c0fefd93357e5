"""One arm on one seed: references and a job as the daemon runs it, then held-out tasks and lessons.

Everything follows from the key and the settings (and the machine's arithmetic). The job leaves
adapter and journal in a folder beside the result, from which a run that was killed goes on.
"""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import torch

from daemon.adapters.directory import WEIGHTS, verify
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.recipe import WEAK
from daemon.solver import job
from daemon.solver.journal import DEFINITIONS, write_definitions
from daemon.solver.reference.repairs import reflects
from daemon.solver.sampling.local import Attempt, InProcess, Rollout
from daemon.solver.warm_start import examples, reference
from envs.evaluation import episode_seed
from envs.lessons.checks import get_lesson
from envs.lessons.making import make_lessons
from envs.lessons.observation import observe
from envs.lessons.operators import PERTURBATIONS
from envs.shop.environment import Shop
from envs.task import Operator, TaskDefinition, write_body
from events.errors import KintsugiError
from events.jobs import InProcessSource, JobSpec, Sampler, TaskPool, WarmStart
from ops.learning.evaluation import generate_holdout
from ops.learning.reflection.results import ArmRun, Key, Tries
from ops.learning.reflection.settings import ARMS, PROMPT, TAUGHT, ArmDefinition, Settings
from ops.learning.run import LENGTH, SLOTS, JobError, count_uses, describe_source, read_batches
from ops.learning.seeds import PART, PRACTISED, TUNED, Seeds

_RARE: Final[Operator] = "swap"
"""The perturbation that few kinds of task allow."""


class TooFewLessons(KintsugiError):
    """Tasks that give fewer lessons than the settings ask for."""


class PromptedShop(Shop):
    """The shop with a line on reflections in its system prompt."""

    def policy(self, task: TaskDefinition) -> str:
        """Return the system prompt."""
        return f"{super().policy(task)}\n{PROMPT}"


@dataclass(frozen=True, slots=True)
class Shown:
    """The references of an arm."""

    lessons: tuple[TaskDefinition, ...] = ()
    ordinary: tuple[TaskDefinition, ...] = ()
    weak: tuple[TaskDefinition, ...] = ()
    """Only in the arm `loop`."""

    @property
    def tasks(self) -> tuple[TaskDefinition, ...]:
        """All of them."""
        return self.lessons + self.ordinary + self.weak


class Bench:
    """What a run works with."""

    def __init__(self, key: Key, settings: Settings) -> None:
        self.settings = settings
        self.seed = key.seed
        self.seeds = Seeds.among(TUNED if key.development else PRACTISED, key.seed)
        self.shop = Shop()

    @cached_property
    def policy(self) -> Policy:
        """The base."""
        return Policy.load(self.settings.checkpoint, self.settings.base)

    @cached_property
    def chat(self) -> Chat:
        """Its tokenizer."""
        return Chat(self.settings.checkpoint)

    @cached_property
    def practice(self) -> tuple[TaskDefinition, ...]:
        """Lessons to train on: as many as any arm can use. Raises TooFewLessons."""
        return self._draw_lessons(self.seeds.training, 2 * self.settings.budget)

    @cached_property
    def held_out(self) -> dict[Operator, list[TaskDefinition]]:
        """Operator -> lessons that no arm trains on. Raises TooFewLessons."""
        by_operator: dict[Operator, list[TaskDefinition]] = defaultdict(list)
        count = self.settings.lessons * len(PERTURBATIONS)
        for lesson in self._draw_lessons(self.seeds.traffic, count):
            by_operator[get_lesson(lesson).operator].append(lesson)
        return by_operator

    def _draw_lessons(self, first_task: int, count: int) -> tuple[TaskDefinition, ...]:
        sources = self.shop.mixture(TAUGHT, seed=self.seed, first_task=first_task)
        drawn = draw_lessons(self.shop, islice(sources, PART), self.seed)
        lessons = tuple(islice(drawn, count))
        if len(lessons) < count:
            raise TooFewLessons(
                f"{PART} tasks give {len(lessons)} lessons, and {count} are wanted; ask for fewer "
                "in the settings"
            )
        return lessons

    def draw(
        self, weights: Mapping[str, float], first_task: int, count: int
    ) -> tuple[TaskDefinition, ...]:
        """Return ordinary tasks."""
        tasks = self.shop.mixture(weights, seed=self.seed, first_task=first_task)
        return tuple(islice(tasks, count))

    def count_tokens(self, tasks: Iterable[TaskDefinition]) -> Iterator[int]:
        """Yield the written tokens of each task's reference."""
        for task in tasks:
            played = reference(self.shop, self.chat, task, task.id)
            yield sum(example.tokens for example in examples([played]))


def practise(key: Key, settings: Settings, folder: Path) -> ArmRun:
    """Make one result. Raises JobError, TooFewLessons and what a job raises."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    bench, arm = Bench(key, settings), ARMS[key.arm]
    trained: dict[str, object] = {}
    policy = bench.policy
    if arm.is_trained:
        shown = choose_references(bench, arm)
        spec, bodies = build_spec(bench, key, arm, shown)
        adapter, ended = _run_job(spec, bodies, folder / key.name)
        if adapter is not None:
            policy = bench.policy.with_adapter(adapter, key.name)
        uses = count_uses(read_batches(spec, folder / key.name))
        trained = {
            "references": len(shown.tasks),
            "reference_tokens": sum(bench.count_tokens(shown.tasks)),
            "rollouts": uses["training"],
            "ended": ended,
            "adapter": None if adapter is None else verify(adapter).files[WEIGHTS],
        }
    shop = PromptedShop() if arm.prompted else bench.shop
    return ArmRun.model_validate(
        {
            "key": key,
            "source": describe_source(settings.checkpoint, settings.digest),
            **trained,
            **measure(bench, policy, shop),
            "seconds": time.monotonic() - began,
            "processor_seconds": time.process_time() - worked,
        }
    )


def draw_lessons(
    shop: Shop, sources: Iterable[TaskDefinition], seed: int
) -> Iterator[TaskDefinition]:
    """Yield lessons, one of each perturbation in turn. No two of a perturbation have one source:
    lessons of few conversations are learnt by heart."""
    usual = [name for name in PERTURBATIONS if name != _RARE]
    queues: dict[Operator, deque[TaskDefinition]] = {name: deque() for name in PERTURBATIONS}
    for source, turn in zip(sources, cycle(usual), strict=False):
        report = make_lessons(shop, [source], 2, seed, operators=(turn, _RARE))
        for lesson in report.lessons:
            queues[get_lesson(lesson).operator].append(lesson)
        while all(queues.values()):
            yield from [queue.popleft() for queue in queues.values()]


def choose_references(bench: Bench, arm: ArmDefinition) -> Shown:
    """Return what an arm is shown: half lessons, half ordinary tasks, and in the loop's arm a third
    of each and of the weak kinds. An arm without reflections is shown more lessons, until their
    written tokens are as many."""
    settings = bench.settings
    if arm.shown == "nothing":
        return Shown()
    count = settings.budget if arm.shown == "all" else settings.references
    if arm.algorithm == "loop":
        third = count // 3
        weak = bench.draw(dict.fromkeys(WEAK, 1.0), bench.seeds.siblings, third)
        ordinary = bench.draw(TAUGHT, bench.seeds.references, third)
        return Shown(bench.practice[:third], ordinary, weak)
    half = count // 2
    ordinary = bench.draw(TAUGHT, bench.seeds.references, half)
    if arm.reflects:
        return Shown(bench.practice[:half], ordinary)
    wanted = sum(bench.count_tokens(bench.practice[:half]))
    plain: list[TaskDefinition] = []
    for lesson in map(drop_lesson, bench.practice):
        if wanted <= 0:
            break
        plain.append(lesson)
        wanted -= sum(bench.count_tokens([lesson]))
    return Shown(tuple(plain), ordinary)


def drop_lesson(lesson: TaskDefinition) -> TaskDefinition:
    """Return the same task behind the same mistake, whose reference repairs it without a word."""
    return lesson.model_copy(update={"lesson": None}).name_by_content()


def build_spec(
    bench: Bench, key: Key, arm: ArmDefinition, shown: Shown
) -> tuple[JobSpec, dict[str, str]]:
    """Return an arm's job and the bodies of its tasks by content."""
    settings = bench.settings
    rollouts = settings.budget - len(shown.tasks) if arm.algorithm else 0
    groups = max(1, rollouts // settings.size)
    # Those behind what is shown; a lesson that is drawn is in no arm's references.
    practice = bench.practice[settings.budget // 2 :][:groups]
    weak = settings.weak if arm.algorithm == "loop" else 0.0
    pools = [
        TaskPool(
            name="lessons",
            share=1 - settings.replay - weak,
            tasks=tuple(task.id for task in practice),
            references=tuple(task.id for task in shown.lessons),
            reward=arm.reward if arm.algorithm else "verdict",
        ),
        TaskPool(
            name="replay",
            share=settings.replay,
            tasks=tuple(task.id for task in bench.draw(TAUGHT, bench.seeds.replay, groups)),
            references=tuple(task.id for task in shown.ordinary),
            replay=True,
        ),
    ]
    if weak:
        drawn = bench.draw(dict.fromkeys(WEAK, 1.0), bench.seeds.siblings, len(shown.weak) + groups)
        pools.append(
            TaskPool(
                name="weak",
                share=weak,
                tasks=tuple(task.id for task in drawn[len(shown.weak) :]),
                references=tuple(task.id for task in shown.weak),
            )
        )
    spec = JobSpec(
        job=key.name,
        base=settings.base,
        checkpoint=str(settings.checkpoint),
        environment=bench.shop.name,
        pools=tuple(pools),
        seed=key.seed,
        sampler=Sampler(
            groups=settings.groups,
            size=settings.size,
            rollouts=max(settings.budget, len(shown.tasks)),
            max_tokens=settings.max_tokens,
            momentum=settings.momentum,
            source=InProcessSource(slots=SLOTS, length=LENGTH),
        ),
        warm_start=WarmStart(mode="always", sft=settings.sft) if shown.tasks else None,
        grpo=arm.algorithm is not None,
        algorithm=settings.algorithms[arm.algorithm or "sr_paper"],
        optimizer=settings.optimizer,
        lora=settings.lora,
        limits=settings.limits,
        threads=1,
    )
    lessons = (*practice, *shown.lessons)
    return spec, {task.id: write_body(task.dump_body()) for task in lessons}


def _run_job(spec: JobSpec, bodies: Mapping[str, str], folder: Path) -> tuple[Path | None, str]:
    """Run a job; return its adapter, None after a competence gap, and how it ended. Raises
    JobError."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / DEFINITIONS).exists():
        (folder / DEFINITIONS).write_bytes(write_definitions(bodies))
    outcome = job.run(spec, folder)
    if outcome.outcome == "failed":
        raise JobError(f"{spec.job}: {outcome.reason}")
    adapter = None if outcome.adapter is None else Path(outcome.adapter)
    return adapter, outcome.reason or outcome.outcome


def measure(bench: Bench, policy: Policy, shop: Shop) -> dict[str, object]:
    """Return the outcomes of held-out tasks and lessons as the fields of a result."""
    settings = bench.settings
    player = InProcess(Engine(policy, SLOTS, LENGTH), bench.chat, max_tokens=settings.max_tokens)
    tasks = generate_holdout(shop, settings.kinds, bench.seeds.holdout, settings.tasks)
    clean: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    tokens: dict[str, list[int]] = defaultdict(list)
    for rollout in player.play(shop, _make_attempts(tasks, settings.trials, bench.seed), policy):
        task = rollout.attempt.task
        clean[task.capability][task.id].append(bool(rollout.grade.success))
        tokens[task.capability].append(rollout.trajectory.tokens)
    lessons = [lesson for own in bench.held_out.values() for lesson in own]
    played: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in player.play(shop, _make_attempts(lessons, settings.tries, bench.seed), policy):
        played[rollout.attempt.task.id].append(rollout)
    return {
        "clean": clean,
        "clean_tokens": {kind: sum(own) / len(own) for kind, own in tokens.items()},
        "injected": {
            operator: {lesson.id: _describe(shop, played[lesson.id]) for lesson in own}
            for operator, own in bench.held_out.items()
        },
        "kind_of": {lesson.id: lesson.capability for lesson in lessons},
    }


def _make_attempts(tasks: Sequence[TaskDefinition], trials: int, seed: int) -> Iterator[Attempt]:
    for task in tasks:
        for trial in range(trials):
            yield Attempt(task, task.id, episode_seed(seed, task.id, trial), f"{task.id}/{trial}")


def _describe(shop: Shop, rollouts: Sequence[Rollout]) -> Tries:
    """Return what the tries at one lesson show, in the order in which they ended."""
    seen = [
        observe(shop, get_lesson(r.attempt.task), r.episode.messages, bool(r.grade.success))
        for r in rollouts
    ]
    return Tries(
        repaired=tuple(bool(item.repaired) for item in seen),
        official=tuple(bool(item.official) for item in seen),
        passed=tuple(bool(rollout.grade.success) for rollout in rollouts),
        reflected=tuple(map(reflects, rollouts)),
        repeated=tuple(item.repeated for item in seen),
        tokens=tuple(rollout.trajectory.tokens for rollout in rollouts),
    )
