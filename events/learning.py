"""What the daemon decided: the events of the stream `learning`, one total order.

    LeaderClaimed       who decides from here on; what an older leader says counts no more
    CycleStarted        a cycle of an agent is due, and why
    PatternsDiagnosed   a round closes: priorities move
    DirectiveWritten    what the cycle's tasks, or those of a round of its job, shall stress
    TaskProposed        a task entered the buffer
    TaskRejected        one did not, and which check it failed; or cannot be played any more
    TaskRetired         a task is drawn by no new job any more
    JobRequested        a training run, with everything that its result depends on
    PoolsShifted        a round of a job is closed: what it draws from then on
    JobEnded            what became of it
    CycleEnded          how the cycle came out
    RepairSearched      which change of its calls would have turned a failed rollout
    SkillsContrasted    what failures lack and successes have
    PersonErased        nobody can read any more what a person said

Adapters and routes follow (serving.py), and plans and faults of the data engine (synthesis/). All
are plain JSON without sections, so that `kcat` and `psql` can read them.
"""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.jobs import JobSpec, Sha256
from events.messages import StrictModel
from events.position import Position
from events.rollouts import Count, EventData, Id, Name, Reason, Task

CONTROL_KEY = "control"
"""One key for the whole stream: its order is the point."""

OPERATOR: Final = "operator"
"""In place of a pattern: an operator added the task, and for no failure pattern."""

BRANCH: Final = "skill"
"""Name of a branch of a cycle, as stored. TRACE names a branch by the skill that it trains."""

VERSION: Final = "panel"
"""What a version with members is called in tables and by commands, as TRACE does."""

MOST_SKILLS: Final = 10
"""Most candidates of one discovery (TRACE, section 3.1)."""
MOST_EXAMPLES: Final = 8
"""Most failed rollouts that a candidate names."""

Text = Annotated[str, Field(max_length=4096)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]

Trigger = Literal["rollouts", "priority", "age", "cron", "operator"]
"""Why a cycle is due: new rollouts, priority mass, time since the last, the schedule, a person."""

Mode = Literal["inherit", "explore", "repair", "synthesize"]
"""How a task is written: around a failed task's gold actions, around a fresh trajectory, as a
lesson behind a refused call, or by a plan."""

Check = Literal[
    "schema", "gold", "provenance", "leak", "outputs", "policy", "solvable", "informative",
    "novelty", "contamination", "lesson", "synthesis", "trajectory",
]  # fmt: skip
"""What a written task has to pass, cheapest first: V1 to V10 of docs/proposing.md; `lesson` is
asked of a task with a lesson alone. Of tasks by plans: `synthesis`, the writer gave a task;
`trajectory`, no rollout of it shows a fault of the task."""

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
"""Tool of a gold action, or `*`; as short as an action's name, for it becomes part of a key."""


class Decision(EventData):
    """Base of everything on `learning`."""

    STREAM: ClassVar[str] = "learning"

    def key(self) -> str:
        return CONTROL_KEY


class LeaderClaimed(Decision):
    """A process leads from here on. The first claim of the epoch after the current one wins;
    decisions of another epoch no longer count."""

    TYPE: ClassVar[str] = "LeaderClaimed"

    epoch: Annotated[int, Field(ge=1)]
    holder: Name
    """Id of the process: a restart is another one."""


class CycleStarted(Decision):
    """A cycle of one agent on one base began. There is never a second open one of an agent."""

    TYPE: ClassVar[str] = "CycleStarted"

    cycle: Id
    """derive_id("cycle", alias, base, number)."""
    alias: Name
    base: Name
    number: Annotated[int, Field(ge=1)]
    """Of this agent on this base: dense, from 1."""
    environment: Name
    """Where its tasks are played."""
    trigger: Trigger
    reason: Reason
    """In words, with the numbers that made it due."""
    position: Position
    """The rollouts that the decision had read."""
    slot: str | None = None
    """Of a cron trigger: the point of the schedule, RFC 3339; missed ones collapse to the last."""
    acted: Id | None = None
    """Of an operator trigger: the event that asked."""


class PatternsDiagnosed(Decision):
    """Closes a round of the training history: priorities move here and nowhere else."""

    TYPE: ClassVar[str] = "PatternsDiagnosed"

    trigger: Literal["import", "diagnose", "schedule"]
    position: Position
    """The rollouts that the round may read: at or before it."""
    cycle: Id | None = None
    """The cycle that asked for it; None for an import and a person."""
    kinds: dict[Name, tuple[Id, ...]] = Field(default={}, exclude_if=lambda kinds: not kinds)
    """Agent -> kinds of task that its environment writes. Its own traffic on other tasks counts
    nowhere. An agent that is not named has no environment, and all of its rollouts count."""


