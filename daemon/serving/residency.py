"""Plan which adapters an engine keeps loaded, or refuse with the numbers. Pure.

An engine has slots for the adapters of one step (vLLM's `max_loras`) and places in memory
(`max_cpu_loras`). A request beyond the slots waits for one, and an adapter without a place is read
from its files at its next call, which delays all requests. So every adapter that answers has a
slot, one more slot serves staging, and every loaded adapter stays in memory. Guarantees: no adapter
that answers, drains or is examined is given up; kept ones go first, oldest before. Not covered: an
engine's room (settings; `Replica.slots` checks a part), and safe unloading.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from events.errors import KintsugiError

Role = Literal["stable", "canary", "shadow", "pinned", "user", "draining", "staged", "kept"]
"""Why an adapter is loaded, strongest first. `user` plays users and answers no client, `staged` is
proven, evaluated or gated, `kept` waits without traffic for a rollback."""

_STRENGTH: Final[Mapping[Role, int]] = {role: place for place, role in enumerate(get_args(Role))}

SPARE: Final = 1
"""Slots left for staging."""

_IDLE: Final = "kept"
_EXAMINED: Final = "staged"


class NoRoom(KintsugiError):
    """The engine has no room for one more adapter."""


@dataclass(frozen=True, slots=True)
class Room:
    """Start limits of an engine."""

    max_loras: int
    max_cpu_loras: int
    """Most adapters in memory, with those in slots."""

    def __post_init__(self) -> None:
        if not 0 < self.max_loras <= self.max_cpu_loras:
            raise ValueError(
                f"max_loras is {self.max_loras} and max_cpu_loras {self.max_cpu_loras}; there must "
                "be at least one slot, and no fewer places in memory"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan to fit more adapters."""

    resident: tuple[str, ...]
    """Adapters loaded afterwards, the requested ones last."""
    give_up: tuple[str, ...]
    """Adapters to unload first, in this order."""


def pick_stronger(role: Role | None, other: Role | None) -> Role | None:
    """Return the stronger reason to load an adapter; None is none."""
    if role is None or other is None:
        return role or other
    return min(role, other, key=_STRENGTH.__getitem__)


def plan_together(
    resident: Mapping[str, Role], wanted: Mapping[str, Role], room: Room, replica: str = "it"
) -> Plan:
    """Plan to load several adapters (name -> role), or to change their roles, all at once.
    `resident` holds the loaded ones, oldest first; `replica` names the engine in errors. Raises
    NoRoom."""
    after: dict[str, Role] = {n: r for n, r in resident.items() if n not in wanted} | {**wanted}
    _check_slots(after, wanted, room, replica)
    # An adapter with a slot has a place in memory too, for there are no fewer of these.
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
