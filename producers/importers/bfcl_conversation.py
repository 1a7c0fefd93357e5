r"""Messages of a run of the Berkeley Function-Calling Leaderboard.

A run's log is a list: an object per turn (`begin_of_turn_query`, `step_0`, `step_1`, ...), and
lists of states between them, which are skipped. A model with native calls answers `[{"ls": "{\"a\":
true}"}]`; one without writes text such as `[ls(a=True)]`, which is parsed and never run
(call_text.py): only literals are arguments. A positional argument gets its index as name: "0", "1".
A call that cannot be parsed stays text.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from events.canonical import exact_json
from events.json_text.guard import parse_arguments
from events.messages import Message, ToolCall
from producers.conversation import WireMessage, to_message
from producers.importers.call_text import parse_call, parse_calls, to_call

_FORCED: Final = "forced to quit"
_EXECUTION_ERROR: Final = "Error during execution"


def read_log(log: Sequence[Any]) -> list[Message]:
    """Return the conversation in an `inference_log`; empty if there is none."""
    messages: list[Message] = []
    for turn in log:
        for key, entries in turn.items() if isinstance(turn, dict) else ():
            listed = entries if isinstance(entries, list) else []
            known = [entry for entry in listed if isinstance(entry, dict)]
            if key == "begin_of_turn_query":
                messages.extend(to_message(WireMessage.model_validate(entry)) for entry in known)
            elif key.startswith("step_"):
                messages.extend(_step(known))
    return messages


def read_result(result: Any, *, literal: bool = True) -> list[Message]:
    """Return the answers of a `result`, which has one per turn and step, or a single one. With
    `literal` False, arguments in text are expressions of Java or JavaScript."""
    if isinstance(result, list) and result and all(isinstance(turn, list) for turn in result):
        steps = [_assistant(step, None, literal) for turn in result for step in turn]
        return steps or [_assistant(None, None)]
    return [_assistant(result, None, literal)]


def hit_step_limit(log: Sequence[Any]) -> bool:
    """Return whether the run ended because of the limit on steps."""
    return any(
        _FORCED in str(entry.get("content"))
        for turn in log
        if isinstance(turn, dict)
        for entries in turn.values()
        if isinstance(entries, list)
        for entry in entries
        if isinstance(entry, dict) and entry.get("role") == "handler_log"
    )


def _step(entries: list[dict[str, Any]]) -> Iterator[Message]:
    decoded = next(
        (entry["model_response_decoded"] for entry in entries if "model_response_decoded" in entry),
        None,
    )
    for entry in entries:
        if entry.get("role") == "assistant":
            message = _assistant(entry.get("content"), decoded)
            reasoning = entry.get("reasoning_content")
            yield message.model_copy(
                update={"reasoning": reasoning if isinstance(reasoning, str) else None}
            )
        elif entry.get("role") == "tool":
            content = entry.get("content")
            text = content if isinstance(content, str) else exact_json(content)
            yield Message(role="tool", content=text, error=_is_error(text))


def _assistant(content: Any, decoded: Any, literal: bool = True) -> Message:
    if isinstance(content, str):
        texts = decoded if isinstance(decoded, list) else []
        calls = [parse_call(text) for text in texts if isinstance(text, str)]
        return Message(
            role="assistant",
            content=content,
            tool_calls=tuple(calls or parse_calls(content, literal=literal)),
        )
    items = content if isinstance(content, list) else [content] if content else []
    # If a model with native calls makes none, some handlers record the parts of its text.
    texts = [item for item in items if isinstance(item, str)]
    native = [call for item in items for call in _read_item(item, literal)]
    return Message(
        role="assistant", content="\n".join(texts) if texts else None, tool_calls=tuple(native)
    )


def _read_item(item: Any, literal: bool) -> list[ToolCall]:
    """Return the calls in an item of an answer. Other objects and numbers are malformed calls."""
    if isinstance(item, str):
        return parse_calls(item, literal=literal)
    if not isinstance(item, dict):
        return [ToolCall(name="", arguments=exact_json(item))]
    whole = to_call(item)
    if whole is not None:
        return [whole]
    return [
        ToolCall(name=name, arguments=parse_arguments(arguments))
        for name, arguments in item.items()
    ]


def _is_error(text: str) -> bool:
    if text.startswith(_EXECUTION_ERROR):
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "error" in value
