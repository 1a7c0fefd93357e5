"""From lessons to jobs: supervised training on some, reinforcement learning on the others.

    sft       shows the oracle's reflection, its repair and the rest of the task
    PRESET    continues from that adapter, rewarded for the repair in the first message

If the tokenizer does not decode a reflection unchanged, sft shows repairs without reflections, and
the report states it. No lesson's source has the calls of an evaluated task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from daemon.engine.chat import Chat
from daemon.evaluation.run import Selection
from envs.asides import split_aside, write_aside
from envs.lessons.checks import get_lesson
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.jobs import JobSpec, TaskPool
from ops.reproduce.commands import Document, Folder
from ops.reproduce.homes import open_plan_environment
from ops.reproduce.jobs import build_spec, build_training, change_spec, reinforce, write_job
from ops.reproduce.reflection.commands import find_lessons
from ops.reproduce.reflection.settings import (
    LORA_ALPHA,
    LORA_RANK,
    SUPERVISED,
    TRAINING_TEMPERATURE,
    Reproduction,
)

_POOL: Final = "lessons"


class NoLessons(KintsugiError):
    """There are too few lessons to train on."""


@dataclass(frozen=True, slots=True)
class Lessons:
    """The lessons to show (supervised) and to practise (reinforced)."""

    shown: tuple[TaskDefinition, ...]
    practised: tuple[TaskDefinition, ...]
    excluded: int
    spelled: bool


def select_evaluated(plan: Reproduction) -> Selection:
    """Return the selection of evaluated tasks."""
    return Selection(plan.split, plan.counts.tasks)


def write_jobs(plan: Reproduction, folder: Folder) -> Document:
    """Write the spec of each job, and the bodies of its tasks. Raise NoLessons."""
    lessons = select_lessons(plan, folder)
    tasks = {task.id: task for task in (*lessons.shown, *lessons.practised)}
    bodies = {name: task.model_dump_json(exclude={"id"}) for name, task in tasks.items()}
    for name, spec in plan_jobs(plan, folder, lessons).items():
        write_job(folder, name, spec, bodies)
    return {
        "shown": len(lessons.shown),
        "practised": len(lessons.practised),
        "excluded": lessons.excluded,
        "spelled": lessons.spelled,
    }


def select_lessons(plan: Reproduction, folder: Folder) -> Lessons:
    """Return the lessons in the file, without those on evaluated tasks. Raise NoLessons."""
    environment = open_plan_environment(plan)
    evaluated = {task.signature for task in select_evaluated(plan).tasks(environment, plan.seed)}
    lines = find_lessons(folder).read_bytes().splitlines()
    made = [TaskDefinition.model_validate_json(line) for line in lines]
    kept = list(alternate([task for task in made if task.signature not in evaluated]))
    if len(kept) < 2:
        raise NoLessons(
            f"{find_lessons(folder)} has {len(made)} lessons, and {len(kept)} are of no evaluated "
            "task; give another --seed"
        )
    count = min(plan.counts.shown, len(kept) // 2)
    chat = Chat(plan.checkpoint)
    spelled = all(is_spelled(chat, get_lesson(task).reflection) for task in kept[:count])
    shown = kept[:count] if spelled else [_remove_lesson(task) for task in kept[:count]]
    unique = {task.id: task for task in shown}
    return Lessons(tuple(unique.values()), tuple(kept[count:]), len(made) - len(kept), spelled)


def alternate(lessons: Sequence[TaskDefinition]) -> Iterator[TaskDefinition]:
    """Yield lessons so that the operators alternate, as long as each has lessons left."""
    groups: dict[str, list[TaskDefinition]] = {}
    for task in lessons:
        groups.setdefault(get_lesson(task).operator, []).append(task)
    for row in zip_longest(*groups.values()):
        yield from (task for task in row if task is not None)


def is_spelled(chat: Chat, reflection: str) -> bool:
    """Return whether the tokenizer decodes a reflection unchanged."""
    text = chat.text(chat.encode(write_aside(reflection)))
    return split_aside(text)[0] == reflection


def _remove_lesson(task: TaskDefinition) -> TaskDefinition:
    """Return the task without its lesson: it begins after the mistake and expects no reflection."""
    return task.model_copy(update={"lesson": None}).name_by_content()


def plan_jobs(plan: Reproduction, folder: Folder, lessons: Lessons) -> dict[str, JobSpec]:
    """Return the spec of each arm."""
    whole = _build_whole(plan, lessons)
    specs = {SUPERVISED: change_spec(plan, whole, SUPERVISED, len(lessons.shown), grpo=False)}
    parent, rollouts = folder.adapter(SUPERVISED), plan.counts.rollouts
    for name in plan.presets:
        specs[name] = reinforce(plan, whole, name, rollouts, parent, name)
    return specs


def _build_whole(plan: Reproduction, lessons: Lessons) -> JobSpec:
    counts = plan.counts
    training = build_training(
        plan,
        rollouts=counts.rollouts + len(lessons.shown),
        groups=counts.groups,
        size=counts.size,
        temperature=TRAINING_TEMPERATURE,
        lora_rank=LORA_RANK,
        lora_alpha=LORA_ALPHA,
        warm_start="always",
    )
    pool = TaskPool(
        name=_POOL,
        tasks=tuple(task.id for task in lessons.practised),
        references=tuple(task.id for task in lessons.shown),
        reward="repair",
    )
    return build_spec(plan, training, pool)
