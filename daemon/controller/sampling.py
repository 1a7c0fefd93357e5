"""Sample the rollouts of a round, and shorten each. Pure; the same seed gives the same sample.

    failures    one from each task in turn until there are enough; in a task, spread over rewards
    successes   first those on tasks that failed as well (the contrast), then those on tasks that
                were written for a pattern, then any
    shortened   the first and the last messages of a conversation stay; its longest texts are cut in
                their middle, and arguments of calls are kept to the letter

The random order is a hash of the seed and the rollout, independent of input order and process.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from events.canonical import exact_json, sha256
from events.messages import Message

T = TypeVar("T")

FAILURES: Final = 24
"""Most failed rollouts in the sample of a round."""
SUCCESSES: Final = 8
"""Most successful rollouts in the sample of a round."""
FIRST_MESSAGES: Final = 2
LAST_MESSAGES: Final = 12
CHARACTERS: Final = 24_000
"""Most characters kept of one conversation: about 6,000 tokens."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rollout, without duplicates, that the sample may contain."""

    rollout: str
    task: str
    """Key of the rollout's task; the rollout's own key if it has no task."""
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The part of a conversation that the analyzer model sees."""

    messages: tuple[Message, ...]
    left_out: int = 0
    """Number of messages left out between the first and the last ones."""
    cut: int = 0
    """Number of characters removed from the middle of texts."""


def sample_failures(
    candidates: Iterable[Candidate], seed: str, most: int = FAILURES
) -> list[Candidate]:
    """Return at most `most` failed rollouts, spread over tasks, and within a task over rewards."""
    return list(_first(_round_robin(_by_task(candidates, seed)), most))


def sample_successes(
    candidates: Iterable[Candidate],
    failed: Collection[str],
    written: Collection[str],
    seed: str,
    most: int = SUCCESSES,
) -> list[Candidate]:
    """Return at most `most` successes: on tasks in `failed`, then on `written` tasks, then any."""
    by_use = _group(
        candidates, lambda candidate: (candidate.task not in failed, candidate.task not in written)
    )
    ranked = (_round_robin(_by_task(by_use[use], seed)) for use in sorted(by_use))
    return list(_first((candidate for group in ranked for candidate in group), most))


def shorten(
    messages: Sequence[Message],
    first: int = FIRST_MESSAGES,
    last: int = LAST_MESSAGES,
    characters: int = CHARACTERS,
) -> Excerpt:
    """Return the `first` and `last` messages, with texts cut to `characters` in all if possible."""
    between = max(0, len(messages) - first - last)
    kept = [*messages[:first], *messages[first + between :]] if between else list(messages)
    arguments = sum(
        len(_format_arguments(call.arguments)) for message in kept for call in message.tool_calls
    )
    texts = [message.text for message in kept]
    bound = _bound([len(text) for text in texts], max(0, characters - arguments))
    shown = [_cut(text, bound) for text in texts]
    return Excerpt(
        messages=tuple(
            message.model_copy(update={"content": text or None, "reasoning": None})
            for message, text in zip(kept, shown, strict=True)
        ),
        left_out=between,
        cut=sum(max(0, len(text) - bound) for text in texts),
    )


def order_key(seed: str, name: str) -> str:
    """Return a sort key that puts names in a random order fixed by `seed`."""
    return sha256(f"{seed}|{name}")


def _by_task(candidates: Iterable[Candidate], seed: str) -> Iterator[list[Candidate]]:
    """Yield the candidates of each task, taking one from each reward in turn."""
    by_task = _group(candidates, lambda candidate: candidate.task)
    for task in sorted(by_task, key=lambda name: order_key(seed, name)):
        by_reward = _group(by_task[task], lambda candidate: candidate.reward)
        rewards = sorted(by_reward, key=lambda reward: (reward is not None, reward))
        strata = [
            sorted(by_reward[reward], key=lambda candidate: order_key(seed, candidate.rollout))
            for reward in rewards
        ]
        yield list(_round_robin(strata))


def _group(values: Iterable[T], key: Callable[[T], Hashable]) -> dict[Any, list[T]]:
    groups: defaultdict[Any, list[T]] = defaultdict(list)
    for value in values:
        groups[key(value)].append(value)
    return groups


def _round_robin(groups: Iterable[Sequence[T]]) -> Iterator[T]:
    """Yield the first value of each group, then the second of each group, and so on."""
    waiting = [list(group) for group in groups]
    place = 0
    while waiting := [group for group in waiting if place < len(group)]:
        yield from (group[place] for group in waiting)
        place += 1


def _first(values: Iterator[T], most: int) -> Iterator[T]:
    for _, value in zip(range(most), values, strict=False):
        yield value


def _bound(lengths: Sequence[int], room: int) -> int:
    """Return the greatest limit on a text's length with which all fit into `room` characters."""
    low, high = 0, max(lengths, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(length, middle) for length in lengths) <= room:
            low = middle
        else:
            high = middle - 1
    return low


_GAP: Final = " [...] "


def _cut(text: str, bound: int) -> str:
    if len(text) <= bound:
        return text
    head, tail = bound - bound // 2, bound // 2
    return text[:head] + _GAP + text[len(text) - tail :]


def _format_arguments(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else exact_json(arguments)
