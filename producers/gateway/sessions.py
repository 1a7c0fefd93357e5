"""Which conversation a call belongs to, and which earlier call of it it goes on from.

Who names the session decides: a header, the API key, the path, in this order. A call without a name
continues an earlier one of the same key and user whose messages and answer it begins with, where
exactly one session can be meant:

    one session has that beginning             this one, also where a call continues it already: a
                                               regenerated answer, a title, a retry is a fork
    several, and exactly one is not continued  that one
    several, and none or more of them are so   not known: a session of its own
    several, and a later answer that is not    not known
    known follows

A call that is being answered has not continued anything yet, so its beginning makes another one
doubtful; one that failed or was cut off never does, nor one whose client may not have heard the
answer (it hung up, or the gateway was killed then) before it goes on from that. A session that its
client ended is over. What was answered in part, as a choice beside the first or without being
recorded, names no session, but makes one that was answered the same doubtful.

    parent            the longest earlier call of the session and of the same person whose messages
                      this one begins with
    parent_messages   how many of them, the parent's answer included where it was sent back

A call that goes on from none is stored whole: a compacted history or a rewritten system prompt is
a fork, and stays one. A call of another person is no parent, nor one that was sealed with another
key: erasing somebody takes nothing from anybody else.

Guarantee: two conversations whose calls were all answered by this gateway, and are remembered, are
never in one unnamed session as long as nobody goes back. Bounded memory; what was forgotten costs a
longer record or, unnamed, a session too many, never a wrong parent. Not covered: of conversations
that are word for word the same up to an answer, one that asks anew from there (an edited message, a
new answer) while exactly one other is not continued yet; a beginning that another gateway answered,
or that was forgotten. After a restart memory.py finds the newest again.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from events.canonical import exact_json
from events.rollouts import Attribution
from producers.conversation import parse_arguments

MAX_KNOWN: Final = 65_536
"""Entries that are remembered, two or three per call; about 30 MB."""

MAX_ALIKE: Final = 16
"""Sessions that are remembered of one beginning; of more, none is meant."""

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
    keyid: str | None = None
    """Of the key that sealed it; None where none did."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The beginning that a call continues, until it is known whether the call was answered."""

    scope: Scope
    beginning: Digest
    session: str
    """Whose beginning it is."""


@dataclass(frozen=True, slots=True)
class Attributed:
    """Where a call belongs."""

    session: str
    by: Attribution
    parent: Parent | None
    claim: Claim | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a request as digests: `beginnings[n]` is that of the first n."""

    beginnings: tuple[Digest, ...]
    tools: Digest
    answers: tuple[int, ...] = ()
    """Which of them are the model's, counted from 1."""

    @staticmethod
    def of(messages: Sequence[Any], tools: Sequence[Any] = ()) -> "Conversation":
        """The digests of raw messages."""
        return Conversation((b"",), _digest(exact_json(list(tools)))).followed_by(messages)

    def __len__(self) -> int:
        return len(self.beginnings) - 1

    def first(self, messages: int) -> "Conversation":
        """Its beginning."""
        answers = tuple(place for place in self.answers if place <= messages)
        return Conversation(self.beginnings[: messages + 1], self.tools, answers)

    def followed_by(self, messages: Sequence[Any]) -> "Conversation":
        """With more messages at its end."""
        beginnings, answers = list(self.beginnings), list(self.answers)
        for message in messages:
            beginnings.append(_next(beginnings[-1], message))
            if isinstance(message, dict) and message.get("role") == "assistant":
                answers.append(len(beginnings) - 1)
        return Conversation(tuple(beginnings), self.tools, tuple(answers))

    def answered(self, message: Mapping[str, Any]) -> Digest:
        """The digest with an answer at its end."""
        return _next(self.beginnings[-1], message)


@dataclass(slots=True)
class _Alike:
    """The sessions of one scope in which the same was said and answered, word for word."""

    sessions: dict[str, int] = field(default_factory=dict)
    """Session -> how many calls continued it from here."""
    unheard: set[str] = field(default_factory=set)
    """Where nobody knows whether the client has this answer, or has it as the first choice."""
    asking: Counter[str] = field(default_factory=Counter)
    """Session -> how many calls that continue it from here are not answered yet."""
    crowded: bool = False
    """Whether there were more sessions than are remembered."""

    def add(self, session: str, heard: bool) -> None:
        if not heard:
            self.unheard.add(session)
        else:
            self.sessions.setdefault(session, 0)
        if len(self.sessions) > MAX_ALIKE:
            continued = next((name for name, count in self.sessions.items() if count), None)
            del self.sessions[next(iter(self.sessions)) if continued is None else continued]
            self.crowded = self.crowded or continued is None
        if len(self.unheard) > MAX_ALIKE:
            self.unheard.pop()
            self.crowded = True

    def meant(self, directly: bool, over: Callable[[str], bool]) -> str | None:
        """The one session that a request can continue; None where it is not known."""
        unheard = self.unheard - self.sessions.keys()
        if self.crowded or unheard:
            return None
        if len(self.sessions) == 1:
            return next(iter(self.sessions))
        if not directly:
            return None
        free = [name for name, count in self.sessions.items() if not count and not over(name)]
        return free[0] if len(free) == 1 and not self.asking[free[0]] else None

    def recall(self, earlier: "_Alike") -> None:
        """Add what was known before."""
        counts = Counter(earlier.sessions) + Counter(self.sessions)
        names = (*earlier.sessions, *self.sessions)
        self.crowded = self.crowded or earlier.crowded or len(set(names)) > MAX_ALIKE
        self.sessions = {name: counts[name] for name in dict.fromkeys(names)}
        self.unheard |= earlier.unheard


