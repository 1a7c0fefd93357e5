"""Operations on adapters and routes, one method for each.

Each operation except `canary` and `hold_out` appends an `OperatorActed`; the events that follow
name it as their cause. Guarantees: a command repeated after a `kill -9` gives the same result as
one uninterrupted command. A route names an adapter only once all replicas proved it, so partial
success routes no session. A route that the tables would refuse is refused before it is appended,
and immediate refusals leave no event. Not covered: gateways (producers/gateway), and unloading
(reconciler.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from consumers.folds import routing
from consumers.folds.routing import RouteState
from consumers.reads import serving
from consumers.reads.serving import AdapterRow, RouteRow, RouteTable
from daemon.core.decision_log import Act, Decisions
from daemon.core.serving_lock import hold_serving_lock
from daemon.serving.desired_state import ADMISSIBLE, PIN, UNPIN, describe_user_adapter
from daemon.serving.fleet import Fleet, collect_route_adapters, expand_versions
from daemon.serving.push import only_base
from daemon.serving.residency import Role
from daemon.serving.staging import Staging, check_stageable, lies_ready
from events.envelope import utc_now
from events.errors import KintsugiError
from events.gate import SIBLING
from events.lifecycle import SERVING, State, after
from events.serving import AdapterMoved, RouteChanged, RouteShare, Why

if TYPE_CHECKING:
    from daemon.core.app import App
    from daemon.evaluation.comparison import Comparison, Questions
    from daemon.evaluation.run import Means
    from envs.environment import Environment

_RETRIES: Final = 5
"""Retries of an evaluation's request while the engine is busy."""


class PromotionRefusal(KintsugiError):
    """An adapter cannot take a route."""


class RetirementRefusal(KintsugiError):
    """An adapter cannot be retired."""


class NothingBefore(KintsugiError):
    """A route has no former adapter to return to."""


