"""Digests of conversations, to compare their beginnings even if clients rewrite answers."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from envs.answers.content import read_content
from envs.asides import split_aside
from events.canonical import exact_json
from events.json_text.guard import parse_arguments
from producers.conversation import read_parts

_LONG_BYTES: Final = 1 << 16
"""Size of a text in bytes above which copying costs more than another function call."""
CUT_LETTERS: Final = 256
"""Characters kept of a partial answer; an answer that begins with them may be the whole of it."""

Digest = bytes


@dataclass(frozen=True, slots=True)
class Conversation:
    """Digests of a request's messages: `beginnings[n]` is the digest of the first n messages."""

    beginnings: tuple[Digest, ...]
    tools: Digest
    answers: tuple[int, ...] = ()
    """Numbers, from 1, of the messages that the model wrote."""
    loose: tuple[Digest, ...] = (b"",)
    """Like `beginnings`, but computed without white space around answers."""
    last: "AnswerPrefix | None" = None

    @staticmethod
    def of(messages: Sequence[Any], tools: Sequence[Any] = ()) -> "Conversation":
        """Return the digests of raw messages."""
        return Conversation((b"",), _digest(exact_json(list(tools)))).extend(messages)

    def __len__(self) -> int:
        return len(self.beginnings) - 1

    def first(self, messages: int) -> "Conversation":
        """Return the conversation of the first `messages` messages."""
        answers = tuple(place for place in self.answers if place <= messages)
        loose, last = self.loose[: messages + 1], self.last if answers == self.answers else None
        return Conversation(self.beginnings[: messages + 1], self.tools, answers, loose, last)

    def extend(self, messages: Sequence[Any]) -> "Conversation":
        """Return the conversation with more messages at its end."""
        beginnings, loose = list(self.beginnings), list(self.loose)
        answers, last = list(self.answers), None
        for message in messages:
            exact, bare = _texts(message)
            same = bare is exact and loose[-1] == beginnings[-1]
            beginnings.append(_digest(exact, beginnings[-1]))
            loose.append(beginnings[-1] if same else _digest(bare, loose[-1]))
            if _is_answer(message):
                answers.append(len(beginnings) - 1)
                last = message
        heard = self.last if last is None else AnswerPrefix.of(last)
        return Conversation(tuple(beginnings), self.tools, tuple(answers), tuple(loose), heard)

    def digest_answer(self, message: Mapping[str, Any]) -> "AnswerDigests":
        """Return the digests of the conversation with an answer at its end."""
        exact, bare = _texts(message)
        return AnswerDigests(
            _digest(exact, self.beginnings[-1]),
            _digest(bare, self.loose[-1]),
            AnswerPrefix.of(message),
        )


@dataclass(frozen=True, slots=True)
class AnswerDigests:
    """Digests of a conversation with an answer at its end."""

    exact: Digest
    loose: Digest
    """The digest computed without white space around answers."""
    prefix: "AnswerPrefix"


@dataclass(frozen=True, slots=True)
class AnswerPrefix:
    """The first characters of an answer, and whether it calls tools."""

    text: str
    calls: bool

    @staticmethod
    def of(message: Mapping[str, Any]) -> "AnswerPrefix":
        text = _bare(message.get("content"))
        known = text if isinstance(text, str) else ""
        return AnswerPrefix(known[:CUT_LETTERS], bool(message.get("tool_calls")))

    def may_be_cut_from(self, whole: "AnswerPrefix") -> bool:
        """Return whether this answer may be a part of the answer `whole`."""
        return whole.text.startswith(self.text) and (whole.calls or not self.calls)


def _digest(text: str, before: Digest = b"") -> Digest:
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) < _LONG_BYTES:
        return blake2b(before + raw, digest_size=16).digest()
    hashed = blake2b(before, digest_size=16)
    hashed.update(raw)
    return hashed.digest()


def _texts(message: Any) -> tuple[str, str]:
    """Return a message's text for comparison: exactly, and with an answer stripped."""
    exact = _text(message)
    if not _is_answer(message):
        return exact, exact
    content = message.get("content")
    bare = _bare(content)
    return exact, exact if bare == content else _text({**message, "content": bare})


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _bare(content: Any) -> Any:
    """Return an answer's text, stripped and with "\\n" line ends; other content unchanged."""
    if isinstance(content, list):
        read = read_content(content)
        content = content if read.unread else read.text
    if not isinstance(content, str):
        return content
    visible = _visible(content)
    # Searching for one character is ten times as fast as for two.
    return (visible.replace("\r\n", "\n") if "\r" in visible else visible).strip()


def _visible(content: str) -> str:
    """Return an answer without asides, because some clients do not get them."""
    return split_aside(content)[1]


def _text(message: Any) -> str:
    """Return a message's text for comparison. For an answer only words and calls count, because
    clients rewrite answers. Other messages count exactly, without null fields."""
    try:
        if not isinstance(message, dict):
            return exact_json(message)
        if _is_answer(message):
            return exact_json(_answer(message))
        return exact_json({name: value for name, value in message.items() if value is not None})
    except RecursionError:
        # Nested too deeply to be compared: make it unequal to any other.
        return secrets.token_hex()


def _answer(message: Mapping[str, Any]) -> Any:
    content, _ = read_parts(message.get("content"))
    calls = message.get("tool_calls")
    return [
        "assistant",
        _visible(content) if isinstance(content, str) else "" if content is None else content,
        [_call(call) for call in calls] if isinstance(calls, list) else [],
    ]


def _call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    function, custom = call.get("function"), call.get("custom")
    if isinstance(function, dict):
        arguments = parse_arguments(function.get("arguments"))
        return [call.get("id") or None, function.get("name"), arguments]
    if isinstance(custom, dict):
        return [call.get("id") or None, custom.get("name"), {"input": custom.get("input")}]
    return call
