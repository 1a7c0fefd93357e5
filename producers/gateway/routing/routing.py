"""Applies routes, and counts the use of adapters: GatewayRoutes in, RouteLease out.

Calls choose on the gateway's event loop; another thread sets routes
(daemon/roles/route_follower.py). A lock makes choosing and counting one step. So a reader of a
position also sees all calls that earlier routes chose. It is held for microseconds; no call waits
for I/O.

Guarantee: a call is counted from its choice to its end, however it ends. An engine is only asked
for an adapter that it lists. Without routes, the base answers every alias.
"""

import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from events.rollouts import MemberChoice
from producers.gateway.http.wire import Refused
from producers.gateway.routing.routes import (
    Adapter,
    Choice,
    GatewayRoutes,
    Policy,
    choose,
    shadow_session,
)
from producers.gateway.routing.sticky_sessions import StickyMember, StickySessions
from producers.gateway.routing.upstreams import Upstream, find_missing

Missing = Literal["base", "refuse"]
"""If no engine has a call's adapter: use the route's other policies and the base, or refuse."""

ChooseMember = Callable[[str, Adapter], Awaitable[MemberChoice]]
"""Chooses the member of policy `name` for a call. Maybe no engine has the member's adapter."""

IDLE_SECONDS: Final = 1800.0
MAX_SESSION_AGE: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The routes that a gateway applies and the adapters it uses, at one moment."""

    position: int | None
    """Position of the routes; None before the first routes."""
    in_flight: Mapping[str, int]
    """Adapter -> number of running calls. A member's calls count for its policy, too."""
    open_sessions: Mapping[str, int]
    """Adapter -> number of sessions that keep it. A member's sessions count for its policy, too."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An engine to ask, and the model to ask for."""

    upstream: Upstream
    name: str | None
    """The engine's name for the model; None: the request's model unchanged."""
    policy: Policy = None
    adapter: str | None = None
    """The requested adapter: the policy, or a member of it. None: the base."""
    member: MemberChoice | None = None


