"""Write a successful conversation for each skill, which an untrained router reads as an example.

TRACE's router reads a successful trajectory beside each description (arXiv 2604.05336). Here the
environment's oracle and user play a task that the member was trained on. Tasks from a person's
session are left out, since the log stores the text. Guarantee: the same members have the same
examples, on every machine with the log. Not covered: members without a job of this home.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from consumers.reads import learning
from consumers.reads.serving import AdapterRow
from daemon.core.task_definitions import open_event_environment
from envs.environment import Environment, UnknownTask
from envs.episode import Episode, PrefixMismatch, play
from envs.evaluation import EnvironmentFailure, environment_code
from envs.grading import grade
from envs.registry import EnvironmentBroken, UnknownEnvironment
from envs.task import TaskDefinition
from events.jobs import JobSpec
from producers.gateway.skills.label_router import render_transcript

if TYPE_CHECKING:
    from daemon.core.app import App

log = logging.getLogger(__name__)

MOST_CHARACTERS: Final = 600
"""Most characters of an example, since every session waits for the router to read the prompt."""
_TRIES: Final = 8
"""Most tasks of a skill that are tried for an example."""
_NOT_SHOWN: Final = (
    EnvironmentBroken, EnvironmentFailure, PrefixMismatch, UnknownEnvironment, UnknownTask,
)  # fmt: skip
"""Errors of a task or its environment, after which the next task is tried."""


def write_examples(app: "App", members: Mapping[str, AdapterRow]) -> dict[str, str]:
    """Return skill -> a successful conversation; warn if a skill has none. Raise
    DatabaseUnavailable, KeysUnavailable."""
    examples: dict[str, str] = {}
    for skill, member in members.items():
        with app.reading() as connection:
            job = None if member.job is None else learning.job(connection, member.job)
        text = None if job is None else next(_write_texts(app, job.spec), None)
        if text is None:
            log.warning("no example of the skill %s: %s has no task to show", skill, member.adapter)
        else:
            examples[skill] = text
    return examples


def _write_texts(app: "App", spec: JobSpec) -> Iterator[str]:
    pools = [pool for pool in spec.target_pools if not pool.rewards_repairs]
    tasks = [(pool.environment or spec.environment, task) for pool in pools for task in pool.tasks]
    opened: dict[str, Environment] = {}
    for place, name in tasks[:_TRIES]:
        try:
            if place not in opened:
                opened[place] = open_event_environment(app, place)
            task = opened[place].task(name)
            text = None if task.salt is not None else write_conversation(opened[place], task)
        except _NOT_SHOWN as error:
            log.warning("task %s is no example: %s", name, error)
            continue
        if text is not None:
            yield text


def write_conversation(environment: Environment, task: TaskDefinition) -> str | None:
    """Return the conversation of oracle and user about a task, cut to `MOST_CHARACTERS`; None if
    the oracle fails. Raise EnvironmentFailure, PrefixMismatch."""
    with environment_code(environment, f"task {task.id}", task):
        episode = Episode(environment, task)
        play(episode, environment.oracle(task), environment.user(task))
        passed = grade(environment, task, episode.messages, episode.termination).success
    if not passed:
        return None
    messages = [{"role": m.role, "content": m.text} for m in episode.messages if m.role != "tool"]
    return render_transcript(messages)[:MOST_CHARACTERS]