class PatternFinding(StrictModel):
    """What an analyzer says of a recurring weakness, after it was checked."""

    pattern: Name
    """`category|pivot`."""
    category: Name
    description: Text
    frequency: Count
    """Deduplicated failures among its examples; the analyzer's own count is not taken."""
    examples: tuple[Id, ...]
    """Rollouts."""
    root_cause: Text


class ModeChoice(StrictModel):
    """Tasks of a quota that shall be written by one mode, and why."""

    mode: Mode
    tasks: Annotated[int, Field(ge=1)]
    reason: Reason
    """In words, with the counts that speak for it."""


class ClientPart(StrictModel):
    """Number of tasks of a quota that follow failures of one key."""

    client: Name | None
    """Name of the key; None for imports, and where no keys are configured."""
    tasks: Count
    examples: tuple[Id, ...]
    """Examples of the quota that are failures of this key."""


class Quota(StrictModel):
    """How many tasks one pattern is given."""

    pattern: Name
    tasks: Annotated[int, Field(ge=1)]
    priority: NonNegative
    status: Name
    description: Text = ""
    root_cause: Text = ""
    examples: tuple[Id, ...] = ()
    """Failed rollouts that show it."""
    modes: tuple[ModeChoice, ...] = Field(default=(), exclude_if=lambda modes: not modes)
    """Modes that were chosen for a part of the tasks; the others are inherited and explored."""
    clients: tuple[ClientPart, ...] = Field(default=(), exclude_if=lambda parts: not parts)
    """The quota's parts by key. Empty where all failures that could be followed are of one key."""


class Mastered(StrictModel):
    """A kind of task that the agent can do: its failures there are hardly followed."""

    task: Name
    pass_rate: Share


class BadTries(StrictModel):
    """What the cycle before wrote for one pattern by one mode, where half of it or more failed."""

    pattern: Name
    mode: Mode
    tries: Annotated[int, Field(ge=1)]
    rejected: Annotated[int, Field(ge=1)]
    reasons: tuple[Reason, ...]
    """`check: reason`, the most frequent first."""


class Directive(StrictModel):
    """What to write tasks for; daemon/controller/directive.py puts it in words."""

    quotas: tuple[Quota, ...]
    mastered: tuple[Mastered, ...] = ()
    improving: tuple[Name, ...] = ()
    """Patterns that resolve or improve by themselves."""
    known: tuple[str, ...] = ()
    """Historical: signatures of the buffer's tasks. The Proposer reads the buffer itself; empty
    since."""
    bad_tries: tuple[BadTries, ...] = ()
    """What to do otherwise than the cycle before."""


class JobRound(StrictModel):
    """A round that a job closed over its own rollouts, within its budget."""

    job: Id
    number: Annotated[int, Field(ge=1)]


class DirectiveWritten(Decision):
    """The Controller has looked at a round and says what the cycle's tasks shall stress."""

    TYPE: ClassVar[str] = "DirectiveWritten"

    cycle: Id
    round: Count
    """The round of the training history that it read."""
    directive: Directive
    findings: tuple[PatternFinding, ...] = ()
    """Of the analyzer; empty where none is configured, or where it failed."""
    summary: Text = ""
    analyzer: str | None = None
    """Its model; None: the deterministic detectors alone."""
    trouble: Reason = ""
    """Why the analyzer's word was not used, where one is configured."""
    job_round: JobRound | None = None
    """The job's round that it belongs to; `round` is then the one that the job started from."""


class Verified(StrictModel):
    """A check that a written task passed."""

    check: Check
    note: Reason = ""
    """By whom or by how much: `scripted oracle`, `3 of 8`."""


class SealedDefinition(StrictModel):
    """The definition of a task that is made of a person's session (envs/sealed_body.py)."""

    keyid: Name
    """Id of the person's key, which seals the body."""
    body: str
    """The definition without its id, sealed with that key: base64."""
    operator: Name | None = None
    """Of its lesson, as is what follows; None where it has none."""
    source: Id | None = None
    rollout: Id | None = None


class PlanName(StrictModel):
    """A plan (synthesis/plans.py) at one of its revisions."""

    plans: Id
    """The set."""
    plan: Name
    revision: Count = 0


