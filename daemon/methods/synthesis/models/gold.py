"""Choose a perfect agent's calls from those that a model made (pure).

These calls are kept: all that change something or hand the user over, and the first that identifies
the user; look-ups of named and of changed things; the earliest look-ups that give the arguments of
kept calls and the words that the agent must say. If no kept call has a tool of the plan, the last
call of that tool is kept. Other look-ups were detours. Source: ALGORITHMS 1.8 (SENTINEL, arXiv
2606.12908, section 3.4): writes, and the reads for what must be said.
"""

from collections.abc import Iterable, Sequence

from daemon.methods.synthesis.models.exploration import SandboxCall
from envs.environment import Environment
from envs.evidence.words import leaves, words
from envs.task import TaskDefinition
from events.messages import Action


def choose_gold(
    environment: Environment,
    calls: Sequence[SandboxCall],
    tools: Sequence[str],
    text: str,
    outputs: Sequence[str],
) -> tuple[Action, ...]:
    """Return the gold actions in the order of the calls. `tools` are the plan's, `text` is the
    user's, and `outputs` are the words that the agent must say."""
    effects = [place for place, call in enumerate(calls) if has_effect(environment, call.action)]
    look_ups = [
        place
        for place, call in enumerate(calls)
        if place not in effects and call.action.requestor == "assistant"
    ]
    choice = _Choice(calls, words(text))
    for place in look_ups:
        if calls[place].action.name in environment.catalog.authenticating:
            choice.keep(place)
            break
    for place in look_ups:
        if _list_words(calls[place].action) <= words(text):
            choice.keep(place)
    for place in effects:
        values = _list_words(calls[place].action)
        for earlier in look_ups:
            if earlier < place and _list_words(calls[earlier].action) <= values:
                choice.keep(earlier)
        choice.keep(place)
    for output in outputs:
        choice.explain(words(output), len(calls))
    for tool in tools:
        choice.cover(tool, look_ups)
    return choice.list_actions(effects)


def replay_gold(environment: Environment, task: TaskDefinition) -> str:
    """Return the digest of the state after a task's gold actions."""
    database = environment.reset(task)
    tools = environment.open_tools(task, database)
    for action in task.criteria.gold_actions or ():
        tools.call(action.name, action.arguments, action.requestor)
    return database.digest()


def has_effect(environment: Environment, action: Action) -> bool:
    """Return whether a call changes the state or hands the user over."""
    return action.name in environment.changes | environment.catalog.transfer


class _Choice:
    """The calls kept so far, and the words that are known after them."""

    def __init__(self, calls: Sequence[SandboxCall], known: set[str]) -> None:
        self._calls, self._known = calls, set(known)
        self._places: set[int] = set()

    def keep(self, place: int) -> None:
        """Keep a call and the earlier calls that give its arguments."""
        if place in self._places:
            return
        self._places.add(place)
        call = self._calls[place]
        self.explain(_list_words(call.action), place)
        self._known |= words(call.result)

    def explain(self, wanted: Iterable[str], before: int) -> None:
        """Keep the earliest calls before a place whose answers have the wanted, unknown words."""
        for word in sorted(set(wanted) - self._known):
            for place in range(before):
                if word in self._known:
                    break
                if word in words(self._calls[place].result):
                    self.keep(place)

    def cover(self, tool: str, among: Sequence[int]) -> None:
        """Keep the last call of a tool, if none of its calls is kept."""
        if not any(self._calls[place].action.name == tool for place in self._places):
            for place in [place for place in among if self._calls[place].action.name == tool][-1:]:
                self.keep(place)

    def list_actions(self, effects: Sequence[int]) -> tuple[Action, ...]:
        """Return the actions in order. A look-up appears once, a change as often as it was made."""
        actions: list[Action] = []
        for place in sorted(self._places):
            action = self._calls[place].action
            if place in effects or action not in actions:
                actions.append(action)
        return tuple(actions)


def _list_words(action: Action) -> set[str]:
    return words(" ".join(leaf for leaf in leaves(action.arguments) if isinstance(leaf, str)))
