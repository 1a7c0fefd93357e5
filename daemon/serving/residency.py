"""Plan which adapters an engine keeps loaded, or refuse with the numbers. Pure.

An engine has slots for the adapters that one step computes (vLLM's `max_loras`) and room for more
in memory (`max_cpu_loras`). A request waits while its adapter has no slot. An adapter outside of
memory is read from its files at its next call, which delays all requests. So every adapter that
answers has a slot, `SPARE` slots stay free for staging, and every loaded adapter stays in memory.
Guarantee: only adapters of role `kept` are unloaded, the oldest first. Not covered: whether the
settings tell the engine's real limits (`Replica.slots` checks some), and safe unloading.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from events.errors import KintsugiError

Role = Literal["stable", "canary", "shadow", "pinned", "user", "draining", "staged", "kept"]
"""Reasons to keep an adapter loaded, strongest first. `user`: plays users and answers no client.
`staged`: is proven, evaluated or gated. `kept`: waits without traffic for a rollback."""

_STRENGTH: Final[Mapping[Role, int]] = {role: place for place, role in enumerate(get_args(Role))}

SPARE: Final = 1
"""Number of slots that stay free for adapters in staging."""

_IDLE: Final = "kept"
_EXAMINED: Final = "staged"


class NoRoom(KintsugiError):
    """The engine has no room for one more adapter."""


@dataclass(frozen=True, slots=True)
class Room:
    """Limits that an engine was started with."""

    max_loras: int
    max_cpu_loras: int
    """Largest number of adapters in memory, including those in slots."""

    def __post_init__(self) -> None:
        if not 0 < self.max_loras <= self.max_cpu_loras:
            raise ValueError(
                f"max_loras is {self.max_loras} and max_cpu_loras {self.max_cpu_loras}; there must "
                "be at least one slot, and no fewer places in memory"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """The adapters to keep and to unload so that the wanted ones fit."""

    resident: tuple[str, ...]
    """Names of the adapters that are loaded afterwards, the wanted ones last."""
    give_up: tuple[str, ...]
    """Adapters to unload first, in this order."""


def pick_stronger(role: Role | None, other: Role | None) -> Role | None:
    """Return the stronger of two reasons to keep an adapter loaded. None means no reason."""
    if role is None or other is None:
        return role or other
    return min(role, other, key=_STRENGTH.__getitem__)


def plan_together(
    resident: Mapping[str, Role], wanted: Mapping[str, Role], room: Room, replica: str = "it"
) -> Plan:
    """Return the plan that loads all `wanted` adapters (name -> role), or changes their roles.
    `resident` holds the loaded adapters, oldest first. `replica` names the engine in errors. Raises
    NoRoom if the engine has too few slots."""
    after: dict[str, Role] = {n: r for n, r in resident.items() if n not in wanted} | {**wanted}
    _check_slots(after, wanted, room, replica)
    # Adapters with a slot always fit in memory, because max_cpu_loras is at least max_loras.
    surplus = max(0, len(after) - room.max_cpu_loras)
    idle = [adapter for adapter, use in after.items() if use == _IDLE]
    given_up = tuple(idle[:surplus])
    return Plan(tuple(adapter for adapter in after if adapter not in given_up), given_up)


def _check_slots(
    after: Mapping[str, Role], wanted: Mapping[str, Role], room: Room, replica: str
) -> None:
    answering = sum(use not in (_IDLE, _EXAMINED) for use in after.values())
    examined = max(SPARE, sum(use == _EXAMINED for use in after.values()))
    if answering + examined > room.max_loras:
        names = ", ".join(wanted)
        count = f"no slots for the {len(wanted)} adapters" if len(wanted) > 1 else "no slot for"
        raise NoRoom(
            f"{replica} has {count} {names}: {answering + examined} are needed "
            f"({_format_counts(after)}, with {examined} for what is staged), and max_loras is "
            f"{room.max_loras}; wait until what drains is gone, or start the engine with "
            f"--max-loras {answering + examined} or more and say so in its settings"
        )


def _format_counts(after: Mapping[str, Role]) -> str:
    counts = Counter(after.values())
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items()))