class TaskProposed(Decision):
    """A task was written for a failure pattern, or added by an operator, and entered the buffer."""

    TYPE: ClassVar[str] = "TaskProposed"

    alias: Name
    base: Name
    task: Task
    pattern: Name
    """`operator` for one that an operator added for none."""
    source_rollout: Id | None = None
    cycle: Id | None = None
    """None for one that came from outside a cycle."""
    mode: Mode | None = None
    verified: tuple[Verified, ...] = ()
    """The checks that it passed, in order."""
    text_by: str | None = None
    """Who wrote the request: a model's name; None for the environment's templates."""
    job_round: JobRound | None = None
    """The round of a job that wrote it; None for one that was there before the job."""
    definition: dict[str, Any] | None = None
    """Of a task whose id is its content, ENVIRONMENT/=SHA256: the definition without the id. None
    for a generated task, whose id makes it, and for a sealed one."""
    sealed: SealedDefinition | None = None
    """What stands for the definition of a task that is made of a person's session."""
    plan: PlanName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The plan that it was written by; None for one that follows a failed task."""


class TaskRejected(Decision):
    """A written task failed a check; or, where `task` is set, a task of the buffer cannot be
    played."""

    TYPE: ClassVar[str] = "TaskRejected"

    cycle: Id | None = None
    """None for a task of the buffer that a job from outside a cycle names."""
    alias: Name
    base: Name
    pattern: Name
    mode: Mode | None = None
    """None for a task of the buffer."""
    check: Check
    reason: Reason
    source_rollout: Id | None = None
    instruction: Text = ""
    """The request, as far as there is one."""
    job_round: JobRound | None = None
    task: Id | None = None
    """The buffer's task whose body is missing or changed; None for a written task."""
    plan: PlanName | None = Field(default=None, exclude_if=lambda value: value is None)
    """The plan that the try followed."""

    @model_validator(mode="after")
    def _names_its_task(self) -> Self:
        if self.task is None and (self.cycle is None or self.mode is None):
            raise ValueError("a rejection needs the task of the buffer, or the cycle and the mode")
        return self


class TaskRetired(Decision):
    """No new job draws a task of the buffer or the traffic. An operator may add it again."""

    TYPE: ClassVar[str] = "TaskRetired"

    alias: Name
    task: Id
    reason: Reason = ""


class JobParent(StrictModel):
    """A rejected candidate from which a job trains on, in place of the incumbent."""

    adapter: Name
    reason: Reason
    """In words, with what the gate measured."""


class JobRequested(Decision):
    """A training run is wanted. A retry reads the spec from here."""

    TYPE: ClassVar[str] = "JobRequested"

    job: Id
    """derive_id("job", cycle); for a skill derive_id("job", cycle, skill); for a panel's router
    derive_id("router job", cycle)."""
    cycle: Id | None = None
    """None for one that an operator asked for."""
    alias: Name
    base: Name
    capability: str | None = None
    """The most frequent one among its training tasks."""
    spec: JobSpec
    minutes: Annotated[float, Field(gt=0)]
    """After which it is stopped."""
    parent: JobParent | None = None
    """None: it trains on from the incumbent, or from the base."""
    skill: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    """The skill that it is for; None where the cycle trains one adapter for everything."""

    @property
    def branch_columns(self) -> dict[str, str | None]:
        """Return the columns that tell it from its cycle's other jobs; None where it is the only
        one."""
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
    """A pool of a job, after a round and before it."""

    pool: Name
    share: Share
    """Of the job's groups, from then on."""
    before: Share
    """Until then; 0 for a new pool."""
    tasks: Count
    attempts: Count
    """Of each of its tasks the last rollouts in the job, 16 at most."""
    passes: Count


class PoolsShifted(Decision):
    """A job has closed a round of its own: its directive and tasks came before, its pools
    change."""

    TYPE: ClassVar[str] = "PoolsShifted"

    cycle: Id
    job_round: JobRound
    rollouts: Count
    """That the round read: those of one part of the job's budget."""
    failures: Count
    """Deduplicated ones among them."""
    unread: Count = 0
    """Rollouts whose tokens do not give the conversation back; no failure among them counts."""
    pools: tuple[PoolShare, ...]
    """Also those that are empty from then on, with a share of 0."""


