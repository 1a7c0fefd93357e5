"""Decide whether the agent proposes what the task asks for (pure).

A script says yes to every question for consent. A model that plays the user may refuse other
proposals. So a refusal is a fault only if the proposal holds the values of a gold write.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from envs.environment import Environment
from envs.evidence.spelling import has_value
from envs.evidence.utterances import negates
from envs.evidence.words import leaves, squeeze, words
from envs.task import TaskDefinition
from events.messages import Action

_STEM: Final = 5
"""Number of first letters in which two forms of a verb agree, such as exchange and exchanging."""


class Proposals:
    """Recognizes the agent's proposals in the rollouts of one task."""

    def __init__(self, environment: Environment, task: TaskDefinition, situation: str) -> None:
        """`situation`: all that the user may say, as lower-case letters and digits only."""
        self._environment, self._task, self._situation = environment, task, situation

    def has_gold(self, text: str) -> bool:
        """Return whether a text proposes a gold write: it has each value of the write that the user
        may say, no negation, and not only another writing tool's verb."""
        if negates(text):
            return False
        compact, stems = squeeze(text), {word[:_STEM] for word in words(text)}
        return any(
            self._holds(action, values, compact, stems) for action, values in self._gold_writes
        )

    def _holds(self, action: Action, values: Sequence[str], compact: str, stems: set[str]) -> bool:
        if not all(has_value(compact, value) for value in values):
            return False
        verb = _find_verb(action.name)
        if verb in stems:
            return True
        return bool(values) and not stems & (self._verbs - {verb})

    @cached_property
    def _verbs(self) -> set[str]:
        return {_find_verb(name) for name in self._environment.writes}

    @cached_property
    def _gold_writes(self) -> list[tuple[Action, list[str]]]:
        """The agent's gold writes, each with those of its values that the user may say."""
        return [
            (action, list(self._list_values(action)))
            for action in self._task.criteria.gold_actions or ()
            if action.requestor == "assistant" and action.name in self._environment.writes
        ]

    def _list_values(self, action: Action) -> Iterator[str]:
        for leaf in leaves(action.arguments):
            if isinstance(leaf, str) and squeeze(leaf) and has_value(self._situation, leaf):
                yield leaf


def _find_verb(tool: str) -> str:
    return tool.lower().partition("_")[0][:_STEM]
