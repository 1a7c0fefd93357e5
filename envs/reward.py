"""The shaped reward: the task's reward less capped penalties. Guarantee: penalties never reorder
two rollouts of different success.

    R = R_task - p_auth [a write before authentication] - min(p_fmt N_fmt, cap_fmt)
               - min(p_rep N_rep, cap_rep) - min(p_len max(0, L - L_0), cap_len),   R >= floor

Source: SENTINEL (arXiv 2606.12908), whose constants were not published; the defaults are ours. The
penalties of a success sum to less than 1, so it stays above any failure, which is at most 0. A
success without authentication falls below the failure threshold and reaches diagnosis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from pydantic import Field, model_validator

from envs.catalog import ToolCatalog
from envs.tools import unusable
from events.canonical import exact_json
from events.messages import Message, StrictModel, ToolCall, executed_calls

_MOST: Final = 0.999
"""Largest sum of a success's penalties. It is below 1 by more than the rounding error of a sum."""


class Shaping(StrictModel):
    """The penalties and their default weights."""

    authentication: float = Field(default=0.5, ge=0)
    """Penalty, once, for a write before the first successful authentication."""
    format: float = Field(default=0.05, ge=0)
    """Penalty per malformed call."""
    format_cap: float = Field(default=0.1, ge=0)
    repetition: float = Field(default=0.02, ge=0)
    """Penalty per call that repeats the one before it."""
    repetition_cap: float = Field(default=0.1, ge=0)
    length: float = Field(default=2e-5, ge=0)
    """Penalty per token above the budget."""
    length_cap: float = Field(default=0.1, ge=0)
    length_budget: int = Field(default=6144, ge=0)
    """Tokens the agent may write for nothing."""
    floor: float = Field(default=-0.5, le=0)

    @model_validator(mode="after")
    def _never_reorders(self) -> Self:
        most = self.authentication + self.format_cap + self.repetition_cap + self.length_cap
        if most > _MOST:
            raise ValueError(
                f"the penalties of a success can sum to {most:g}; keep them at {_MOST} or below, "
                "or a success could be worth less than a failure"
            )
        return self


DEFAULT: Final = Shaping()
UNSHAPED: Final = Shaping(authentication=0, format=0, repetition=0, length=0)
"""No penalties, for a graded reward (milestones)."""


@dataclass(frozen=True, slots=True)
class Conduct:
    """Counts of the agent's conduct in a rollout, from which penalties follow."""

    unauthenticated_write: bool = False
    malformed: int = 0
    repeated: int = 0
    tokens: int | None = None
    """Number of tokens that the model wrote, reasoning included. None if they were not counted."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A shaped reward and its components."""

    total: float
    components: dict[str, float]
    """`task`, and each penalty by name as a number at or below 0."""


def shape(task_reward: float, conduct: Conduct, shaping: Shaping = DEFAULT) -> Reward:
    """Return the shaped reward. A `task_reward` strictly between 0 and 1 needs `UNSHAPED`."""
    excess = max(0, (conduct.tokens or 0) - shaping.length_budget)
    components = {
        "task": task_reward,
        "authentication": -shaping.authentication * conduct.unauthenticated_write,
        "format": -min(shaping.format * conduct.malformed, shaping.format_cap),
        "repetition": -min(shaping.repetition * conduct.repeated, shaping.repetition_cap),
        "length": -min(shaping.length * excess, shaping.length_cap),
    }
    # Adding 0.0 turns the -0.0 of an absent penalty into 0.0.
    components = {name: value + 0.0 for name, value in components.items()}
    return Reward(max(shaping.floor, sum(components.values())), components)


def conduct_of(
    messages: Sequence[Message],
    catalog: ToolCatalog,
    malformed: int,
    tokens: int | None = None,
) -> Conduct:
    """Count the agent's conduct in a transcript. The task's prefix does not count. `malformed` is
    the episode's number of malformed calls."""
    return Conduct(
        unauthenticated_write=_has_early_write(messages, catalog),
        malformed=malformed,
        repeated=sum(_repetitions(messages, catalog)),
        tokens=tokens,
    )


def _has_early_write(messages: Sequence[Message], catalog: ToolCatalog) -> bool:
    if not catalog.authenticating:
        return False
    for item in executed_calls(messages):
        if item.requestor == "user":
            continue
        if item.call.name in catalog.authenticating and item.result and not item.failed:
            return False
        if item.sampled and item.call.name in catalog.writes and not item.failed:
            return True
    return False


def _repetitions(messages: Sequence[Message], catalog: ToolCatalog) -> Iterator[bool]:
    """Yield for each call of the agent whether it repeats its last call. It does not after a
    message of the user, or after a successful write, which changes the state."""
    last: tuple[str, str] | None = None
    turn = 0
    for item in executed_calls(messages):
        if item.requestor == "user":
            continue
        if any(message.role == "user" for message in messages[turn : item.turn + 1]):
            last = None
        turn = item.turn
        this = _make_call_key(item.call)
        yield item.sampled and this is not None and this == last
        last = None if item.call.name in catalog.changes and not item.failed else this


def _make_call_key(call: ToolCall) -> tuple[str, str] | None:
    """Return a key that equal calls share, or None for arguments that no tool accepts."""
    if not isinstance(call.arguments, str) and unusable(call.arguments) is not None:
        return None
    return call.name, exact_json(call.arguments)
