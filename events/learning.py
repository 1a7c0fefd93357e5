"""Decisions of the daemon: the events of the stream `learning`, one total order. Adapters and
routes follow (serving.py), and plans and faults of the data engine (synthesis/). All are plain JSON
without sections, so that `kcat` and `psql` can read them."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.jobs import JobSpec, Sha256
from events.messages import StrictModel
from events.position import Position
from events.rollouts import Count, EventData, Id, Name, Reason, Task

CONTROL_KEY = "control"
"""One key for the whole stream: its order is the point."""

OPERATOR: Final = "operator"
"""Stands for the pattern of a task that an operator added for none."""

BRANCH: Final = "skill"
"""Stored name of a branch of a cycle, after the skill that it trains (TRACE)."""

VERSION: Final = "panel"
"""Name of a version with members in tables and commands, as in TRACE."""

MOST_SKILLS: Final = 10
"""Most candidates of one discovery (TRACE, section 3.1)."""
MOST_EXAMPLES: Final = 8

Text = Annotated[str, Field(max_length=4096)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]

Trigger = Literal["rollouts", "priority", "age", "cron", "operator"]
"""Reasons for a cycle: new rollouts, priority mass, time since the last, schedule, person."""

Mode = Literal["inherit", "explore", "repair", "synthesize"]
"""Origin of a task: a failed task's gold actions, a fresh trajectory, a lesson, or a plan."""

Check = Literal[
    "schema", "gold", "provenance", "leak", "outputs", "policy", "solvable", "informative",
    "novelty", "contamination", "lesson", "synthesis", "trajectory",
]  # fmt: skip
"""Checks of a written task, cheapest first: V1 to V10 of docs/proposing.md; `lesson` only of a task
with one. By plans: `synthesis`, the writer gave a task; `trajectory`, no rollout shows a fault of
it."""

JobOutcome = Literal["trained", "competence_gap", "failed", "cancelled"]

CycleOutcome = Literal[
    "promoted", "rejected", "rolled_back", "inconclusive", "nothing_learnable", "failed",
    "cancelled",
]  # fmt: skip
"""`rejected` by the gate, `rolled_back` by live traffic; `inconclusive`: its canary showed nothing
in its time; `nothing_learnable`: no failure, no task that passed, or no adapter from them."""


RepairOutcome = Literal["repaired", "state_right", "exhausted", "skipped"]
"""`repaired`: a change was found; `state_right`: the state is as it should be without one;
`exhausted`: no change within the bounds; `skipped`: the rollout could not be replayed."""

Operation = Literal["drop", "arguments", "tool", "insert"]
"""A call is left out, gets other arguments, becomes a call of another tool, or is added."""

Category = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
"""Category of failure (docs/patterns.md)."""

PivotTool = Annotated[str, Field(min_length=1, max_length=100)]
"""Tool of a gold action, or `*`; short, for it becomes part of a key."""


class Decision(EventData):
    """Base of everything on `learning`."""

    STREAM: ClassVar[str] = "learning"

    def key(self) -> str:
        return CONTROL_KEY


class LeaderClaimed(Decision):
    """A process leads. The first claim of the epoch after the current one wins; decisions of other
    epochs do not count."""

    TYPE: ClassVar[str] = "LeaderClaimed"

    epoch: Annotated[int, Field(ge=1)]
    holder: Name
    """Id of the process; a restart has another one."""


class CycleStarted(Decision):
    """A cycle of one agent on one base began. An agent never has two open cycles."""

    TYPE: ClassVar[str] = "CycleStarted"

    cycle: Id
    """derive_id("cycle", alias, base, number)."""
    alias: Name
    base: Name
    number: Annotated[int, Field(ge=1)]
    """Number of the agent's cycles on this base: dense, from 1."""
    environment: Name
    trigger: Trigger
    reason: Reason
    """Reason in words, with the numbers."""
    position: Position
    """Rollouts that the decision had read."""
    slot: str | None = None
    """Slot of a cron trigger, RFC 3339; missed ones collapse to the last."""
    acted: Id | None = None
    """Event that asked, for an operator trigger."""


class PatternsDiagnosed(Decision):
    """Closes a round of the training history: only here do priorities move."""

    TYPE: ClassVar[str] = "PatternsDiagnosed"

    trigger: Literal["import", "diagnose", "schedule"]
    position: Position
    """Rollouts that the round may read."""
    cycle: Id | None = None
    """Cycle that asked; None for an import or a person."""
    kinds: dict[Name, tuple[Id, ...]] = Field(default={}, exclude_if=lambda kinds: not kinds)
    """Agent -> kinds of task that its environment writes. Its own traffic on other tasks does not
    count. For an agent without an entry all rollouts count."""


