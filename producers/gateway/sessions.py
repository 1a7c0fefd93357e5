"""Which conversation a call belongs to, and which earlier call of it it goes on from.

Who names the session decides: a header, the API key, the path, in this order. Without a name, a
call whose messages begin with those of an earlier call and with what was answered to it belongs to
that call's session, if the same key asked for the same user. Otherwise it begins a session.

    parent            the longest earlier call of the session whose messages this one begins with
    parent_messages   how many of them, the parent's answer included where it was sent back

A call that goes on from none is stored whole: a compacted history or a rewritten system prompt is
a fork, and stays one.

Guarantee: bounded memory; what was forgotten costs a longer record or, unnamed, a session too many,
never a wrong parent. Not covered: two conversations of one key and user that were word for word the
same up to an answer; from there on, unnamed, they are one session. After a restart memory.py finds
the newest again.
"""

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from events.canonical import exact_json
from events.rollouts import Attribution
from producers.conversation import parse_arguments

MAX_KNOWN: Final = 65_536
"""Entries that are remembered, two or three per call; about 30 MB."""

Digest = bytes
Scope = tuple[str | None, str | None]
"""The key that asked, and whose data it is: unnamed calls of two scopes never share a session."""


@dataclass(frozen=True, slots=True)
class Named:
    """A session by its name, and where the name stood."""

    session: str
    by: Attribution


@dataclass(frozen=True, slots=True)
class Parent:
    """An earlier call that a call goes on from."""

    call: str
    messages: int
    """How many leading messages are its."""
    same_tools: bool = False


@dataclass(frozen=True, slots=True)
class Attributed:
    """Where a call belongs."""

    session: str
    by: Attribution
    parent: Parent | None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a request as digests: `beginnings[n]` is that of the first n."""

    beginnings: tuple[Digest, ...]
    tools: Digest

    @staticmethod
    def of(messages: Sequence[Any], tools: Sequence[Any] = ()) -> "Conversation":
        """The digests of raw messages."""
        return Conversation((b"",), _digest(exact_json(list(tools)))).followed_by(messages)

    def __len__(self) -> int:
        return len(self.beginnings) - 1

    def first(self, messages: int) -> "Conversation":
        """Its beginning."""
        return Conversation(self.beginnings[: messages + 1], self.tools)

    def followed_by(self, messages: Sequence[Any]) -> "Conversation":
        """With more messages at its end."""
        beginnings = list(self.beginnings)
        for message in messages:
            beginnings.append(_next(beginnings[-1], message))
        return Conversation(tuple(beginnings), self.tools)

    def answered(self, message: Mapping[str, Any]) -> Digest:
        """The digest with an answer at its end."""
        return _next(self.beginnings[-1], message)


class Sessions:
    """What is known of recent calls."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._known: OrderedDict[tuple[Any, ...], Any] = OrderedDict()

    def attribute(
        self, named: Named | None, scope: Scope, conversation: Conversation, fresh: str
    ) -> Attributed:
        """Where a call belongs; `fresh` is the id of the session that it may begin."""
        if named is None:
            named = self._by_beginning(scope, conversation) or Named(fresh, "none")
        return Attributed(named.session, named.by, self._parent(named.session, conversation))

    def started(self, session: str, call: str, conversation: Conversation) -> None:
        """Remember a call whose request is in the log."""
        if len(conversation):
            known = (call, len(conversation), conversation.tools)
            self._remember(("said", session, conversation.beginnings[-1]), known)

    def answered(
        self,
        session: str,
        call: str,
        scope: Scope,
        conversation: Conversation,
        answer: Mapping[str, Any],
    ) -> None:
        """Remember a call whose answer is in the log; `answer` is its first choice."""
        if not len(conversation):
            return
        digest = conversation.answered(answer)
        known = (call, len(conversation) + 1, conversation.tools)
        self._remember(("said", session, digest), known)
        self._remember(("session", scope, digest), session)

    def placed(self, call: str, session: str) -> None:
        """Remember which session a call is of."""
        self._remember(("call", call), session)

    def session_of(self, call: str) -> str | None:
        """The session of a recent call."""
        found: str | None = self._known.get(("call", call))
        return found

    def recall(self, earlier: "Sessions") -> None:
        """Add what was known earlier; what is known already is newer and stays."""
        newer, self._known = self._known, earlier._known.copy()
        for key, value in newer.items():
            self._remember(key, value)

    def _by_beginning(self, scope: Scope, conversation: Conversation) -> Named | None:
        for digest in reversed(conversation.beginnings[1:]):
            session = self._known.get(("session", scope, digest))
            if session is not None:
                return Named(session, "prefix")
        return None

    def _parent(self, session: str, conversation: Conversation) -> Parent | None:
        for digest in reversed(conversation.beginnings[1:]):
            known = self._known.get(("said", session, digest))
            if known is not None:
                call, messages, tools = known
                return Parent(call, messages, tools == conversation.tools)
        return None

    def _remember(self, key: tuple[Any, ...], value: Any) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


def _next(before: Digest, message: Any) -> Digest:
    return _digest(_text(message), before)


def _digest(text: str, before: Digest = b"") -> Digest:
    raw = text.encode("utf-8", "surrogatepass")
    return blake2b(before + raw, digest_size=16).digest()


def _text(message: Any) -> str:
    """A message as it is compared: an answer by what it says and calls, for clients send it back
    in their own words; any other exactly, but for fields that are null."""
    try:
        if not isinstance(message, dict):
            return exact_json(message)
        if message.get("role") == "assistant":
            return exact_json(_answer(message))
        return exact_json({name: value for name, value in message.items() if value is not None})
    except RecursionError:
        # Nested too deeply to be compared: equal to no other.
        return secrets.token_hex()


def _answer(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    calls = message.get("tool_calls")
    return [
        "assistant",
        "" if content is None else content,
        [_call(call) for call in calls] if isinstance(calls, list) else [],
    ]


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    return [call.get("id"), function.get("name"), parse_arguments(function.get("arguments"))]
