"""Adapters and routes: events of the stream `learning`. lifecycle.py tells which event is allowed
in which state. The base without an adapter is None. A panel lives as an adapter does, under a name
among those of adapters."""

from math import fsum, isclose
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.gate import GateReport
from events.jobs import PanelRouter, Text
from events.learning import Decision
from events.messages import StrictModel
from events.position import Position
from events.rollouts import Count, Name, Reason

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

Why = Literal["canary", "promoted", "rollback", "operator", "expired", "rebased", "holdout"]
"""Why a route changed. `canary` and `promoted` need a passed gate; `expired` ends a canary that
showed nothing; `rebased`: the engines serve another base; `holdout`: only that share changes."""

Retired = Literal["rejected", "draining", "unloaded", "collected"]

Role = Literal["agent", "user"]
"""Part of a conversation that an adapter plays. A `user` adapter answers no client."""


MergeMethod = Literal["sum", "core_tsv"]
"""How several adapters become one (daemon/engine/merging.py)."""


class MergedAdapter(StrictModel):
    """An adapter that is a part of another one."""

    adapter: Name
    weight: float
    """Factor of its change of the base."""


class AdapterMerge(StrictModel):
    """Members and method of a merged adapter."""

    method: MergeMethod
    rank: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[MergedAdapter, ...], Field(min_length=2)]

    @property
    def summary(self) -> str:
        """Describe it in a few words: method, rank, and the members with their weights."""
        parts = ", ".join(f"{part.weight:.3g} of {part.adapter}" for part in self.members)
        return f"merged by {self.method}, rank {self.rank}: {parts}"


class AdapterProduced(Decision):
    """An adapter exists: immutable, under a name that is never used again."""

    TYPE: ClassVar[str] = "AdapterProduced"

    adapter: Name
    alias: Name
    base: Name
    sha256: Sha256
    path: Text
    """Its folder, relative to the home or absolute; older events have absolute paths."""
    capability: str | None = None
    job: str | None = None
    """Job of the adapter; None for a pushed or merged one."""
    origin: Literal["job", "push"]
    """Source: a job, or a person's command."""
    merge: AdapterMerge | None = Field(default=None, exclude_if=lambda value: value is None)
    """Members of a merged adapter; None for others."""
    role: Role = Field(default="agent", exclude_if=lambda value: value == "agent")


class PanelMember(StrictModel):
    """A skill of a panel, and the adapter for its sessions."""

    skill: Name
    adapter: Name | None = None
    """None for the base."""


class Panel(StrictModel):
    """Several adapters behind a router: one policy."""

    members: Annotated[tuple[PanelMember, ...], Field(min_length=1)]
    router: PanelRouter

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the adapters that an engine must hold: the members', then the router's."""
        names = (*(member.adapter for member in self.members), self.router.adapter)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def chooser(self) -> PanelRouter:
        """Return the chooser of a session's member."""
        return self.router

    @property
    def by_name(self) -> dict[str, str | None]:
        """Return the members by name, each with its adapter; None for the base."""
        return {member.skill: member.adapter for member in self.members}

    def find_adapter(self, skill: str | None) -> str | None:
        """Return the adapter that answers a skill's sessions; None for the base."""
        return next((member.adapter for member in self.members if member.skill == skill), None)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        skills = [member.skill for member in self.members]
        if len(skills) != len(set(skills)):
            raise ValueError(f"a skill has two members: {', '.join(skills)}")
        routed = {option.skill for option in self.router.options} - {None}
        if routed != set(skills):
            raise ValueError(
                f"the members are of {', '.join(sorted(skills))}, and the router chooses among "
                f"{', '.join(sorted(map(str, routed)))}"
            )
        if not any(member.adapter for member in self.members):
            raise ValueError("the base answers every skill of the panel; name an adapter")
        if self.router.form == "head" and self.router.adapter is None:
            raise ValueError("a router that is a head needs its adapter; name it")
        return self


Composition = Panel


class PanelComposed(Decision):
    """A panel exists: immutable, under a name that is never used again."""

    TYPE: ClassVar[str] = "PanelComposed"

    adapter: Name
    alias: Name
    base: Name
    sha256: Sha256
    """Digest of the canonical JSON of `panel`."""
    panel: Panel
    cycle: str | None = None
    """Cycle that composed it; None for a person's command."""


class AdapterStaged(Decision):
    """Every replica has loaded an adapter and answers with it, not with the base."""

    TYPE: ClassVar[str] = "AdapterStaged"

    adapter: Name
    replicas: Annotated[tuple[Text, ...], Field(min_length=1)]
    """URLs of the replicas."""
    distance: Annotated[float, Field(ge=0)]
    """Root mean square of log-probability differences from the expected fingerprint in nats, on the
    worst replica."""
    from_base: Annotated[float, Field(ge=0)]
    """The same from the fingerprint of its base, on the closest replica."""


class PassRates(StrictModel):
    """pass^1 of both, over the same tasks and seeds."""

    incumbent: Annotated[float, Field(ge=0, le=1)]
    candidate: Annotated[float, Field(ge=0, le=1)]


class AdapterEvaluated(Decision):
    """Adapter and incumbent attempted the same tasks; their rollouts are separate events."""

    TYPE: ClassVar[str] = "AdapterEvaluated"

    adapter: Name
    incumbent: Name | None = None
    """Measured incumbent; None for the base."""
    environment: Name
    tasks: Count
    trials: Count
    """Trials of each task."""
    pass_hat_1: PassRates


