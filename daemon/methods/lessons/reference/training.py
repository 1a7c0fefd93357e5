"""Train the second reference policy, which sees lessons in its first phase.

    python -m daemon.methods.lessons.reference.training --out DIR --seed 0

It sometimes reflects on a refused call and repairs it. Its tokenizer knows the words of lessons.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Annotated, Final

from pydantic import Field
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.reference import tokenizer
from daemon.engine.reference.recipe import RECIPE, Phase, Recipe
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.reference.demonstrations import PHASE_SEEDS, TRAINING, vocabulary
from daemon.solver.reference.train import Mix, build_parser, run
from daemon.solver.trajectory import TokenSequence
from daemon.solver.warm_start import examples, reference
from envs.lessons.checks import get_lesson
from envs.lessons.gold import render_gold
from envs.lessons.making import make_lessons
from envs.shop.environment import Shop
from envs.task import TaskDefinition

REFLECTING: Final = CHECKPOINT.parent / "reflecting"
LESSON_SEEDS: Final = TRAINING[8 * PHASE_SEEDS :]
"""Seeds of the tasks from which lessons are made."""
LESSONS: Final = 2400
"""Number of lessons that training draws from."""
SHARE: Final = 0.02


class LessonPhase(Phase):
    """A phase of training in which some examples are lessons."""

    lessons: Annotated[float, Field(ge=0, lt=1)]
    """Share of lessons among the examples (docs/lessons.md)."""


REFLECTING_RECIPE: Final = Recipe(
    phases=(
        LessonPhase(**RECIPE.phases[0].model_dump(), lessons=SHARE),
        *RECIPE.phases[1:-1],
        RECIPE.phases[-1].model_copy(update={"test_tasks": 64}),
    )
)
"""The first reference policy's recipe, with lessons in the first phase."""


def make_training_lessons(
    shop: Shop, shares: Mapping[str, float], seed: int
) -> tuple[TaskDefinition, ...]:
    """Return the lessons for training, made of tasks whose kinds have these shares."""
    sources = shop.mixture(shares, seed=seed, first_task=LESSON_SEEDS.start)
    return make_lessons(shop, islice(sources, len(LESSON_SEEDS)), LESSONS, seed).lessons


def extend_vocabulary(shop: Shop, lessons: Iterable[TaskDefinition]) -> PreTrainedTokenizerFast:
    """Return the second policy's tokenizer: the first one's with the words of the lessons."""
    texts = (render_gold(get_lesson(lesson)) for lesson in lessons)
    return tokenizer.extend(vocabulary(shop), texts)


def demonstrate_lessons(
    shop: Shop, chat: Chat, lessons: Iterable[TaskDefinition], seed: int
) -> Iterator[TokenSequence]:
    """Yield lessons' token sequences in endless random order. Raise ValueError without any."""
    played = [reference(shop, chat, lesson, lesson.id) for lesson in lessons]
    shown = examples(played)
    if not shown:
        raise ValueError(f"the oracle passes none of {len(played)} lessons")
    chance = Random(f"lessons {seed}")
    while True:
        yield chance.choice(shown)


def mix_in(lessons: Iterable[TokenSequence], seed: int) -> Mix:
    """Return a function that mixes lessons into a phase's demonstrations."""
    practice = iter(lessons)

    def mix(shown: Iterator[TokenSequence], phase: Phase, place: int) -> Iterator[TokenSequence]:
        share = phase.lessons if isinstance(phase, LessonPhase) else 0.0
        chance = Random(f"lessons {seed} {place}")
        while True:
            yield next(practice) if chance.random() < share else next(shown)

    return mix


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, test, and choose a checkpoint."""
    options = build_parser("daemon.methods.lessons.reference.training").parse_args(arguments)
    made = make_training_lessons(Shop(), REFLECTING_RECIPE.phases[0].shares, options.seed)

    def make_mix(chat: Chat) -> Mix:
        return mix_in(demonstrate_lessons(Shop(), chat, made, options.seed), options.seed)

    return run(options, REFLECTING_RECIPE, extend_vocabulary(Shop(), made), make_mix)


if __name__ == "__main__":
    sys.exit(main())
