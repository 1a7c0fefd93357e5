"""The projection tables: what has been folded from the log, and how far.

Every table can be dropped and folded again from the start, equal row for row. A row names the event
it came from by (source, sequence); the broker's offset is kept beside it only to read the event
back. How two rows of one key are merged is part of the table, because it is what makes the fold
independent of how partitions interleave:

    first    a fact: the row that came first stays, a repetition changes nothing
    fill     a fact in parts: a column once written stays, empty ones are filled
    least    the row with the smallest `order_key` stays, whichever partition came first
    last     state of the `learning` stream, which has one order: the newest row replaces

Column marks: `POINTER` columns are left out of the hash (they differ between two logs with the same
facts), and `OFFSET` is left out of comparisons too (it differs between a spool and its broker).
"""

from enum import StrEnum
from typing import Any, ClassVar, Final

from sqlalchemy import BigInteger, Engine, Index, MetaData, Table, Text, text
from sqlalchemy.sql import ColumnElement
from sqlmodel import Field, SQLModel

REVISION: Final = "0026"
"""The migration that makes these tables; a test holds it to the newest one in migrations/."""

OLDEST_REVISION: Final = "0024"
"""The oldest tables that can be upgraded to these."""

FOLD_VERSION: Final = 18
"""Raised with every change of what a fold makes of an event; then `kintsugi rebuild` is due."""

PROJECTION: Final = "history"
"""Name of the one projection: the training history and the ranked failure patterns."""

STRING: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Text in byte order on both databases, so that ORDER BY means the same."""

INTEGER: Final = BigInteger()


class Merge(StrEnum):
    """How a new row meets an older one of the same key."""

    FIRST = "first"
    FILL = "fill"
    LEAST = "least"
    LAST = "last"


def _key() -> Any:
    return Field(primary_key=True, sa_type=STRING)


def _string() -> Any:
    return Field(default=None, sa_type=STRING)


def _integer() -> Any:
    return Field(default=None, sa_type=INTEGER)


def _number_key() -> Any:
    return Field(primary_key=True, sa_type=INTEGER, sa_column_kwargs={"autoincrement": False})


def _pointer_key(kind: Any) -> Any:
    return Field(
        primary_key=True,
        sa_type=kind,
        sa_column_kwargs={"autoincrement": False, "info": {"hashed": False}},
    )


def _pointer(kind: Any = INTEGER) -> Any:
    return Field(default=None, sa_type=kind, sa_column_kwargs={"info": {"hashed": False}})


def _offset() -> Any:
    return Field(
        default=None,
        sa_type=INTEGER,
        sa_column_kwargs={"info": {"hashed": False, "compared": False}},
    )


class ProjectionTable(SQLModel):
    """Base of all tables."""

    MERGE: ClassVar[Merge]
    MADE_INTO_KEYS: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Columns that SQL makes keys of other tables from (consumers/diagnosis/round_counts.py): they
    must fit an index too."""

    @classmethod
    def table(cls) -> Table:
        """The SQLAlchemy table."""
        return SQLModel.metadata.tables[str(cls.__tablename__)]

    @classmethod
    def blank(cls) -> dict[str, Any]:
        """Return a row whose columns are all null."""
        return dict.fromkeys(column.name for column in cls.table().columns)