class JobEnded(Decision):
    """A training run is over. The first word counts."""

    TYPE: ClassVar[str] = "JobEnded"

    job: Id
    outcome: JobOutcome
    reason: Reason = ""
    adapter: str | None = None
    """Folder of its result, relative to the home or absolute; older events have absolute paths."""
    sha256: Sha256 | None = None
    """Of the adapter's weights."""
    steps: Count = 0
    rollouts: Count = 0
    seconds: NonNegative = 0.0
    """That its process ran, all attempts together."""
    attempts: Count = 1


class CycleEnded(Decision):
    """A cycle is over; the next one of this agent may begin."""

    TYPE: ClassVar[str] = "CycleEnded"

    cycle: Id
    outcome: CycleOutcome
    reason: Reason


class RepairEdit(StrictModel):
    """A change of the agent's calls. Quotes no value: rollouts may be sealed, this stream is
    plain."""

    operation: Operation
    turn: Count | None = None
    """Message that holds the call; None for an insertion. So is the next."""
    call: Count | None = None
    """Index among the agent's calls."""
    tool: Annotated[str, Field(max_length=128)]
    """Tool of the call; of an insertion, the tool that is called."""
    expected: Annotated[str, Field(max_length=128)] | None = None
    """Tool of the gold write that is made; None for a drop."""
    gold: Count | None = None
    """Index of that write among the task's gold actions."""
    arguments: Annotated[tuple[Name, ...], Field(max_length=100)] = ()
    """Names of the arguments that differ, where the tool stays."""


class RepairSearched(Decision):
    """The smallest change of calls that mends a failed rollout was searched. What it proves
    supersedes the label of the rules."""

    TYPE: ClassVar[str] = "RepairSearched"

    rollout: Id
    rules: Name
    """Version of the search and of how its result is read."""
    outcome: RepairOutcome
    edits: tuple[RepairEdit, ...] = ()
    """The repair: drops, other arguments, other tools, insertions; of each the earliest first."""
    replays: Count = 0
    category: Category | None = None
    """What is proven; None where the rules' label stays."""
    pivot: PivotTool | None = None
    reason: Reason = ""
    """Which bound ended the search, or why the rollout could not be replayed."""


class PersonErased(Decision):
    """A person's key is destroyed, and every restored copy of it. Does not name the person."""

    TYPE: ClassVar[str] = "PersonErased"

    keyid: Name
    """Of the key; events name it in the header `ce_keyid`."""
    events: Count = 0
    """That were sealed with it so far, in the log that was looked at."""
    rollouts: Count = 0
    """That are among them."""


class SkillLabels(StrictModel):
    """Labels of a skill in one labelling, over the rollouts drawn. Where the skill does not apply,
    a rollout is in none of the four."""

    failures: Count
    """All failures that were drawn."""
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
    """In words, what it is to have it."""
    patterns: tuple[Name, ...]
    """Failure patterns of which it is the union, `category|pivot`; none where no rule applies."""
    failures: Count
    """Failures to which it applies, before the draw: those that eight labellings of ten agree
    on."""
    successes: Count
    """Successes to which it applies, likewise."""
    labellings: Annotated[tuple[SkillLabels, ...], Field(min_length=1, max_length=100)]
    examples: Annotated[tuple[Id, ...], Field(max_length=MOST_EXAMPLES)]
    """Failed rollouts that lack it."""
    within: tuple[Name, ...] = ()
    """Larger candidates that most of the failures lack which lack this one, the largest first."""


class SkillsContrasted(Decision):
    """An agent's failures and successes were compared: its candidates for skills from now on."""

    TYPE: ClassVar[str] = "SkillsContrasted"

    alias: Name
    base: Name
    since: Count
    """The first round of the history whose rollouts were read."""
    round: Count
    """The last one."""
    failures: Count
    """Deduplicated failures among them."""
    successes: Count
    """Deduplicated successes."""
    skills: Annotated[tuple[SkillContrast, ...], Field(max_length=MOST_SKILLS)]
    cycle: Id | None = None
    """The cycle that asked for it; None for a person."""
    labeller: Name | None = Field(default=None, exclude_if=lambda value: value is None)
    """Model that named the candidates and labelled the rollouts; None for rules."""
    left_out: Count = Field(default=0, exclude_if=lambda value: not value)
    """Representative rollouts that it could not be shown, which count nowhere."""
    refused: Count = Field(default=0, exclude_if=lambda value: not value)
    """Labellings of it without a usable answer: they choose no skill."""

    @model_validator(mode="after")
    def _name_each_once(self) -> Self:
        names = [item.skill for item in self.skills]
        if len(set(names)) < len(names):
            raise ValueError(f"two candidates have one name, among {', '.join(names)}")
        return self
