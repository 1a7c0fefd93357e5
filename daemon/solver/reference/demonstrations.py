"""Training data of the reference policy: conversations of the `shop` environment's oracle, as
tokens.

Training, choosing settings and reported figures use separate ranges of seeds.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from transformers import PreTrainedTokenizerFast

from daemon.engine.reference import tokenizer
from daemon.solver.trajectory import TokenSequence
from envs.episode import Episode, play
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from events.messages import Message

TRAINING: Final = range(10_000_000, 20_000_000)
DEVELOPMENT: Final = range(20_000_000, 21_000_000)
"""Seeds of the tasks on which recipe and training step are chosen."""
HELD_OUT: Final = range(30_000_000, 31_000_000)
"""Seeds of the tasks behind the model card's figures."""

VOCABULARY_SEEDS: Final = TRAINING[:100]
"""Seeds whose tasks of every kind contain all words of `shop` and all pieces of its JSON."""
PHASE_SEEDS: Final = 1_000_000


def vocabulary(shop: Shop) -> PreTrainedTokenizerFast:
    """Return the tokenizer of the reference policy, built from shop."""
    tasks = (
        shop.generate(kind, seed) for kind in sorted(shop.capabilities) for seed in VOCABULARY_SEEDS
    )
    return tokenizer.build(transcript(shop, task) for task in tasks)


def transcript(shop: Shop, task: TaskDefinition) -> list[Message]:
    """Return the system prompt and the oracle's conversation, up to the oracle's last message."""
    episode = play(Episode(shop, task), shop.oracle(task), shop.user(task))
    system = Message(role="system", content=shop.policy(task))
    return [system, *episode.messages[:-1]]


def demonstrations(
    shop: Shop, tokens: PreTrainedTokenizerFast, shares: Mapping[str, float], phase: int, seed: int
) -> Iterator[TokenSequence]:
    """Yield demonstrations endlessly. `shares` gives the share of each kind of task; each
    demonstration has its own seed."""
    first = TRAINING[phase * PHASE_SEEDS]
    for task in shop.mixture(shares, seed=seed, first_task=first):
        yield demonstration(tokens, transcript(shop, task))


def demonstration(tokens: PreTrainedTokenizerFast, messages: Iterable[Message]) -> TokenSequence:
    """Return a conversation as ids; the assistant's words and end tokens are marked as written."""
    ids = tokenizer.encode(tokens, tokenizer.render(tokens, messages))
    start = tokenizer.token_id(tokens, tokenizer.START["assistant"])
    end = tokenizer.token_id(tokens, tokenizer.END)
    return TokenSequence(tuple(ids), _mark_completions(ids, start, end), (0.0,) * len(ids))


def _mark_completions(ids: Sequence[int], start: int, end: int) -> tuple[bool, ...]:
    written = []
    speaking = False
    for token in ids:
        written.append(speaking)
        speaking = token == start or (speaking and token != end)
    return tuple(written)
