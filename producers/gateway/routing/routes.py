"""Chooses the adapter of a call by the routes. Pure.

    a public alias     by its route: the adapter that the session stays with, else one drawn by the
                       shares
    an adapter's name  that adapter and no other, as that of a version with members; routing.py
                       refuses one that plays users
    any other name     unchanged; the engine knows it, or refuses it
    no name            as if the gateway's own alias was asked for

The draw is a hash of the session's name, so every gateway draws the same, also after a restart. It
is weighted rendezvous hashing (the largest of share / -ln(hash)): a growing share takes sessions
from the others and loses none. The holdout is drawn before, by the same hash, between two parts
that are no policies. So it only depends on the session's name and the holdout's share, and the same
sessions stay with the base after promotions.

A session keeps its policy when shares change. A new policy is drawn if the adapter was taken back
(rollback, rejection), unloaded, or belongs to a base that the route left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import log
from typing import Annotated, Final

from pydantic import Field

from events.learning import VERSION
from events.rollouts import HoldoutDraw, Routed
from events.serving import Composition, RouteShare

Policy = str | None
"""The name of an adapter, or of a version with members; None for the base."""

_SHADOW: Final = "#shadow"
_LONGEST_SESSION: Final = 256

SMALLEST_SHARE: Final = 1e-6
"""Smallest share in a route: one session in a million."""

_BITS: Final = 52
"""Bits of a hash; with so few, (hash + 0.5) / 2^bits is below 1 as a float."""


@dataclass(frozen=True, slots=True)
class GatewayRoute:
    """The route of an alias."""

    base: str
    parts: tuple[RouteShare, ...]
    shadow: str | None = None
    """An adapter that also answers, without the client seeing its answer."""
    taken_back: bool = False
    """Whether the last change was a rollback. Then no session keeps an adapter without a share."""
    holdout: float = 0.0
    """Share of all sessions that the base answers despite promotions."""

    def has(self, policy: Policy) -> bool:
        """Return whether the policy has a share."""
        return any(part.adapter == policy for part in self.parts)


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter, or a version with members, as far as routing needs it."""

    alias: str
    base: str
    keeps: bool
    """Whether sessions that it answered keep it: it is in service, or being drained."""
    composition: Annotated[Composition | None, Field(alias=VERSION)] = None
    """Members and chooser of a version with members; None for a plain adapter."""
    plays_users: bool = False
    """Whether it plays users. Then it answers no client, neither by a route nor by name."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the adapters that a policy with members needs; () for a plain adapter."""
        return () if self.composition is None else self.composition.adapters


@dataclass(frozen=True, slots=True)
class GatewayRoutes:
    """All routes at one moment."""

    position: int = 0
    """Position in the stream `learning`. The routes include all events before it."""
    routes: Mapping[str, GatewayRoute] = field(default_factory=dict)
    """Alias -> route. The base answers an alias without a route."""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)

    @property
    def user_names(self) -> frozenset[str]:
        """Return the adapters that clients cannot name."""
        return frozenset(name for name, known in self.adapters.items() if known.plays_users)


@dataclass(frozen=True, slots=True)
class Choice:
    """The policies that may answer a call, and how they were chosen."""

    alias: str
    routed: Routed | None
    """How the policy was chosen; None if no route was used."""
    order: tuple[Policy, ...]
    """Policies, best first; later ones are used if earlier ones are missing. Empty if the client
    named an adapter or model, but a named version with members is in it, alone."""
    base: str | None = None
    shadow: str | None = None
    shares: Mapping[str, float] | None = None
    """Policy (the base by its name) -> its share, if drawn among several; else None."""
    holdout: HoldoutDraw | None = None
    """Set only if the holdout was drawn for this call."""

    @property
    def policy(self) -> Policy:
        """Return the policy that the route chose; None for the base."""
        return self.order[0] if self.order else None


def choose(
    routes: GatewayRoutes, own: str, model: str | None, session: str, stays: Mapping[str, Policy]
) -> Choice:
    """Choose the adapter for a call of `session` for `model`. `own`: the gateway's alias; `stays`:
    alias -> the session's earlier policy."""
    alias = own if model is None else model
    route = routes.routes.get(alias)
    if route is not None:
        return _choose_by_route(routes, alias, route, session, stays)
    if alias == own:
        return Choice(own, None, (None,))
    named = routes.adapters.get(alias)
    if named is not None:
        if named.parts:
            return Choice(named.alias, "named", (alias,), named.base)
        return Choice(named.alias, "named", ())
    return Choice(own, None, ())


def draw_policy(parts: Iterable[RouteShare], alias: str, session: str) -> Policy:
    """Draw the policy of a session by the shares."""
    return max(
        parts,
        key=lambda part: (
            _weigh(part.share, alias, session, part.adapter or ""),
            part.adapter or "",
        ),
    ).adapter


def is_held_out(share: float, alias: str, session: str) -> bool:
    """Return whether a holdout of `share` includes a session; larger shares include it, too."""
    if share <= 0:
        return False
    held, others = (
        _weigh(part, alias, session, key)
        for part, key in ((share, "\x1fholdout"), (1 - share, "\x1fothers"))
    )
    return held > others


def shadow_session(session: str) -> str:
    """Return the session name for a shadow's answers to a session."""
    return session[: _LONGEST_SESSION - len(_SHADOW)] + _SHADOW


def is_shadow(session: str) -> bool:
    """Return whether a session is a shadow's."""
    return session.endswith(_SHADOW)


def _choose_by_route(
    routes: GatewayRoutes,
    alias: str,
    route: GatewayRoute,
    session: str,
    stays: Mapping[str, Policy],
) -> Choice:
    held_out = is_held_out(route.holdout, alias, session)
    by_share = None if held_out else draw_policy(route.parts, alias, session)
    kept = alias in stays and _may_stay(routes, alias, route, stays[alias])
    first = stays[alias] if kept else by_share
    largest = sorted(route.parts, key=lambda part: -part.share)
    order = dict.fromkeys((first, by_share, *(part.adapter for part in largest), None))
    shadow = None if route.shadow == first else route.shadow
    routed: Routed = "kept" if kept else "drawn"
    shares = None if kept or held_out else _shares_by_policy(route)
    draw = None
    if route.holdout and not kept:
        draw = HoldoutDraw(share=route.holdout, held_out=held_out)
    return Choice(alias, routed, tuple(order), route.base, shadow, shares, draw)


def _shares_by_policy(route: GatewayRoute) -> Mapping[str, float] | None:
    if len(route.parts) == 1:
        return None
    return {part.adapter or route.base: part.share for part in route.parts}


def _may_stay(routes: GatewayRoutes, alias: str, route: GatewayRoute, policy: Policy) -> bool:
    if route.has(policy):
        return True
    if route.taken_back:
        return False
    if policy is None:
        return True
    known = routes.adapters.get(policy)
    return known is not None and known.keeps and (known.alias, known.base) == (alias, route.base)


def _weigh(share: float, alias: str, session: str, name: str) -> float:
    """Return the weight of part `name` in a session's draw. The largest weight wins."""
    text = f"{alias}\x1f{session}\x1f{name}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(blake2b(text, digest_size=8).digest()) >> (64 - _BITS)
    return share / -log((number + 0.5) / 2**_BITS)
