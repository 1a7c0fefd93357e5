"""Adapters and routes: events of the stream `learning`.

    AdapterProduced    a job or an operator made it
    PanelComposed      several adapters and a router answer as one policy
    AdapterStaged      every replica has loaded it and answers with it
    AdapterEvaluated   it was measured beside the incumbent
    GateDecided        it may take the incumbent's place, may not, or more has to be run
    RouteChanged       who answers an alias from here on
    UserEvaluated      an adapter that plays users passed its gate, or failed
    AdapterMoved       it goes out of service: rejected, draining, unloaded, collected
    OperatorActed      a person asked for something; comes before its effects

lifecycle.py tells which event is allowed in which state. The base without an adapter is None. A
panel lives as an adapter does, under a name among those of adapters.
"""

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
showed nothing; `rebased`: the engines serve another base, without the old adapters; `holdout`: only
the held-out share changes."""

Retired = Literal["rejected", "draining", "unloaded", "collected"]

Role = Literal["agent", "user"]
"""Whose part of a conversation an adapter plays. One of role `user` answers no client."""


MergeMethod = Literal["sum", "core_tsv"]
"""How several adapters become one (daemon/engine/merging.py)."""


class MergedAdapter(StrictModel):
    """An adapter that is a part of another one."""

    adapter: Name
    weight: float
    """What its change of the base is multiplied by."""


class AdapterMerge(StrictModel):
    """What a merged adapter is made of."""

    method: MergeMethod
    rank: Annotated[int, Field(ge=1)]
    members: Annotated[tuple[MergedAdapter, ...], Field(min_length=2)]

    @property
    def summary(self) -> str:
        """Describe it in a few words: method, rank, and the members with their weights."""
        parts = ", ".join(f"{part.weight:.3g} of {part.adapter}" for part in self.members)
        return f"merged by {self.method}, rank {self.rank}: {parts}"


class AdapterProduced(Decision):
    """An adapter exists: immutable from here on, under a name that is never used again."""

    TYPE: ClassVar[str] = "AdapterProduced"

    adapter: Name
    alias: Name
    """The agent that it is for."""
    base: Name
    sha256: Sha256
    """Of its weights."""
    path: Text
    """Its folder, relative to the home or absolute; older events have absolute paths."""
    capability: str | None = None
    """What it was trained for."""
    job: str | None = None
    """The job that left it; None for one that was pushed or merged."""
    origin: Literal["job", "push"]
    """Who brought it: a job, or a person's command."""
    merge: AdapterMerge | None = Field(default=None, exclude_if=lambda value: value is None)
    """Members of an adapter that was merged; None for an adapter that was not."""
    role: Role = Field(default="agent", exclude_if=lambda value: value == "agent")


class PanelMember(StrictModel):
    """A skill of a panel, and what answers its sessions."""

    skill: Name
    adapter: Name | None = None
    """None for the base."""


class Panel(StrictModel):
    """Several adapters behind a router: one policy."""

    members: Annotated[tuple[PanelMember, ...], Field(min_length=1)]
    router: PanelRouter

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the adapters that an engine must hold for it: the members', then the router's."""
        names = (*(member.adapter for member in self.members), self.router.adapter)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def chooser(self) -> PanelRouter:
        """Return what chooses a member for a session."""
        return self.router

    @property
    def by_name(self) -> dict[str, str | None]:
        """Return the members by name, each with the adapter that answers, None for the base."""
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
"""Members and chooser of a version that has no files."""


class PanelComposed(Decision):
    """A panel exists: immutable from here on, under a name that is never used again."""

    TYPE: ClassVar[str] = "PanelComposed"

    adapter: Name
    """Its name."""
    alias: Name
    """The agent that it is for."""
    base: Name
    sha256: Sha256
    """Of the canonical JSON of `panel`."""
    panel: Panel
    cycle: str | None = None
    """The cycle that composed it; None for a person's command."""


