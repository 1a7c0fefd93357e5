"""Assigns a call to a session, and to the earlier call of the session that it continues.

A header, else the API key, else the path names the session. An unnamed call may continue an earlier
call of its key and user, with whose messages and answer it begins. Only one session may be
possible:

    one session has it, and no call continues it   this one
    one has it, and some call of it asked for more
    of these messages than the shared answer       this one: a retry, an answer made anew (a fork)
    several, and exactly one is not continued      that one
    otherwise                                      not known: a session of its own

Answers are compared without outer white space, which clients strip. A call in progress makes its
beginning doubtful. A failed or cut-off call does not count as a continuation. Nor does a call whose
client may lack the answer (it hung up, or the gateway was killed), until a call continues from that
answer. An ended session is never continued, and makes sessions with the same messages doubtful. So
do a partial or unrecorded answer, a choice beside the first, and a forgotten beginning. For an hour
after a restart, so do all records that were not read.

The parent is the longest earlier call of the same session, person and encryption key with whose
messages this call begins. `parent_messages` counts them, with the parent's answer if it was sent
back. A call without a parent is stored whole: a compacted history or a rewritten system prompt is a
fork. Erasing a person removes nothing of others.

Guarantee: two conversations that this gateway answered never share an unnamed session, as long as
no client goes back. Memory is bounded. Forgetting leads to a longer record or an additional unnamed
session, never to a wrong parent. Not covered: a client that goes back to a point where
conversations are word for word the same (an edited message, a new answer) while exactly one other
is not continued; a beginning that another gateway answered; one forgotten more than 262,144 such
ago, or older than the records that session_recovery.py read, once an hour has passed.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from events.log import now_ms
from events.rollouts import Attribution
from producers.gateway.capture.digests import AnswerDigests, Conversation, Digest
from producers.gateway.capture.lookalikes import Alike, BloomFilter, Cut

MAX_KNOWN: Final = 65_536
"""Most entries in memory: two or three per call, about 30 MB."""


COMES_BACK_MS: Final = 3_600_000
"""Milliseconds for which clients with older messages may come back: twice the idle time."""


Scope = tuple[str | None, str | None]
"""(client key, person). Unnamed calls of different scopes never share a session."""


@dataclass(frozen=True, slots=True)
class SessionName:
    """A session's name, and where the request had it."""

    session: str
    by: Attribution


@dataclass(frozen=True, slots=True)
class Parent:
    """An earlier call with whose messages a call begins."""

    call: str
    messages: int
    """Number of leading messages that the parent holds."""
    same_tools: bool = False
    keyid: str | None = None
    """Id of the key that sealed the parent's events; None if unsealed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A call's reservation of the beginning that it continues, until the call has ended."""

    scope: Scope
    beginning: Digest
    session: str
    """Session of the beginning."""


@dataclass(frozen=True, slots=True)
class CallAttribution:
    """The session and parent of a call."""

    session: str
    by: Attribution
    parent: Parent | None
    claim: Claim | None = None


