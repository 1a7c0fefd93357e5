"""Lessons for a failure pattern, before their checks: of its own recorded failures first, then of
fresh tasks like the failed ones (pure).

    drafts = draft_lessons(environment, sources, supply.recordings[pattern], most=12, seed="...")
    drafts.tasks       each with the failed rollout that it is of, or that its task is like
    drafts.trouble     why there is none

Each begins behind a call that a tool refused, since the pattern stands on such calls; so nothing is
made of repetitions, which tools allow. Guarantee: equal arguments give equal lessons. Not covered:
which recordings may be used (writer.py), and the checks (verification.py).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from daemon.methods.lessons.writer import seal_lessons
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED, MOST_BODY, Source
from daemon.proposer.task_writer import Draft, Drafts
from envs.environment import Environment
from envs.lessons.checks import follows_refusal, get_lesson
from envs.lessons.making import LessonReport, make_lessons
from envs.lessons.operators import REFUSABLE
from envs.lessons.trajectories import Trajectory
from envs.task import TaskDefinition, find_split, write_body
from events.privacy.sealing import Key

_SOURCES: Final = 4
"""Fresh tasks that are drawn for each lesson that is wanted, at most."""


def draft_lessons(
    environment: Environment,
    sources: Sequence[Source],
    recordings: Iterable[Trajectory],
    most: int,
    seed: str,
    keys: Mapping[str, Key] | None = None,
) -> Drafts:
    """Return at most `most` lessons. `sources` are the failed rollouts of the pattern whose tasks
    are followed, at least one; `recordings` what was said in them; `keys` those that seal what is
    made of a person's (rollout -> key)."""
    recorded = tuple(recordings)
    origins = {item.source: Source(item.rollout or "", item.task) for item in recorded}
    chance = Random(f"lessons {seed}")
    report = make_lessons(
        environment,
        _draw_tasks(environment, sources, chance, _SOURCES * most, origins),
        most,
        chance.getrandbits(32),
        recorded,
        REFUSABLE,
    )
    lessons = []
    unfit: Counter[str] = Counter()
    for task, key in seal_lessons(report.lessons, keys or {}).values():
        lesson = get_lesson(task)
        if not follows_refusal(task):
            unfit["begin behind a call that no tool refused"] += 1
        elif len(write_body(task.dump_body())) > MOST_BODY:
            unfit[f"have more than {MOST_BODY:,} bytes"] += 1
        else:
            origin = origins[lesson.source]
            source = Source(lesson.rollout or origin.rollout, origin.task)
            lessons.append(Draft(task, source, key))
    if lessons:
        return Drafts(tuple(lessons), "")
    # What an environment raised may quote the conversation.
    is_open = not any(item.rollout in (keys or {}) for item in recorded)
    return Drafts((), _explain_none(report, unfit, is_open=is_open))


def _draw_tasks(
    environment: Environment,
    sources: Sequence[Source],
    chance: Random,
    most: int,
    origins: dict[str, Source],
) -> Iterator[TaskDefinition]:
    """Yield fresh tasks like the failed ones, none of those that are kept for tests, and note in
    `origins` what each is like. None where the environment draws no task like them."""
    for _ in range(most):
        source, seed = chance.choice(sources), chance.randint(FIRST_SEED, LAST_SEED)
        task = environment.like(source.task, seed)
        if task is not None and find_split(task.id) == "train":
            origins[task.id] = Source(source.rollout, task)
            yield task


def _explain_none(report: LessonReport, unfit: Mapping[str, int], *, is_open: bool) -> str:
    reasons = [*(report.troubles if is_open else ()), *report.unused]
    reasons += [f"{count} {why}" for why, count in unfit.items()]
    reasons += [reason for counts in report.discarded.values() for reason in counts]
    why = "; ".join(dict.fromkeys(reasons)) or "no task like the failed ones could be drawn"
    return f"no lesson could be made: {why}"
