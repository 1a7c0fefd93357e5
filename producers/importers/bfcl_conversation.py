"""What was said in a run of the Berkeley Function-Calling Leaderboard.

The log of a run is a list: an object per turn (`begin_of_turn_query`, `step_0`, `step_1`, ...), and
between them lists of states, which are no part of the conversation. A model with native calls
answers `[{"ls": "{\\"a\\": true}"}]`; one without writes text such as `[ls(a=True)]`.

Model text is parsed with `ast` and never run: only literals are arguments. An argument by position
is named by its place, "0", "1", because its name is not known here. What cannot be parsed stays the
text it was.
"""

import ast
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

from events.canonical import exact_json
from events.foreign_json import parse_arguments
from events.messages import Message, ToolCall
from producers.conversation import WireMessage, to_message
from producers.storable import readable

_FORCED: Final = "forced to quit"
_EXECUTION_ERROR: Final = "Error during execution"
_HEAD: Final = re.compile(r"\s*([^\s(]{1,100})\s*(.*)", re.DOTALL)


def read_log(log: Sequence[Any]) -> list[Message]:
    """The conversation of an `inference_log`; empty where it holds none."""
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


def read_result(result: Any) -> list[Message]:
    """The calls alone, of a `result`: per turn and step, or one answer of a single-turn case."""
    if not isinstance(result, list) or not all(isinstance(turn, list) for turn in result):
        return [_assistant(result, None)] if result else []
    return [_assistant(step, None) for turn in result for step in turn]


def hit_step_limit(log: Sequence[Any]) -> bool:
    """Whether the run was ended for its number of steps."""
    return any(
        _FORCED in str(entry.get("content"))
        for turn in log
        if isinstance(turn, dict)
        for entries in turn.values()
        if isinstance(entries, list)
        for entry in entries
        if isinstance(entry, dict) and entry.get("role") == "handler_log"
    )


def parse_calls(text: str) -> list[ToolCall]:
    """The calls of `[f(a=1), g()]` or `f(a=1)`; none where the text is anything else."""
    body = _parse_expression(text)
    nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [_to_call(call) for call in calls] if calls and len(calls) == len(nodes) else []


def parse_call(text: str) -> ToolCall:
    """One call; what is none keeps its name and, as text, the rest."""
    body = _parse_expression(text)
    if isinstance(body, ast.Call):
        return _to_call(body)
    head = _HEAD.match(text)
    name, rest = head.groups() if head else ("", text)
    return ToolCall(name=name, arguments=rest)


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


def _assistant(content: Any, decoded: Any) -> Message:
    if isinstance(content, str):
        texts = decoded if isinstance(decoded, list) else []
        calls = [parse_call(text) for text in texts if isinstance(text, str)]
        return Message(
            role="assistant",
            content=content,
            tool_calls=tuple(calls if decoded is not None else parse_calls(content)),
        )
    native: list[ToolCall] = []
    for call in content if isinstance(content, list) else []:
        if isinstance(call, dict):
            native += [
                ToolCall(name=name, arguments=parse_arguments(arguments))
                for name, arguments in call.items()
            ]
        elif isinstance(call, str):
            native += parse_calls(call) or [parse_call(call)]
    return Message(role="assistant", tool_calls=tuple(native))


def _is_error(text: str) -> bool:
    if text.startswith(_EXECUTION_ERROR):
        return True
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "error" in value


def _parse_expression(text: str) -> ast.expr | None:
    try:
        with warnings.catch_warnings():
            # The compiler warns of odd escapes in the model's strings; they are not our code.
            warnings.simplefilter("ignore")
            body = ast.parse(text.strip(), mode="eval").body
            ast.unparse(body)  # raises where the text is nested too deeply to be read
            return body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _to_call(call: ast.Call) -> ToolCall:
    """`ast.unparse` and `literal_eval` read the tree; neither runs anything."""
    name = ast.unparse(call.func)
    places = {str(place): node for place, node in enumerate(call.args)}
    named = {keyword.arg or "**": keyword.value for keyword in call.keywords}
    try:
        literals = {key: ast.literal_eval(node) for key, node in (places | named).items()}
        arguments = parse_arguments(json.dumps(literals))
    except (ValueError, TypeError):  # not a literal, or one that JSON has not
        arguments = ", ".join(ast.unparse(node) for node in [*call.args, *call.keywords])
    return ToolCall(name=name, arguments=readable(arguments))