class Publisher:
    """Operations on adapters and routes of one home, over its replicas."""

    def __init__(self, app: "App", fleet: Fleet, clock: Callable[[], datetime] = utc_now) -> None:
        self.app = app
        self.fleet = fleet
        self.decisions = Decisions(app)
        self._staging = Staging(app, fleet, clock)

    # Reading

    def adapter(self, name: str) -> AdapterRow:
        """Return an adapter by its name or a prefix of it. Raises UnknownAdapter."""
        with self.app.reading() as connection:
            return serving.find_adapter(connection, name)

    def route(self, alias: str, base: str) -> RouteState:
        """Return the alias' route."""
        with self.app.reading() as connection:
            row = serving.route_row(connection, alias)
        return RouteState.of_base(base) if row is None else row.standing

    # Coming

    def stage(self, name: str, act: Act) -> AdapterRow:
        """Load an adapter on every replica and prove it there. Raises StageRefusal, NoRoom."""
        self.app.settle()
        with hold_serving_lock(self.app.home):
            row = self.adapter(name)
            if row.state in ADMISSIBLE and self._staging.is_on_every_replica(row):
                return row
            check_stageable(row)
            cause = self.decisions.act(act, "adapters stage", {"adapter": row.adapter})
            return self._staging.stage(row, cause)

    def compare(
        self,
        candidate: str,
        environment: "Environment",
        questions: "Questions",
        act: Act,
        concurrency: int,
    ) -> "tuple[Comparison, Means]":
        """Stage a version and its alias' incumbent; return their comparison and its means. Raises
        PromotionRefusal, StageRefusal, NoRoom, BaseMixup, NoTarget, UnknownTask."""
        from daemon.config.upstreams import key_of
        from daemon.evaluation.comparison import compare
        from daemon.evaluation.run import Means

        _check_answers_clients(self.adapter(candidate))
        row = self.stage(candidate, act)
        with self.app.reading() as connection:
            earlier = len(serving.evaluation_lines(connection, row.adapter))
        name = self.route(row.alias, row.base).incumbent
        incumbent = None if name is None else self.adapter(name)
        engine = self._staging.replicas(row)[0]
        policies = {row.adapter, name}
        answering = expand_versions(policies, [row, *([incumbent] if incumbent else ())])
        if None in answering:
            self.fleet.check_base(engine, self.adapter(row.parts[0]))
        comparison = compare(environment, row, incumbent, questions, engine.url, earlier)
        key = key_of(self.app.settings, engine.url)
        return comparison, Means(key, None, concurrency // 2, _RETRIES)

    # Routes

    def promote(
        self, name: str, act: Act, *, share: float = 1.0, override: bool = False
    ) -> RouteRow:
        """Make an adapter answer its alias, or a share of its sessions, if it passed the gate
        against the present incumbent, or by `override` with a reason. Raises PromotionRefusal,
        StageRefusal, NoRoom, RouteRefusal, DecisionRefusal."""
        self.app.settle()
        with hold_serving_lock(self.app.home):
            row = self.adapter(name)
            why: Why = "operator" if override else "promoted" if share == 1 else "canary"
            route = self._build_promotion(row, act, share, why, override=override)
            if route is None:
                return self._route_row(row.alias)
            arguments = {
                "adapter": row.adapter, "share": f"{share:g}", "override": str(override).lower(),
            }  # fmt: skip
            return self._flip(route, act, "adapters promote", arguments)

    def canary(self, name: str, share: float) -> RouteRow:
        """Give an adapter that passed its gate its first share of sessions, by the loop and not by
        an operator. Raises HomeLockBusy and the errors of `promote`."""
        self.app.settle()
        with hold_serving_lock(self.app.home, patience=0):
            row = self.adapter(name)
            act = Act("kintsugi", "it passed the gate")
            route = self._build_promotion(row, act, share, "canary")
            if route is None:
                return self._route_row(row.alias)
            self._check(route)
            rows = [self.adapter(adapter) for adapter in _list_adapters(route)]
            return self._bring(route, rows, row.cause)

    def _build_promotion(
        self, row: AdapterRow, act: Act, share: float, why: Why, *, override: bool = False
    ) -> RouteChanged | None:
        """Return the route with an adapter's share of the sessions; None if it has that share.
        Raises PromotionRefusal."""
        standing = self.route(row.alias, row.base)
        shares = _shares(row.adapter, share, standing)
        if shares == standing.shares:
            return None
        _check_promotion(row, act, override)
        return RouteChanged(
            alias=row.alias, base=row.base, shares=shares, shadow=standing.shadow, why=why,
            reason=act.reason, holdout=self._choose_holdout(shares),
        )  # fmt: skip

    def set_route(
        self,
        alias: str,
        shares: Mapping[str | None, float],
        act: Act,
        *,
        base: str | None = None,
        shadow: str | None = None,
    ) -> RouteRow:
        """Set the shares of an alias' sessions; None names the base. Raises PromotionRefusal,
        StageRefusal, NoRoom, RouteRefusal, DecisionRefusal."""
        self.app.settle()
        named = [name for name in (*shares, shadow) if name is not None]
        rows = {name: self.adapter(name) for name in named}
        _check_distinct([rows[name].adapter for name in named])
        for row in rows.values():
            _check_answers_clients(row)
        base = base or next((row.base for row in rows.values()), None) or self._base_of(alias)
        parts = tuple(
            RouteShare(adapter=None if name is None else rows[name].adapter, share=share)
            for name, share in shares.items()
            if share > 0
        )
        arguments = {
            "alias": alias,
            **{f"share of {part.adapter or base}": f"{part.share:g}" for part in parts},
            **({"shadow": shadow} if shadow else {}),
        }
        route = RouteChanged(
            alias=alias, base=base, shares=parts, why="operator", reason=act.reason,
            shadow=None if shadow is None else rows[shadow].adapter,
            holdout=self._choose_holdout(parts),
        )  # fmt: skip
        with hold_serving_lock(self.app.home):
            return self._flip(route, act, "route set", arguments)

    def rollback(self, alias: str, act: Act, to: str | None = None) -> RouteRow:
        """Make a former adapter answer all sessions of an alias from their next call on. `to` names
        the adapter or base; default: the one before. Raises NothingBefore, StageRefusal,
        RouteRefusal, DecisionRefusal."""
        self.app.settle()
        with self.app.reading() as connection:
            row = serving.route_row(connection, alias)
        if row is None or not row.standing.before:
            raise NothingBefore(f"nobody answered {alias} before; see kintsugi route show")
        standing = row.standing
        target = standing.before[0]
        if to is not None:
            target = None if to == standing.base else self.adapter(to).adapter
        shares = (RouteShare(adapter=target, share=1),)
        route = RouteChanged(
            alias=alias, base=standing.base, shares=shares,
            shadow=None if standing.shadow == target else standing.shadow, why="rollback",
            reason=act.reason, holdout=self._choose_holdout(shares),
        )  # fmt: skip
        arguments = {"alias": alias, "to": target or standing.base}
        if target is None or self._staging.answers(self.adapter(target)):
            # A rollback loads no adapter, so it does not wait for replicas.
            self._check(route)
            return self._turn(route, self.decisions.act(act, "adapters rollback", arguments))
        with hold_serving_lock(self.app.home):
            return self._flip(route, act, "adapters rollback", arguments)

    def hold_out(self) -> list[str]:
        """Set the held-out share of the settings on every route with adapters; return the aliases
        that changed. Call within `hold_serving_lock`. Raises BaseMixup, ReplicaError, RouteRefusal,
        DecisionRefusal."""
        changed = list[str]()
        for row in self._table().routes:
            standing = row.standing
            holdout = self._choose_holdout(standing.shares)
            if holdout == standing.holdout:
                continue
            route = RouteChanged(
                alias=row.alias, base=standing.base, shares=standing.shares, holdout=holdout,
                shadow=standing.shadow, why="holdout",
                reason=f"canary.holdout is {holdout:g}, and was {standing.holdout:g}",
            )  # fmt: skip
            self._check(route)
            if not standing.holdout:
                self._check_apart(route)
            # The same share may be set again later, so each change has an id of its own.
            self.decisions.take(route, f"holdout {holdout:g} after {row.offset}", row.cause)
            changed.append(row.alias)
        return changed

    def _choose_holdout(self, shares: Iterable[RouteShare]) -> float:
        adapts = any(part.adapter is not None for part in shares)
        return self.app.settings.canary.holdout if adapts else 0.0

    def _flip(
        self, route: RouteChanged, act: Act, action: str, arguments: Mapping[str, str]
    ) -> RouteRow:
        """Load missing adapters, then change the route. Call within `hold_serving_lock`."""
        rows = [self.adapter(name) for name in _list_adapters(route)]
        unstaged = [row for row in rows if not lies_ready(row)]
        for row in unstaged:
            check_stageable(row)
        self._check(route, unstaged)
        return self._bring(route, rows, self.decisions.act(act, action, arguments))

    def _bring(self, route: RouteChanged, rows: Iterable[AdapterRow], cause: str) -> RouteRow:
        back = route.why == "rollback"
        for row in rows:
            self._staging.bring(row, _role(route, row.adapter), cause, back=back)
        self._check(route)
        if not back:  # a rollback must not wait
            self._check_apart(route)
        return self._turn(route, cause)

    def _check(self, route: RouteChanged, unstaged: Iterable[AdapterRow] = ()) -> None:
        """Check that the tables accept a route once `unstaged` are staged. Raises RouteRefusal."""
        table = self._table()
        standing = table.route(route.alias)
        known = {row.adapter: row.candidate for row in table.adapters}
        for row in unstaged:
            known[row.adapter] = replace(row.candidate, state=State.STAGED, proven=True)
        routing.apply_route_change(None if standing is None else standing.standing, known, route)

    def _check_apart(self, route: RouteChanged) -> None:
        """Check that engines tell base and adapters apart. Raises BaseMixup, ReplicaError."""
        table = self._table()
        others = [other for other in table.routes if other.alias != route.alias]
        ours = {part.adapter for part in route.shares} | {*_list_adapters(route)}
        names = collect_route_adapters(others, route.base, table.adapters)
        names |= expand_versions(ours, table.adapters) | ({None} if route.holdout else set())
        if None not in names:
            return
        look = self.fleet.look()
        for url in look.of_base(route.base):
            for name in sorted(look.holding[url].adapters & names)[:1]:
                self.fleet.check_base(self.fleet.engines[url], self.adapter(name))

    def _turn(self, route: RouteChanged, cause: str) -> RouteRow:
        self.decisions.take(route, f"route {route.alias}", cause)
        return self._route_row(route.alias)

    # Staying and going

    def pin(self, name: str, act: Act, *, off: bool = False) -> AdapterRow:
        """Keep an adapter loaded under its own name, unless `off`. Raises StageRefusal, NoRoom."""
        self.app.settle()
        with hold_serving_lock(self.app.home):
            row = self.adapter(name)
            if off:
                self.decisions.act(act, UNPIN, {"adapter": row.adapter})
                return row
            ready = lies_ready(row)
            if not ready:
                check_stageable(row)
            cause = self.decisions.act(act, PIN, {"adapter": row.adapter})
            if not ready:
                row = self._staging.stage(row, cause)
            if row.state not in SERVING:
                self._staging.make_room(row, "pinned", self._staging.replicas(row), cause)
            return row

    def retire(self, name: str, act: Act) -> AdapterRow:
        """Take an adapter out of service; it is unloaded once unused. Raises RetirementRefusal if a
        route gives it sessions, or it is retired."""
        self.app.settle()
        row = self.adapter(name)
        moved = AdapterMoved(
            adapter=row.adapter,
            state="rejected" if row.state is State.PRODUCED else "draining",
            reason=act.reason,
        )
        if after(row.adapter, row.state, moved) is None:
            remedy = (
                "give its sessions to somebody else first (kintsugi adapters rollback)"
                if row.state in SERVING
                else "it is on its way out of service"
            )
            raise RetirementRefusal(f"{row.adapter} is {row.state}; {remedy}")
        cause = self.decisions.act(act, "adapters retire", {"adapter": row.adapter})
        self.decisions.take(moved, f"{moved.state} {row.adapter}", cause)
        return self.adapter(row.adapter)

    def _table(self) -> RouteTable:
        with self.app.reading() as connection:
            return serving.route_table(connection)

    def _route_row(self, alias: str) -> RouteRow:
        with self.app.reading() as connection:
            row = serving.route_row(connection, alias)
        assert row is not None, "a route that was just decided"
        return row

    def _base_of(self, alias: str) -> str:
        with self.app.reading() as connection:
            row = serving.route_row(connection, alias)
        return only_base(self.fleet) if row is None else row.standing.base


def _list_adapters(route: RouteChanged) -> list[str]:
    parts = [*(part.adapter for part in route.shares), route.shadow]
    return [name for name in parts if name is not None]


def _role(route: RouteChanged, name: str) -> Role:
    if name == route.shadow:
        return "shadow"
    return "stable" if len(route.shares) == 1 else "canary"


def _shares(name: str, share: float, standing: RouteState) -> tuple[RouteShare, ...]:
    if share == 1:
        return (RouteShare(adapter=name, share=1),)
    if name == standing.incumbent:
        raise PromotionRefusal(f"{name} is the incumbent; it has the rest of a canary's share")
    return (
        RouteShare(adapter=name, share=share),
        RouteShare(adapter=standing.incumbent, share=1 - share),
    )


def _check_distinct(adapters: Sequence[str]) -> None:
    """Check that a route names each adapter once. Raises RouteRefusal."""
    for adapter, count in Counter(adapters).items():
        if count > 1:
            raise routing.RouteRefusal(
                f"{adapter} is named {count} times, as a share or as the shadow; name it once"
            )


def _check_answers_clients(row: AdapterRow) -> None:
    """Check that an adapter may answer clients. Raises PromotionRefusal."""
    if row.role != "agent":
        raise PromotionRefusal(
            f"{describe_user_adapter(row)}; it has a gate of its own (kintsugi adapters show "
            f"{row.adapter}) and joins no route"
        )


def _check_promotion(row: AdapterRow, act: Act, override: bool) -> None:
    _check_answers_clients(row)
    if override:
        if not act.reason:
            raise PromotionRefusal(
                f"{row.adapter} is promoted over the gate only with a reason; give --reason"
            )
        return
    passed = row.gate is not None and row.gate.decision == "PROMOTE"
    if not (passed and row.state in (State.GATED, State.CANARY)):
        raise PromotionRefusal(
            f"{row.adapter} is {row.state} and has passed no gate; evaluate it (kintsugi adapters "
            f"evaluate {row.adapter}), or promote it with --override --reason WHY"
        )
    assert row.gate is not None, "it passed one"
    names = (check.name for check in row.gate.checks if check.name.startswith(SIBLING))
    if unjudged := [name.removeprefix(SIBLING) for name in names]:
        raise PromotionRefusal(
            f"{row.adapter} passed the gate of a member, in which {', '.join(unjudged)} decided "
            "nothing; promote a version with this member, or give it every session with --override "
            "--reason WHY"
        )
