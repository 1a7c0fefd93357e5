"""Collect a router's training examples: conversations up to the agent's first answer.

The prompts are the gateway's (producers/gateway/skills/label_router.py). The job's seed decides
which examples are held out and the order of the others.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from daemon.engine.chat import Chat, as_chat
from daemon.methods.skills.engine_router import render_router_prompts
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.sampling.opening import read_opening
from daemon.solver.spec import NothingPlayable
from events.jobs import JobSpec, PanelRouter

log = logging.getLogger(__name__)

_HELD_OUT: Final = 5
"""One of this many tasks of an option is held out."""


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation and the skill that it needs."""

    task: str
    skill: str | None
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of the router's prompts, one prompt for each order of the labels."""


def collect_examples(spec: JobSpec, environments: JobEnvironments, chat: Chat) -> list[Example]:
    """Return an example for each task whose episode asks the agent. Raise NoTemplate,
    EnvironmentFailure, UnknownTask. Raise NothingPlayable if an option has less than two."""
    router = _get_router(spec)
    examples: list[Example] = []
    for pool in spec.pools:
        for task in pool.tasks:
            environment, definition = environments.find(task), environments.task(task)
            view = read_opening(environment, definition)
            if view is None:
                log.warning("left out: %s ends before the agent is asked", task)
                continue
            tools = environment.select_schemas(definition, view) if chat.shows_tools else ()
            messages = [as_chat(message) for message in view]
            prompts = render_router_prompts(chat, router, messages, tools)
            examples.append(Example(task, pool.skill, tuple(prompts)))
    for option in router.options:
        own = sum(example.skill == option.skill for example in examples)
        if own < 2 and (own or option.skill is not None):
            raise NothingPlayable(
                f"option {option.label} of the router ({option.skill or 'no skill'}) has {own} "
                "tasks that can be shown, and needs two: one to learn from, one to be held out; "
                "add tasks to a pool of it"
            )
    return examples


def _get_router(spec: JobSpec) -> PanelRouter:
    assert spec.router is not None, "a job that teaches a router has one"
    return spec.router


def split(examples: Sequence[Example], seed: int) -> tuple[list[Example], list[Example]]:
    """Return the examples to train on, and those held out: a fifth of each option's, or one."""
    training: list[Example] = []
    held_out: list[Example] = []
    for skill in dict.fromkeys(example.skill for example in examples):
        own = [example for example in examples if example.skill == skill]
        Random(f"router {seed} held out {skill}").shuffle(own)
        size = max(1, len(own) // _HELD_OUT)
        held_out += own[:size]
        training += own[size:]
    return training, held_out


class Draw:
    """Gives out examples in training order: options take turns, each with its examples shuffled."""

    def __init__(self, examples: Sequence[Example], router: PanelRouter, seed: int) -> None:
        """`examples` must have some for every option with a skill."""
        skills = [option.skill for option in router.options]
        groups = [[example for example in examples if example.skill == name] for name in skills]
        self._streams = [_stream(group, seed) for group in groups if group]
        self._turn = 0

    def take(self, size: int) -> list[Example]:
        """Return the next `size` examples."""
        taken = []
        for _ in range(size):
            taken.append(next(self._streams[self._turn]))
            self._turn = (self._turn + 1) % len(self._streams)
        return taken


def _stream(examples: Sequence[Example], seed: int) -> Iterator[Example]:
    for epoch in count():
        order = list(examples)
        Random(f"router {seed} {epoch} {order[0].skill}").shuffle(order)
        yield from order
