"""The live guard: reads a canary's judged sessions from the tables, and changes its route.

A route from a passed gate (`canary`) is watched from the canary's first session: its successes and
failures are tested against the shares by which sessions were drawn (sequential_test.py). Evidence
of 20 against it rolls back, 20 for it promotes. Its share rises through `canary.shares` in equal
factors of evidence. The share does not rise while the sessions of one arm (canary or incumbent) are
judged more often. Then, and while later verdicts may change the result, no canary is promoted.
After `canary.max_age_seconds`, counts of faults that need no judge decide between a rollback and an
end without verdict. Missing verdicts never promote.

Guarantee: the guard's state is a function of the judged sessions up to the event's position, in any
process and any order of verdicts, so two processes take the same decision under the same id. A look
reads only sessions with new events. Not covered: routes that an operator set (`operator`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from consumers import position
from consumers.reads import serving
from consumers.reads.outcomes.canary import (
    EVERY,
    MOST_AMONG,
    OpenSession,
    SessionVerdict,
    behaviours,
    canary_share,
    find_newest_rules,
    find_session_changes,
    follows_rules,
    in_order,
    latest_call,
    open_sessions,
    read_session_verdicts,
)
from consumers.reads.serving import AdapterRow, RouteRow
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.serving.sequential_test import (
    ENOUGH,
    UNEQUAL,
    Arm,
    ArmFaults,
    ArmSession,
    LiveGuard,
    longest_wait,
    measure_final_evidence,
    on_silence,
)
from events.envelope import parse_timestamp, timestamp
from events.lifecycle import State
from events.position import Position, covers
from events.rollouts import clip_reason
from events.serving import ArmCounts, LiveEvidence, RouteChanged, RouteShare, Why
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Canary
    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class CanaryEvidence:
    """Evidence about one canary, for a decision about its route."""

    route: RouteRow
    canary: AdapterRow
    guard: LiveGuard
    """The test of the canary, with all judged sessions of canary and incumbent."""
    drawn: Callable[[], Sequence[ArmFaults]]
    """Returns fault counts of the ended sessions of canary and incumbent, judged or not."""
    settled: Callable[[], float]
    """Returns the evidence for the canary that no later verdict can take away."""
    position: Position
    """Position in the log up to which rollouts were read."""

    @property
    def share(self) -> float:
        """Return the canary's share of the sessions."""
        shares = {part.adapter: part.share for part in self.route.standing.shares}
        return shares[self.canary.adapter]


class Guards:
    """The guards of all canaries in a home; they keep their state between calls."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._decisions = Decisions(app)
        self._seen: dict[str, CanaryHistory] = {}
        """Id of the event that set the route -> the canary's history."""

    def watch(self, now: datetime) -> list[RouteChanged]:
        """Decide about every canary; return the routes that changed. Raises LogError,
        DatabaseUnavailable."""
        settings, turned = self._app.settings.canary, list[RouteChanged]()
        with self._app.reading() as connection:
            decisions = [
                (canary, decide(canary, settings, now)) for canary in self.look(connection)
            ]
        for canary, decision in decisions:
            if decision is None:
                continue
            try:
                self._decisions.take(decision, f"guard {decision.why}", canary.route.cause)
            except DecisionRefusal:
                # An operator changed the route first, and that route stays.
                continue
            turned.append(decision)
        return turned

    def look(self, connection: "Connection") -> list[CanaryEvidence]:
        """Return all evidence so far about every canary."""
        read: Position = {ROLLOUTS.name: position.position(connection).get(ROLLOUTS.name, {})}
        risk_ratio = self._app.settings.canary.risk_ratio
        watched, seen = list[CanaryEvidence](), dict[str, CanaryHistory]()
        for route, canary, since in _canaries(connection):
            history = self._seen.get(route.cause) or CanaryHistory(
                route, canary.adapter, since, risk_ratio
            )
            history.read(connection, read)
            seen[route.cause] = history
            drawn = partial(_count_faults, connection, route, canary.adapter, since)
            settled = partial(history.measure_final_evidence, connection)
            watched.append(CanaryEvidence(route, canary, history.guard, drawn, settled, read))
        self._seen = seen
        return watched