class PatternFinding(StrictModel):
    """A recurring weakness by an analyzer, after a check."""

    pattern: Name
    """`category|pivot`."""
    category: Name
    description: Text
    frequency: Count
    """Deduplicated failures among its examples; the analyzer's own count is not taken."""
    examples: tuple[Id, ...]
    root_cause: Text


class ModeChoice(StrictModel):
    """Tasks of a quota for one mode, and the reason."""

    mode: Mode
    tasks: Annotated[int, Field(ge=1)]
    reason: Reason
    """Reason in words, with the counts."""


class ClientPart(StrictModel):
    """Number of tasks of a quota that follow failures of one key."""

    client: Name | None
    tasks: Count
    examples: tuple[Id, ...]
    """Examples of the quota: failures of this key."""


class Quota(StrictModel):
    """Number of tasks for one pattern."""

    pattern: Name
    tasks: Annotated[int, Field(ge=1)]
    priority: NonNegative
    status: Name
    description: Text = ""
    root_cause: Text = ""
    examples: tuple[Id, ...] = ()
    modes: tuple[ModeChoice, ...] = Field(default=(), exclude_if=lambda modes: not modes)
    """Modes for a part of the tasks; the others are inherited and explored."""
    clients: tuple[ClientPart, ...] = Field(default=(), exclude_if=lambda parts: not parts)
    """Parts of the quota by key. Empty: all failures that could be followed are of one key."""


class Mastered(StrictModel):
    """A kind of task that the agent masters: its failures there are hardly followed."""

    task: Name
    pass_rate: Share


class BadTries(StrictModel):
    """Failed tries of the last cycle for one pattern and mode, half of them or more."""

    pattern: Name
    mode: Mode
    tries: Annotated[int, Field(ge=1)]
    rejected: Annotated[int, Field(ge=1)]
    reasons: tuple[Reason, ...]
    """`check: reason`, the most frequent first."""


class Directive(StrictModel):
    """Subject of the tasks to write; daemon/controller/directive.py words it."""

    quotas: tuple[Quota, ...]
    mastered: tuple[Mastered, ...] = ()
    improving: tuple[Name, ...] = ()
    known: tuple[str, ...] = ()
    """Historical: signatures of the buffer's tasks; now always empty."""
    bad_tries: tuple[BadTries, ...] = ()


class JobRound(StrictModel):
    """A round that a job closed over its own rollouts, within its budget."""

    job: Id
    number: Annotated[int, Field(ge=1)]


class DirectiveWritten(Decision):
    """The Controller's decision what the cycle's tasks shall stress."""

    TYPE: ClassVar[str] = "DirectiveWritten"

    cycle: Id
    round: Count
    """Round of the training history that it read."""
    directive: Directive
    findings: tuple[PatternFinding, ...] = ()
    """Findings of the analyzer; empty if none is configured or it failed."""
    summary: Text = ""
    analyzer: str | None = None
    """Model of the analyzer; None: the deterministic detectors alone."""
    trouble: Reason = ""
    """Why the analyzer's answer was not used."""
    job_round: JobRound | None = None
    """Round of a job; `round` is then the one from which the job started."""


class Verified(StrictModel):
    """A check that a written task passed."""

    check: Check
    note: Reason = ""
    """Judge or number: `scripted oracle`, `3 of 8`."""


class SealedDefinition(StrictModel):
    """Definition of a task made of a person's session (envs/sealed_body.py)."""

    keyid: Name
    body: str
    """The definition without its id, sealed with that key, as base64."""
    operator: Name | None = None
    """Operator of its lesson, and what follows; None without a lesson."""
    source: Id | None = None
    rollout: Id | None = None


class PlanName(StrictModel):
    """A plan (synthesis/plans.py) at a revision."""

    plans: Id
    plan: Name
    revision: Count = 0