class GateDecided(Decision):
    """The gate decided on an adapter."""

    TYPE: ClassVar[str] = "GateDecided"

    adapter: Name
    alias: Name
    incumbent: Name | None = None
    report: GateReport


class UserFaultRate(StrictModel):
    """Rate of one kind of a user's faults."""

    count: Count
    """Dialogues, or calls of tools, with the fault."""
    of: Count
    upper: Annotated[float, Field(ge=0, le=1)]
    """One-sided upper 95 % bound of the share (Clopper and Pearson)."""
    limit: Annotated[float, Field(ge=0, le=1)]
    """Limit of `upper`."""

    @property
    def holds(self) -> bool:
        """Return whether the rate keeps to its limit."""
        return self.upper <= self.limit


class UserEvaluated(Decision):
    """An adapter of role `user` played with an exact user. If all rates hold, it plays users."""

    TYPE: ClassVar[str] = "UserEvaluated"

    adapter: Name
    alias: Name
    previous: Name | None = None
    """Adapter that played users before; None for the script."""
    environment: Name
    dialogues: Count
    violations: UserFaultRate
    """Broken instructions and told secrets."""
    early_ends: UserFaultRate
    schema_errors: UserFaultRate
    """Calls and lines that have no form of a user's."""
    passed: bool
    reason: Reason = ""
    examples: Annotated[tuple[Reason, ...], Field(max_length=8)] = ()
    candidates: Annotated[int, Field(ge=1)] = Field(default=1, exclude_if=lambda count: count == 1)
    """Candidates for each line, as when it plays users."""
    manners: tuple[Name, ...] = Field(default=(), exclude_if=lambda manners: not manners)
    """Manners of speaking of the dialogues' users, in turn; empty: their tasks' own words."""

    @property
    def rates(self) -> dict[str, UserFaultRate]:
        """Return the rates of the gate by name."""
        return {
            "violations": self.violations,
            "early ends": self.early_ends,
            "schema errors": self.schema_errors,
        }


class RouteShare(StrictModel):
    """An adapter's share of an alias' sessions."""

    adapter: Name | None = None
    share: Annotated[float, Field(gt=0, le=1)]


class ArmCounts(StrictModel):
    """Judged sessions of a canary, or of its incumbent."""

    judged: Count
    failed: Count


class LiveEvidence(StrictModel):
    """Evidence of the live guard at its decision."""

    pairs: Count
    """Judged sessions of the canary with a partner: one of the incumbent of the same kind."""
    against: Annotated[float, Field(ge=0)]
    """Evidence that the canary is worse; 20 decides."""
    towards: Annotated[float, Field(ge=0)]
    """Evidence that it is not much worse; 20 decides."""
    imbalance: Annotated[float, Field(ge=0)] | None = None
    """Evidence that one of them is judged more often; None: not looked for (pairs)."""
    canary: ArmCounts | None = None
    incumbent: ArmCounts | None = None
    expected: Annotated[float, Field(ge=0)] | None = None
    """Judged sessions that the shares foretell for the canary; None likewise."""
    position: Position


class RouteChanged(Decision):
    """The whole new route of an alias."""

    TYPE: ClassVar[str] = "RouteChanged"

    alias: Name
    base: Name
    shares: Annotated[tuple[RouteShare, ...], Field(min_length=1)]
    """Shares of the sessions that are not held out. They sum to 1 and have different adapters."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all sessions for the base; above 0 only where an adapter is routed."""
    shadow: Name | None = None
    why: Why
    reason: Reason = ""
    evidence: LiveEvidence | None = None
    """Evidence of the live guard, where it decided."""

    @model_validator(mode="after")
    def _is_a_route(self) -> Self:
        total = fsum(part.share for part in self.shares)
        if not isclose(total, 1.0, abs_tol=1e-9):
            raise ValueError(f"the shares sum to {total}, not to 1")
        names = [part.adapter for part in self.shares]
        if len(names) != len(set(names)):
            raise ValueError(f"somebody has two shares: {', '.join(map(str, names))}")
        if self.shadow in names and self.shadow is not None:
            raise ValueError(f"{self.shadow} has a share and is the shadow as well")
        if self.holdout and names == [None]:
            raise ValueError(
                f"a holdout of {self.holdout} of the sessions where the base answers all of them"
            )
        return self


class AdapterMoved(Decision):
    """An adapter went one step out of service."""

    TYPE: ClassVar[str] = "AdapterMoved"

    adapter: Name
    state: Retired
    reason: Reason = ""


class OperatorActed(Decision):
    """A person gave a command. Its effects name this event as their cause."""

    TYPE: ClassVar[str] = "OperatorActed"

    actor: Name
    action: Name
    """The command: `adapters promote`, `route set`, ..."""
    arguments: dict[str, str] = {}
    reason: Reason = ""


ServingEvent = (
    AdapterProduced
    | PanelComposed
    | AdapterStaged
    | AdapterEvaluated
    | GateDecided
    | RouteChanged
    | UserEvaluated
    | AdapterMoved
)  # fmt: skip

VersionProduced = AdapterProduced | PanelComposed

ROLE_GATE: Final = "user_gate"
"""Column and field of commands for the result at the gate of an adapter's own role."""

RoleEvaluated = UserEvaluated


EVENTS: Final = (
    AdapterProduced,
    AdapterStaged,
    AdapterEvaluated,
    GateDecided,
    RouteChanged,
    AdapterMoved,
    OperatorActed,
    PanelComposed,
    UserEvaluated,
)
"""The event types of this module; events/registry.py knows each."""
