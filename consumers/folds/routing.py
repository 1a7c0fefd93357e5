"""Check and apply a change of a route. Pure; used by the fold and before an append.

    canary, promoted   only an adapter that passed the gate against the route's
                       present incumbent joins
    rollback           one policy answers alone: the incumbent or one before it; a policy
                       that loses its sessions by it is no target of later rollbacks
    expired            no adapter joins
    rebased            the alias moves to another base, which answers alone
    holdout            the held-out share changes, and nothing else
    operator           any loaded adapter of the same alias and base joins

An adapter that joins is known, belongs to the route's alias and base, and was proven on replicas. A
route keeps its earlier sole policies, so a rollback needs no other state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from events.errors import KintsugiError
from events.lifecycle import LOADED, State, after
from events.serving import RouteChanged, RouteShare, Why

KEPT: Final = 8
"""Most earlier sole policies that a route remembers."""


class RouteRefusal(KintsugiError):
    """A `RouteChanged` event is refused and changes nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class RouteState:
    """The policies that answer an alias, their shares, and the targets of a rollback."""

    base: str
    shares: tuple[RouteShare, ...]
    shadow: str | None
    incumbent: str | None
    """The policy that last answered alone; None for the base."""
    previous: tuple[str | None, ...]
    """The policies that answered alone before the incumbent, newest first."""
    holdout: float = 0.0
    """Share of all sessions that the base always answers. It is not part of `shares`."""

    @classmethod
    def of_base(cls, base: str) -> "RouteState":
        """Return the state of an alias before the first decision: the base answers everything."""
        return cls(base, (RouteShare(share=1),), None, None, ())

    @property
    def adapters(self) -> frozenset[str | None]:
        """Return the adapters that have a share; None stands for the base."""
        return frozenset(part.adapter for part in self.shares)

    @property
    def before(self) -> tuple[str | None, ...]:
        """Return the policies to which a rollback may go, newest first (None: the base)."""
        settled = self.adapters == {self.incumbent}
        return self.previous if settled else (self.incumbent, *self.previous)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The facts about an adapter that decide whether it may join a route."""

    alias: str
    base: str
    state: State
    proven: bool
    """Whether it was proven on replicas since it was last unloaded."""
    incumbent: str | None
    """Adapter with which the gate compared it; None for the base."""
    role: str = "agent"
    """`agent`, or `user` for an adapter that plays users, which no route may name."""


def apply_route_change(
    route: RouteState | None, adapters: Mapping[str, Candidate], event: RouteChanged
) -> RouteState:
    """Return the route after `event`. Raise RouteRefusal if the change is not allowed. `adapters`
    holds the known adapters that the event names."""
    state = route or RouteState.of_base(event.base)
    _check_base(state, event)
    if event.why == "rollback":
        _check_rollback(state, event)
    if event.why == "holdout":
        _check_holdout(route, event)
    for part in event.shares:
        _check_share(state, adapters, event, part.adapter)
    if event.shadow is not None:
        _check_readiness(_find_candidate(adapters, event, event.shadow), event.shadow)
    return _next_state(state, event)


def _check_base(state: RouteState, event: RouteChanged) -> None:
    if event.why == "rebased":
        _check_rebase(state, event)
    elif event.base != state.base and event.why != "operator":
        raise RouteRefusal(
            f"{event.alias} is answered by {state.base}, not by {event.base}; only an operator "
            "moves an alias to another base"
        )


def _check_rebase(state: RouteState, event: RouteChanged) -> None:
    if event.base == state.base:
        raise RouteRefusal(f"{event.alias} is answered by {event.base} already")
    if event.shares != (RouteShare(share=1),) or event.shadow is not None:
        raise RouteRefusal(f"on another base {event.alias} begins with the base alone")


def _check_holdout(route: RouteState | None, event: RouteChanged) -> None:
    state = None if route is None else (route.base, route.shares, route.shadow)
    if (event.base, event.shares, event.shadow) != state:
        raise RouteRefusal(
            f"the route of {event.alias} has changed since; a change of the holdout keeps who "
            "answers the other sessions"
        )


def _check_share(
    state: RouteState, adapters: Mapping[str, Candidate], event: RouteChanged, name: str | None
) -> None:
    if name is None:
        if event.why in ("canary", "promoted", "expired") and None not in state.adapters:
            raise RouteRefusal(
                f"the base answers no session of {event.alias} now; only a rollback or an operator "
                "brings it back"
            )
        return
    candidate = _find_candidate(adapters, event, name)
    if after(name, candidate.state, event) is None:
        raise RouteRefusal(f"{name} is {candidate.state} and cannot join as {event.why}")
    _check_readiness(candidate, name)
    _check_gate(state, candidate, event, name)


def _check_gate(state: RouteState, candidate: Candidate, event: RouteChanged, name: str) -> None:
    """Raise RouteRefusal if the gate did not compare a candidate with the present incumbent."""
    judged = candidate.state in (State.GATED, State.CANARY)
    if event.why not in ("canary", "promoted") or not judged:
        return
    if candidate.incumbent != state.incumbent:
        raise RouteRefusal(
            f"{name} was compared with {candidate.incumbent or state.base}, and "
            f"{state.incumbent or state.base} is the incumbent now; evaluate it again"
        )


def _find_candidate(adapters: Mapping[str, Candidate], event: RouteChanged, name: str) -> Candidate:
    candidate = adapters.get(name)
    if candidate is None:
        raise RouteRefusal(f"nobody produced an adapter {name}")
    if candidate.role != "agent":
        raise RouteRefusal(f"{name} plays users, and answers no client")
    if (candidate.alias, candidate.base) != (event.alias, event.base):
        raise RouteRefusal(
            f"{name} is for {candidate.alias} on {candidate.base}, not for {event.alias} on "
            f"{event.base}"
        )
    return candidate


def _check_readiness(candidate: Candidate, name: str) -> None:
    if candidate.state not in LOADED or not candidate.proven:
        raise RouteRefusal(f"{name} is {candidate.state} and proven on no replica; stage it first")


def _check_rollback(state: RouteState, event: RouteChanged) -> None:
    if len(event.shares) != 1 or event.shares[0].adapter not in state.before:
        names = ", ".join(name or state.base for name in state.before) or "nobody"
        raise RouteRefusal(f"a rollback of {event.alias} goes to one of those before it: {names}")


def _next_state(state: RouteState, event: RouteChanged) -> RouteState:
    if event.base != state.base:
        state = RouteState.of_base(event.base)
    incumbent, previous = state.incumbent, state.previous
    if len(event.shares) == 1:
        incumbent = event.shares[0].adapter
        previous = _previous(state, incumbent, event.why)
    return RouteState(event.base, event.shares, event.shadow, incumbent, previous, event.holdout)


def _previous(state: RouteState, alone: str | None, why: Why) -> tuple[str | None, ...]:
    incumbent, previous = state.incumbent, state.previous
    if why == "rollback":
        older = previous if alone == incumbent else previous[previous.index(alone) + 1 :]
        return tuple(name for name in older if name is None or name not in state.adapters)
    if alone == incumbent:
        return previous
    return (incumbent, *(name for name in previous if name not in (alone, incumbent)))[:KEPT]