class CanaryHistory:
    """Judged sessions of a canary and its incumbent, counted by the canary's guard."""

    def __init__(self, route: RouteRow, canary: str, since: str, risk_ratio: float) -> None:
        """Begin a history; `since` is the start of the canary's first session, as stored."""
        self.guard = LiveGuard(risk_ratio)
        self._route = route
        self._canary = canary
        self._since = since
        self._risk_ratio = risk_ratio
        self._sessions: dict[str, SessionVerdict] = {}
        self._begun: list[ArmSession] = []
        """Every session that was counted."""
        self._waits: dict[tuple[Arm, bool], list[float]] = {}
        """(arm, success) -> ages in seconds of counted sessions when they got their verdicts."""
        self._newest: dict[str, int] = {}
        """Kind of task -> newest rules that judged it; verdicts by older rules are not counted."""
        self._position: Position | None = None

    def read(self, connection: "Connection", until: Position) -> None:
        """Count sessions with events since the last call, up to the position `until`."""
        touched = self._select_sessions(connection, until)
        sessions = read_session_verdicts(
            connection, self._route.alias, self._route.standing.base, self._since, until, touched
        )
        now = {session.session: session for session in sessions}
        if touched is None:
            self._sessions = {}
        newest = find_newest_rules(sessions)
        if touched is None or self._has_changes(touched, now) or self._is_replaced_by(newest):
            self._begin_anew(touched or (), now)
        else:
            self._newest = newest | self._newest
            self._count(session for session in sessions if session.session not in self._sessions)
            self._sessions |= now
        self._position = until

    def measure_final_evidence(self, connection: "Connection") -> float:
        """Return the evidence for the canary that no later verdict can take away."""
        alias, base = self._route.alias, self._route.standing.base
        unfinished = open_sessions(connection, alias, base, self._since)
        return measure_final_evidence(
            [
                *self._begun,
                *(begun for session in unfinished for begun in self._assign_arm(session)),
            ],
            self._risk_ratio,
            self._find_verdict_cutoff(connection),
        )

    def _find_verdict_cutoff(self, connection: "Connection") -> str:
        """Return the earliest start of an ended session that may still get a verdict. Ages are
        measured up to the latest call in the tables, so every process agrees."""
        latest = latest_call(connection, self._route.alias)
        if latest is None:
            return self._since
        wait = timedelta(seconds=longest_wait(self._waits.values()))
        return max(self._since, timestamp(parse_timestamp(latest) - wait))

    def _select_sessions(self, connection: "Connection", until: Position) -> set[str] | None:
        """Return the sessions to read; None for all of them."""
        if self._position is None or not covers(until, self._position):
            return None
        touched = find_session_changes(connection, self._position, until)
        return touched if len(touched) <= MOST_AMONG else None

    def _has_changes(self, touched: Collection[str], now: Mapping[str, SessionVerdict]) -> bool:
        return any(
            name in self._sessions and self._sessions[name] != now.get(name) for name in touched
        )

    def _is_replaced_by(self, newest: Mapping[str, int]) -> bool:
        """Return whether counted sessions were judged by older rules than the `newest`."""
        return any(rules > self._newest.get(kind, rules) for kind, rules in newest.items())

    def _begin_anew(self, touched: Collection[str], now: Mapping[str, SessionVerdict]) -> None:
        kept = {name: session for name, session in self._sessions.items() if name not in touched}
        self._sessions = {**kept, **now}
        self.guard, self._begun, self._waits = LiveGuard(self._risk_ratio), [], {}
        self._newest = find_newest_rules(self._sessions.values())
        self._count(self._sessions.values())

    def _count(self, sessions: Iterable[SessionVerdict]) -> None:
        for session in sessions:
            if not follows_rules(session, self._newest):
                continue
            for begun in self._assign_arm(session):
                self._begun.append(begun)
                if session.time is not None:
                    age = parse_timestamp(session.time) - parse_timestamp(session.began)
                    ages = self._waits.setdefault((begun.arm, session.success), [])
                    ages.append(max(0.0, age.total_seconds()))
                self.guard.count(
                    begun.arm, session.slice, session.success, begun.share, in_order(session)
                )

    def _assign_arm(self, session: SessionVerdict | OpenSession) -> Iterator[ArmSession]:
        """Yield the session with its arm; yield nothing if chance did not assign it."""
        coin = _coin(self._route, self._canary, session.adapter, session.shares)
        if coin is not None:
            ended = isinstance(session, OpenSession) and session.ended
            yield ArmSession(session.began, *coin, session.success, ended)


def decide(watched: CanaryEvidence, settings: "Canary", now: datetime) -> RouteChanged | None:
    """Return the route to set for a canary by its live evidence; None if it is too early."""
    guard = watched.guard
    if guard.against >= ENOUGH:
        return _build_route(watched, "rollback", None, _harm(guard))
    towards = guard.towards
    promoted, share = towards >= ENOUGH, due_share(towards, settings.shares)
    over = _age(watched, now) >= timedelta(seconds=settings.max_age_seconds)
    if not (promoted or over or share > watched.share):
        return None
    held = reason_to_hold(watched, towards)
    if promoted and held is None:
        return _build_route(watched, "promoted", 1.0, "live sessions show it to be no worse")
    if over:
        return _on_silence(watched, held)
    if share > watched.share and held is None:
        return _build_route(watched, "canary", share, "live sessions are in its favour so far")
    return None