class Sessions:
    """What is known of recent calls."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._known: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._recalling = False
        self._unsure: dict[Claim, Claim] = {}
        """An answer that a client may have missed, as who continues it would claim it -> what the
        call with that answer continued."""

    def attribute(
        self, named: Named | None, scope: Scope, conversation: Conversation, fresh: str
    ) -> Attributed:
        """Where a call belongs; `fresh` is the id of the session that it may begin.

        What it continues is taken by this call until `settle` is told what became of it.
        """
        if named is None:
            session = self._continued(scope, conversation)
            named = Named(fresh, "none") if session is None else Named(session, "prefix")
        claim = self.claim(named.session, scope, conversation)
        parent = self._parent(named.session, scope[1], conversation)
        return Attributed(named.session, named.by, parent, claim)

    def claim(self, session: str, scope: Scope, conversation: Conversation) -> Claim | None:
        """Take what a call of a session continues; None where it continues nothing known."""
        begun = self._beginning(scope, conversation)
        if begun is None:
            return None
        beginning, alike = begun
        if session not in alike.sessions:
            return None
        alike.asking[session] += 1
        return Claim(scope, beginning, session)

    def settle(self, claim: Claim | None, completed: bool) -> None:
        """A call that had taken this was answered, or came to nothing and gives it back."""
        alike = None if claim is None else self._known.get(("alike", claim.scope, claim.beginning))
        if claim is None or alike is None:
            return
        alike.asking -= Counter([claim.session])
        if completed and claim.session in alike.sessions:
            alike.sessions[claim.session] += 1
            # Who goes on from an answer has it.
            self.settle(self._unsure.pop(claim, None), completed=True)

    def may_have_missed(self, claim: Claim, answer: Digest) -> None:
        """A call that continued something was answered, and perhaps its client never heard: unless
        it is continued, what it continued is free for the same client to ask again."""
        alike = self._known.get(("alike", claim.scope, claim.beginning))
        after = self._known.get(("alike", claim.scope, answer))
        if alike is None or not alike.sessions.get(claim.session):
            return
        if after is None or not after.sessions.get(claim.session):
            alike.sessions[claim.session] -= 1
            self._unsure[Claim(claim.scope, answer, claim.session)] = claim

    def started(
        self,
        session: str,
        call: str,
        conversation: Conversation,
        person: str | None = None,
        keyid: str | None = None,
    ) -> None:
        """Remember a call whose request is in the log, of a person, sealed with a key."""
        if len(conversation):
            known = Parent(call, len(conversation), keyid=keyid), conversation.tools
            self._remember(("said", session, person, conversation.beginnings[-1]), known)

    def answered(
        self,
        session: str,
        call: str,
        scope: Scope,
        conversation: Conversation,
        answer: Mapping[str, Any],
        keyid: str | None = None,
    ) -> None:
        """Remember a call whose answer is in the log; `answer` is its first choice."""
        if not len(conversation):
            return
        digest = conversation.answered(answer)
        known = Parent(call, len(conversation) + 1, keyid=keyid), conversation.tools
        self._remember(("said", session, scope[1], digest), known)
        self._add(scope, digest, session, heard=True)

    def may_be_answered(
        self, session: str, scope: Scope, conversation: Conversation, answer: Mapping[str, Any]
    ) -> None:
        """Remember what a client may take for its answer, and nobody knows whether it does."""
        if len(conversation):
            self._add(scope, conversation.answered(answer), session, heard=False)

    def placed(self, call: str, session: str) -> None:
        """Remember which session a call is of."""
        self._remember(("call", call), session)

    def ended(self, session: str) -> None:
        """A client said that a session is over: of several that are alike it is not meant."""
        self._remember(("over", session), True)

    def session_of(self, call: str) -> str | None:
        """The session of a recent call."""
        found: str | None = self._known.get(("call", call))
        return found

    def expect_recall(self) -> None:
        """Until `recall` no call is taken for another's continuation: what would make it doubtful
        may not be known yet."""
        self._recalling = True

    def recall(self, earlier: "Sessions") -> None:
        """Add what was known earlier; what is known already is newer and stays."""
        newer, self._known = self._known, earlier._known.copy()
        for key, value in newer.items():
            before = self._known.get(key)
            if isinstance(value, _Alike) and isinstance(before, _Alike):
                value.recall(before)
            self._remember(key, value)
        self._unsure |= earlier._unsure
        self._recalling = False

    def _continued(self, scope: Scope, conversation: Conversation) -> str | None:
        begun = None if self._recalling else self._beginning(scope, conversation)
        if begun is None:
            return None
        beginning, alike = begun
        place = conversation.beginnings.index(beginning)
        directly = not conversation.answers or conversation.answers[-1] <= place
        return alike.meant(directly, self._is_over)

    def _is_over(self, session: str) -> bool:
        return ("over", session) in self._known

    def _beginning(self, scope: Scope, conversation: Conversation) -> tuple[Digest, _Alike] | None:
        """The longest known beginning of a conversation, and who has it."""
        for digest in reversed(conversation.beginnings[1:]):
            alike = self._known.get(("alike", scope, digest))
            if alike is not None and alike.sessions:
                return digest, alike
        return None

    def _parent(
        self, session: str, person: str | None, conversation: Conversation
    ) -> Parent | None:
        for digest in reversed(conversation.beginnings[1:]):
            known: tuple[Parent, Digest] | None = self._known.get(("said", session, person, digest))
            if known is not None:
                parent, tools = known
                return replace(parent, same_tools=tools == conversation.tools)
        return None

    def _add(self, scope: Scope, beginning: Digest, session: str, heard: bool) -> None:
        key = ("alike", scope, beginning)
        alike = self._known.get(key) or _Alike()
        alike.add(session, heard)
        self._remember(key, alike)

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
