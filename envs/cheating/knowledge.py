"""A cheater's knowledge of a kind of task: everything except the task that it plays. It comes from
the environment's code, its policy and tasks of other seeds. It depends only on these arguments of
`learn`: environment, kind and seed."""

from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, takewhile
from typing import Any, Final

from envs.agents import CLOSING
from envs.environment import Environment
from envs.episode import Episode, play
from envs.task import TaskDefinition
from envs.users import STOP_TOKENS
from events.canonical import exact_json
from events.messages import Action, Message

OTHER_TASKS: Final = 200
"""Number of tasks of a kind whose definitions a cheater knows."""
_PLAYED: Final = 12
"""Number of these tasks for which it knows the oracle's episode."""
_STATES: Final = 3
"""Number of these tasks for which it knows the first state."""
_NOTHING: Final = exact_json([])
_MOST_TEXTS: Final = 5_000
"""Largest number of texts that are kept from the first states of other tasks."""


@dataclass(frozen=True, slots=True)
class RightEpisode:
    """The oracle's episode of another task of the kind."""

    task: TaskDefinition
    messages: tuple[Message, ...]
    """The agent's messages."""
    closed: bool
    """Whether the agent's last words ended the episode, and not an act of the user."""


@dataclass(frozen=True)
class Knowledge:
    """The knowledge of a kind that a cheater has from other tasks of the kind."""

    environment: Environment
    others: tuple[TaskDefinition, ...]
    episodes: tuple[RightEpisode, ...]

    @cached_property
    def policy(self) -> str:
        """The policy of the first other task."""
        return self.environment.policy(self.others[0])

    @cached_property
    def answers(self) -> Counter[tuple[str, ...]]:
        """Outputs of a task as one tuple -> the number of other tasks that have them."""
        return Counter(task.criteria.outputs for task in self.others)

    @cached_property
    def commonest_answers(self) -> tuple[tuple[str, ...], ...]:
        """The outputs of each task as one tuple, the most frequent first."""
        return tuple(answer for answer, _ in self.answers.most_common())

    @cached_property
    def has_answers(self) -> bool:
        """Whether tasks differ in their outputs, apart from sentences of the policy."""
        return len({tuple(filter(self._is_answer, outputs)) for outputs in self.answers}) > 1

    def _is_answer(self, output: str) -> bool:
        has_digit = any(character.isdigit() for character in output)
        return has_digit or output.lower() not in self.policy.lower().replace(",", "")

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Every single output of the other tasks, without duplicates."""
        return tuple(dict.fromkeys(chain.from_iterable(self.commonest_answers)))

    @cached_property
    def common_writes(self) -> tuple[Action, ...]:
        """Gold writes that all other tasks have, such as a switch that a look-up needs."""
        first, *rest = [self.find_writes(task) for task in self.others]
        return tuple(action for action in first if all(action in writes for writes in rest))

    @cached_property
    def is_constant(self) -> bool:
        """Whether all other tasks have the same writes and outputs. Then one fixed act after an
        honest look-up always fulfils the task."""
        return len(self.answers) == 1 and len(self._changes) == 1

    @cached_property
    def commonest_episode(self) -> RightEpisode:
        """The oracle's episode whose changes occur in most other tasks. Episodes with changes come
        first, since a refusal needs no change after a look-up."""
        return max(self.episodes, key=self._rank)

    @cached_property
    def gold_tools(self) -> tuple[str, ...]:
        """The agent's tools in gold actions of other tasks, the most frequent first."""
        calls = Counter(
            action.name
            for task in self.others
            for action in task.criteria.gold_actions or ()
            if action.requestor == "assistant"
        )
        return tuple(name for name, _ in calls.most_common())

    @cached_property
    def instructions(self) -> tuple[str, ...]:
        """The oracle's words to users in other tasks, the most frequent first; no closing words."""
        said = Counter(
            text
            for episode in self.episodes
            for text in {message.text for message in episode.messages if not message.tool_calls}
        )
        return tuple(text for text, _ in said.most_common() if text != self.last_words)

    @cached_property
    def last_words(self) -> str:
        """The words that all closed episodes of the oracle end with, else the usual ones."""
        lasts = [episode.messages[-1].text.split() for episode in self.episodes if episode.closed]
        if not lasts:
            return CLOSING
        ends = zip(*(reversed(words) for words in lasts), strict=False)
        common = [words[0] for words in takewhile(lambda words: len(set(words)) == 1, ends)]
        return " ".join(reversed(common)) or CLOSING

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts in the first states of other tasks, without duplicates."""
        states = (self.environment.reset(task) for task in self.others[:_STATES])
        values = (walk_json(state[name]) for state in states for name in state.names)
        texts = (value for value in chain.from_iterable(values) if isinstance(value, str))
        return tuple(islice(dict.fromkeys(texts), _MOST_TEXTS))

    def find_writes(self, task: TaskDefinition) -> tuple[Action, ...]:
        """Return the agent's gold writes of a task."""
        writes, transfers = self.environment.writes, self.environment.catalog.transfer
        return tuple(
            action
            for action in task.criteria.gold_actions or ()
            if action.requestor == "assistant" and action.name in writes | transfers
        )

    def _rank(self, episode: RightEpisode) -> tuple[bool, int]:
        changes = self._key(episode.task)
        return changes != _NOTHING, self._changes[changes]

    @cached_property
    def _changes(self) -> Counter[str]:
        return Counter(map(self._key, self.others))

    def _key(self, task: TaskDefinition) -> str:
        """Return a task's gold changes as text, without the arguments of transfers."""
        transfers = self.environment.catalog.transfer
        return exact_json(
            [
                (action.name, {} if action.name in transfers else action.arguments)
                for action in task.criteria.gold_actions or ()
                if action.name in self.environment.changes | transfers
            ]
        )


def learn(
    environment: Environment, capability: str, first_seed: int
) -> Generator[None, None, Knowledge]:
    """Learn a kind from its tasks from `first_seed` on. Yield after each task, so that a caller can
    alternate between kinds that share a seed's costly state. Pass on the environment's errors."""
    others: list[TaskDefinition] = []
    episodes: list[RightEpisode] = []
    for seed in range(first_seed, first_seed + OTHER_TASKS):
        others.append(environment.generate(capability, seed))
        if len(episodes) < _PLAYED:
            episodes.append(_play_right(environment, others[-1]))
        yield
    return Knowledge(environment, tuple(others), tuple(episodes))


def _play_right(environment: Environment, task: TaskDefinition) -> RightEpisode:
    episode = play(Episode(environment, task), environment.oracle(task), environment.user(task))
    own = [m for m in episode.messages if m.role == "assistant" and m.sampled is not False]
    last = episode.messages[-1]
    closed = last.role == "assistant" or last.text.strip() in STOP_TOKENS
    return RightEpisode(task, tuple(own), closed and bool(own))


def walk_json(value: Any) -> Iterator[Any]:
    """Yield a JSON value and every value inside it."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from walk_json(item)
