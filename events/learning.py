"""Decisions of the daemon: the events of the stream `learning`, one total order. Events of adapters
and routes are in serving.py, those of plans and faults in synthesis/. All are plain JSON without
sections, so that `kcat` and `psql` can read them."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.jobs import JobSpec, Sha256
from events.messages import StrictModel
from events.position import Position
from events.rollouts import Count, EventData, Id, Name, Reason, Task

CONTROL_KEY = "control"
"""The key of every event, so the whole stream is in one partition and has one order."""

OPERATOR: Final = "operator"
"""Value of `pattern` for a task that an operator added for no pattern."""

BRANCH: Final = "skill"
"""Field that stores the branch of a cycle: the skill that the branch trains (TRACE)."""

VERSION: Final = "panel"
"""Word in tables and commands for a version with members."""

MOST_SKILLS: Final = 10
"""Most candidate skills of one discovery (TRACE, section 3.1)."""
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
"""Checks of a written task, cheapest first: V1 to V10 of docs/proposing.md, then `lesson` for a
task with a lesson. For plans: `synthesis`, whether the writer gave a task; `trajectory`, whether no
rollout shows a fault of the task."""

JobOutcome = Literal["trained", "competence_gap", "failed", "cancelled"]

CycleOutcome = Literal[
    "promoted", "rejected", "rolled_back", "inconclusive", "nothing_learnable", "failed",
    "cancelled",
]  # fmt: skip
"""`rejected`: by the gate. `rolled_back`: by live traffic. `inconclusive`: the canary showed
nothing in its time. `nothing_learnable`: no failure, no written task that passed, or no adapter."""


RepairOutcome = Literal["repaired", "state_right", "exhausted", "skipped"]
"""`repaired`: a change was found; `state_right`: the state is as it should be without one;
`exhausted`: no change within the bounds; `skipped`: the rollout could not be replayed."""

Operation = Literal["drop", "arguments", "tool", "insert"]
"""Change of a call in a repair: leave it out, change its arguments or its tool, or add a call."""

Category = Annotated[str, Field(pattern=r"^[a-z_]{1,32}$")]
"""Category of failure (docs/patterns.md)."""

PivotTool = Annotated[str, Field(min_length=1, max_length=100)]
"""Tool of a gold action, or `*` for none. It is short because it becomes part of a key."""


class Decision(EventData):
    """Base class of all events of the stream `learning`."""

    STREAM: ClassVar[str] = "learning"

    def key(self) -> str:
        return CONTROL_KEY


class LeaderClaimed(Decision):
    """A process claims to lead. The first claim of the epoch after the current one wins. Decisions
    of other epochs do not count."""

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
    """Scheduled time of a cron trigger, RFC 3339. Of several missed times, only the last counts."""
    acted: Id | None = None
    """Id of the event that requested the cycle, for an operator trigger."""


class PatternsDiagnosed(Decision):
    """A round of the training history is closed. Priorities change with this event only."""

    TYPE: ClassVar[str] = "PatternsDiagnosed"

    trigger: Literal["import", "diagnose", "schedule"]
    position: Position
    """Rollouts that the round may read."""
    cycle: Id | None = None
    """Cycle that asked; None for an import or a person."""
    kinds: dict[Name, tuple[Id, ...]] = Field(default={}, exclude_if=lambda kinds: not kinds)
    """Agent -> kinds of task that its environment writes. The agent's traffic on other tasks does
    not count. For an agent without an entry, all rollouts count."""


class PatternFinding(StrictModel):
    """A recurring weakness that an analyzer (a model) reported and a check confirmed."""

    pattern: Name
    """`category|pivot`."""
    category: Name
    description: Text
    frequency: Count
    """Number of deduplicated failures among its examples; the analyzer's own count is ignored."""
    examples: tuple[Id, ...]
    root_cause: Text


class ModeChoice(StrictModel):
    """Number of a quota's tasks in one mode, and the reason."""

    mode: Mode
    tasks: Annotated[int, Field(ge=1)]
    reason: Reason
    """Reason in words, with the counts."""


class ClientPart(StrictModel):
    """Number of a quota's tasks that follow failures of one client key."""

    client: Name | None
    tasks: Count
    examples: tuple[Id, ...]
    """The quota's examples that are failures of this key."""


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
    """Modes for a part of the tasks; the others use `inherit` and `explore`."""
    clients: tuple[ClientPart, ...] = Field(default=(), exclude_if=lambda parts: not parts)
    """Parts of the quota by client key. Empty: all usable failures are of one key."""


