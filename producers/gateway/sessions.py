"""Which conversation a call belongs to, and which earlier call of it it goes on from.

Who names the session decides: a header, the API key, the path, in this order. A call without a name
continues an earlier one of the same key and user whose messages and answer it begins with, where
exactly one session can be meant:

    one session has it, and no call continues it   this one
    one has it, and some call of it asked for more
    of these messages than the shared answer       this one: a retry, an answer made anew (a fork)
    several, and exactly one is not continued      that one
    whatever else                                  not known: a session of its own

Answers are compared without the white space around them, for clients strip it. A call that is being
answered has not continued anything yet, so its beginning makes another one doubtful; one that
failed or was cut off never does, nor one whose client may not have heard the answer (it hung up, or
the gateway was killed then) before it goes on from that. A session that its client ended is never
continued, and makes those that are alike as doubtful as any other. What was answered in part, as a
choice beside the first or without being recorded, names no session, but makes one that was answered
the same, or with what a client can have heard of a cut answer, doubtful. So does a beginning that
was forgotten before anybody went on from it, and for an hour all that was not read after a restart.

    parent            the longest earlier call of the session and of the same person whose messages
                      this one begins with
    parent_messages   how many of them, the parent's answer included where it was sent back

A call that goes on from none is stored whole: a compacted history or a rewritten system prompt is
a fork, and stays one. A call of another person is no parent, nor one that was sealed with another
key: erasing somebody takes nothing from anybody else.

Guarantee: two conversations whose calls were all answered by this gateway are never in one unnamed
session as long as nobody goes back. Bounded memory; what was forgotten costs a longer record or,
unnamed, a session too many, never a wrong parent. Not covered: of conversations that are word for
word the same up to an answer, one that asks anew from there (an edited message, a new answer) while
exactly one other is not continued yet; a beginning that another gateway answered; one that was
forgotten more than 262,144 such ago, or that lies before what memory.py reads after a restart and
that somebody comes back to an hour after the moment from which on all was read.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final

from events.canonical import exact_json
from events.log import now_ms
from events.rollouts import Attribution
from producers.conversation import parse_arguments

MAX_KNOWN: Final = 65_536
"""Entries that are remembered, two or three per call; about 30 MB."""

MAX_ALIKE: Final = 16
"""Sessions that are remembered of one beginning; of more, none is meant."""

COMES_BACK_MS: Final = 3_600_000
"""After which nobody is expected to go on from what was said before all that is known: twice what
lets a session idle."""

_CUT_LETTERS: Final = 256
"""How many letters of a cut answer are kept; an answer that begins with them may be it."""

_FORGOTTEN_BITS: Final = 1 << 22
_FORGOTTEN_MOST: Final = _FORGOTTEN_BITS // 16
"""Beginnings of a generation, of which two are kept: at 4 bits each, one of 200 that never were
forgotten is taken for one that was (Bloom 1970, (1 - exp(-4 / 16))^4 per generation)."""

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
    """The id of the key that sealed the call; None where none did."""


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
    loose: tuple[Digest, ...] = (b"",)
    """The digests of `beginnings`, with answers taken without the white space around them."""
    last: "_Heard | None" = None
    """The last answer, where it is known."""

    @staticmethod
    def of(messages: Sequence[Any], tools: Sequence[Any] = ()) -> "Conversation":
        """The digests of raw messages."""
        return Conversation((b"",), _digest(exact_json(list(tools)))).followed_by(messages)

    def __len__(self) -> int:
        return len(self.beginnings) - 1

    def first(self, messages: int) -> "Conversation":
        """Its beginning."""
        answers = tuple(place for place in self.answers if place <= messages)
        loose, last = self.loose[: messages + 1], self.last if answers == self.answers else None
        return Conversation(self.beginnings[: messages + 1], self.tools, answers, loose, last)

    def followed_by(self, messages: Sequence[Any]) -> "Conversation":
        """With more messages at its end."""
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
        heard = self.last if last is None else _Heard.of(last)
        return Conversation(tuple(beginnings), self.tools, tuple(answers), tuple(loose), heard)

    def answered(self, message: Mapping[str, Any]) -> Digest:
        """The digest with an answer at its end."""
        return _digest(_texts(message)[0], self.beginnings[-1])

    def answered_alike(self, message: Mapping[str, Any]) -> Digest:
        """The same without the white space around answers."""
        return _digest(_texts(message)[1], self.loose[-1])


@dataclass(frozen=True, slots=True)
class _Heard:
    """What an answer begins with."""

    text: str
    calls: bool
    """Whether it calls tools."""

    @staticmethod
    def of(message: Mapping[str, Any]) -> "_Heard":
        text = _bare(message.get("content"))
        known = text if isinstance(text, str) else ""
        return _Heard(known[:_CUT_LETTERS], bool(message.get("tool_calls")))

    def may_be_cut_from(self, whole: "_Heard") -> bool:
        """Whether a client that heard some of an answer may have this."""
        return whole.text.startswith(self.text) and (whole.calls or not self.calls)


@dataclass(slots=True)
class _Cut:
    """Answers to one request that clients may have heard in part."""

    heard: list[tuple[str, _Heard]] = field(default_factory=list)
    """The session, and all that can have been heard."""
    crowded: bool = False

    def add(self, session: str, heard: _Heard) -> None:
        if (session, heard) in self.heard:
            return
        self.heard.append((session, heard))
        if len(self.heard) > MAX_ALIKE:
            del self.heard[0]
            self.crowded = True

    def recall(self, earlier: "_Cut") -> None:
        """Add what was known before."""
        newer, self.heard = self.heard, list(earlier.heard)
        self.crowded = self.crowded or earlier.crowded
        for session, heard in newer:
            self.add(session, heard)

    def doubts(self, session: str, answer: _Heard | None) -> bool:
        """Whether an answer of a session may be what another's client has."""
        others = [heard for name, heard in self.heard if name != session]
        if self.crowded or (others and answer is None):
            return True
        return answer is not None and any(answer.may_be_cut_from(heard) for heard in others)