def reason_to_hold(watched: CanaryEvidence, towards: float) -> str | None:
    """Return a reason to keep the canary's share from growing despite its evidence; else None."""
    guard, imbalance = watched.guard, watched.guard.imbalance
    if imbalance >= UNEQUAL or ENOUGH <= towards < ENOUGH * imbalance:
        return (
            f"{guard.count_verdicts('canary')} of its sessions were judged where its shares "
            "foretell "
            f"{guard.share_sum:.1f}: whether a session is judged depends on who answers it"
        )
    if towards >= ENOUGH and watched.settled() < ENOUGH:
        return "too many of its sessions are still open, or too young to be without a verdict"
    return None


def _harm(guard: LiveGuard) -> str:
    kind = guard.worst_kind
    if kind in (None, EVERY) or guard.against_kind(kind) < ENOUGH:
        return "live sessions show it to be worse"
    return f"live sessions show it to be worse, most at {kind}"


def due_share(towards: float, shares: Sequence[float]) -> float:
    """Return the share for this evidence: shares divide the way to `ENOUGH` into equal factors."""
    steps = len(shares)
    reached = [i for i in range(steps) if i == 0 or towards >= ENOUGH ** (i / steps)]
    return shares[reached[-1]]


def _on_silence(watched: CanaryEvidence, held: str | None) -> RouteChanged:
    if on_silence(watched.drawn()) == "roll_back":
        return _build_route(
            watched, "rollback", None,
            "its judged sessions decide nothing, and more of its sessions have errors or loops "
            "than the incumbent's",
        )  # fmt: skip
    return _build_route(
        watched, "expired", None, held or "its judged sessions decided nothing in time"
    )


def _build_route(
    watched: CanaryEvidence, why: Why, share: float | None, summary: str
) -> RouteChanged:
    guard = watched.guard
    route, standing = watched.route, watched.route.standing
    numbers = (
        f"{guard.count_failures('canary')} of {guard.count_verdicts('canary')} judged sessions "
        "failed, of the "
        f"incumbent {guard.count_failures('incumbent')} of {guard.count_verdicts('incumbent')}; "
        "evidence "
        f"{guard.against:.3g} that it is worse, {guard.towards:.3g} that it is not; "
        f"{ENOUGH:g} decides"
    )
    parts = _parts(watched.canary.adapter, standing.incumbent, share)
    base_alone = all(part.adapter is None for part in parts)
    return RouteChanged(
        alias=route.alias,
        base=standing.base,
        shares=parts,
        holdout=0.0 if base_alone else standing.holdout,
        shadow=standing.shadow,
        why=why,
        reason=clip_reason(f"{summary}: {numbers}"),
        evidence=LiveEvidence(
            pairs=guard.pairs,
            against=guard.against,
            towards=guard.towards,
            imbalance=guard.imbalance,
            canary=_arm(guard, "canary"),
            incumbent=_arm(guard, "incumbent"),
            expected=guard.share_sum,
            position=watched.position,
        ),
    )


def _arm(guard: LiveGuard, arm: Arm) -> ArmCounts:
    return ArmCounts(judged=guard.count_verdicts(arm), failed=guard.count_failures(arm))


def _parts(canary: str, incumbent: str | None, share: float | None) -> tuple[RouteShare, ...]:
    if share is None:
        return (RouteShare(adapter=incumbent, share=1),)
    if share == 1:
        return (RouteShare(adapter=canary, share=1),)
    return RouteShare(adapter=canary, share=share), RouteShare(adapter=incumbent, share=1 - share)


def _age(watched: CanaryEvidence, now: datetime) -> timedelta:
    since = watched.canary.since
    return timedelta() if since is None else now - parse_timestamp(since)


def _canaries(connection: "Connection") -> Iterator[tuple[RouteRow, AdapterRow, str]]:
    """Yield each gated route, its canary, and the start of the canary's first session."""
    table = serving.route_table(connection)
    for route in table.routes:
        rows = [table.adapter(name) for name in route.standing.adapters if name is not None]
        canaries = [row for row in rows if row is not None and row.state is State.CANARY]
        if route.why == "canary" and len(canaries) == 1 and canaries[0].since is not None:
            yield route, canaries[0], canaries[0].since


def _count_faults(
    connection: "Connection", route: RouteRow, canary: str, since: str
) -> Sequence[ArmFaults]:
    """Return fault counts of canary and incumbent, from ended sessions assigned by chance."""
    counts = behaviours(connection, route.alias, route.standing.base, since)
    coins = [
        (_coin(route, canary, behaviour.adapter, behaviour.shares), behaviour)
        for behaviour in counts
    ]
    return [
        ArmFaults(
            *coin,
            behaviour.sessions,
            (behaviour.tool_errors, behaviour.loops, behaviour.format_errors),
        )
        for coin, behaviour in coins
        if coin is not None
    ]


def _coin(
    route: RouteRow, canary: str, adapter: str | None, shares: str
) -> tuple[Arm, float] | None:
    """Return the session's arm and the canary's share when it was drawn; None without a draw."""
    incumbent = route.standing.incumbent
    share = canary_share(shares, canary, incumbent or route.standing.base)
    if share is None or adapter not in (canary, incumbent):
        return None
    return "canary" if adapter == canary else "incumbent", share
