"""Restores the policies and chosen members of the newest sessions from the spool's events. Calls
that named an adapter, or that a fallback answered, change nothing. If the chooser did not answer
for a call that failed, the next call asks it again. Not covered: clocks that were set. Calls with a
time in the future count as made now. After a clock was set forward, sessions end early and are
drawn again."""

from datetime import datetime
from typing import Final

from events.codec import Event
from events.rollouts import CallEnded, CallStarted, MemberChoice, SessionEnded
from producers.gateway.routing.routes import is_shadow
from producers.gateway.routing.sticky_sessions import SILENT, StickyMember, StickySessions

_MOVE_NOBODY: Final = ("named", "fallback")


class StickyRecovery:
    """Applies events, in the order of recording, to the sticky sessions `stays`."""

    def __init__(self, stays: StickySessions, now: float, today: datetime) -> None:
        """`now` and `today`: the present by the clock of `stays`, and as a date."""
        self.stays = stays
        self._now = now
        self._today = today
        self._silent_calls: dict[str, tuple[str, str]] = {}
        """Session whose newest call chose first, without an answer -> (call, policy)."""

    def take(self, event: Event) -> None:
        """Apply an event of the stream `rollouts`."""
        data, at = event.data, event.envelope.time
        if isinstance(data, SessionEnded):
            self.stays.end(data.session)
            self._silent_calls.pop(data.session, None)
        elif isinstance(data, CallEnded):
            call, undecided = self._silent_calls.get(data.session, (None, ""))
            if call == data.call and data.outcome != "completed":
                self.stays.drop_member(data.session, undecided)
        elif isinstance(data, CallStarted) and at is not None and not is_shadow(data.session):
            policy = None if data.policy == data.base else data.policy
            seconds_ago = max(0.0, (self._today - at).total_seconds())
            # Read with the call's time, so that sessions that were idle for too long have ended.
            then = self._now - seconds_ago
            self.stays.read_policies(data.session, then)
            if data.routed not in _MOVE_NOBODY:
                self.stays.assign(data.session, data.alias, policy, then)
            elif data.member is not None:
                self.stays.open(data.session, then)
            self._silent_calls.pop(data.session, None)
            if data.member is not None:
                is_first = self.stays.read_member(data.session, data.policy, then) is None
                self._keep_member(data.session, data.policy, data.member, then)
                if is_first and data.member.doubt in SILENT:
                    self._silent_calls[data.session] = (data.call, data.policy)

    def _keep_member(self, session: str, policy: str, member: MemberChoice, then: float) -> None:
        """Let the session keep a call's member; by its name also if no engine had its adapter."""
        before = self.stays.read_member(session, policy, then)
        asked = (0 if before is None else before.asked) + (member.router_ms is not None)
        doubt = None if member.doubt == "absent" else member.doubt
        kept = StickyMember(member.name, member.adapter, doubt, max(asked, 1), at_turn=True)
        self.stays.keep_member(session, policy, kept)
