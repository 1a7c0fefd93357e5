"""Limits the messages, tools and other parts of one request. Pure.

A part costs more than its bytes: each message is compared, redacted, checked and stored. The limits
are above what agents send; OpenAI accepts 2,048 messages, 128 tools, 4 stops and 128 choices. Tool
results count as messages in every protocol. Content parts and tool calls are counted over all
messages. The JSON within the calls' arguments has the limits of a body. The values of a body are
counted earlier, on its bytes (events/json_text/size.py).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from events.errors import KintsugiError
from events.json_text.size import JsonSize, find_excess

MAX_MESSAGES: Final = 20_000
MAX_PARTS: Final = 40_000
MAX_TOOL_CALLS: Final = 10_000
MAX_TOOLS: Final = 2_000
MAX_STOPS: Final = 1_000
MAX_PROMPTS: Final = 2_048
MAX_CHOICES: Final = 2_048
"""Most choices of a request: `n` times the number of prompts."""

MAX_ANSWER_JSON: Final = JsonSize(values=2_000_000, containers=400_000, keys=600_000)
"""Limits of an answer or an event: enough for 128,000 tokens with log-probabilities."""

_FEWEST_BYTES: Final = 2 * min(MAX_MESSAGES, MAX_PARTS, MAX_TOOL_CALLS)
"""Size in bytes below which a body cannot exceed the limits on messages and their parts."""

_STOPS: Final = ("stop", "stop_sequences", "stop_token_ids")


class TooMany(KintsugiError):
    """A request exceeds a limit; the text names it."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def check_counts(document: Mapping[str, Any], size: int) -> None:
    """Raise TooMany if a request exceeds a limit. `size`: bytes of its body."""
    for name in _STOPS:
        _check(_count(document, name), MAX_STOPS, "stops", name)
    _check(_count(document, "tools"), MAX_TOOLS, "tools", "tools")
    _check_choices(document)
    if size >= _FEWEST_BYTES:
        _check_messages(document)


def _check_messages(document: Mapping[str, Any]) -> None:
    messages = _objects(document.get("messages"))
    contents = [
        _objects(content)
        for message in messages
        if isinstance(content := message.get("content"), list)
    ]
    results = [part for parts in contents for part in parts if part.get("type") == "tool_result"]
    parts = sum(map(len, contents)) + sum(len(_objects(part.get("content"))) for part in results)
    calls = [
        call
        for message in messages
        if "tool_calls" in message or "function_call" in message
        for call in _read_calls(message)
    ]
    _check(_count(document, "messages") + len(results), MAX_MESSAGES, "messages", "messages")
    _check(parts, MAX_PARTS, "parts of messages", "messages")
    _check(len(calls), MAX_TOOL_CALLS, "tool calls", "messages")
    _check_arguments(calls)


def _check_arguments(calls: Iterable[Mapping[str, Any]]) -> None:
    """Raise TooMany if the arguments of all calls together hold more JSON than a body may."""
    functions = [function for call in calls for function in (call.get("function"), call)]
    arguments = [
        function["arguments"]
        for function in functions
        if isinstance(function, dict) and isinstance(function.get("arguments"), str)
    ]
    excess = find_excess(*arguments)
    if excess is not None:
        raise TooMany(
            f"the arguments of the tool calls hold {excess}; shorten the conversation", "messages"
        )


def _check_choices(document: Mapping[str, Any]) -> None:
    prompt, n = document.get("prompt"), document.get("n")
    # A list that only holds token ids is a single prompt.
    several = isinstance(prompt, list) and set(map(type, prompt)) != {int}
    prompts = max(1, _count(document, "prompt")) if several else 1
    _check(prompts, MAX_PROMPTS, "prompts", "prompt")
    choices = prompts * (n if type(n) is int and n > 0 else 1)
    _check(choices, MAX_CHOICES, "choices for all prompts", "n")


def _read_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message's tool calls, including the older field `function_call`."""
    return [*_objects(message.get("tool_calls")), *_objects([message.get("function_call")])]


def _check(count: int, most: int, what: str, param: str) -> None:
    if count > most:
        raise TooMany(
            f"the request has {count:,} {what}, and at most {most:,} are taken; send fewer", param
        )


def _count(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    return len(value) if isinstance(value, list) else 0


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
