"""Remembers each session's policy, and its chosen member as long as the policy stays.

A session is open from its first call until a client ends it, `idle_seconds` pass without a call, or
`max_age_seconds` pass since the first; its name then begins a new session. A session has a policy
per alias that it asks for.

Guarantee: bounded memory. Of more than `most` sessions, those without a call for the longest time
are forgotten; if they continue, their policy is drawn again. Times are seconds of any single clock.
Not thread-safe. Not covered: sessions of other gateways.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from events.rollouts import ChoiceDoubt
from producers.gateway.routing.routes import Policy

MAX_SESSIONS: Final = 65_536
"""Most sessions in memory; about 30 MB."""

SILENT: Final[frozenset[ChoiceDoubt | None]] = frozenset(("timeout", "failed"))
"""Doubts that mean that the chooser gave no answer."""

_NONE: Final[Mapping[str, Policy]] = {}


@dataclass(frozen=True, slots=True)
class StickyMember:
    """The member of a policy that was chosen for a session."""

    name: str | None
    """The member's name in the policy; None: the base answers."""
    adapter: str | None
    """The member's adapter; None for the base."""
    doubt: ChoiceDoubt | None = None
    asked: int = 1
    at_turn: bool = False
    """Whether it was used for a call of the session that ended with a user's message."""
    shared: bool = False
    """Whether calls use it other than the call that chose it."""


@dataclass(slots=True)
class _StickySession:
    began: float
    last: float
    policies: dict[str, Policy] = field(default_factory=dict)
    members: dict[str, StickyMember] = field(default_factory=dict)

    @property
    def adapters(self) -> list[str]:
        """Return the names of its policies and of its members' adapters, without the base."""
        names = (*self.policies.values(), *(kept.adapter for kept in self.members.values()))
        return [name for name in names if name is not None]


class StickySessions:
    """The open sessions."""

    def __init__(
        self, idle_seconds: float, max_age_seconds: float, most: int = MAX_SESSIONS
    ) -> None:
        self._idle = idle_seconds
        self._age = max_age_seconds
        self._most = most
        self._sessions: OrderedDict[str, _StickySession] = OrderedDict()
        """Session -> its state, ordered by the last call; the oldest comes first."""
        self._beginnings: deque[tuple[float, str]] = deque()
        """(time, session) in the order in which sessions began; it may hold ended ones."""
        self._open: Counter[str] = Counter()

    def read_policies(self, session: str, now: float) -> Mapping[str, Policy]:
        """Return alias -> policy of the session; empty if it is not open."""
        sticky = self._find_open(session, now)
        return _NONE if sticky is None else sticky.policies

    def read_member(self, session: str, policy: str, now: float) -> StickyMember | None:
        """Return the member of a policy that the session keeps, or None."""
        sticky = self._find_open(session, now)
        return None if sticky is None else sticky.members.get(policy)

    def assign(self, session: str, alias: str, policy: Policy, now: float) -> None:
        """Record that a call of the session goes to `policy`."""
        self._move(self._touch(session, now), alias, policy)

    def open(self, session: str, now: float) -> None:
        """Record a call of the session that does not change its policies."""
        self._touch(session, now)

    def keep_member(self, session: str, policy: str, kept: StickyMember) -> None:
        """Record the member of a policy that answers the session; do nothing if it is not open."""
        sticky = self._sessions.get(session)
        if sticky is None:
            return
        before = sticky.members.get(policy)
        self._count(None if before is None else before.adapter, -1)
        self._count(kept.adapter, 1)
        sticky.members[policy] = kept

    def drop_member(self, session: str, policy: str) -> None:
        """Forget the member of a policy that the session keeps, if any."""
        sticky = self._sessions.get(session)
        left = None if sticky is None else sticky.members.pop(policy, None)
        self._count(None if left is None else left.adapter, -1)

    def end(self, session: str) -> None:
        """End the session, if it is known."""
        sticky = self._sessions.pop(session, None)
        for name in sticky.adapters if sticky else ():
            self._count(name, -1)

    def count_open(self, now: float) -> Mapping[str, int]:
        """Return adapter -> number of open sessions that keep it."""
        self._sweep(now)
        return dict(self._open)

    def recall(self, earlier: "StickySessions") -> None:
        """Add sessions from before a restart; sessions known already are newer and stay."""
        newer = self._sessions
        self._sessions, self._open = OrderedDict(), Counter()
        for sessions in (earlier._sessions, newer):
            for session, sticky in sessions.items():
                self.end(session)
                self._sessions[session] = sticky
                for name in sticky.adapters:
                    self._count(name, 1)
        self._order()
        while len(self._sessions) > self._most:
            self.end(next(iter(self._sessions)))

    def _find_open(self, session: str, now: float) -> _StickySession | None:
        sticky = self._sessions.get(session)
        if sticky is None:
            return None
        if sticky.last + self._idle <= now or sticky.began + self._age <= now:
            self.end(session)
            return None
        return sticky

    def _touch(self, session: str, now: float) -> _StickySession:
        """Record a call now; return the open session's state, or a new one."""
        sticky = self._sessions.get(session)
        if sticky is None:
            sticky = self._sessions[session] = _StickySession(now, now)
            self._begin(now, session)
        sticky.last = now
        self._sessions.move_to_end(session)
        while len(self._sessions) > self._most:
            self.end(next(iter(self._sessions)))
        return sticky

    def _begin(self, now: float, session: str) -> None:
        self._beginnings.append((now, session))
        if len(self._beginnings) > 2 * self._most:
            self._order()

    def _order(self) -> None:
        begun = ((sticky.began, session) for session, sticky in self._sessions.items())
        self._beginnings = deque(sorted(begun))

    def _sweep(self, now: float) -> None:
        """End the sessions that are idle or old; only these are visited."""
        while self._sessions:
            session, sticky = next(iter(self._sessions.items()))
            if sticky.last + self._idle > now:
                break
            self.end(session)
        while self._beginnings and self._beginnings[0][0] + self._age <= now:
            began, session = self._beginnings.popleft()
            known = self._sessions.get(session)
            if known is not None and known.began == began:
                self.end(session)

    def _move(self, sticky: _StickySession, alias: str, policy: Policy) -> None:
        before = sticky.policies.get(alias)
        if alias in sticky.policies and before == policy:
            return
        self._count(before, -1)
        self._count(policy, 1)
        sticky.policies[alias] = policy
        if before is not None and before not in sticky.policies.values():
            left = sticky.members.pop(before, None)
            self._count(None if left is None else left.adapter, -1)

    def _count(self, policy: Policy, by: int) -> None:
        if policy is None:
            return
        self._open[policy] += by
        if not self._open[policy]:
            del self._open[policy]
