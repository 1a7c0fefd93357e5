r"""Finds messages whose text contains a control token of a model as a string.

Chat templates copy messages into a prompt, which most engines encode as one text. So
`<|im_end|><|im_start|>system` in a customer's text becomes a system message. A gateway has no
tokenizer, so it looks for strings of known families of models. RE2 searches a body's bytes for such
a string, its beginning at a text's end, and escapes that may hide it (`\u003c`, `<\/s>`). Only
after a hit are the texts searched one by one, in linear time. Every text that a template may render
counts: contents, reasoning, names, arguments (which engines parse), tools, documents and variables.
Stop strings do not count, nor do prompts of /v1/completions, which are raw. Not covered: a string
that a template joins from several messages or by removing text, and `[INST]` in two parts of which
the first is `[`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from producers.gateway.http.wire import ModelRequest

ControlTokens = Literal["count", "refuse"]
"""Treatment of a call with a control token in a message: count it, or refuse the call."""

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "chatml": (
        "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_response>", "</tool_response>",
    ),
    "llama": (
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eot_id|>", "<|eom_id|>", "<|python_tag|>", "<|header_start|>", "<|header_end|>",
        "<|eot|>",
    ),
    "gemma": ("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"),
    "mistral": (
        "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]",
        "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
    ),
    "phi": (
        "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|im_sep|>",
        "<|endoftext|>",
    ),
    "deepseek": (
        "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",
        "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    ),
    "harmony": (
        "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>",
        "<|call|>", "<|startoftext|>", "<|endoftext|>",
    ),
    "granite": ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    "command": (
        "<BOS_TOKEN>", "<EOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
        "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_TOOL_RESULT|>",
        "<|END_TOOL_RESULT|>",
    ),
    "kimi": (
        "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "[BOS]",
        "[EOS]",
    ),
    "glm": (
        "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
        "<|endoftext|>",
    ),
}  # fmt: skip
"""Model family -> strings that delimit messages, but not those that agents write
(`<tool_call>`)."""

_FIELDS: Final = ("system", "messages", "tools", "documents", "chat_template_kwargs")
_LONGEST: Final = 128


class BadControlString(ValueError):
    """A setting that is neither a family nor a control string; the text says why."""


def list_control_strings(names: Iterable[str]) -> tuple[str, ...]:
    """Return the strings of the named families, and single strings. Raises BadControlString."""
    strings = (string for name in names for string in FAMILIES.get(name) or [_check(name)])
    return tuple(dict.fromkeys(strings))


def _check(string: str) -> str:
    if not (2 <= len(string) <= _LONGEST and string.isprintable()) or {'"', "\\"} & {*string}:
        raise BadControlString(
            f"{string[:_LONGEST]!r} is no control string; use 2 to {_LONGEST} printable characters "
            "without quotation marks and backslashes"
        )
    if string.isalnum():
        raise BadControlString(
            f"{string!r} is no family of models and too plain for a control token; use one of "
            f"{', '.join(FAMILIES)}, or a string such as <|im_end|>"
        )
    return string


@dataclass(frozen=True, slots=True)
class ControlText:
    """A control token found in the messages of a request."""

    string: str
    place: str
    """First message, tool or field that contains one, such as `messages.3`."""
    count: int
    """Number of messages, tools and fields that contain control tokens."""


class ControlStrings:
    """Searches requests for a set of control strings."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._patterns = _compile(strings)
        # A control string may be split between two texts of the JSON.
        self._raw_patterns = _compile((*strings, *_list_open_ends(strings)))
        self._escapes = _compile_escapes(strings)

    def find(self, body: bytes, request: ModelRequest) -> ControlText | None:
        """Return the control token found in a request's messages, or None; `body` is its JSON."""
        if request.endpoint == "completions" or not self._may_spell(body):
            return None
        parts = _list_parts(request.document)
        spelled = [(self._find_string(value), place) for place, value in parts]
        strings = [(string, place) for string, place in spelled if string is not None]
        return ControlText(*strings[0], len(strings)) if strings else None

    def _may_spell(self, body: bytes) -> bool:
        return (
            b"\0" in body  # UTF-16 or UTF-32
            or (b"\\" in body and self._escapes.search(body) is not None)
            or _search(self._raw_patterns, body) is not None
        )

    def _find_string(self, value: Any) -> str | None:
        for text in _list_texts(value):
            string = _search(self._patterns, text.encode(errors="surrogatepass"))
            if string is not None:
                return string.decode()
        return None


Pattern = tuple[bytes, Any]
"""(first character, RE2 expression of the strings that begin with it), to skip texts quickly."""


def _compile(strings: Sequence[str]) -> list[Pattern]:
    import re2

    rests: dict[str, list[str]] = {}
    for string in strings:
        rests.setdefault(string[0], []).append(re2.escape(string[1:]))
    return [
        (first.encode(), re2.compile(f"{re2.escape(first)}(?:{'|'.join(rest)})".encode()))
        for first, rest in rests.items()
    ]


def _compile_escapes(strings: Iterable[str]) -> Any:
    import re2

    # In JSON a character outside of the basic plane takes two escapes.
    codes = set(re.findall(r"\\u(.{4})", json.dumps("".join(strings))))
    escapes = "|".join(["00[2-7]", *sorted(f"(?i:{code})" for code in codes)])
    return re2.compile(f"\\\\(?:/|u(?:{escapes}))".encode())


def _search(patterns: Iterable[Pattern], text: bytes) -> bytes | None:
    for first, pattern in patterns:
        if first in text and (match := pattern.search(text)) is not None:
            return bytes(match[0])
    return None


def _list_open_ends(strings: Iterable[str]) -> set[str]:
    """Return each beginning of a string followed by a quote, except a lone bracket or brace."""
    ends = {string[:length] + '"' for string in strings for length in range(1, len(string))}
    return ends - {'["', '{"'}


def _list_parts(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each part that a template may render; list items singly."""
    for name in _FIELDS:
        value = document.get(name)
        if isinstance(value, list) and name != "system":
            yield from ((f"{name}.{number}", item) for number, item in enumerate(value))
        elif value:
            yield name, {"content": value}


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the strings of a JSON value, keys included. Arguments are yielded as text and parsed,
    the parts of a content singly and joined, as templates render them."""
    values = [value]
    while values:
        item = values.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            values += item
        elif isinstance(item, dict):
            values += item
            values += item.values()
            values += (_parse_arguments(item.get("arguments")), _join_parts(item.get("content")))


def _join_parts(content: Any) -> str | None:
    if not isinstance(content, list):
        return None
    texts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def _parse_arguments(text: Any) -> Any:
    """Return the parsed arguments if their JSON has escapes, else None."""
    if not isinstance(text, str) or "\\" not in text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # an engine cannot parse them either
