"""The life of an adapter: its states, their order, and the effect of events. Pure.

    produced -> staged -> evaluated -> gated -> canary -> promoted
             -> draining -> unloaded -> collected

Ways out: rejected (by the gate), rolled_back (by live traffic), and draining at any time. `NEXT`
holds all transitions; docs/events.md prints it. An adapter of role `user` goes from `UserEvaluated`
to gated; it plays users there and joins no route. A panel has no files and the same states. An
unloaded adapter can be staged again and is judged anew. A collected one is final.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from events.serving import (
    AdapterEvaluated,
    AdapterMoved,
    AdapterStaged,
    GateDecided,
    RoleEvaluated,
    RouteChanged,
    ServingEvent,
    VersionProduced,
)


class State(StrEnum):
    """A state of an adapter."""

    PRODUCED = "produced"
    STAGED = "staged"
    EVALUATED = "evaluated"
    GATED = "gated"
    CANARY = "canary"
    PROMOTED = "promoted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    DRAINING = "draining"
    UNLOADED = "unloaded"
    COLLECTED = "collected"


_S = State

NEXT: Final[Mapping[State, frozenset[State]]] = {
    _S.PRODUCED: frozenset({_S.STAGED, _S.GATED, _S.REJECTED}),
    _S.STAGED: frozenset(
        {_S.EVALUATED, _S.GATED, _S.CANARY, _S.PROMOTED, _S.REJECTED, _S.DRAINING}
    ),
    _S.EVALUATED: frozenset({_S.GATED, _S.CANARY, _S.PROMOTED, _S.REJECTED, _S.DRAINING}),
    _S.GATED: frozenset({_S.EVALUATED, _S.CANARY, _S.PROMOTED, _S.REJECTED, _S.DRAINING}),
    _S.CANARY: frozenset({_S.PROMOTED, _S.ROLLED_BACK, _S.DRAINING}),
    _S.PROMOTED: frozenset({_S.ROLLED_BACK, _S.DRAINING}),
    _S.REJECTED: frozenset({_S.CANARY, _S.PROMOTED, _S.UNLOADED}),
    _S.ROLLED_BACK: frozenset({_S.CANARY, _S.PROMOTED, _S.UNLOADED}),
    _S.DRAINING: frozenset({_S.CANARY, _S.PROMOTED, _S.UNLOADED}),
    _S.UNLOADED: frozenset({_S.STAGED, _S.COLLECTED}),
    _S.COLLECTED: frozenset(),
}
"""State -> its possible successors."""

SERVING: Final = frozenset({_S.CANARY, _S.PROMOTED})
"""States in which a route gives an adapter sessions. Only `RouteChanged` ends them."""

LOADED: Final = frozenset(
    {_S.STAGED, _S.EVALUATED, _S.GATED, _S.CANARY, _S.PROMOTED, _S.REJECTED, _S.ROLLED_BACK,
     _S.DRAINING}
)  # fmt: skip
"""States in which replicas may hold an adapter. A rejected one may never have been loaded."""

WAITING: Final = frozenset({_S.PRODUCED, _S.STAGED, _S.EVALUATED, _S.GATED})
"""States before service. An adapter in them is given up by rejection."""

RETIRED: Final = frozenset({_S.REJECTED, _S.ROLLED_BACK, _S.DRAINING})
"""States after service: no new sessions, and unloaded once unused."""

_ENTERS: Final[Mapping[str, frozenset[State]]] = {
    "canary": frozenset({_S.GATED}),
    "promoted": frozenset({_S.GATED}),
    "rollback": LOADED - SERVING - {_S.ROLLED_BACK},
    "operator": LOADED - SERVING,
    "expired": frozenset(),
    "rebased": frozenset(),
    "holdout": frozenset(),
}
"""Reason of a route change -> states from which it may bring an adapter into service."""


def after(adapter: str, state: State | None, event: ServingEvent) -> State | None:
    """Return the state of `adapter` after `event`, maybe unchanged; None if `state` forbids the
    event. `state` is None if no adapter has the name. consumers/folds/routing.py has more rules."""
    if isinstance(event, VersionProduced):
        return State.PRODUCED if state is None else None
    if state is None:
        return None
    if isinstance(event, RouteChanged):
        return _after_route_change(adapter, state, event)
    if isinstance(event, AdapterMoved):
        return _after_move(state, State(event.state))
    if isinstance(event, AdapterStaged):
        return _after_staging(state)
    if isinstance(event, AdapterEvaluated):
        return _after_evaluation(state)
    if isinstance(event, RoleEvaluated):
        return _after_role_evaluation(state, event)
    return _after_gate(state, event)


def _after_route_change(adapter: str, state: State, event: RouteChanged) -> State | None:
    if adapter not in {part.adapter for part in event.shares}:
        if state not in SERVING:
            return state
        return State.ROLLED_BACK if event.why == "rollback" else State.DRAINING
    if state not in SERVING and state not in _ENTERS[event.why]:
        return None
    alone = len(event.shares) == 1
    if alone or state is State.PROMOTED:
        return State.PROMOTED
    return State.CANARY


def _after_move(state: State, wanted: State) -> State | None:
    return wanted if wanted in NEXT[state] and state not in SERVING else None


def _after_staging(state: State) -> State | None:
    """Return `staged`, or the same state if a loaded adapter was loaded again; else None."""
    if State.STAGED in NEXT[state]:
        return State.STAGED
    return state if state in LOADED - RETIRED else None


def _after_evaluation(state: State) -> State | None:
    """Return `evaluated`, or the same state if a route serves the adapter; else None."""
    if state in (State.STAGED, State.EVALUATED, State.GATED):
        return State.EVALUATED
    return state if state in SERVING else None


def _after_role_evaluation(state: State, event: RoleEvaluated) -> State | None:
    if state not in (State.PRODUCED, State.STAGED, State.GATED):
        return None
    return State.GATED if event.passed else State.REJECTED


def _after_gate(state: State, event: GateDecided) -> State | None:
    if state is not State.EVALUATED:
        return None
    verdicts = {"PROMOTE": State.GATED, "REJECT": State.REJECTED, "EXTEND": State.EVALUATED}
    return verdicts[event.report.decision]
