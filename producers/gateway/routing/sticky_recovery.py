"""Restores the policies of the newest sessions (events of the spool -> StickySessions).

A gateway that was restarted goes on as the one before it: a session stays with the policy that
its route drew, and of a panel with the member that was chosen. Calls that asked for an adapter by
its name, or that another adapter answered because the chosen one was missing, do not change it.

Not covered: clocks. Where this host's was set back, calls that seem to lie ahead count as made now;
where it was set forward, sessions are over too early and drawn anew.
"""

from datetime import datetime
from typing import Final

from events.codec import Event
from events.rollouts import CallStarted, MemberChoice, SessionEnded
from producers.gateway.routing.routes import is_shadow
from producers.gateway.routing.sticky_sessions import StickyMember, StickySessions

_MOVE_NOBODY: Final = ("named", "fallback")


class StickyRecovery:
    """Applies events, in the order in which they came, to the sticky sessions `stays`."""

    def __init__(self, stays: StickySessions, now: float, today: datetime) -> None:
        """`now` is the moment `today`, by the clock of `stays`."""
        self.stays = stays
        self._now = now
        self._today = today

    def take(self, event: Event) -> None:
        """Apply an event of the stream `rollouts`."""
        data, at = event.data, event.envelope.time
        if isinstance(data, SessionEnded):
            self.stays.end(data.session)
        elif isinstance(data, CallStarted) and at is not None and not is_shadow(data.session):
            policy = None if data.policy == data.base else data.policy
            seconds_ago = max(0.0, (self._today - at).total_seconds())
            # Read as it was then: what was idle for too long between two calls began anew.
            then = self._now - seconds_ago
            self.stays.read_policies(data.session, then)
            if data.routed not in _MOVE_NOBODY:
                self.stays.assign(data.session, data.alias, policy, then)
            elif data.member is not None:
                self.stays.open(data.session, then)
            if data.member is not None:
                self._keep_member(data.session, data.policy, data.member, then)

    def _keep_member(self, session: str, panel: str, member: MemberChoice, then: float) -> None:
        """Keep the member of a call. Where no engine had it, its skill says which one it is."""
        before = self.stays.read_member(session, panel, then)
        asked = (0 if before is None else before.asked) + (member.router_ms is not None)
        doubt = None if member.doubt == "absent" else member.doubt
        kept = StickyMember(member.skill, member.adapter, doubt, max(asked, 1), at_turn=True)
        self.stays.keep_member(session, panel, kept)