class Routing:
    """The routes of one gateway."""

    def __init__(
        self,
        alias: str,
        missing: Missing = "base",
        idle_seconds: float = IDLE_SECONDS,
        max_session_age: float = MAX_SESSION_AGE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.alias = alias
        self.missing: Missing = missing
        self.clock = clock
        self._idle = idle_seconds
        self._age = max_session_age
        self._lock = threading.Lock()
        self._routes: GatewayRoutes | None = None
        self._sticky = self.make_sticky_sessions()
        self._in_flight: Counter[str] = Counter()

    @property
    def table(self) -> GatewayRoutes:
        """Return the current routes."""
        return self._routes or _EMPTY

    @property
    def aliases(self) -> list[str]:
        """Return all aliases: the gateway's own, and those with a route."""
        return sorted({self.alias, *self.table.routes})

    def find_alias(self, model: str | None) -> str:
        """Return the alias that a call for `model` is counted under."""
        return choose(self.table, self.alias, model, "", {}).alias

    def make_sticky_sessions(self) -> StickySessions:
        """Return an empty StickySessions with the limits of this gateway."""
        return StickySessions(self._idle, self._age)

    def apply(self, routes: GatewayRoutes) -> None:
        """Use these routes from the next choice on."""
        with self._lock:
            self._routes = routes

    def begin(self, model: str | None, session: str, goes_on: bool = True) -> "RouteLease":
        """Return a call's route, counted until its end. `goes_on`: later calls may follow."""
        with self._lock:
            now = self.clock()
            stays = self._sticky.read_policies(session, now)
            choice = choose(self.table, self.alias, model, session, stays)
            if choice.order and goes_on:
                if choice.routed == "named":
                    self._sticky.open(session, now)
                else:
                    self._sticky.assign(session, choice.alias, choice.policy, now)
            names = (choice.policy if choice.order else model,)
            self._count(names, 1)
            return RouteLease(self, self.table, choice, model, names)

    def read_member(self, session: str, policy: str) -> StickyMember | None:
        """Return the member of a policy that a session keeps, or None."""
        with self._lock:
            return self._sticky.read_member(session, policy, self.clock())

    def keep_member(self, session: str, policy: str, kept: StickyMember) -> None:
        """Let a session keep a member; do nothing if the session is over."""
        with self._lock:
            self._sticky.keep_member(session, policy, kept)

    def drop_member(self, session: str, policy: str) -> None:
        """Let a session forget the member that it keeps, if any."""
        with self._lock:
            self._sticky.drop_member(session, policy)

    def move(self, before: Sequence[str | None], after: Sequence[str | None]) -> None:
        """Count a running call under the names `after` instead of `before`."""
        with self._lock:
            self._count(after, 1)
            self._count(before, -1)

    def end_session(self, session: str) -> None:
        """Forget the policies of an ended session and of its shadow session."""
        with self._lock:
            self._sticky.end(session)
            self._sticky.end(shadow_session(session))

    def recall(self, earlier: StickySessions) -> None:
        """Add the sticky sessions from before a restart."""
        with self._lock:
            self._sticky.recall(earlier)

    def usage(self) -> Usage:
        """Return the routes and adapters in use now, for adapters that the routes know."""
        with self._lock:
            known = self.table.adapters
            return Usage(
                None if self._routes is None else self._routes.position,
                {name: n for name, n in self._in_flight.items() if name in known},
                {n: c for n, c in self._sticky.count_open(self.clock()).items() if n in known},
            )

    def _count(self, names: Sequence[str | None], by: int) -> None:
        for name in names:
            if name is None:
                continue
            self._in_flight[name] += by
            if not self._in_flight[name]:
                del self._in_flight[name]


class RouteLease:
    """The use of a route by one call, counted until the `with` block ends."""

    def __init__(
        self,
        routing: Routing,
        routes: GatewayRoutes,
        choice: Choice,
        model: str | None,
        names: Sequence[str | None],
    ) -> None:
        self.choice = choice
        self._routing = routing
        self._routes = routes
        self._model = model
        self._names = names

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count_for(())

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the adapters that the chosen policy needs."""
        policy = self.choice.policy
        if policy is None:
            return ()
        known = self._routes.adapters.get(policy)
        return (known.parts if known else ()) or (policy,)

    async def attempts(
        self, upstreams: Sequence[Upstream], choose_member: ChooseMember | None = None
    ) -> AsyncGenerator[Attempt]:
        """Yield the engines to ask, best first; the caller takes the next one after a failure.
        `upstreams`: in the session's order. Without `choose_member` the base answers instead of a
        member, with the doubt recorded. Raises Refused if no engine may be asked, or if a policy
        that the client named is not loaded completely."""
        if self.choice.routed == "named" and choose_member is not None:
            self._check_loaded(upstreams)
        if not self.choice.order:
            self._check_answers_clients()
            for attempt in self._order_by_model(upstreams):
                yield attempt
            return
        urls: set[str] = set()
        refuses = self._routing.missing == "refuse"
        for policy in self.choice.order[:1] if refuses else self.choice.order:
            for adapter, member in await self._list_answerers(policy, choose_member):
                for upstream in upstreams:
                    lost = upstream.url in urls and not upstream.well
                    if lost or not (adapter is None or adapter in upstream.served):
                        continue
                    urls.add(upstream.url)
                    self._count_for((policy,) if policy == adapter else (policy, adapter))
                    name = self._model_name(adapter, upstream)
                    yield Attempt(upstream, name, policy, adapter, member)
        if not urls:
            raise Refused(
                503,
                f"no engine has {self.choice.policy}, which answers {self.choice.alias}, and "
                "serving.missing is refuse; try again when it is loaded",
                retry_after=2,
            )

    def response_model(self, upstream: Upstream) -> str | None:
        """Return the model's name for the answer: the requested one, else the base's, else None."""
        return self._model or upstream.base

    def _check_answers_clients(self) -> None:
        """Raise Refused, as for an unknown model, if the requested adapter plays users."""
        # During proof, an engine has it also under its name with a suffix after `~`.
        known = self._routes.adapters.get((self._model or "").partition("~")[0])
        if known is not None and known.plays_users:
            raise Refused(
                404,
                f"the model {self._model} does not exist here: it is an adapter that plays users, "
                f"and answers no client; ask for {known.alias}",
                param="model",
                code="model_not_found",
            )

    def _check_loaded(self, upstreams: Sequence[Upstream]) -> None:
        """Raise Refused, as for an unknown model, if healthy engines lack a part of the policy."""
        missing = find_missing(upstreams, self.adapters)
        if missing and any(upstream.well for upstream in upstreams):
            raise Refused(
                404,
                f"the model {self.choice.policy} does not exist here: no engine has "
                f"{', '.join(missing)} of it; ask for {self.choice.alias}, or load it: kintsugi "
                f"adapters stage {self.choice.policy}",
                param="model",
                code="model_not_found",
            )

    async def _list_answerers(
        self, policy: Policy, choose_member: ChooseMember | None
    ) -> Sequence[tuple[str | None, MemberChoice | None]]:
        """Return (adapter, choice) to try: the policy, or its chosen member, then the base."""
        known = None if policy is None else self._routes.adapters.get(policy)
        if policy is None or known is None or not known.parts:
            return [(policy, None)]
        if choose_member is None:
            return [(None, MemberChoice(doubt="failed"))]
        member = await choose_member(policy, known)
        if member.adapter is None:
            return [(None, member)]
        without = member.model_copy(update={"adapter": None, "doubt": "absent"})
        return [(member.adapter, member), (None, without)]

    def _order_by_model(self, upstreams: Sequence[Upstream]) -> Iterator[Attempt]:
        """Yield attempts: healthy engines first, and among them those that list the model."""
        order = sorted(
            upstreams, key=lambda upstream: (not upstream.well, self._model not in upstream.served)
        )
        return (Attempt(upstream, None) for upstream in order)

    def _model_name(self, adapter: str | None, upstream: Upstream) -> str | None:
        base = self.choice.base
        if adapter is not None:
            return adapter
        if base is not None and (base in upstream.served or not upstream.served):
            # An engine whose models are not known yet may have the base, but no alias.
            return base
        as_it_came = self._model is None or self._model in upstream.served
        return None if as_it_came else upstream.base

    def _count_for(self, names: Sequence[str | None]) -> None:
        if names != self._names:
            self._routing.move(self._names, names)
            self._names = names


_EMPTY: Final = GatewayRoutes()