class Mastered(StrictModel):
    """A kind of task that the agent masters, so few tasks follow its failures there."""

    task: Name
    pass_rate: Share


class BadTries(StrictModel):
    """A pattern and mode in which at least half of the last cycle's tries at a task failed."""

    pattern: Name
    mode: Mode
    tries: Annotated[int, Field(ge=1)]
    rejected: Annotated[int, Field(ge=1)]
    reasons: tuple[Reason, ...]
    """`check: reason`, the most frequent first."""


class Directive(StrictModel):
    """The Controller's order for the tasks to write; daemon/controller/directive.py renders it."""

    quotas: tuple[Quota, ...]
    mastered: tuple[Mastered, ...] = ()
    improving: tuple[Name, ...] = ()
    known: tuple[str, ...] = ()
    """Signatures of the buffer's tasks in older events; now always empty."""
    bad_tries: tuple[BadTries, ...] = ()


class JobRound(StrictModel):
    """A round that a training job closed over its own rollouts."""

    job: Id
    number: Annotated[int, Field(ge=1)]


class DirectiveWritten(Decision):
    """The Controller decided which failure patterns the cycle's tasks follow."""

    TYPE: ClassVar[str] = "DirectiveWritten"

    cycle: Id
    round: Count
    """Round of the training history that the Controller read."""
    directive: Directive
    findings: tuple[PatternFinding, ...] = ()
    """Findings of the analyzer; empty if no analyzer is configured or it failed."""
    summary: Text = ""
    analyzer: str | None = None
    """Model of the analyzer; None: only the deterministic detectors ran."""
    trouble: Reason = ""
    """Why the analyzer's answer was not used."""
    job_round: JobRound | None = None
    """Round of a job, if a job closed it. `round` is then the round from which the job started."""


class Verified(StrictModel):
    """A check that a written task passed."""

    check: Check
    note: Reason = ""
    """Judge or count, such as `scripted oracle` or `3 of 8`."""


class SealedDefinition(StrictModel):
    """Definition of a task made of a person's session (envs/sealed_body.py)."""

    keyid: Name
    body: str
    """The definition without its id, encrypted with key `keyid`, as base64."""
    operator: Name | None = None
    """Error operator that made the lesson. Without a lesson this and the next fields are None."""
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
    """Model or operator that wrote the request; None for the environment's templates."""
    job_round: JobRound | None = None
    """Job round in which the task was written; None for a task from outside a job."""
    definition: dict[str, Any] | None = None
    """Definition without the id, for a task whose id is ENVIRONMENT/=SHA256 of the content. None
    for sealed tasks and for generated ones, whose id determines the definition."""
    sealed: SealedDefinition | None = None
    """Encrypted definition of a task made from a person's session."""
    plan: PlanName | None = Field(default=None, exclude_if=lambda value: value is None)
    """Plan that the task follows; None for a task without a plan."""


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
    """A rejected candidate from which a job starts instead of the incumbent."""

    adapter: Name
    reason: Reason
    """Reason in words, with the gate's measurements."""


class JobRequested(Decision):
    """A training run is requested. Retries read the spec from here."""

    TYPE: ClassVar[str] = "JobRequested"

    job: Id
    """derive_id("job", cycle[, skill]), or derive_id("router job", cycle) for a router."""
    cycle: Id | None = None
    """None for an operator's job."""
    alias: Name
    base: Name
    capability: str | None = None
    """Most frequent capability of its training tasks."""
    spec: JobSpec
    minutes: Annotated[float, Field(gt=0)]
    """Most minutes; the job is stopped after them."""
    parent: JobParent | None = None
    """Candidate from which the job starts; None: the incumbent or the base."""
    skill: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    """Skill that the adapter is for; None if the cycle trains one adapter for everything."""

    @property
    def branch_columns(self) -> dict[str, str | None]:
        """Return the columns that distinguish this job from other jobs of its cycle."""
        teaches = None if self.spec.teaches == "agent" else self.spec.teaches
        return {"skill": self.skill, "teaches": teaches}

    @property
    def branch(self) -> str | None:
        """Return the branch of the cycle that the job trains; None for the whole cycle."""
        return self.skill

    def for_branch(self, branch: str | None) -> Self:
        """Return the same request for a branch of its cycle."""
        return self.model_copy(update={BRANCH: branch})


class PoolShare(StrictModel):
    """Share of a job's pool before and after a round."""

    pool: Name
    share: Share
    """Share of the job's groups after the round."""
    before: Share
    """Share before the round; 0 for a new pool."""
    tasks: Count
    attempts: Count
    """Number of counted rollouts of its tasks in the job: the last ones, at most 16 per task."""
    passes: Count


