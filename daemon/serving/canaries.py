"""The live guard at work: judged sessions from the tables in, routes that turn out.

    guards = Guards(app)
    guards.watch(now)     what live traffic says of every canary, as events; again and again

A route that came about by a passed gate (`canary`) is watched: its canary's judged sessions are
paired with the incumbent's (live.py), from the first session of the canary on. The evidence alone
decides: 20 against it rolls back, 20 for it promotes; on the way there the canary's share rises
through `canary.shares`, one step each time the evidence for it has grown by the same factor. After
`canary.max_age_seconds` without either, counts that need no judge decide whether it is rolled back
or just ends. Silence never promotes.

Guarantees: the guard is told the same sessions in the same order whoever asks, up to the position
that the event names, so two that decide at once decide the same, under the same id. What was seen
is remembered from look to look, and only sessions that something happened to since are read again:
a look costs what is new, and says what reading all of it again would say. Not covered: routes that
a person set (`operator`): they are that person's.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from consumers import position, serving
from consumers.judged import (
    MOST_AMONG,
    Behaviour,
    JudgedSession,
    behaviours,
    in_order,
    judged_sessions,
    touched_sessions,
)
from consumers.serving import AdapterRow, RouteRow
from daemon.serving.decisions import DecisionRefused, Decisions
from daemon.serving.live import ENOUGH, LiveGuard, on_silence
from events.envelope import parse_timestamp
from events.lifecycle import State
from events.position import Position, covers
from events.serving import LiveEvidence, RouteChanged, RouteShare, Why
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.app import App
    from daemon.settings import Canary

_NOBODY: Final = Behaviour(0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Watched:
    """A canary and what was seen of it."""

    route: RouteRow
    canary: AdapterRow
    guard: LiveGuard
    """That was told all of it."""
    behaviour: Callable[[], tuple[Behaviour, Behaviour]]
    """Of the canary and of the incumbent, where nobody judged."""
    position: Position
    """The rollouts that were read."""

    @property
    def share(self) -> float:
        """Of the canary."""
        shares = {part.adapter: part.share for part in self.route.standing.shares}
        return shares[self.canary.adapter]


class Guards:
    """The guards of a home's canaries, kept from look to look."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._decisions = Decisions(app)
        self._seen: dict[str, Seen] = {}
        """By the event that made the route so."""

    def watch(self, now: datetime) -> list[RouteChanged]:
        """Have live traffic decide about every canary; the routes that turned.

        Raises LogError, DatabaseUnavailable.
        """
        settings, turned = self._app.settings.canary, list[RouteChanged]()
        with self._app.reading() as connection:
            found = [(one, decide(one, settings, now)) for one in self.look(connection)]
        for one, decision in found:
            if decision is None:
                continue
            try:
                self._decisions.take(decision, f"guard {decision.why}", one.route.cause)
            except DecisionRefused:
                # A person was faster, and what they want stands.
                continue
            turned.append(decision)
        return turned

    def look(self, connection: "Connection") -> list[Watched]:
        """Every canary with all that was seen of it until now."""
        read: Position = {ROLLOUTS.name: position.position(connection).get(ROLLOUTS.name, {})}
        margin = self._app.settings.canary.margin
        watched, seen = list[Watched](), dict[str, Seen]()
        for route, canary, since in _canaries(connection):
            one = self._seen.get(route.cause) or Seen(route, canary.adapter, since, margin)
            one.read(connection, read)
            seen[route.cause] = one
            behaviour = partial(_behaviour, connection, route, canary.adapter, since)
            watched.append(Watched(route, canary, one.guard, behaviour, read))
        self._seen = seen
        return watched


