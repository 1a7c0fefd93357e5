"""Plan which adapters an engine keeps loaded, or refuse with the numbers.

    plan_together({"a-7": "stable"}, {"a-9": "staged", "b-2": "staged"}, Room(4, 8))

An engine has slots for the adapters that one step may use (`max_loras` of vLLM) and room in memory
for those that it has read (`max_cpu_loras`). A request for an adapter beyond the slots waits until
another one has no request; one that was pushed out of memory is read from its files at its next
call, which delays all requests. So every adapter that answers has a slot of its own, one more is
left for the one being staged, and everything that is loaded stays in memory.

Pure. Guarantees: nothing that answers, drains or is being examined is ever given up; what is only
kept, for a quick way back, goes first, the oldest before. Not covered: what the engine's room is
(settings say it; `Replica.slots` checks a part), and when it is safe to unload.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from events.errors import KintsugiError

Role = Literal["stable", "canary", "shadow", "pinned", "user", "draining", "staged", "kept"]
"""Why an adapter is loaded, the strongest reason first: `user` plays users and answers no client;
`staged` is one that is proven, evaluated or gated; `kept` one without traffic, for a rollback."""

_STRENGTH: Final[Mapping[Role, int]] = {role: place for place, role in enumerate(get_args(Role))}

SPARE: Final = 1
"""Slots that are left for the adapter being staged."""

_IDLE: Final = "kept"
_EXAMINED: Final = "staged"


class NoRoom(KintsugiError):
    """The engine has no room for one more adapter."""


@dataclass(frozen=True, slots=True)
class Room:
    """Limits that an engine was started with."""

    max_loras: int
    """Most adapters in one step."""
    max_cpu_loras: int
    """Most adapters in memory, those of the slots included."""

    def __post_init__(self) -> None:
        if not 0 < self.max_loras <= self.max_cpu_loras:
            raise ValueError(
                f"max_loras is {self.max_loras} and max_cpu_loras {self.max_cpu_loras}; there must "
                "be at least one slot, and no fewer places in memory"
            )


@dataclass(frozen=True, slots=True)
class Plan:
    """How more adapters fit."""

    resident: tuple[str, ...]
    """Adapters that are loaded afterwards, the one that was asked for last."""
    give_up: tuple[str, ...]
    """Adapters that must be unloaded first, in this order."""


def pick_stronger(role: Role | None, other: Role | None) -> Role | None:
    """Return the stronger one of two reasons why an adapter is loaded; None is none."""
    if role is None or other is None:
        return role or other
    return min(role, other, key=_STRENGTH.__getitem__)


def plan_together(
    resident: Mapping[str, Role], wanted: Mapping[str, Role], room: Room, replica: str = "it"
) -> Plan:
    """Plan how several adapters (name -> role) may be loaded, or take other roles, all at once, as
    the parts of a version do. `resident` are the loaded ones with their roles, oldest first;
    `replica` names the engine in errors. Raises NoRoom."""
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
    """Check that the slots suffice. Raises NoRoom."""
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
