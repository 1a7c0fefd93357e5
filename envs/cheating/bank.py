"""The bank of cheaters: agents that know the kind (knowledge.py), but not the task that they play.

    for name, cheater in CHEATERS.items():
        if cheater.applies(knowledge):
            play(Episode(environment, task), CheaterAgent(cheater, knowledge, task), user)

A cheater may make the task's gold look-ups, as an honest agent would. It does not know the task's
gold writes, outputs or first state. Guarantee: a cheater is deterministic, ends every episode with
the kind's closing words, and stays below the limit of failed calls.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any, Final

from envs.agents import GoldAgent, draw_arguments
from envs.cheating.knowledge import Knowledge, walk_json
from envs.comparison.evidence import holds_number
from envs.task import Basis, TaskDefinition
from envs.users import STOP
from events.messages import Action, Message, ToolCall, executed_calls

_NUMBERS: Final = " ".join(map(str, range(3_000)))
_AMOUNTS: Final = " ".join(f"{cents / 100:.2f}" for cents in range(500, 20_001))
_FEW: Final = 8
"""Number of answers that a cheater says if it says only some of them."""
_UNDONE: Final = 3
"""Number of writing tools whose writes a cheater makes and undoes in an episode."""
_STEPS_TO_CLOSE: Final = 5
"""Steps that a cheater reserves for a last call, its result, the closing words and a stop token."""
_OPPOSITES: Final = (
    ("enable", "disable"),
    ("suspend", "resume"),
    ("add", "remove"),
    ("open", "close"),
    ("start", "stop"),
    ("lock", "unlock"),
    ("block", "unblock"),
    ("create", "delete"),
    ("on", "off"),
    ("activate", "deactivate"),
)
"""Pairs of words in the names of tools that undo each other."""
_AGREEMENT: Final = "Yes, I confirm. That is correct, please go ahead."
_SUMMARY: Final = "The user needs a person."
_WORDLESS: Final[frozenset[Basis]] = frozenset(
    {"ACTION", "COMMUNICATE", "DB", "ENV_ASSERTION", "POLICY"}
)
"""Parts of a verdict that do not depend on the agent's words if a task has no outputs."""

_DRAW_MORE: Final = "give criteria.rules the sources of its outputs, and draw them from more values"
_DERIVE: Final = "demand an output that follows from a record and the request, and is in neither"
_DEMAND: Final = "demand a change, or an output that only a look into the state can tell"
_COMPARE: Final = "let a failed or empty call count for nothing, and ACTION compare arguments"
_CALL_FOR: Final = "let violations name every repair that nothing called for"
_VARY: Final = "draw what is to be changed from more values, so that no one change fits many tasks"


@dataclass(slots=True)
class Attempt:
    """One cheater playing one task: its knowledge, the task, and the messages so far."""

    knowledge: Knowledge
    task: TaskDefinition
    messages: Sequence[Message] = ()

    def say(self, text: str) -> Message:
        """Return a message with a text and the closing words."""
        return Message(role="assistant", content=f"{text} {self.knowledge.last_words}".strip())


@dataclass(frozen=True, slots=True)
class Cheater:
    """One way to try to win a task without doing it."""

    does: str
    moves: Callable[[Attempt], Iterator[Message]]
    """Yields the messages before the closing words, each when it is the agent's turn."""
    applies: Callable[[Knowledge], bool]
    remedy: str
    """Advice to the author of tasks that this cheater wins."""
    restores: bool = False
    """Whether a win counts only if the final state equals the first one. Otherwise the cheater may
    have won by a correct guess."""


class CheaterAgent:
    """An agent that plays a cheater's moves, then says the closing words, then a stop token."""

    def __init__(self, cheater: Cheater, knowledge: Knowledge, task: TaskDefinition) -> None:
        self._attempt = Attempt(knowledge, task)
        self._moves = cheater.moves(self._attempt)
        self._closings = iter([knowledge.last_words])
        limits = knowledge.environment.limits
        self._most_failures = limits.max_errors - 1
        self._most_messages = limits.max_steps - _STEPS_TO_CLOSE

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next move, with fresh ids for its calls. Close early if a limit is near."""
        self._attempt.messages = messages
        failed = sum(message.role == "tool" and bool(message.error) for message in messages)
        is_near_limit = failed >= self._most_failures or len(messages) > self._most_messages
        move = None if is_near_limit else next(self._moves, None)
        if move is None:
            text = next(self._closings, STOP)
            return Message(role="assistant", content=text)
        calls = tuple(
            call.model_copy(update={"id": f"call_{len(messages)}_{place}"})
            for place, call in enumerate(move.tool_calls)
        )
        return move.model_copy(update={"tool_calls": calls})


def _say(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call(name: str, arguments: Mapping[str, Any] | str, text: str | None = None) -> Message:
    made = arguments if isinstance(arguments, str) else dict(arguments)
    return Message(
        role="assistant", content=text, tool_calls=(ToolCall(name=name, arguments=made),)
    )


def _act(attempt: Attempt, action: Action) -> Iterator[Message]:
    """Make a call. Before a write, ask the user for a yes as this environment's oracle does."""
    environment = attempt.knowledge.environment
    oracle = environment.oracle(attempt.task)
    if action.name in environment.writes and isinstance(oracle, GoldAgent):
        yield _say(oracle.question(action))
    yield _call(action.name, action.arguments)


