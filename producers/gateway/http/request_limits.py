"""Limits the messages, tools and other parts of one request. Pure.

Each part costs more than its bytes: a message is compared, redacted, checked and stored. The limits
are beyond the requests of agents; OpenAI takes 2,048 messages, 128 tools, 4 stops and 128 choices.
Results of tools count as messages in every protocol. Parts and tool calls count over all messages;
the calls' arguments, which are texts, hold no more JSON than a body. All values of a body are
counted before, on its bytes (events/json_text/size.py).
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
"""Answers to all prompts of a request."""

MAX_ANSWER_JSON: Final = JsonSize(values=2_000_000, containers=400_000, keys=600_000)
"""Limit of an answer, or an event of it: 128,000 tokens with their log-probabilities."""

_FEWEST_BYTES: Final = 2 * min(MAX_MESSAGES, MAX_PARTS, MAX_TOOL_CALLS)
"""Bytes of a body that cannot hold too many messages, nor anything that these hold."""

_STOPS: Final = ("stop", "stop_sequences", "stop_token_ids")


class TooMany(KintsugiError):
    """A request has more of something than is taken."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


def check_counts(document: Mapping[str, Any], size: int) -> None:
    """Raise TooMany for a request beyond a limit; its body has `size` bytes."""
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
    """Raise TooMany where the arguments of all calls hold more JSON than a body may."""
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
    # A list of token ids alone is one prompt.
    several = isinstance(prompt, list) and set(map(type, prompt)) != {int}
    prompts = max(1, _count(document, "prompt")) if several else 1
    _check(prompts, MAX_PROMPTS, "prompts", "prompt")
    choices = prompts * (n if type(n) is int and n > 0 else 1)
    _check(choices, MAX_CHOICES, "choices for all prompts", "n")


def _read_calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message's tool calls; the older form has one, a function."""
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
