"""Converts requests of Anthropic's Messages API to OpenAI's form, to record and compare them.

    system              a message of the role `system`, the first one
    text, thinking      the content, the reasoning
    tool_use            a tool call
    tool_result         a message of the role `tool`, with whether the tool failed
    anything else       a part of the content, unchanged

`cache_control` is left out: clients move it with every call, so each call would look like a new
conversation. Values of an unknown shape stay as they are; the log records that it lacks them. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Json = dict[str, Any]

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def error(status: int, message: str) -> Json:
    """Return an error document in Anthropic's form."""
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def conversation(body: Mapping[str, Any]) -> list[Any]:
    """Return a body's messages in OpenAI's form; empty if they are not a list."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return []
    converted = [item for message in messages for item in _to_openai(message)]
    system = body.get("system")
    return [*_to_openai({"role": "system", "content": system}), *converted] if system else converted


def tools(body: Mapping[str, Any]) -> list[Any]:
    """Return a body's tools in OpenAI's form; tools without a schema stay unchanged."""
    offered = body.get("tools")
    return [_tool(tool) for tool in offered] if isinstance(offered, list) else []


def _to_openai(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return [{"role": message.get("role"), "content": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        return [message]
    blocks = [_plain(block) for block in content]
    if message.get("role") == "assistant":
        return [_answer(blocks)]
    return _split_results(message.get("role"), blocks)


def _answer(blocks: Sequence[Json]) -> Json:
    """Return an assistant message. Its texts are joined, as in recorded answers."""
    thoughts = [block["thinking"] for block in blocks if _is_think_block(block)]
    calls = [_call(block) for block in blocks if _is(block, "tool_use")]
    rest = [block for block in blocks if not _is_think_block(block) and not _is(block, "tool_use")]
    words = all(map(_is_words, rest))
    answer: Json = {
        "role": "assistant",
        "content": "".join(block["text"] for block in rest) if words else rest,
    }
    if calls:
        answer |= {"tool_calls": calls, "content": answer["content"] or None}
    if thoughts:
        answer["reasoning"] = "".join(thoughts)
    return answer


def _call(block: Json) -> Json:
    function = {"name": block.get("name"), "arguments": block.get("input", {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _split_results(role: Any, blocks: Sequence[Json]) -> list[Json]:
    """Return a message of another role as messages, one for each tool result."""
    messages: list[Json] = []
    parts: list[Json] = []
    for block in blocks:
        if not _is(block, "tool_result"):
            parts.append(block)
            continue
        if parts:
            messages.append({"role": role, "content": _content(parts)})
        parts = []
        messages.append(_result(block))
    if parts or not messages:
        messages.append({"role": role, "content": _content(parts)})
    return messages


def _result(block: Json) -> Json:
    content = block.get("content", "")
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        content = _content([_plain(part) for part in content])
    result: Json = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    failed = block.get("is_error")
    return result if failed is None else {**result, "error": failed}


def _content(parts: list[Json]) -> str | list[Json]:
    """Return a single text part as a string; other parts stay a list."""
    if len(parts) == 1 and _is_words(parts[0]):
        return str(parts[0]["text"])
    return parts or ""


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    plain = _plain(tool)
    if "input_schema" not in plain:
        return plain
    kept = ("name", "description", "strict")
    function: Json = {name: plain[name] for name in kept if name in plain}
    return {"type": "function", "function": function | {"parameters": plain["input_schema"]}}


def _plain(block: Json) -> Json:
    return {k: v for k, v in block.items() if k != "cache_control" and v is not None}


def _is(block: Json, kind: str) -> bool:
    return block.get("type") == kind


def _is_think_block(block: Json) -> bool:
    return _is(block, "thinking") and isinstance(block.get("thinking"), str)


def _is_words(block: Json) -> bool:
    return block.keys() == {"type", "text"} and isinstance(block["text"], str)