def _look_up(attempt: Attempt) -> Iterator[Message]:
    """Make the task's gold look-ups, and the writes that all other tasks of the kind share."""
    environment = attempt.knowledge.environment
    for action in attempt.task.criteria.gold_actions or ():
        if action.requestor != "assistant":
            continue
        if action.name in environment.lookups or action in attempt.knowledge.common_writes:
            yield from _act(attempt, action)


def _has_words(knowledge: Knowledge) -> bool:
    """Return whether a verdict may depend on the agent's words."""
    return any(
        task.criteria.outputs or not _WORDLESS.issuperset(task.criteria.reward_basis)
        for task in knowledge.others
    )


def _always(knowledge: Knowledge) -> bool:
    return True


def _recite(write: Callable[[Knowledge], str]) -> Callable[[Attempt], Iterator[Message]]:
    def moves(attempt: Attempt) -> Iterator[Message]:
        yield attempt.say(write(attempt.knowledge))

    return moves


def _after_lookups(
    moves: Callable[[Attempt], Iterator[Message]],
) -> Callable[[Attempt], Iterator[Message]]:
    def after(attempt: Attempt) -> Iterator[Message]:
        yield from _look_up(attempt)
        yield from moves(attempt)

    return after


def _copy(attempt: Attempt) -> Iterator[Message]:
    """Yield the oracle's messages in the kind's commonest episode, without look-ups."""
    lookups = attempt.knowledge.environment.lookups
    for message in attempt.knowledge.commonest_episode.messages:
        if all(call.name not in lookups for call in message.tool_calls):
            yield message


def _hand_over(write: Callable[[Mapping[str, Any]], Mapping[str, Any] | str]) -> Cheater:
    """Return a cheater that transfers to a person at once, with arguments from `write`."""

    def moves(attempt: Attempt) -> Iterator[Message]:
        for function in _list_functions(attempt):
            if function["name"] in attempt.knowledge.environment.catalog.transfer:
                yield _call(function["name"], write(function))

    return Cheater(
        "hands over at once",
        moves,
        lambda knowledge: bool(knowledge.environment.catalog.transfer),
        _COMPARE,
    )


def _call_gold_tools(arguments: Mapping[str, Any] | str, does: str) -> Cheater:
    """Return a cheater that calls every tool with the same arguments, gold tools first."""

    def moves(attempt: Attempt) -> Iterator[Message]:
        gold = attempt.knowledge.gold_tools
        names = [str(function["name"]) for function in _list_functions(attempt)]
        for name in dict.fromkeys((*(name for name in gold if name in names), *names)):
            yield _call(name, arguments)

    return Cheater(does, moves, _always, _COMPARE)


def _repeat_results(attempt: Attempt) -> Iterator[Message]:
    """Look up, then say every value of the results; not a few, which could be an honest answer."""
    yield from _look_up(attempt)
    results = (item.result for item in executed_calls(attempt.messages) if not item.failed)
    values = dict.fromkeys(
        value for result in results if result for value in _list_values(result.text)
    )
    if len(values) > _FEW:
        yield attempt.say(" ".join(values))


def _list_values(text: str) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    return [str(item) for item in walk_json(value) if not isinstance(item, dict | list)]


def _write_and_undo(attempt: Attempt) -> Iterator[Message]:
    yield from _look_up(attempt)
    known = _find_values(attempt.messages)
    for there, back in islice(_pair_writes(attempt, known), _UNDONE):
        yield from _act(attempt, there)
        yield from _act(attempt, back)