class PoolsShifted(Decision):
    """A job has closed a round of its own; its directive and tasks came before."""

    TYPE: ClassVar[str] = "PoolsShifted"

    cycle: Id
    job_round: JobRound
    rollouts: Count
    """Rollouts of the round: those of one part of the job's budget."""
    failures: Count
    """Deduplicated failures among the round's rollouts."""
    unread: Count = 0
    """Rollouts whose tokens do not decode to their conversation; their failures do not count."""
    pools: tuple[PoolShare, ...]
    """Empty pools are included, with a share of 0."""


class JobEnded(Decision):
    """A training run is over. Only the first event of a job counts."""

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
    """Run time of the job's process in seconds, summed over all attempts."""
    attempts: Count = 1


class CycleEnded(Decision):
    """A cycle is over; the next of this agent may begin."""

    TYPE: ClassVar[str] = "CycleEnded"

    cycle: Id
    outcome: CycleOutcome
    reason: Reason


class RepairEdit(StrictModel):
    """A change of the agent's calls. It has no argument values, as rollouts may be sealed."""

    operation: Operation
    turn: Count | None = None
    """Index of the call's message; None for an insertion."""
    call: Count | None = None
    """Index of the call among the agent's calls; None for an insertion."""
    tool: Annotated[str, Field(max_length=128)]
    """Tool of the call, or of the inserted call."""
    expected: Annotated[str, Field(max_length=128)] | None = None
    """Tool of the gold write call that the change performs; None for a drop."""
    gold: Count | None = None
    """Index of that gold call among the task's gold actions."""
    arguments: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    """Names of the arguments that differ, where the tool stays."""


class RepairSearched(Decision):
    """Result of a search for the smallest change of calls that repairs a failed rollout. A proven
    category replaces the category of the rules."""

    TYPE: ClassVar[str] = "RepairSearched"

    rollout: Id
    rules: Name
    """Version of the search rules and of their interpretation."""
    outcome: RepairOutcome
    edits: tuple[RepairEdit, ...] = ()
    """Changes in order: drops, arguments, tools, insertions; of each the earliest first."""
    replays: Count = 0
    category: Category | None = None
    """Proven category; None if the category of the rules stays."""
    pivot: PivotTool | None = None
    reason: Reason = ""
    """Limit that ended the search, or why the rollout could not be replayed."""


class PersonErased(Decision):
    """A person's key and every restored copy of it are destroyed. Does not name the person."""

    TYPE: ClassVar[str] = "PersonErased"

    keyid: Name
    events: Count = 0
    """Number of events sealed with the key, in the log that was searched."""
    rollouts: Count = 0
    """Number of rollouts among these events."""


class SkillLabels(StrictModel):
    """Counts of one labelling: rollouts that show or lack the skill. Others count in neither."""

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
    """A candidate skill, and its labels in every labelling."""

    skill: Name
    description: Text
    patterns: tuple[Name, ...]
    """Failure patterns that the skill unites, `category|pivot`; empty if no rule applies."""
    failures: Count
    """Failures to which the skill applies by at least eight of ten labellings, before the draw."""
    successes: Count
    """Successes to which the skill applies, by the same rule."""
    labellings: Annotated[tuple[SkillLabels, ...], Field(min_length=1, max_length=100)]
    examples: Annotated[tuple[Id, ...], Field(max_length=MOST_EXAMPLES)]
    within: tuple[Name, ...] = ()
    """Larger candidates, largest first: most failures that lack this skill also lack them."""


class SkillsContrasted(Decision):
    """An agent's failures and successes were compared. The result replaces its candidate skills."""

    TYPE: ClassVar[str] = "SkillsContrasted"

    alias: Name
    base: Name
    since: Count
    """First round of the history that was read."""
    round: Count
    """Last round of the history that was read."""
    failures: Count
    """Number of deduplicated failures in these rounds."""
    successes: Count
    """Number of deduplicated successes in these rounds."""
    skills: Annotated[tuple[SkillContrast, ...], Field(max_length=MOST_SKILLS)]
    cycle: Id | None = None
    labeller: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    """Model that named candidates and labelled rollouts; None for rules."""
    left_out: Count = Field(default=0, exclude_if=lambda value: not value)
    """Representative rollouts that could not be shown to the model; they do not count."""
    refused: Count = Field(default=0, exclude_if=lambda value: not value)
    """Labellings in which the model gave no usable answer; they choose no skill."""

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
