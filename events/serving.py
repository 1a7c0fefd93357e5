"""Events of adapters and routes, in the stream `learning`. lifecycle.py defines which event is
allowed in which state. None stands for the base without an adapter. A panel has the states of an
adapter, and no adapter has its name."""

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
"""Why a route changed. `canary` and `promoted` need a passed gate. `expired` ends a canary that
showed nothing. `rebased`: the engines serve another base. `holdout`: only that share changes."""

Retired = Literal["rejected", "draining", "unloaded", "collected"]

Role = Literal["agent", "user"]
"""Part of a conversation that an adapter plays. A `user` adapter answers no client."""


MergeMethod = Literal["sum", "core_tsv"]
"""Method by which several adapters are merged into one (daemon/engine/merging.py)."""


class MergedAdapter(StrictModel):
    """An adapter that is a part of another one."""

    adapter: Name
    weight: float
    """Factor by which its change of the base's weights is multiplied."""


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
    """Job that trained the adapter; None for a pushed or merged adapter."""
    origin: Literal["job", "push"]
    """Where the adapter comes from: a job, or a person's command."""
    merge: AdapterMerge | None = Field(default=None, exclude_if=lambda value: value is None)
    """Members of a merged adapter; None for others."""
    role: Role = Field(default="agent", exclude_if=lambda value: value == "agent")


class PanelMember(StrictModel):
    """A skill of a panel, and the adapter for its sessions."""

    skill: Name
    adapter: Name | None = None
    """Adapter that answers the skill's sessions; None for the base."""


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
    """Every replica has loaded an adapter and was proven to answer with it, not with the base."""

    TYPE: ClassVar[str] = "AdapterStaged"

    adapter: Name
    replicas: Annotated[tuple[Text, ...], Field(min_length=1)]
    """URLs of the replicas."""
    distance: Annotated[float, Field(ge=0)]
    """Root mean square difference of log-probabilities (nats) between the adapter's expected
    fingerprint and the worst replica's."""
    from_base: Annotated[float, Field(ge=0)]
    """The same between the base's fingerprint and the closest replica's."""


class PassRates(StrictModel):
    """pass^1 of candidate and incumbent, over the same tasks and seeds."""

    incumbent: Annotated[float, Field(ge=0, le=1)]
    candidate: Annotated[float, Field(ge=0, le=1)]


class AdapterEvaluated(Decision):
    """Adapter and incumbent attempted the same tasks; their rollouts are separate events."""

    TYPE: ClassVar[str] = "AdapterEvaluated"

    adapter: Name
    incumbent: Name | None = None
    """Incumbent that was measured too; None for the base."""
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
    """Rate of one kind of fault of a user simulator."""

    count: Count
    """Number of dialogues, or of tool calls, with the fault."""
    of: Count
    upper: Annotated[float, Field(ge=0, le=1)]
    """One-sided upper 95 % bound of the share (Clopper and Pearson)."""
    limit: Annotated[float, Field(ge=0, le=1)]
    """Largest value that `upper` may have."""

    @property
    def holds(self) -> bool:
        """Return whether the rate's upper bound is within the limit."""
        return self.upper <= self.limit


class UserEvaluated(Decision):
    """An adapter of role `user` was tested with an exact user. It plays users if all rates hold."""

    TYPE: ClassVar[str] = "UserEvaluated"

    adapter: Name
    alias: Name
    previous: Name | None = None
    """Adapter that played users before; None for the script."""
    environment: Name
    dialogues: Count
    violations: UserFaultRate
    """Broken instructions and disclosed secrets."""
    early_ends: UserFaultRate
    schema_errors: UserFaultRate
    """Calls and lines that are not in the form of a user's."""
    passed: bool
    reason: Reason = ""
    examples: Annotated[tuple[Reason, ...], Field(max_length=8)] = ()
    candidates: Annotated[int, Field(ge=1)] = Field(default=1, exclude_if=lambda count: count == 1)
    """Number of candidates per line, as when it plays users."""
    manners: tuple[Name, ...] = Field(default=(), exclude_if=lambda manners: not manners)
    """Styles of speech of the dialogues' users, in turn; empty: the tasks' own words."""

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
    """The live guard's measurements at its decision on a canary."""

    pairs: Count
    """Judged sessions of the canary, each paired with an incumbent's session of the same kind."""
    against: Annotated[float, Field(ge=0)]
    """e-value that the canary is worse; the guard decides at 20."""
    towards: Annotated[float, Field(ge=0)]
    """e-value that the canary is not much worse; the guard decides at 20."""
    imbalance: Annotated[float, Field(ge=0)] | None = None
    """Evidence that one policy is judged more often; None: not computed, because of pairs."""
    canary: ArmCounts | None = None
    incumbent: ArmCounts | None = None
    expected: Annotated[float, Field(ge=0)] | None = None
    """Judged sessions of the canary that the shares predict; None likewise."""
    position: Position


class RouteChanged(Decision):
    """The route of an alias changed; the event holds the whole new route."""

    TYPE: ClassVar[str] = "RouteChanged"

    alias: Name
    base: Name
    shares: Annotated[tuple[RouteShare, ...], Field(min_length=1)]
    """Shares of the sessions that are not held out. They sum to 1 and have different adapters."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all sessions that the base answers; 0 if no adapter is on the route."""
    shadow: Name | None = None
    why: Why
    reason: Reason = ""
    evidence: LiveEvidence | None = None
    """The live guard's measurements, if the guard decided."""

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
    """An adapter moved one state further out of service."""

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
"""Column, and field in commands' JSON, for the gate's result of an adapter of role `user`."""

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