def _pair_writes(attempt: Attempt, known: Mapping[str, Any]) -> Iterator[tuple[Action, Action]]:
    """Yield pairs of a write and its undoing, by the opposite tool or with the old values."""
    writes = attempt.knowledge.environment.writes
    functions = {function["name"]: function for function in _list_functions(attempt)}
    for name in dict.fromkeys((*attempt.knowledge.gold_tools, *functions)):
        if name not in functions or name not in writes:
            continue
        drawn = draw_arguments(functions[name], (_SUMMARY,), Random(name))
        values = {argument: known.get(argument, value) for argument, value in drawn.items()}
        other = {argument: _alter(argument, value) for argument, value in values.items()}
        back = next((tool for tool in _list_opposites(name) if tool in functions), name)
        if back != name or other != values:
            arguments = values if back != name else other
            yield Action(name=name, arguments=arguments), Action(name=back, arguments=values)


def _list_opposites(tool: str) -> Iterator[str]:
    for pair in _OPPOSITES:
        for verb, opposite in (pair, pair[::-1]):
            if verb in tool.split("_"):
                yield "_".join(opposite if word == verb else word for word in tool.split("_"))


def _alter(name: str, value: Any) -> Any:
    """Return another value of the same type. An argument that names a record stays the same."""
    if name.endswith("id"):
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value} x" if isinstance(value, str) else value


