"""Training data of the reference policies: tokens of the oracle of shop at work and in lessons.

Tasks come from seeds that are set apart here, so that the tasks for training, for choosing settings
and for reported figures never overlap; nothing else should train or test the policy on seeds of
these ranges.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Final

from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.reference import tokenizer
from daemon.solver.trajectory import TokenSequence
from daemon.solver.warm_start import examples, reference
from envs.episode import Episode, play
from envs.lessons.checks import get_lesson
from envs.lessons.gold import render_gold
from envs.lessons.making import make_lessons
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.messages import Message

TRAINING: Final = range(10_000_000, 20_000_000)
DEVELOPMENT: Final = range(20_000_000, 21_000_000)
"""Seeds that recipe and step are chosen on."""
HELD_OUT: Final = range(30_000_000, 31_000_000)
"""Seeds of the tasks behind the figures in the model card."""

VOCABULARY_SEEDS: Final = TRAINING[:100]
"""Seeds whose tasks of every kind contain all pieces of JSON and all words of shop."""
PHASE_SEEDS: Final = 1_000_000
"""Number of seeds reserved for one phase of training."""
LESSON_SEEDS: Final = TRAINING[8 * PHASE_SEEDS :]
"""Seeds of the tasks that lessons are made of."""
LESSONS: Final = 2400
"""Lessons that training draws from."""


def vocabulary(shop: Shop) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the reference policy, built from shop."""
    tasks = (
        shop.generate(kind, seed) for kind in sorted(shop.capabilities) for seed in VOCABULARY_SEEDS
    )
    return tokenizer.build(transcript(shop, task) for task in tasks)


def make_training_lessons(
    shop: Shop, shares: Mapping[str, float], seed: int
) -> tuple[TaskDefinition, ...]:
    """Return the lessons of training, made of tasks in these shares."""
    sources = shop.mixture(shares, seed=seed, first_task=LESSON_SEEDS.start)
    return make_lessons(shop, islice(sources, len(LESSON_SEEDS)), LESSONS, seed).lessons


def extend_vocabulary(shop: Shop, lessons: Iterable[TaskDefinition]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the second policy: the first one's with the words of lessons."""
    texts = (render_gold(get_lesson(lesson)) for lesson in lessons)
    return tokenizer.extend(vocabulary(shop), texts)


def transcript(shop: Shop, task: TaskDefinition) -> list[Message]:
    """Return the system prompt and the messages and calls of the oracle serving the customer.

    Ends with the oracle's last message: the user's words on hanging up are not part of it.
    """
    episode = play(Episode(shop, task), shop.oracle(task), shop.user(task))
    system = Message(role="system", content=shop.policy(task))
    return [system, *episode.messages[:-1]]


def demonstrations(
    shop: Shop, tokens: PreTrainedTokenizerFast, shares: Mapping[str, float], phase: int, seed: int
) -> Iterator[TokenSequence]:
    """Yield demonstrations endlessly, with kinds in these shares.

    Every task has a seed of its own, and phases share none.
    """
    first = TRAINING[phase * PHASE_SEEDS]
    for task in shop.mixture(shares, seed=seed, first_task=first):
        yield demonstration(tokens, transcript(shop, task))


def demonstrate_lessons(
    shop: Shop, chat: Chat, lessons: Iterable[TaskDefinition], seed: int
) -> Iterator[TokenSequence]:
    """Yield the sequences of lessons endlessly, in random order, as the oracle plays each: what it
    writes from the reflection on. Raises ValueError where the oracle passes none."""
    played = [reference(shop, chat, lesson, lesson.id) for lesson in lessons]
    shown = examples(played)
    if not shown:
        raise ValueError(f"the oracle passes none of {len(played)} lessons")
    chance = Random(f"lessons {seed}")
    while True:
        yield chance.choice(shown)


def demonstration(tokens: PreTrainedTokenizerFast, messages: Iterable[Message]) -> TokenSequence:
    """Return a conversation as ids; what the assistant said counts as written, end tokens
    included."""
    ids = tokenizer.encode(tokens, tokenizer.render(tokens, messages))
    start = tokenizer.token_id(tokens, tokenizer.START["assistant"])
    end = tokenizer.token_id(tokens, tokenizer.END)
    return TokenSequence(tuple(ids), _mark_completions(ids, start, end), (0.0,) * len(ids))


def _mark_completions(ids: Sequence[int], start: int, end: int) -> tuple[bool, ...]:
    """Return whether each id is between a start and the end that follows it, the end included."""
    written = []
    speaking = False
    for token in ids:
        written.append(speaking)
        speaking = token == start or (speaking and token != end)
    return tuple(written)
