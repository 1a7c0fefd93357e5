"""The calls of a perfect agent, chosen from those that a model made (pure).

    gold = choose_gold(environment, calls, text, outputs)

Kept are the calls that change something or hand the user over, the first that identifies the user,
the look-ups of what they work on, and the earliest look-ups from which their arguments, and the
words that the agent must say, are known. Without any change every look-up is kept once.
Source: ALGORITHMS 1.8 (SENTINEL, arXiv 2606.12908, section 3.4): writes, and the reads that what
must be said needs.
"""

from collections.abc import Iterable, Sequence

from daemon.synthesis.models.exploration import SandboxCall
from envs.attribution.words import leaves, words
from envs.environment import Environment
from envs.task import TaskDefinition
from events.messages import Action


def choose_gold(
    environment: Environment, calls: Sequence[SandboxCall], text: str, outputs: Sequence[str]
) -> tuple[Action, ...]:
    """Return the gold actions in the order of the calls; `text` is what the user says, `outputs`
    what the agent must say."""
    effects = {place for place, call in enumerate(calls) if _has_effect(environment, call.action)}
    if not effects:
        return _drop_repeats(call.action for call in calls)
    choice = _Choice(calls, words(text))
    if (first := _find_identification(environment, calls)) is not None:
        choice.keep(first)
    for place in sorted(effects):
        for earlier in _find_look_ups(environment, calls, place):
            choice.keep(earlier)
        choice.keep(place)
    for output in outputs:
        choice.explain(words(output), len(calls))
    return choice.list_actions(effects)


def replay_gold(environment: Environment, task: TaskDefinition) -> str:
    """Return the digest of the state that the gold actions of a task leave."""
    database = environment.reset(task)
    tools = environment.open_tools(task, database)
    for action in task.criteria.gold_actions or ():
        tools.call(action.name, action.arguments, action.requestor)
    return database.digest()


def _has_effect(environment: Environment, action: Action) -> bool:
    """Whether a call changes the state or hands the user over."""
    return action.name in environment.changes | environment.catalog.transfer


class _Choice:
    """The calls that are kept, and what is known after them."""

    def __init__(self, calls: Sequence[SandboxCall], known: set[str]) -> None:
        self._calls, self._known = calls, set(known)
        self._places: set[int] = set()

    def keep(self, place: int) -> None:
        """Keep a call and those from which its arguments are known."""
        if place in self._places:
            return
        self._places.add(place)
        call = self._calls[place]
        self.explain(words(" ".join(_list_texts(call.action))), place)
        self._known |= words(call.result)

    def explain(self, wanted: Iterable[str], before: int) -> None:
        """Keep the earliest calls before a place whose answers have the words that are not known
        yet; words that no answer has are left to the checks."""
        for word in sorted(set(wanted) - self._known):
            for place in range(before):
                if word in self._known:
                    break
                if word in words(self._calls[place].result):
                    self.keep(place)

    def list_actions(self, effects: set[int]) -> tuple[Action, ...]:
        """Return the actions in order; a look-up once, an effect as often as it was made."""
        actions: list[Action] = []
        for place in sorted(self._places):
            action = self._calls[place].action
            if place in effects or action not in actions:
                actions.append(action)
        return tuple(actions)


def _find_identification(environment: Environment, calls: Sequence[SandboxCall]) -> int | None:
    names = environment.catalog.authenticating
    return next((place for place, call in enumerate(calls) if call.action.name in names), None)


def _find_look_ups(environment: Environment, calls: Sequence[SandboxCall], place: int) -> list[int]:
    """Return the calls before an effect that look up only what it works on."""
    values = set(_list_texts(calls[place].action))
    return [
        earlier
        for earlier in range(place)
        if not _has_effect(environment, calls[earlier].action)
        and calls[earlier].action.requestor == "assistant"
        and (named := set(_list_texts(calls[earlier].action)))
        and named <= values
    ]


def _list_texts(action: Action) -> list[str]:
    return [leaf for leaf in leaves(action.arguments) if isinstance(leaf, str)]


def _drop_repeats(actions: Iterable[Action]) -> tuple[Action, ...]:
    """Return the agent's actions, each once."""
    kept: list[Action] = []
    for action in actions:
        if action.requestor == "assistant" and action not in kept:
            kept.append(action)
    return tuple(kept)