class _Forgotten:
    """Beginnings that were forgotten before anybody went on from them: a Bloom filter of the
    newest, in a megabyte. May take others for one, never one for none."""

    def __init__(self) -> None:
        self._new, self._old = bytearray(_FORGOTTEN_BITS // 8), bytearray(_FORGOTTEN_BITS // 8)
        self._count = 0

    def add(self, key: tuple[Any, ...]) -> None:
        if self._count >= _FORGOTTEN_MOST:
            self._old, self._new, self._count = self._new, bytearray(_FORGOTTEN_BITS // 8), 0
        self._count += 1
        for place, bit in _bits(key):
            self._new[place] |= bit

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        bits = _bits(key)
        return any(
            all(known[place] & bit for place, bit in bits) for known in (self._new, self._old)
        )

    def recall(self, earlier: "_Forgotten") -> None:
        """Add what was forgotten before."""
        self._count += earlier._count
        self._new = _either(self._new, earlier._new)
        self._old = _either(self._old, earlier._old)


def _bits(key: tuple[Any, ...]) -> list[tuple[int, int]]:
    raw = blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    numbers = (int.from_bytes(raw[n : n + 4]) % _FORGOTTEN_BITS for n in range(0, 16, 4))
    return [(number >> 3, 1 << (number & 7)) for number in numbers]


def _either(left: bytearray, right: bytearray) -> bytearray:
    both = int.from_bytes(left) | int.from_bytes(right)
    return bytearray(both.to_bytes(len(left)))


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
    """Whether there were more sessions than are remembered, or some were forgotten."""

    @property
    def is_open(self) -> bool:
        """Whether somebody may go on from here who has not yet."""
        free = not all(self.sessions.values())
        return free or bool(self.crowded or self.unheard or self.asking)

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

    def meant(self, directly: bool, asked: Callable[[str], bool]) -> str | None:
        """The one session that a request can continue; None where it is not known. `asked` is
        whether a call of a session asked for more of it than the shared answer."""
        if self.crowded or self.unheard - self.sessions.keys():
            return None
        if len(self.sessions) == 1 and asked(only := next(iter(self.sessions))):
            return only
        if not directly:
            return None
        free = [name for name, count in self.sessions.items() if not count]
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

    def __init__(self, most: int = MAX_KNOWN, clock: Callable[[], int] = now_ms) -> None:
        """`clock` tells Unix milliseconds."""
        self._most = most
        self._clock = clock
        self._forgotten = _Forgotten()
        self._has_forgotten = False
        """Whether any beginning was, also one that somebody had gone on from."""
        self._doubtful_until = 0
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
        while claim is not None:
            alike = self._known.get(("alike", claim.scope, claim.beginning))
            if alike is None:
                return
            alike.asking -= Counter([claim.session])
            if not completed or claim.session not in alike.sessions:
                return
            alike.sessions[claim.session] += 1
            # Who goes on from an answer has it.
            claim = self._unsure.pop(claim, None)

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
        self._add(scope, conversation.answered_alike(answer), session, heard=True)

    def may_be_answered(
        self, session: str, scope: Scope, conversation: Conversation, answer: Mapping[str, Any]
    ) -> None:
        """Remember what a client may take for its answer, and nobody knows whether it does."""
        if not len(conversation):
            return
        self._add(scope, conversation.answered_alike(answer), session, heard=False)
        key = ("cut", scope, conversation.loose[-1])
        cut = self._known.get(key) or _Cut(crowded=key in self._forgotten)
        cut.add(session, _Heard.of(answer))
        self._remember(key, cut)

    def placed(self, call: str, session: str) -> None:
        """Remember which session a call is of."""
        self._remember(("call", call), session)

    def ended(self, session: str) -> None:
        """A client said that a session is over: no unnamed call continues it."""
        self._remember(("over", session), True)

    def session_of(self, call: str) -> str | None:
        """The session of a recent call."""
        found: str | None = self._known.get(("call", call))
        return found

    def expect_recall(self) -> None:
        """Until `recall` no call is taken for another's continuation: what would make it doubtful
        may not be known yet."""
        self._recalling = True

    def forget_before(self, moment_ms: int) -> None:
        """Note that not all is known of what was said before a moment (Unix milliseconds). Until
        those who said it are not expected back, no call is taken for another's continuation."""
        self._doubtful_until = max(self._doubtful_until, moment_ms + COMES_BACK_MS)

    def recall(self, earlier: "Sessions") -> None:
        """Add what was known earlier; what is known already is newer and stays."""
        self._doubtful_until = max(self._doubtful_until, earlier._doubtful_until)
        newer, self._known = self._known, earlier._known.copy()
        for key, value in newer.items():
            before = self._known.get(key)
            if isinstance(value, _Alike | _Cut):
                if before is not None:
                    value.recall(before)
                value.crowded = value.crowded or key in earlier._forgotten
            self._remember(key, value)
        self._forgotten.recall(earlier._forgotten)
        self._has_forgotten = self._has_forgotten or earlier._has_forgotten
        self._unsure |= earlier._unsure
        self._recalling = False

    def _continued(self, scope: Scope, conversation: Conversation) -> str | None:
        if self._recalling or self._clock() < self._doubtful_until:
            return None
        begun = self._beginning(scope, conversation)
        if begun is None:
            return None
        beginning, alike = begun
        place = conversation.loose.index(beginning)
        later = [answer for answer in conversation.answers if answer > place]
        if later and self._has_forgotten:
            return None  # the answer that is not known may be one that was forgotten

        def asked(session: str) -> bool:
            parent = self._parent(session, scope[1], conversation)
            return parent is not None and parent.messages > place

        session = alike.meant(not later, asked)
        if session is None or ("over", session) in self._known:
            return None
        if any(self._may_be_anothers(scope, conversation, n, session) for n in (place, *later)):
            return None
        return session

    def _may_be_anothers(
        self, scope: Scope, conversation: Conversation, place: int, session: str
    ) -> bool:
        """Whether an answer is perhaps one that another client than a session's has."""
        answered = ("alike", scope, conversation.loose[place])
        alike: _Alike | None = self._known.get(answered)
        if answered in self._forgotten if alike is None else alike.unheard - {session}:
            return True
        request = ("cut", scope, conversation.loose[place - 1])
        cut: _Cut | None = self._known.get(request)
        if cut is None:
            return request in self._forgotten
        last = conversation.last if conversation.answers[-1:] == (place,) else None
        return cut.doubts(session, last)

    def _beginning(self, scope: Scope, conversation: Conversation) -> tuple[Digest, _Alike] | None:
        """The longest known beginning of a conversation, and who has it."""
        for digest in reversed(conversation.loose[1:]):
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
        alike = self._known.get(key) or _Alike(crowded=key in self._forgotten)
        alike.add(session, heard)
        self._remember(key, alike)

    def _remember(self, key: tuple[Any, ...], value: Any) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            oldest, lost = self._known.popitem(last=False)
            self._has_forgotten = self._has_forgotten or isinstance(lost, _Alike)
            if isinstance(lost, _Cut) or (isinstance(lost, _Alike) and lost.is_open):
                self._forgotten.add(oldest)


def _digest(text: str, before: Digest = b"") -> Digest:
    raw = text.encode("utf-8", "surrogatepass")
    return blake2b(before + raw, digest_size=16).digest()


def _texts(message: Any) -> tuple[str, str]:
    """A message as it is compared, and without the white space around an answer; the same object
    where there is none."""
    exact = _text(message)
    if not _is_answer(message):
        return exact, exact
    content = message.get("content")
    bare = _bare(content)
    return exact, exact if bare == content else _text({**message, "content": bare})


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _bare(content: Any) -> Any:
    """The text of an answer, whole or in parts, without white space around it and with one way to
    end a line; anything else as it is."""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content]
        if all(isinstance(text, str) for text in texts):
            content = "".join(texts)
    return content.replace("\r\n", "\n").strip() if isinstance(content, str) else content


def _text(message: Any) -> str:
    """A message as it is compared: an answer by what it says and calls, for clients send it back
    in their own words; any other exactly, but for fields that are null."""
    try:
        if not isinstance(message, dict):
            return exact_json(message)
        if _is_answer(message):
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