class Rollout(ProjectionTable, table=True):
    """One attempt at a task, judged and labelled."""

    __tablename__ = "rollouts"
    __table_args__ = (
        Index("ix_rollouts_round", "round", "alias", "base"),
        Index("ix_rollouts_agent", "alias", "base", "purpose", "time"),
        Index("ix_rollouts_counted", "alias", "base", "purpose", "round", "success"),
        Index("ix_rollouts_failures", "alias", "base", "purpose", "round", "policy", "trace_key",
              sqlite_where=text("category IS NOT NULL"),
              postgresql_where=text("category IS NOT NULL")),
        Index("ix_rollouts_task", "task_key", "alias", "base"),
        Index("ix_rollouts_unread", "partition", "event_source", "sequence",
              sqlite_where=text("round IS NULL"), postgresql_where=text("round IS NULL")),
        Index("ix_rollouts_session", "session",
              sqlite_where=text("session IS NOT NULL"),
              postgresql_where=text("session IS NOT NULL")),
        Index("ix_rollouts_judged", "partition", "event_source", "sequence",
              sqlite_where=text("session IS NOT NULL AND success IS NOT NULL"),
              postgresql_where=text("session IS NOT NULL AND success IS NOT NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.FIRST
    MADE_INTO_KEYS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("alias", "base", "task_key", "category", "pivot"),
    )

    rollout: str = _key()
    alias: str = _string()
    base: str = _string()
    policy: str = _string()
    member: str | None = _string()
    """The last member of a panel that answered, the base under its name; null without a panel."""
    skill: str | None = _string()
    """Skill that the member was chosen for; null also where the router chose none."""
    source: str = _string()
    purpose: str = _string()
    session: str | None = _string()
    task: str | None = _string()
    task_key: str = _string()
    """The task, or the rollout itself where no task is known: what pass rates are counted over."""
    environment: str | None = _string()
    capability: str | None = _string()
    trial: int | None = _integer()
    seed: int | None = _integer()
    success: bool | None = None
    rules: int | None = _integer()
    """Version of our rules of grading that the verdict was given under; null for a verdict of
    others."""
    reward: float | None = None
    verdicts: str | None = _string()
    """JSON list: verdicts from other sources than `success`; null where there are none."""
    termination: str | None = _string()
    time: str | None = _string()
    messages: int = _integer()
    tool_calls: int = _integer()
    tool_errors: int = _integer()
    malformed_calls: int = _integer()
    """Tool calls whose arguments are no JSON object."""
    loops: int = _integer()
    """Findings of the rule `tool_loop`; counted also for rollouts without a verdict."""
    category: str | None = _string()
    categories: str = _string()
    """JSON list: every rule that holds, in the order of the rules."""
    pivot: str | None = _string()
    evidence: str | None = _string()
    """JSON: which turns and calls show it."""
    trace_key: str = _string()
    """The dedup key: same task and same tool-call trace."""
    kind: str | None = _string()
    """`ENV/GENERATOR` of a generated task. This and the next two: whose neighbour it is
    (consumers/diagnosis/anchors.py)."""
    tools: str = _string()
    """JSON list: tools of its gold actions and of the agent's calls."""
    words: str | None = _string()
    """Signature of the opening request; null where there is a kind, and where it is sealed."""
    round: int | None = _integer()
    """The round that counted it; None until one has."""
    outdated: bool | None = None
    """Whether it counts in no number of that round: its policy did not answer the alias when that
    was closed, newer rules than its verdict's judged its kind of task, or no task of the agent's
    environment could follow it."""
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Call(ProjectionTable, table=True):
    """One request to the model: filled by its start, by its end, and by its rollout."""

    __tablename__ = "calls"
    __table_args__ = (
        Index("ix_calls_session", "session"),
        Index("ix_calls_alias", "alias", "started"),
        Index("ix_calls_started", "partition", "event_source", "started_sequence"),
        Index("ix_calls_loose", "session",
              sqlite_where=text("rollout IS NULL"), postgresql_where=text("rollout IS NULL")),
        Index("ix_calls_holdout", "alias", "started",
              sqlite_where=text("holdout IS NOT NULL"),
              postgresql_where=text("holdout IS NOT NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.FILL

    call: str = _key()
    session: str = _string()
    alias: str | None = _string()
    base: str | None = _string()
    policy: str | None = _string()
    task: str | None = _string()
    parent: str | None = _string()
    parent_messages: int | None = _integer()
    stream: bool | None = None
    sampling: str | None = _string()
    """JSON: effective sampling parameters."""
    endpoint: str | None = _string()
    attribution: str | None = _string()
    client: str | None = _string()
    purpose: str | None = _string()
    routed: str | None = _string()
    shares: str | None = _string()
    """JSON: of a call that was drawn among several, policy -> share of the route that drew it."""
    holdout: float | None = None
    """Held-out share of the route that drew the call; null where none was drawn."""
    held_out: bool | None = None
    """Whether that draw held the session out."""
    member: str | None = _string()
    """The member of a panel that answered, the base under its name; null without a panel."""
    skill: str | None = _string()
    """Skill that the member was chosen for; null also where the router chose none."""
    router_doubt: str | None = _string()
    """Why the base answered in place of a member; null where a member was chosen."""
    router_ms: int | None = _integer()
    """How long the router took; null where it was not asked for this call."""
    upstream: str | None = _string()
    """Who answered, as its end says."""
    started: str | None = _string()
    outcome: str | None = _string()
    finish_reason: str | None = _string()
    prompt_tokens: int | None = _integer()
    completion_tokens: int | None = _integer()
    duration_ms: int | None = _integer()
    trainable: bool | None = None
    untrainable_because: str | None = _string()
    invalid_tool_calls: int | None = _integer()
    error: str | None = _string()
    status: int | None = _integer()
    ended: str | None = _string()
    rollout: str | None = _string()
    """Rollout that names the call; null while its session is open and until that has become one."""
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    started_sequence: int | None = _pointer()
    ended_sequence: int | None = _pointer()
    started_offset: int | None = _offset()
    ended_offset: int | None = _offset()

    @classmethod
    def loose(cls) -> ColumnElement[bool]:
        """Whether a call is to be in a rollout and is in none yet. A call with only its end
        recorded will be in none."""
        columns = cls.table().c
        return columns.rollout.is_(None) & columns.started.is_not(None)


class SessionEnd(ProjectionTable, table=True):
    """One end of a session: each becomes a rollout."""

    __tablename__ = "session_ends"
    __table_args__ = (Index("ix_session_ends_session", "session"),)
    MERGE: ClassVar[Merge] = Merge.FIRST

    session_end: str = _key()
    """The event's id."""
    session: str = _string()
    because: str = _string()
    rollout: str = _string()
    """The id of the rollout that its calls become: it follows from the event's."""
    time: str | None = _string()
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Feedback(ProjectionTable, table=True):
    """Feedback on a call or session."""

    __tablename__ = "feedback"
    __table_args__ = (
        Index("ix_feedback_session", "session"),
        Index("ix_feedback_judged", "partition", "event_source", "sequence",
              sqlite_where=text("success IS NOT NULL"),
              postgresql_where=text("success IS NOT NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.FIRST

    feedback: str = _key()
    """The event's id: an idempotency key of the sender makes it."""
    session: str = _string()
    call: str | None = _string()
    score: float | None = None
    success: bool | None = None
    tags: str = _string()
    verified: bool = False
    time: str | None = _string()
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Task(ProjectionTable, table=True):
    """What the agent was asked to do, as its earliest rollout or its proposal defines it."""

    __tablename__ = "tasks"
    __table_args__ = (
        Index("ix_tasks_event", "event",
              sqlite_where=text("event IS NOT NULL"),
              postgresql_where=text("event IS NOT NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.LEAST

    alias: str = _key()
    task: str = _key()
    environment: str | None = _string()
    capability: str | None = _string()
    instruction: str | None = _string()
    gold_actions: str | None = _string()
    """JSON list of actions; null where none was recorded."""
    outputs: str = _string()
    reward_basis: str = _string()
    definition: str | None = _string()
    origin: str = _string()
    """`rollout`, or `proposed` for a task written for a pattern."""
    pattern: str | None = _string()
    source_rollout: str | None = _string()
    base: str | None = _string()
    """This and what follows: of a proposed one, and null for any other. On which it was proposed;
    the task outlives its base."""
    cycle: str | None = _string()
    mode: str | None = _string()
    verified: str | None = _string()
    """JSON list of {check, note}: what it passed."""
    text_by: str | None = _string()
    plans: str | None = _string()
    """Set of the plan that it was written by; null for one of no plan. So are the next two."""
    plan: str | None = _string()
    plan_revision: int | None = _integer()
    order_key: str = _string()
    event: str | None = _pointer(STRING)
    """Id of the `TaskProposed`."""
    offset: int | None = _offset()
    """Offset of that event on `learning`."""


class TaskBody(ProjectionTable, table=True):
    """The body of a task whose id is its content (envs/task.py); one for all agents."""

    __tablename__ = "task_bodies"
    MERGE: ClassVar[Merge] = Merge.FIRST

    task: str = _key()
    environment: str = _string()
    body: str = _string()
    """JSON: the definition without its id; of a sealed one, what stands for it."""
    keyid: str | None = _string()
    """Id of the key that seals it; null for one that is no person's."""
    operator: str | None = _string()
    """Operator that made its lesson: `recorded`, or a perturbation; null for a task without one."""
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class TaskState(ProjectionTable, table=True):
    """A task that new jobs of an agent do not draw, and why; or one that they draw again."""

    __tablename__ = "task_states"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    task: str = _key()
    state: str = _string()
    """`retired`, `rejected`, or `active` again."""
    reason: str = _string()
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


SKIPPED: Final = "skipped"
"""Outcome of the search of a rollout that could not be replayed; it may be tried again."""


class Repair(ProjectionTable, table=True):
    """What a search for the smallest repair of a failed rollout came to.

    Apart from the rollouts: its events have one order with the rounds, theirs have not. Whoever
    reads a category or a pivot joins it (consumers/diagnosis/labelled.py).
    """

    __tablename__ = "repairs"
    MERGE: ClassVar[Merge] = Merge.LAST

    rollout: str = _key()
    rules: str = _string()
    outcome: str = _string()
    category: str | None = _string()
    """What is proven; null where the label of the rules stays. So is the next."""
    pivot: str | None = _string()
    edits: str = _string()
    """JSON list: events/learning.py."""
    replays: int = _integer()
    reason: str = _string()
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class SkillComparison(ProjectionTable, table=True):
    """The last comparison of failures and successes of an agent on a base."""

    __tablename__ = "skill_comparisons"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    since: int = _integer()
    """First round of the history that it read."""
    round: int = _integer()
    """The last one."""
    failures: int = _integer()
    successes: int = _integer()
    labeller: str | None = _string()
    """Model that labelled; None for rules."""
    left_out: int | None = _integer()
    """Representative rollouts that could not be shown to it."""
    refused: int | None = _integer()
    """Labellings of it that were refused."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Skill(ProjectionTable, table=True):
    """A skill of an agent on a base, with the figures of the last comparison that had it as a
    candidate: means and deviations over the labellings (consumers/methods/skills/measures.py)."""

    __tablename__ = "skills"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    skill: str = _key()
    description: str = _string()
    patterns: str = _string()
    """JSON list: the failure patterns of which it is the union."""
    state: str = _string()
    delta: float = 0.0
    delta_deviation: float = 0.0
    coverage: float = 0.0
    coverage_deviation: float = 0.0
    selected: int = _integer()
    """Labellings that choose it."""
    labellings: int = _integer()
    failures: int = _integer()
    """Failures to which it applies."""
    successes: int = _integer()
    within: str | None = _string()
    """Selected skill that most of its failures lack; null for none."""
    examples: str = _string()
    """JSON list of rollouts."""
    labeller: str | None = _string()
    """Model that named it and labelled; None for rules."""
    round: int = _integer()
    """Last round of the history that the comparison read."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class TaskPattern(ProjectionTable, table=True):
    """A task is tagged with a pattern: proposed for it, or a failure on it was attributed to it.
    What the daemon has a policy play on such a task is evidence of the pattern."""

    __tablename__ = "task_patterns"
    MERGE: ClassVar[Merge] = Merge.FIRST

    alias: str = _key()
    base: str = _key()
    task_key: str = _key()
    pattern: str = _key()


class Pattern(ProjectionTable, table=True):
    """A failure pattern as of the last round of its (alias, base)."""

    __tablename__ = "patterns"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    pattern: str = _key()
    category: str = _string()
    pivot: str = _string()
    failures: int = _integer()
    attempts: int = _integer()
    passes: int = _integer()
    pass_rate: float = 0.0
    recurrence: float = 0.0
    """e_t: the moving average of the pattern's share of failures."""
    streak: int = _integer()
    absent: int = _integer()
    learnability: float = 1.0
    priority: float = 0.0
    """With the operator's word."""
    status: str = _string()
    operator: str | None = _string()
    """`pinned` or `muted`; null for a pattern that nobody forces or silences."""
    operator_reason: str | None = _string()
    anchors: str = _string()
    """JSON object: anchor -> weight, of consumers/diagnosis/anchors.py."""
    examples: str = _string()
    """JSON list of rollouts: of the last round that saw a failure."""
    first_round: int = _integer()
    round: int = _integer()


class PatternRound(ProjectionTable, table=True):
    """A failure pattern in one round: the history that priorities are made from."""

    __tablename__ = "pattern_rounds"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    pattern: str = _key()
    round: int = _number_key()
    failures: int = _integer()
    failed: int = _integer()
    """|F_t|: all deduplicated failures of this (alias, base) in the round."""
    attempts: int = _integer()
    passes: int = _integer()
    pass_rate: float = 0.0
    recurrence: float = 0.0
    streak: int = _integer()
    absent: int = _integer()
    learnability: float = 1.0
    priority: float = 0.0
    status: str = _string()


class RuleVersion(ProjectionTable, table=True):
    """The versions of our rules that verdicts on a kind of task were given under, for one
    (alias, base): see consumers/diagnosis/rule_versions.py."""

    __tablename__ = "rule_versions"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    kind: str = _key()
    environment: str = _string()
    rules: int = _integer()
    """The newest version that a closed round has read, whatever the rollout was made for."""
    counted: int | None = _integer()
    """The version of the verdicts that the patterns count; null where they count none."""
    before: int | None = _integer()
    """The version that they counted before it changed last; null before it has changed. So is the
    next."""
    changed: int | None = _integer()
    """The round in which it changed, so that the patterns began anew."""


class Round(ProjectionTable, table=True):
    """A round of the training history."""

    __tablename__ = "cycles"
    MERGE: ClassVar[Merge] = Merge.LAST

    round: int = _number_key()
    trigger: str = _string()
    rollouts: int = _integer()
    judged: int = _integer()
    unjudged: int = _integer()
    failed: int = _integer()
    """Deduplicated failures, over all aliases."""
    patterns: int = _integer()
    """Patterns that had a failure in this round."""
    other: int = _integer()
    """Deduplicated failures that no rule explains; they form no pattern."""
    position: str = _pointer(STRING)
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Leader(ProjectionTable, table=True):
    """The leader whose decisions count: one row, once there has been a leader."""

    __tablename__ = "leaders"
    MERGE: ClassVar[Merge] = Merge.LAST

    name: str = _key()
    epoch: int = _integer()
    holder: str = _pointer(STRING)
    """Id of the process."""
    since: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Cycle(ProjectionTable, table=True):
    """A cycle of an agent on a base: from what made it due to how it came out."""

    __tablename__ = "learning_cycles"
    __table_args__ = (Index("ix_learning_cycles_alias", "alias", "base", "number"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    cycle: str = _key()
    alias: str = _string()
    base: str = _string()
    number: int = _integer()
    """Number of the cycle among those of this agent on this base, from 1."""
    environment: str = _string()
    trigger: str = _string()
    reason: str = _string()
    position: str = _pointer(STRING)
    """JSON: the rollouts that the decision had read."""
    slot: str | None = _pointer(STRING)
    acted: str | None = _pointer(STRING)
    """Id of the event by which a person asked for it."""
    round: int | None = _integer()
    """Round of the training history; null until it was diagnosed."""
    directive: str | None = _string()
    """JSON; null until it was written. So are the next four."""
    findings: str | None = _string()
    """JSON list: the analyzer's patterns."""
    summary: str | None = _string()
    analyzer: str | None = _string()
    """Also null where none was asked."""
    trouble: str | None = _string()
    accepted: int = _integer()
    """Tasks that it wrote and that passed every check."""
    rejected: int = _integer()
    job: str | None = _string()
    """Its first job; null until one was requested."""
    panel: str | None = _string()
    """Panel that was composed of what its jobs left; null without one."""
    outcome: str | None = _string()
    """Null while it is open."""
    ended_because: str | None = _string()
    event: str = _pointer(STRING)
    """Id of the `CycleStarted`."""
    started: str | None = _pointer(STRING)
    diagnosed: str | None = _pointer(STRING)
    directed: str | None = _pointer(STRING)
    ended: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Rejection(ProjectionTable, table=True):
    """A task that was written and failed a check."""

    __tablename__ = "task_rejections"
    __table_args__ = (Index("ix_task_rejections_cycle", "cycle"),)
    MERGE: ClassVar[Merge] = Merge.FIRST

    event: str = _pointer_key(STRING)
    cycle: str = _string()
    alias: str = _string()
    base: str = _string()
    pattern: str = _string()
    mode: str = _string()
    check: str = _string()
    reason: str = _string()
    source_rollout: str | None = _string()
    instruction: str = _string()
    plans: str | None = _string()
    """Set of the plan that the try followed; null for one of no plan. So are the next two."""
    plan: str | None = _string()
    plan_revision: int | None = _integer()
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class PlanSet(ProjectionTable, table=True):
    """A set of plans: how the tasks of an agent are written and judged."""

    __tablename__ = "plan_sets"
    __table_args__ = (Index("ix_plan_sets_alias", "alias", "base"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    plans: str = _key()
    alias: str = _string()
    base: str = _string()
    environment: str = _string()
    cycle: str | None = _string()
    patterns: str = _string()
    """JSON list: failure patterns that they are for; empty: all."""
    overlap: float = 0.0
    uncovered: str = _string()
    """JSON list: tools that no plan needs."""
    writer: str | None = _string()
    """Model that wrote them; null for rules."""
    refused: str = _string()
    """JSON list: why plans of the model were not taken."""
    trouble: str = _string()
    round: int = _integer()
    """Rounds of revisions so far."""
    stopped: str = _string()
    """Why no further round follows; empty where one may."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class PlanLine(ProjectionTable, table=True):
    """A plan of a set as it is now, and what its tasks came to."""

    __tablename__ = "plans"
    MERGE: ClassVar[Merge] = Merge.LAST

    plans: str = _key()
    plan: str = _key()
    number: int = _integer()
    """Place in the set."""
    revision: int = _integer()
    definition: str = _string()
    """JSON: events/synthesis/plans.py."""
    tries: int = _integer()
    """Tries of the present revision; the counts that follow are of it too."""
    accepted: int = _integer()
    task_faults: int = _integer()
    """Rollouts of its tasks that failed by a fault of the task; so are the next two."""
    user_faults: int = _integer()
    trajectory_faults: int = _integer()
    disagreements: int = _integer()
    """Rollouts of which a model was of another opinion than the rules."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class PlanChange(ProjectionTable, table=True):
    """A revision of a plan that was tried."""

    __tablename__ = "plan_changes"
    MERGE: ClassVar[Merge] = Merge.FIRST

    plans: str = _key()
    plan: str = _key()
    round: int = _number_key()
    revision: int = _integer()
    """Revision of the plan that the change was made to."""
    definition: str = _string()
    """JSON: the plan as it was tried."""
    reason: str = _string()
    failures: str = _string()
    """JSON list of ids: events that say what failed."""
    tries_before: int = _integer()
    accepted_before: int = _integer()
    tries: int = _integer()
    accepted: int = _integer()
    kept: bool = False
    writer: str | None = _string()
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class TrajectoryVerdict(ProjectionTable, table=True):
    """Whose fault the failure of a rollout of a written task was."""

    __tablename__ = "trajectory_verdicts"
    __table_args__ = (Index("ix_trajectory_verdicts_task", "alias", "task"),)
    MERGE: ClassVar[Merge] = Merge.FIRST

    rollout: str = _key()
    alias: str = _string()
    base: str = _string()
    cycle: str | None = _string()
    task: str = _string()
    plans: str | None = _string()
    plan: str | None = _string()
    fault: str | None = _string()
    """`task`, `user` or `trajectory`; null where it is accepted."""
    rule: str = _string()
    reason: str = _string()
    opinion_by: str | None = _string()
    """Model that was asked; null where none was. So are the next three."""
    opinion: str | None = _string()
    """Its fault; also null where it would accept the rollout."""
    opinion_reason: str | None = _string()
    agrees: bool | None = None
    trouble: str = _string()
    siblings: str = _string()
    """JSON list: tasks that were reviewed for it."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Job(ProjectionTable, table=True):
    """A training run, wanted or over."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_open", "offset",
              sqlite_where=text("outcome IS NULL"), postgresql_where=text("outcome IS NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.LAST

    job: str = _key()
    cycle: str | None = _string()
    alias: str = _string()
    base: str = _string()
    capability: str | None = _string()
    skill: str | None = _string()
    """Skill that it is for; null where its cycle trains one adapter for everything."""
    teaches: str | None = _string()
    """`router` or `user` where it trains these; null where it trains the agent."""
    spec: str = _string()
    """JSON: events/jobs.py."""
    minutes: float = 0.0
    """After which it is stopped."""
    outcome: str | None = _string()
    """Null while it is open; so are the next seven."""
    reason: str | None = _string()
    adapter: str | None = _string()
    """Folder of what it left; also null where it left nothing. So is the next."""
    sha256: str | None = _string()
    steps: int | None = _integer()
    rollouts: int | None = _integer()
    seconds: float | None = None
    attempts: int | None = _integer()
    event: str = _pointer(STRING)
    """Id of the `JobRequested`."""
    requested: str | None = _pointer(STRING)
    ended: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class JobRound(ProjectionTable, table=True):
    """A round that a job closed over its own rollouts."""

    __tablename__ = "job_rounds"
    __table_args__ = (Index("ix_job_rounds_cycle", "cycle"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    job: str = _key()
    number: int = _number_key()
    cycle: str = _string()
    directive: str = _string()
    """JSON."""
    tasks: str = _string()
    """JSON list: the tasks that it wrote and that passed every check."""
    rejected: int = _integer()
    """Number of tasks that it wrote and that failed one."""
    rollouts: int | None = _integer()
    """Rollouts that it read; null until the round is closed. So are the next three."""
    failures: int | None = _integer()
    unread: int | None = _integer()
    pools: str | None = _string()
    """JSON list: each pool's share, from then on and before."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Adapter(ProjectionTable, table=True):
    """An adapter, and where it is in its life (events/lifecycle.py)."""

    __tablename__ = "adapters"
    __table_args__ = (Index("ix_adapters_alias", "alias", "base"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    adapter: str = _key()
    alias: str = _string()
    base: str = _string()
    sha256: str = _string()
    path: str = _string()
    capability: str | None = _string()
    job: str | None = _string()
    origin: str = _string()
    merge: str | None = _string()
    """JSON of the members that it was merged of; null for an adapter that was not merged."""
    panel: str | None = _string()
    """JSON of the members and the router of a panel; null for an adapter."""
    role: str = _string()
    """`agent`; `user` for one that plays users and answers no client."""
    user_gate: str | None = _string()
    """JSON: how it last did as a user; null for one of an agent, and before it was measured."""
    state: str = _string()
    reason: str = _string()
    """Why it is in this state, in words; may be empty."""
    replicas: str = _string()
    """JSON list of URLs: where it was proven since it was last unloaded."""
    distance: float | None = None
    from_base: float | None = None
    incumbent: str | None = _string()
    """Adapter that the gate compared it with last; null for the base, and before a gate decided."""
    gate: str | None = _string()
    """JSON: the report of the last decision."""
    since: str | None = _pointer(STRING)
    cause: str = _pointer(STRING)
    """Id of the event that brought it into this state."""
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()
    """Offset of that event on `learning`: a reader that has applied a later position knows of
    it."""


class Route(ProjectionTable, table=True):
    """Who answers an alias. An alias without a row is answered by its base."""

    __tablename__ = "routes"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _string()
    shares: str = _string()
    """JSON list of {adapter, share}, of the sessions that are not held out; null for the base."""
    holdout: float | None = None
    """Share of all sessions that the base answers whatever is promoted; null for none."""
    shadow: str | None = _string()
    incumbent: str | None = _string()
    """The policy that last answered alone, with which a canary is compared; null for the base."""
    previous: str = _string()
    """JSON list: who answered alone before the incumbent, newest first; null for the base."""
    why: str = _string()
    reason: str = _string()
    since: str | None = _pointer(STRING)
    cause: str = _pointer(STRING)
    """Id of the `RouteChanged`."""
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class LifecycleStep(ProjectionTable, table=True):
    """What an event made of an adapter or a route, or why it made nothing of it."""

    __tablename__ = "serving_steps"
    __table_args__ = (Index("ix_serving_steps_event", "event"),)
    MERGE: ClassVar[Merge] = Merge.FIRST

    kind: str = _key()
    """`adapter` or `alias`: what `subject` names."""
    subject: str = _key()
    number: int = _number_key()
    """0 for the first of its subject."""
    type: str = _string()
    state: str | None = _string()
    """State of the adapter afterwards; null for an alias and where the event was refused."""
    refused: str | None = _string()
    """Why the event changed nothing; null where it did what it says."""
    reason: str = _string()
    event: str = _pointer(STRING)
    cause: str | None = _pointer(STRING)
    """Id of the event that this one followed from."""
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Evaluation(ProjectionTable, table=True):
    """An adapter measured beside the incumbent."""

    __tablename__ = "evaluations"
    MERGE: ClassVar[Merge] = Merge.FIRST

    adapter: str = _key()
    number: int = _number_key()
    """Number among the adapter's evaluations; 0 for the first."""
    incumbent: str | None = _string()
    environment: str = _string()
    tasks: int = _integer()
    trials: int = _integer()
    incumbent_pass: float = 0.0
    candidate_pass: float = 0.0
    event: str = _pointer(STRING)
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Erasure(ProjectionTable, table=True):
    """A person whose key is destroyed: by its id, for nothing here says who it was."""

    __tablename__ = "erasures"
    MERGE: ClassVar[Merge] = Merge.FIRST

    keyid: str = _key()
    events: int = _integer()
    """Number of events that were sealed with the key when it was destroyed."""
    rollouts: int = _integer()
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class OperatorAction(ProjectionTable, table=True):
    """What a person asked for."""

    __tablename__ = "operator_actions"
    MERGE: ClassVar[Merge] = Merge.FIRST

    event: str = _pointer_key(STRING)
    actor: str = _string()
    action: str = _string()
    arguments: str = _string()
    """JSON object of texts."""
    reason: str = _string()
    time: str | None = _pointer(STRING)
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class DeadLetter(ProjectionTable, table=True):
    """An event that could not be folded: a pointer, for the bytes are in the log."""

    __tablename__ = "dead_letters"
    __table_args__ = (
        Index("ix_dead_letters_rollout", "rollout",
              sqlite_where=text("rollout IS NOT NULL"),
              postgresql_where=text("rollout IS NOT NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.FIRST

    stream: str = _key()
    partition: int = _number_key()
    event_source: str = _pointer_key(STRING)
    sequence: int = _pointer_key(INTEGER)
    type: str | None = _string()
    reason: str = _string()
    rollout: str | None = _string()
    """The live rollout that is missing for it: of a `RolloutEnded` that could not be folded, and of
    a session that could not be made into one; null for any other event."""
    offset: int = _offset()


class Offset(ProjectionTable, table=True):
    """Where the fold reads on: moved by compare-and-set in the transaction of its rows."""

    __tablename__ = "positions"
    MERGE: ClassVar[Merge] = Merge.LAST

    stream: str = _key()
    partition: int = _number_key()
    next_offset: int = _integer()
    last_offset: int | None = _integer()
    """The place of a record that was folded: the last one, unless an earlier version has folded
    since. Null where an earlier version folded all."""
    last_sha256: str | None = _string()
    """The digest of that record."""


class Source(ProjectionTable, table=True):
    """The last sequence folded of each source: what drops duplicates."""

    __tablename__ = "sources"
    MERGE: ClassVar[Merge] = Merge.LAST

    stream: str = _key()
    partition: int = _number_key()
    source: str = _key()
    sequence: int = _integer()
    beyond: int | None = _integer()
    """The highest sequence that came too early; None where nothing is missing."""
    last_sequence: int | None = _integer()
    """The place of a record that was folded: the last one, unless an earlier version has folded
    since. Null where an earlier version folded all."""
    last_sha256: str | None = _string()
    """The digest of that record."""


class Projection(ProjectionTable, table=True):
    """The version of the code that folded these tables."""

    __tablename__ = "projection"
    MERGE: ClassVar[Merge] = Merge.LAST

    name: str = _key()
    fold_version: int = _integer()


class Gateway(SQLModel, table=True):
    """A running gateway, as it last reported: how far it follows the routes, and who uses what.

    Operational, and no projection: it is not folded from the log, so it is neither hashed nor
    compared nor rebuilt, and losing it costs one report. It stands here because it needs the same
    database and the same migrations. Written and read by consumers/reads/gateways.py alone.
    """

    __tablename__ = "gateways"

    gateway: str = _key()
    """Id of one process: a restart is another gateway."""
    host: str = Field(sa_type=STRING)
    started: float = 0.0
    seen: float = 0.0
    """Both by the database's clock, in seconds since 1970: hosts need not agree on the time."""
    position: int = Field(sa_type=INTEGER)
    """Offset in `learning`: the routes it applied are those after every event before this one."""
    in_flight: str = Field(sa_type=STRING)
    """JSON object: adapter -> calls that are being answered."""
    open_sessions: str = Field(sa_type=STRING)
    """JSON object: adapter -> sessions that would stay with it."""


class Lease(SQLModel, table=True):
    """Which process acts under a name, and until when.

    Operational, and no projection, like the gateways: it says which process may try to decide,
    while the log says whose decisions count. Written and read by leases.py alone.
    """

    __tablename__ = "leases"

    name: str = _key()
    holder: str = Field(sa_type=STRING)
    """Id of one process: a restart is another holder."""
    epoch: int | None = Field(default=None, sa_type=INTEGER)
    """Epoch that the holder claimed; null until it has claimed one."""
    expires: float = 0.0
    """Time at which the lease ends by the database's clock, in seconds since 1970."""


class Spool(SQLModel, table=True):
    """A process's own log that is shipped, as the process that writes or ships it last reported.

    Operational, and no projection, like the gateways: it tells of events that the log lacks.
    Written and read by consumers/reads/spools.py alone.
    """

    __tablename__ = "spools"

    source: str = _key()
    """Source of its events: the id of the file, whichever process has it open."""
    host: str = Field(sa_type=STRING)
    path: str = Field(sa_type=STRING)
    seen: float = 0.0
    """Time of the last report by the database's clock, in seconds since 1970."""
    ends: str = Field(sa_type=STRING)
    """JSON object: stream -> per partition, the offset after its last event."""


METADATA: Final[MetaData] = SQLModel.metadata

PROJECTED: Final[tuple[type[ProjectionTable], ...]] = (
    Rollout, Call, SessionEnd, Feedback, Task, TaskPattern, Pattern, PatternRound, Round,
    Leader, Cycle, Rejection, Job, Adapter, Route, LifecycleStep, Evaluation, OperatorAction,
    Erasure, DeadLetter, Repair, JobRound, TaskBody, TaskState,
    Skill, SkillComparison,
    PlanSet, PlanLine, PlanChange, TrajectoryVerdict, RuleVersion,
)  # fmt: skip
"""The tables that hash and comparison cover, in this order."""

BOOKKEEPING: Final[tuple[type[ProjectionTable], ...]] = (Offset, Source, Projection)
"""How far they were folded and by what: neither hashed nor compared."""


def create_tables(engine: Engine) -> None:
    """Create all tables in a database that has none of them, without a migration."""
    METADATA.create_all(engine, [model.table() for model in (*PROJECTED, *BOOKKEEPING)])