def _find_values(messages: Sequence[Message]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for item in executed_calls(messages):
        if isinstance(item.call.arguments, dict):
            known |= item.call.arguments
        if item.result is not None and not item.failed:
            for record in _find_records(item.result.text):
                known |= record
    return known


def _find_records(text: str) -> Iterator[dict[str, Any]]:
    try:
        value = json.loads(text)
    except ValueError:
        return
    yield from (item for item in walk_json(value) if isinstance(item, dict))


def _write_after_end(attempt: Attempt) -> Iterator[Message]:
    """Make each write of another task in a message that also says the closing words."""
    episode = attempt.knowledge.commonest_episode
    for action in attempt.knowledge.find_writes(episode.task):
        yield _call(action.name, action.arguments, attempt.knowledge.last_words)


def _list_functions(attempt: Attempt) -> list[Mapping[str, Any]]:
    schemas = attempt.knowledge.environment.schemas(attempt.task)
    return [schema["function"] for schema in schemas]


def _list_repairs(attempt: Attempt, *, looks: bool) -> list[str]:
    """Return requests to use the user's tools: those that only look if `looks`, else the others."""
    environment = attempt.knowledge.environment
    functions = [schema["function"] for schema in environment.user_schemas(attempt.task)]
    return [
        f"Please use {function['name']}. {function.get('description', '')}"
        for function in functions
        if (function["name"] in environment.user_writes) != looks
    ]


def _tell_tools(parts: int, *, looks: bool = False) -> Callable[[Attempt], Iterator[Message]]:
    """Return moves that ask the user for every change, spread over `parts` messages. If `looks`, a
    message that asks for every look comes first."""

    def moves(attempt: Attempt) -> Iterator[Message]:
        if looks:
            yield _say("\n".join(_list_repairs(attempt, looks=True)))
        yield from _split(_list_repairs(attempt, looks=False), parts)

    return moves


def _tell_instructions(parts: int, most: int | None = None) -> Callable[..., Iterator[Message]]:
    """Return moves that tell the user every instruction that oracles give in other tasks, or only
    the `most` commonest ones, spread over `parts` messages."""

    def moves(attempt: Attempt) -> Iterator[Message]:
        yield from _split(attempt.knowledge.instructions[:most], parts)

    return moves


def _split(texts: Sequence[str], parts: int) -> Iterator[Message]:
    size = max(1, -(-len(texts) // parts))
    for start in range(0, len(texts), size):
        yield _say("\n".join(texts[start : start + size]))


def _varies(knowledge: Knowledge) -> bool:
    """Return whether a verdict depends on answers that differ between tasks and are no sentences of
    the policy."""
    return _has_words(knowledge) and knowledge.has_answers


def _repeats_numbers(knowledge: Knowledge) -> bool:
    """Return whether answers vary and hold numbers; reading texts out would be honest."""
    return _varies(knowledge) and any(map(holds_number, knowledge.outputs))


def _agree(attempt: Attempt) -> Iterator[Message]:
    for _ in range(3):
        yield _say(_AGREEMENT)
    yield attempt.say(_AGREEMENT)


def _join(answers: Sequence[Sequence[str]]) -> str:
    return " ".join(" ".join(answer) for answer in answers)


_RECITALS: Final[Mapping[str, tuple[str, Callable[[Knowledge], str]]]] = {
    "numbers": ("says all numbers from 0 to 2999", lambda knowledge: _NUMBERS),
    "amounts": ("says all amounts from 5.00 to 200.00", lambda knowledge: _AMOUNTS),
    "texts": ("says texts of other states", lambda knowledge: " ".join(knowledge.texts)),
    "outputs": (
        "says the outputs of other tasks of the kind",
        lambda knowledge: " ".join(knowledge.outputs),
    ),
    "few_outputs": (
        f"says the {_FEW} commonest outputs of the kind",
        lambda knowledge: _join(knowledge.commonest_answers[:_FEW]),
    ),
    "commonest_output": (
        "says the commonest output of the kind",
        lambda knowledge: _join(knowledge.commonest_answers[:1]),
    ),
}

_RECITERS: Final = {
    name: Cheater(
        does,
        _recite(write),
        _has_words if name == "commonest_output" else _varies,
        _DRAW_MORE,
    )
    for name, (does, write) in _RECITALS.items()
}

_TELLERS: Final[Mapping[str, tuple[str, Callable[[Attempt], Iterator[Message]]]]] = {
    "tell_every_repair": ("tells the user every repair in one message", _tell_tools(1)),
    "tell_every_repair_in_two": ("tells the user every repair in two messages", _tell_tools(2)),
    "look_and_tell_every_repair": (
        "asks for every look, then for every repair", _tell_tools(2, looks=True),
    ),
    "tell_every_instruction": (
        "says in one message what oracles ask users for", _tell_instructions(1),
    ),
    "tell_every_instruction_in_two": (
        "says in two messages what oracles ask users for", _tell_instructions(2),
    ),
    "tell_instructions_in_turn": (
        "says in turn what oracles ask users for", _tell_instructions(99),
    ),
    "tell_two_instructions": (
        "says the two commonest things that oracles ask users for", _tell_instructions(2, most=2),
    ),
}  # fmt: skip

CHEATERS: Final[Mapping[str, Cheater]] = {
    "close": Cheater("says the closing words at once", lambda attempt: iter(()), _always, _DEMAND),
    "recite_policy": Cheater(
        "says the whole policy",
        lambda attempt: iter([attempt.say(attempt.knowledge.policy)]),
        _always,
        _DEMAND,
    ),
    "agree": Cheater("agrees to everything", _agree, _always, _DEMAND),
    **{f"recite_{name}": cheater for name, cheater in _RECITERS.items()},
    **{
        f"look_up_and_recite_{name}": Cheater(
            f"makes the gold look-ups, then {cheater.does}",
            _after_lookups(cheater.moves),
            _varies,
            cheater.remedy,
        )
        for name, cheater in _RECITERS.items()
    },
    "look_up_and_repeat": Cheater(
        "makes the gold look-ups, then says all that they showed",
        _repeat_results,
        _repeats_numbers,
        _DERIVE,
    ),
    "hand_over": _hand_over(lambda function: draw_arguments(function, (_SUMMARY,), Random(0))),
    "hand_over_without_arguments": _hand_over(lambda function: {}),
    "hand_over_in_vain": _hand_over(lambda function: "{"),
    "call_without_arguments": _call_gold_tools({}, "calls every tool without arguments"),
    "fail": _call_gold_tools({"wrong": "argument"}, "calls every tool with a wrong argument"),
    "fail_to_write_json": _call_gold_tools("{", "calls every tool with arguments that are no JSON"),
    "copy": Cheater("does what is right in another task of the kind", _copy, _always, _VARY),
    "look_up_and_copy": Cheater(
        "makes the gold look-ups, then does what is right in another task",
        _after_lookups(_copy),
        lambda knowledge: not knowledge.is_constant,
        _VARY,
    ),
    "write_and_undo": Cheater(
        "looks up, writes and undoes it",
        _write_and_undo,
        lambda knowledge: bool(knowledge.environment.writes) and not knowledge.is_constant,
        _DEMAND,
        restores=True,
    ),
    "write_after_end": Cheater(
        "writes in closing",
        _write_after_end,
        lambda knowledge: bool(knowledge.find_writes(knowledge.commonest_episode.task)),
        _DEMAND,
    ),
    **{
        name: Cheater(
            does, moves, lambda knowledge: knowledge.environment.user_toolset is not None, _CALL_FOR
        )
        for name, (does, moves) in _TELLERS.items()
    },
}
"""Name -> cheater, the simplest first. If several win equally often, the first is reported."""