class TaskProposed(Decision):
    """A task entered the buffer, written for a failure pattern or added by an operator."""

    TYPE: ClassVar[str] = "TaskProposed"

    alias: Name
    base: Name
    task: Task
    pattern: Name
    source_rollout: Id | None = None
    cycle: Id | None = None
    """None: it came from outside a cycle."""
    mode: Mode | None = None
    verified: tuple[Verified, ...] = ()
    """Passed checks, in order."""
    text_by: str | None = None
    """Model that wrote the request; None for the environment's templates."""
    job_round: JobRound | None = None
    """Round of the job that wrote it; None for an earlier task."""
    definition: dict[str, Any] | None = None
    """Definition without the id, for a task whose id is its content, ENVIRONMENT/=SHA256. None for
    generated (the id makes it) and sealed tasks."""
    sealed: SealedDefinition | None = None
    """Definition of a task made of a person's session."""
    plan: PlanName | None = Field(default=None, exclude_if=lambda value: value is None)
    """Plan of the task; None for one that follows a failed task."""


class TaskRejected(Decision):
    """A written task failed a check; with `task` set, a task of the buffer cannot be played."""

    TYPE: ClassVar[str] = "TaskRejected"

    cycle: Id | None = None
    alias: Name
    base: Name
    pattern: Name
    mode: Mode | None = None
    check: Check
    reason: Reason
    source_rollout: Id | None = None
    instruction: Text = ""
    job_round: JobRound | None = None
    task: Id | None = None
    """Task of the buffer whose body is missing or changed; None for a written task."""
    plan: PlanName | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _names_its_task(self) -> Self:
        if self.task is None and (self.cycle is None or self.mode is None):
            raise ValueError("a rejection needs the task of the buffer, or the cycle and the mode")
        return self


class TaskRetired(Decision):
    """No new job draws a task of the buffer. An operator may add it again."""

    TYPE: ClassVar[str] = "TaskRetired"

    alias: Name
    task: Id
    reason: Reason = ""


class JobParent(StrictModel):
    """A rejected candidate from which a job trains on, in place of the incumbent."""

    adapter: Name
    reason: Reason
    """Reason in words, with the gate's measurements."""


class JobRequested(Decision):
    """A training run is requested. Retries read the spec from here."""

    TYPE: ClassVar[str] = "JobRequested"

    job: Id
    """derive_id("job", cycle); with a skill (..., skill); of a router ("router job", cycle)."""
    cycle: Id | None = None
    """None for an operator's job."""
    alias: Name
    base: Name
    capability: str | None = None
    """Most frequent capability of its training tasks."""
    spec: JobSpec
    minutes: Annotated[float, Field(gt=0)]
    """Minutes until it is stopped."""
    parent: JobParent | None = None
    """None: it starts from the incumbent, or from the base."""
    skill: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    """Skill of the adapter; None where the cycle trains one for everything."""

    @property
    def branch_columns(self) -> dict[str, str | None]:
        """Return the columns that tell it from its cycle's other jobs; None in the only one."""
        teaches = None if self.spec.teaches == "agent" else self.spec.teaches
        return {"skill": self.skill, "teaches": teaches}

    @property
    def branch(self) -> str | None:
        """Return the name of its branch; None for the whole cycle."""
        return self.skill

    def for_branch(self, branch: str | None) -> Self:
        """Return the same request for a branch of its cycle."""
        return self.model_copy(update={BRANCH: branch})


class PoolShare(StrictModel):
    """Share of a job's pool before and after a round."""

    pool: Name
    share: Share
    """Share of the job's groups."""
    before: Share
    """Share before; 0 for a new pool."""
    tasks: Count
    attempts: Count
    """Last rollouts of its tasks in the job, 16 per task at most."""
    passes: Count


class PoolsShifted(Decision):
    """A job has closed a round of its own; its directive and tasks came before."""

    TYPE: ClassVar[str] = "PoolsShifted"

    cycle: Id
    job_round: JobRound
    rollouts: Count
    """Rollouts of the round: those of one part of the job's budget."""
    failures: Count
    """Deduplicated ones among them."""
    unread: Count = 0
    """Rollouts whose tokens do not give the conversation back; their failures do not count."""
    pools: tuple[PoolShare, ...]
    """Empty pools are included, with a share of 0."""


class JobEnded(Decision):
    """A training run is over. Only the first event counts."""

    TYPE: ClassVar[str] = "JobEnded"

    job: Id
    outcome: JobOutcome
    reason: Reason = ""
    adapter: str | None = None
    """Folder of the result, relative to the home or absolute (older events: absolute)."""
    sha256: Sha256 | None = None
    steps: Count = 0
    rollouts: Count = 0
    seconds: NonNegative = 0.0
    """Seconds of its process, all attempts together."""
    attempts: Count = 1


class CycleEnded(Decision):
    """A cycle is over; the next of this agent may begin."""

    TYPE: ClassVar[str] = "CycleEnded"

    cycle: Id
    outcome: CycleOutcome
    reason: Reason