class Seen:
    """The judged sessions of one canary and its incumbent, and the guard that was told them."""

    def __init__(self, route: RouteRow, canary: str, since: str, margin: float) -> None:
        """`since`: the first session of the canary began then, as stored."""
        self.guard = LiveGuard(margin)
        self._route = route
        self._canary = canary
        self._since = since
        self._margin = margin
        self._sessions: dict[str, JudgedSession] = {}
        """By name, in the order of their verdicts."""
        self._position: Position | None = None

    def read(self, connection: "Connection", until: Position) -> None:
        """Learn what happened since the last time, up to a position of `connection`."""
        touched = self._touched(connection, until)
        standing = self._route.standing
        found = judged_sessions(
            connection, self._route.alias, standing.base, self._since, until, touched
        )
        if touched is None or self._is_amended(touched, found):
            self._retell(touched, found)
        else:
            self._tell(one for one in found if one.session not in self._sessions)
        self._sessions |= {one.session: one for one in found}
        self._position = until

    def _touched(self, connection: "Connection", until: Position) -> set[str] | None:
        """The sessions to read; None for all of them."""
        if self._position is None or not covers(until, self._position):
            return None
        touched = touched_sessions(connection, self._position, until)
        return touched if len(touched) <= MOST_AMONG else None

    def _is_amended(self, touched: Collection[str], found: Sequence[JudgedSession]) -> bool:
        """Whether what the guard was told is not the beginning of what it is to be told."""
        now = {one.session: one for one in found}
        if any(
            name in self._sessions and self._sessions[name] != now.get(name) for name in touched
        ):
            return True
        new = [one for one in found if one.session not in self._sessions]
        last = next(reversed(self._sessions.values()), None)
        return bool(new) and last is not None and in_order(new[0]) < in_order(last)

    def _retell(self, touched: Collection[str] | None, found: Iterable[JudgedSession]) -> None:
        """Begin anew."""
        kept = [
            one
            for one in self._sessions.values()
            if touched is not None and one.session not in touched
        ]
        ordered = sorted([*kept, *found], key=in_order)
        self._sessions = {one.session: one for one in ordered}
        self.guard = LiveGuard(self._margin)
        self._tell(ordered)

    def _tell(self, sessions: Iterable[JudgedSession]) -> None:
        for session in sessions:
            if session.adapter == self._canary:
                self.guard.judged("canary", session.slice, session.success)
            elif session.adapter == self._route.standing.incumbent:
                self.guard.judged("incumbent", session.slice, session.success)


def decide(watched: Watched, settings: "Canary", now: datetime) -> RouteChanged | None:
    """What live traffic says of a canary; None for nothing yet."""
    guard = watched.guard
    if guard.outcome == "roll_back":
        return _turned(watched, "rollback", None, "live sessions show it to be worse")
    if guard.outcome == "promote":
        return _turned(watched, "promoted", 1.0, "live sessions show it to be no worse")
    if _age(watched, now) >= timedelta(seconds=settings.max_age_seconds):
        return _on_silence(watched)
    share = due_share(guard.towards, settings.shares)
    if share > watched.share:
        return _turned(watched, "canary", share, "live sessions are in its favour so far")
    return None


def due_share(towards: float, shares: Sequence[float]) -> float:
    """The canary's share at so much evidence for it: `n` shares cut the way to `ENOUGH` into `n`
    parts of the same factor."""
    steps = len(shares)
    reached = [i for i in range(steps) if i == 0 or towards >= ENOUGH ** (i / steps)]
    return shares[reached[-1]]


def _on_silence(watched: Watched) -> RouteChanged:
    if on_silence(*watched.behaviour()) == "roll_back":
        return _turned(
            watched, "rollback", None,
            "too few sessions were judged, and its errors and loops are more than the incumbent's",
        )  # fmt: skip
    return _turned(watched, "expired", None, "too few sessions were judged in its time")


def _turned(watched: Watched, why: Why, share: float | None, said: str) -> RouteChanged:
    """The route with the canary on `share`, or without it."""
    guard = watched.guard
    route, standing = watched.route, watched.route.standing
    numbers = (
        f"{guard.pairs} pairs of judged sessions, evidence {guard.against:.3g} that it is worse, "
        f"{guard.towards:.3g} that it is not; {ENOUGH:g} decides"
    )
    return RouteChanged(
        alias=route.alias,
        base=standing.base,
        shares=_parts(watched.canary.adapter, standing.incumbent, share),
        shadow=standing.shadow,
        why=why,
        reason=f"{said}: {numbers}",
        evidence=LiveEvidence(
            pairs=guard.pairs,
            against=guard.against,
            towards=guard.towards,
            position=watched.position,
        ),
    )


def _parts(canary: str, incumbent: str | None, share: float | None) -> tuple[RouteShare, ...]:
    if share is None:
        return (RouteShare(adapter=incumbent, share=1),)
    if share == 1:
        return (RouteShare(adapter=canary, share=1),)
    return RouteShare(adapter=canary, share=share), RouteShare(adapter=incumbent, share=1 - share)


def _age(watched: Watched, now: datetime) -> timedelta:
    """Since it became a canary."""
    since = watched.canary.since
    return timedelta() if since is None else now - parse_timestamp(since)


def _canaries(connection: "Connection") -> Iterator[tuple[RouteRow, AdapterRow, str]]:
    """Routes that came about by a passed gate, their canaries, and since when they are."""
    table = serving.route_table(connection)
    for route in table.routes:
        rows = [table.adapter(name) for name in route.standing.adapters if name is not None]
        canaries = [row for row in rows if row is not None and row.state is State.CANARY]
        if route.why == "canary" and len(canaries) == 1 and canaries[0].since is not None:
            yield route, canaries[0], canaries[0].since


def _behaviour(
    connection: "Connection", route: RouteRow, canary: str, since: str
) -> tuple[Behaviour, Behaviour]:
    """Of the canary and of the incumbent."""
    counts = behaviours(connection, route.alias, route.standing.base, since)
    return counts.get(canary, _NOBODY), counts.get(route.standing.incumbent, _NOBODY)