class AdapterStaged(Decision):
    """Every replica has loaded an adapter and answers with it, not with the base."""

    TYPE: ClassVar[str] = "AdapterStaged"

    adapter: Name
    replicas: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Where: their URLs."""
    distance: Annotated[float, Field(ge=0)]
    """Distance from the expected fingerprint: root mean square of log-probability differences in
    nats, on the worst replica."""
    from_base: Annotated[float, Field(ge=0)]
    """From the fingerprint of its base, in the same way; of the replica where it is smallest."""


class PassRates(StrictModel):
    """pass^1 of both, over the same tasks and seeds."""

    incumbent: Annotated[float, Field(ge=0, le=1)]
    candidate: Annotated[float, Field(ge=0, le=1)]


class AdapterEvaluated(Decision):
    """Adapter and incumbent attempted the same tasks; their rollouts are events of their own."""

    TYPE: ClassVar[str] = "AdapterEvaluated"

    adapter: Name
    incumbent: Name | None = None
    """The adapter it was measured against; None for the base."""
    environment: Name
    tasks: Count
    trials: Count
    """Of each task."""
    pass_hat_1: PassRates


class GateDecided(Decision):
    """What the gate said of an adapter, with the numbers."""

    TYPE: ClassVar[str] = "GateDecided"

    adapter: Name
    alias: Name
    incumbent: Name | None = None
    """The adapter it would follow; None for the base."""
    report: GateReport


class UserFaultRate(StrictModel):
    """How often a user erred in one way."""

    count: Count
    """Dialogues, or calls of tools, in which it did."""
    of: Count
    upper: Annotated[float, Field(ge=0, le=1)]
    """One-sided upper 95 % bound of the share (Clopper and Pearson)."""
    limit: Annotated[float, Field(ge=0, le=1)]
    """That `upper` had to keep to."""

    @property
    def holds(self) -> bool:
        """Whether it keeps to its limit."""
        return self.upper <= self.limit


class UserEvaluated(Decision):
    """An adapter of role `user` played dialogues with a known exact user. Where all rates hold, it
    plays users from here on."""

    TYPE: ClassVar[str] = "UserEvaluated"

    adapter: Name
    alias: Name
    previous: Name | None = None
    """Adapter that played users until then; None for the script."""
    environment: Name
    dialogues: Count
    violations: UserFaultRate
    """Instructions that were broken, and secrets that were told."""
    early_ends: UserFaultRate
    schema_errors: UserFaultRate
    """Calls and lines that are of no form that a user's have."""
    passed: bool
    reason: Reason = ""
    examples: Annotated[tuple[Reason, ...], Field(max_length=8)] = ()
    """Faults, the first of each kind."""
    candidates: Annotated[int, Field(ge=1)] = Field(default=1, exclude_if=lambda count: count == 1)
    """Lines of which each of its lines was chosen. It plays users in this way."""
    manners: tuple[Name, ...] = Field(default=(), exclude_if=lambda manners: not manners)
    """Manners of speaking that the dialogues' users had in turn; empty: their tasks' own words."""

    @property
    def rates(self) -> dict[str, UserFaultRate]:
        """Return what the gate looks at, by name."""
        return {
            "violations": self.violations,
            "early ends": self.early_ends,
            "schema errors": self.schema_errors,
        }


class RouteShare(StrictModel):
    """A part of an alias' sessions, and who answers them."""

    adapter: Name | None = None
    """None for the base."""
    share: Annotated[float, Field(gt=0, le=1)]


class ArmCounts(StrictModel):
    """The judged sessions of a canary, or of its incumbent."""

    judged: Count
    failed: Count


class LiveEvidence(StrictModel):
    """What the live guard had seen when it decided."""

    pairs: Count
    """Judged sessions of the canary that had a partner: one of the incumbent of the same kind."""
    against: Annotated[float, Field(ge=0)]
    """Evidence that the canary is worse; 20 decides."""
    towards: Annotated[float, Field(ge=0)]
    """Evidence that it is not much worse; 20 decides."""
    imbalance: Annotated[float, Field(ge=0)] | None = None
    """Evidence that sessions of one of them are judged more often; None: not looked for (pairs)."""
    canary: ArmCounts | None = None
    """None likewise."""
    incumbent: ArmCounts | None = None
    """None likewise."""
    expected: Annotated[float, Field(ge=0)] | None = None
    """Judged sessions that the shares foretell for the canary; None likewise."""
    position: Position
    """The rollouts that it had read."""


class RouteChanged(Decision):
    """Who answers an alias from here on: the whole route, not a difference."""

    TYPE: ClassVar[str] = "RouteChanged"

    alias: Name
    base: Name
    shares: Annotated[tuple[RouteShare, ...], Field(min_length=1)]
    """Shares of the sessions that are not held out. They sum to 1; nobody has two."""
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of all sessions that the base always answers; above 0 only where an adapter is
    routed."""
    shadow: Name | None = None
    """An adapter that answers as well, unseen by the client."""
    why: Why
    reason: Reason = ""
    """In words, with the numbers."""
    evidence: LiveEvidence | None = None
    """What it rests on, where the live guard decided."""

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
    """A person asked for something. What follows from it names it as its cause."""

    TYPE: ClassVar[str] = "OperatorActed"

    actor: Name
    """Who, as the system knows them."""
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
"""What moves adapters and routes."""

VersionProduced = AdapterProduced | PanelComposed
"""What begins the life of a version, with files or with members."""

ROLE_GATE: Final = "user_gate"
"""Column and field of commands with the result at the gate of an adapter's own role."""

RoleEvaluated = UserEvaluated
"""The gate of a role other than the agent's."""
