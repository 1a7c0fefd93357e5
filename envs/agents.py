"""Agents that need no model; they serve to check environments. An agent's answer depends only on
the transcript and its seed, so its episodes can be played again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from envs.task import TaskDefinition
from events.messages import Action, ExecutedCall, Message, ToolCall, executed_calls

CLOSING: Final = "Your request is complete."
"""The last sentence of an agent that has nothing else to say."""


class Agent(Protocol):
    """A player of the agent: takes the messages that it can see, and returns its next one."""

    def reply(self, messages: Sequence[Message]) -> Message: ...


def call(action: Action, number: int) -> Message:
    """Return an assistant's message that makes one call."""
    tool_call = ToolCall(name=action.name, arguments=dict(action.arguments), id=f"call_{number}")
    return Message(role="assistant", tool_calls=(tool_call,))


def count_done(messages: Sequence[Message], actions: Sequence[Action]) -> int:
    """Return how many of its gold actions an oracle has done, counting the task's prefix."""
    done = 0
    for item in executed_calls(messages):
        if item.requestor == "assistant" and done < len(actions):
            done += is_done(actions[done], item)
    return done


def is_done(action: Action, item: ExecutedCall) -> bool:
    """Return whether `item` carries out the oracle's next gold action. A call by the oracle itself
    always does; a call in the task's prefix does if it is the same call and succeeded."""
    call = item.call
    same = (call.name, call.arguments) == (action.name, action.arguments)
    return item.sampled or (same and not item.failed)


def count_calls(messages: Sequence[Message]) -> int:
    """Return how many calls the agent has made."""
    return sum(len(message.tool_calls) for message in messages if message.role == "assistant")


class GoldAgent:
    """The oracle: it knows the gold actions of the task and makes them one by one."""

    def __init__(self, task: TaskDefinition, writes: frozenset[str]) -> None:
        self.actions = [
            action for action in task.criteria.gold_actions or () if action.requestor == "assistant"
        ]
        self.outputs = task.criteria.outputs
        self.writes = writes

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next gold action's call, the question before a write, or the closing words."""
        done = count_done(messages, self.actions)
        if done == len(self.actions):
            return Message(role="assistant", content=self.final_text())
        action = self.actions[done]
        if action.name in self.writes and not _has_question(messages):
            return Message(role="assistant", content=self.question(action))
        return call(action, done)

    def question(self, action: Action) -> str:
        """Return a question that describes the write `action` and asks the user for a yes."""
        details = ", ".join(f"{name} {_plain(value)}" for name, value in action.arguments.items())
        return f"I will {action.name.replace('_', ' ')}: {details}. Do you confirm (yes/no)?"

    def final_text(self) -> str:
        """Return the outputs that the task demands and the closing sentence."""
        return " ".join([*self.outputs, CLOSING])


class NullAgent:
    """An agent that always says the same empty sentence and calls no tool."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the same sentence for every transcript."""
        return Message(role="assistant", content="Thank you for your message.")


class RandomAgent:
    """Calls random tools with arguments that fit their schemas, and sometimes only talks."""

    def __init__(self, schemas: Sequence[Mapping[str, Any]], seed: int, calls: int = 8) -> None:
        self.functions = [schema["function"] for schema in schemas]
        self.seed = seed
        self.calls = calls
        """Largest number of calls that it makes; afterwards it only talks."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return a call or a sentence."""
        chance = Random(f"random agent {self.seed} {len(messages)}")
        done = count_calls(messages)
        if done >= self.calls or chance.random() < 0.2:
            return Message(role="assistant", content=chance.choice(_SENTENCES))
        function = chance.choice(self.functions)
        arguments = draw_arguments(function, _values(messages), chance)
        return call(Action(name=function["name"], arguments=arguments), done)


def draw_arguments(
    function: Mapping[str, Any], words: Sequence[str], chance: Random
) -> dict[str, Any]:
    """Return random arguments that fit a tool's schema. String values are drawn from `words`."""
    parameters = function.get("parameters") or {}
    values = _Values(parameters.get("$defs", {}), words, chance)
    return {
        name: values.draw(schema, name) for name, schema in parameters.get("properties", {}).items()
    }


_MAX_DEPTH: Final = 8
"""Largest depth of a drawn value. A schema may refer to itself, so a bound is needed."""

_SENTENCES: Final = ("Yes.", "No.", "Done.", "Please confirm.", "I cannot do that.", CLOSING)


def _has_question(messages: Sequence[Message]) -> bool:
    """Return whether the last two messages are an agent's question and the user's answer, and the
    user spoke before that question. So an answer to the greeting does not count."""
    return (
        len(messages) >= 2
        and messages[-1].role == "user"
        and messages[-2].role == "assistant"
        and any(message.role == "user" for message in messages[:-2])
    )


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _values(messages: Sequence[Message]) -> list[str]:
    words: set[str] = set()
    for message in messages[-40:]:
        if message.role != "system":
            words.update(word.strip('.,:;!?"{}[]()') for word in message.text.split())
    return sorted(words - {""})


@dataclass(frozen=True, slots=True)
class _Values:
    definitions: Mapping[str, Any]
    seen: Sequence[str]
    """Words of the transcript, from which strings are drawn."""
    chance: Random

    def draw(self, schema: Any, name: str, depth: int = 0) -> Any:
        """Return a random value that fits `schema`; `name` is the argument's name."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return name
        if schema.get("enum"):
            return self.chance.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "$ref" in schema:
            target = str(schema["$ref"]).rpartition("/")[2]
            return self.draw(self.definitions.get(target), name, depth + 1)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            return self.draw(self.chance.choice(choices), name, depth + 1)
        return self._of_type(schema, name, depth)

    def _of_type(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        kind = schema.get("type")
        if kind in ("integer", "number"):
            return self.chance.randrange(0, 5)
        if kind == "boolean":
            return self.chance.random() < 0.5
        if kind == "null":
            return None
        if kind == "array":
            item = schema.get("items", {})
            return [self.draw(item, name, depth + 1) for _ in range(self.chance.randrange(1, 3))]
        if kind == "object":
            inner = schema.get("properties", {})
            return {key: self.draw(value, key, depth + 1) for key, value in inner.items()}
        return self.chance.choice(self.seen) if self.seen else name