class Sessions:
    """Memory of recent calls."""

    def __init__(self, most: int = MAX_KNOWN, clock: Callable[[], int] = now_ms) -> None:
        """`most`: entries in memory. `clock`: returns Unix milliseconds."""
        self._most = most
        self._clock = clock
        self._forgotten = BloomFilter()
        self._has_forgotten = False
        """Whether any beginning was forgotten, including one that a call had continued."""
        self._doubtful_until = 0
        self._known: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._recalling = False
        self._unsure: dict[Claim, Claim] = {}
        """Claim that continues a maybe undelivered answer -> claim of the call of that answer."""

    def attribute(
        self, named: SessionName | None, scope: Scope, conversation: Conversation, fresh: str
    ) -> CallAttribution:
        """Return a call's session and parent; `fresh` is the id for a new session. The call
        reserves the beginning that it continues until `settle`."""
        if named is None:
            session = self._find_session(scope, conversation)
            named = (
                SessionName(fresh, "none") if session is None else SessionName(session, "prefix")
            )
        claim = self.claim(named.session, scope, conversation)
        parent = self._parent(named.session, scope[1], conversation)
        return CallAttribution(named.session, named.by, parent, claim)

    def claim(self, session: str, scope: Scope, conversation: Conversation) -> Claim | None:
        """Reserve the beginning that a session's call continues; None if it is not known."""
        begun = self._beginning(scope, conversation)
        if begun is None:
            return None
        beginning, alike = begun
        if session not in alike.sessions:
            return None
        alike.asking[session] += 1
        return Claim(scope, beginning, session)

    def settle(self, claim: Claim | None, completed: bool) -> None:
        """Release a claim. If its call was `completed`, count it as continued."""
        while claim is not None:
            alike = self._known.get(("alike", claim.scope, claim.beginning))
            if alike is None:
                return
            alike.asking -= Counter([claim.session])
            if not completed or claim.session not in alike.sessions:
                return
            alike.sessions[claim.session] += 1
            # This call continues an answer, so the client has that answer.
            claim = self._unsure.pop(claim, None)

    def doubt_delivery(self, claim: Claim, answer: Digest) -> None:
        """Record that the claim's answer may not have arrived. Then its call counts as no
        continuation until a later call continues that answer."""
        alike = self._known.get(("alike", claim.scope, claim.beginning))
        after = self._known.get(("alike", claim.scope, answer))
        if alike is None or not alike.sessions.get(claim.session):
            return
        if after is None or not after.sessions.get(claim.session):
            alike.sessions[claim.session] -= 1
            self._unsure[Claim(claim.scope, answer, claim.session)] = claim

    def remember_request(
        self,
        session: str,
        call: str,
        conversation: Conversation,
        person: str | None = None,
        keyid: str | None = None,
    ) -> None:
        """Remember a call whose request is in the log. `keyid`: the key that sealed it."""
        if len(conversation):
            known = Parent(call, len(conversation), keyid=keyid), conversation.tools
            self._remember(("said", session, person, conversation.beginnings[-1]), known)

    def remember_answer(
        self,
        session: str,
        call: str,
        scope: Scope,
        conversation: Conversation,
        answer: AnswerDigests,
        keyid: str | None = None,
    ) -> None:
        """Remember the answer (first choice) of a call whose end is in the log."""
        if not len(conversation):
            return
        known = Parent(call, len(conversation) + 1, keyid=keyid), conversation.tools
        self._remember(("said", session, scope[1], answer.exact), known)
        self._add(scope, answer.loose, session, heard=True)

    def remember_answer_by_index(
        self, session: str, scope: Scope, conversation: Conversation, answer: AnswerDigests
    ) -> None:
        """Remember another form of an answer, in which the client may send it back."""
        if len(conversation):
            self._add(scope, answer.loose, session, heard=True)

    def remember_possible_answer(
        self, session: str, scope: Scope, conversation: Conversation, answer: AnswerDigests
    ) -> None:
        """Remember an answer that the client may have instead of the recorded first choice."""
        if not len(conversation):
            return
        self._add(scope, answer.loose, session, heard=False)
        key = ("cut", scope, conversation.loose[-1])
        cut = self._known.get(key) or Cut(crowded=key in self._forgotten)
        cut.add(session, answer.prefix)
        self._remember(key, cut)

    def remember_call(self, call: str, session: str) -> None:
        """Remember the session of a call."""
        self._remember(("call", call), session)

    def end_session(self, session: str) -> None:
        """Record that a client ended a session: no unnamed call continues it."""
        self._remember(("over", session), True)

    def session_of(self, call: str) -> str | None:
        """Return the session of a recent call."""
        session: str | None = self._known.get(("call", call))
        return session

    def expect_recall(self) -> None:
        """Let no unnamed call continue another until `recall` adds the earlier calls."""
        self._recalling = True

    def forget_before(self, moment_ms: int) -> None:
        """Record that calls before a time (Unix milliseconds) are not all known. No unnamed call
        continues another until `COMES_BACK_MS` after it."""
        self._doubtful_until = max(self._doubtful_until, moment_ms + COMES_BACK_MS)

    def recall(self, earlier: "Sessions") -> None:
        """Add entries from before a restart; known entries are newer and stay."""
        self._doubtful_until = max(self._doubtful_until, earlier._doubtful_until)
        newer, self._known = self._known, earlier._known.copy()
        for key, value in newer.items():
            before = self._known.get(key)
            if isinstance(value, Alike | Cut):
                if before is not None:
                    value.recall(before)
                value.crowded = value.crowded or key in earlier._forgotten
            self._remember(key, value)
        self._forgotten.recall(earlier._forgotten)
        self._has_forgotten = self._has_forgotten or earlier._has_forgotten
        self._unsure |= earlier._unsure
        self._recalling = False

    def _find_session(self, scope: Scope, conversation: Conversation) -> str | None:
        if self._recalling or self._clock() < self._doubtful_until:
            return None
        begun = self._beginning(scope, conversation)
        if begun is None:
            return None
        beginning, alike = begun
        place = conversation.loose.index(beginning)
        later = [answer for answer in conversation.answers if answer > place]
        if later and self._has_forgotten:
            return None  # the unknown answer may have been forgotten

        def asks_more(session: str) -> bool:
            parent = self._parent(session, scope[1], conversation)
            return parent is not None and parent.messages > place

        session = alike.select_session(not later, asks_more)
        if session is None or ("over", session) in self._known:
            return None
        if any(self._may_be_anothers(scope, conversation, n, session) for n in (place, *later)):
            return None
        return session

    def _may_be_anothers(
        self, scope: Scope, conversation: Conversation, place: int, session: str
    ) -> bool:
        """Return whether a client of another session may have the answer with number `place`."""
        answered = ("alike", scope, conversation.loose[place])
        alike: Alike | None = self._known.get(answered)
        if answered in self._forgotten if alike is None else alike.unheard - {session}:
            return True
        request = ("cut", scope, conversation.loose[place - 1])
        cut: Cut | None = self._known.get(request)
        if cut is None:
            return request in self._forgotten
        last = conversation.last if conversation.answers[-1:] == (place,) else None
        return cut.doubts(session, last)

    def _beginning(self, scope: Scope, conversation: Conversation) -> tuple[Digest, Alike] | None:
        """Return the longest known beginning of a conversation, and the sessions with it."""
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
        alike = self._known.get(key) or Alike(crowded=key in self._forgotten)
        alike.add(session, heard)
        self._remember(key, alike)

    def _remember(self, key: tuple[Any, ...], value: Any) -> None:
        self._known[key] = value
        self._known.move_to_end(key)
        while len(self._known) > self._most:
            oldest, lost = self._known.popitem(last=False)
            self._has_forgotten = self._has_forgotten or isinstance(lost, Alike)
            if isinstance(lost, Cut) or (isinstance(lost, Alike) and lost.is_open):
                self._forgotten.add(oldest)