class RepairEdit(StrictModel):
    """A change of the agent's calls. It quotes no value, because rollouts may be sealed."""

    operation: Operation
    turn: Count | None = None
    """Message of the call; None for an insertion. So is the next."""
    call: Count | None = None
    """Index among the agent's calls."""
    tool: Annotated[str, Field(max_length=128)]
    """Tool of the call, or of the inserted call."""
    expected: Annotated[str, Field(max_length=128)] | None = None
    """Tool of the gold write that is made; None for a drop."""
    gold: Count | None = None
    """Index of that write among the task's gold actions."""
    arguments: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    """Names of the arguments that differ, where the tool stays."""


class RepairSearched(Decision):
    """Result of the search for the smallest change of calls that mends a failed rollout; what it
    proves supersedes the label of the rules."""

    TYPE: ClassVar[str] = "RepairSearched"

    rollout: Id
    rules: Name
    """Version of the search and of the reading of its result."""
    outcome: RepairOutcome
    edits: tuple[RepairEdit, ...] = ()
    """The repair: drops, other arguments, other tools, insertions; of each the earliest first."""
    replays: Count = 0
    category: Category | None = None
    """Proven category; None where the rules' label stays."""
    pivot: PivotTool | None = None
    reason: Reason = ""
    """Bound that ended the search, or why the rollout could not be replayed."""


class PersonErased(Decision):
    """A person's key and every restored copy of it are destroyed. Does not name the person."""

    TYPE: ClassVar[str] = "PersonErased"

    keyid: Name
    events: Count = 0
    """Events sealed with it so far, in the log that was searched."""
    rollouts: Count = 0
    """Rollouts among them."""


class SkillLabels(StrictModel):
    """Labels of a skill in one labelling; rollouts to which it does not apply are in none."""

    failures: Count
    lacking_failures: Count
    present_failures: Count
    lacking_successes: Count
    present_successes: Count

    @model_validator(mode="after")
    def _are_among_all(self) -> Self:
        if self.lacking_failures + self.present_failures > self.failures:
            raise ValueError(
                f"{self.lacking_failures} lacking and {self.present_failures} present failures are "
                f"more than the {self.failures} that were drawn"
            )
        return self


class SkillContrast(StrictModel):
    """A candidate for a skill, and its labels in every labelling."""

    skill: Name
    description: Text
    patterns: tuple[Name, ...]
    """Patterns that it unites, `category|pivot`; none where no rule applies."""
    failures: Count
    """Failures to which it applies, before the draw: eight labellings of ten agree."""
    successes: Count
    """Successes, in the same way."""
    labellings: Annotated[tuple[SkillLabels, ...], Field(min_length=1, max_length=100)]
    examples: Annotated[tuple[Id, ...], Field(max_length=MOST_EXAMPLES)]
    within: tuple[Name, ...] = ()
    """Larger candidates, the largest first: most failures that lack this one also lack them."""


class SkillsContrasted(Decision):
    """An agent's failures and successes were compared: its candidates for skills from now on."""

    TYPE: ClassVar[str] = "SkillsContrasted"

    alias: Name
    base: Name
    since: Count
    """First round of the history that was read."""
    round: Count
    """Last round."""
    failures: Count
    """Deduplicated failures among them."""
    successes: Count
    """Deduplicated successes."""
    skills: Annotated[tuple[SkillContrast, ...], Field(max_length=MOST_SKILLS)]
    cycle: Id | None = None
    labeller: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    """Model that named candidates and labelled rollouts; None for rules."""
    left_out: Count = Field(default=0, exclude_if=lambda value: not value)
    """Representative rollouts that it could not be shown; they do not count."""
    refused: Count = Field(default=0, exclude_if=lambda value: not value)
    """Labellings without a usable answer; they choose no skill."""

    @model_validator(mode="after")
    def _name_each_once(self) -> Self:
        names = [item.skill for item in self.skills]
        if len(set(names)) < len(names):
            raise ValueError(f"two candidates have one name, among {', '.join(names)}")
        return self


EVENTS: Final = (
    LeaderClaimed,
    CycleStarted,
    PatternsDiagnosed,
    DirectiveWritten,
    TaskProposed,
    TaskRejected,
    TaskRetired,
    JobRequested,
    JobEnded,
    CycleEnded,
    PersonErased,
    RepairSearched,
    PoolsShifted,
    SkillsContrasted,
)
"""The event types of this module; events/registry.py knows each."""
