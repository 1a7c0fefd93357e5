"""The projection tables: the facts folded from the log, and the positions of the fold. Guarantee:
every table can be dropped and folded again from the log, with equal rows. A row names its event by
(source, sequence); the broker's offset only serves to read the event back. The merge rule of a
table makes the fold independent of how partitions interleave:

    first    a fact: the row that came first stays, a repetition changes nothing
    fill     a fact in parts: a column once written stays, empty ones are filled
    least    the row with the smallest `order_key` stays, whichever partition came first
    last     state of the `learning` stream, which has one order: the newest row replaces

The hash leaves out columns of `_pointer`, which differ between two logs with the same facts.
Comparisons also leave out those of `_offset`, which differ between a spool and its broker.
"""

from enum import StrEnum
from typing import Any, ClassVar, Final

from sqlalchemy import BigInteger, Engine, Index, MetaData, Table, Text, text
from sqlalchemy.sql import ColumnElement
from sqlmodel import Field, SQLModel

REVISION: Final = "0026"
"""The migration that makes these tables: the newest one in migrations/."""

OLDEST_REVISION: Final = "0024"
"""The oldest tables that can be upgraded to these."""

FOLD_VERSION: Final = 18
"""Increased when a fold changes its rows for an event; then `kintsugi rebuild` is due."""

PROJECTION: Final = "history"

STRING: Final = Text().with_variant(Text(collation="C"), "postgresql")
"""Text in byte order on both databases, so that ORDER BY means the same."""

INTEGER: Final = BigInteger()


class Merge(StrEnum):
    """Rule that merges a new row with an older one of the same key."""

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


def _partial_index(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


class ProjectionTable(SQLModel):
    """Base class of all projection tables."""

    MERGE: ClassVar[Merge]
    MADE_INTO_KEYS: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Columns from which round_counts.py makes keys of other tables; they must fit an index too."""

    @classmethod
    def table(cls) -> Table:
        """Return the SQLAlchemy table."""
        return SQLModel.metadata.tables[str(cls.__tablename__)]

    @classmethod
    def blank(cls) -> dict[str, Any]:
        """Return a row whose columns are all null."""
        return dict.fromkeys(column.name for column in cls.table().columns)


class EventTable(ProjectionTable):
    """Base class of tables whose rows name the event that they follow from."""

    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()
    """The event's offset in its stream. A reader at a higher position has applied the event."""


class Rollout(EventTable, table=True):
    """One attempt at a task, judged and labelled."""

    __tablename__ = "rollouts"
    __table_args__ = (
        Index("ix_rollouts_round", "round", "alias", "base"),
        Index("ix_rollouts_agent", "alias", "base", "purpose", "time"),
        Index("ix_rollouts_counted", "alias", "base", "purpose", "round", "success"),
        _partial_index(
            "ix_rollouts_failures",
            "alias",
            "base",
            "purpose",
            "round",
            "policy",
            "trace_key",
            where="category IS NOT NULL",
        ),
        Index("ix_rollouts_task", "task_key", "alias", "base"),
        _partial_index(
            "ix_rollouts_unread", "partition", "event_source", "sequence", where="round IS NULL"
        ),
        _partial_index("ix_rollouts_session", "session", where="session IS NOT NULL"),
        _partial_index(
            "ix_rollouts_judged",
            "partition",
            "event_source",
            "sequence",
            where="session IS NOT NULL AND success IS NOT NULL",
        ),
    )
    MERGE: ClassVar[Merge] = Merge.FIRST
    MADE_INTO_KEYS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("alias", "base", "task_key", "category", "pivot"),
    )

    rollout: str = _key()
    alias: str = _string()
    base: str = _string()
    policy: str = _string()
    member: str | None = _string()
    """The panel's member (adapter, or base by name) that answered last; null without a panel."""
    skill: str | None = _string()
    """Skill that the member was chosen for; null if the router chose none."""
    source: str = _string()
    purpose: str = _string()
    session: str | None = _string()
    task: str | None = _string()
    task_key: str = _string()
    """Id of the task, or `rollout:ID` without one. Pass rates are counted by this key."""
    environment: str | None = _string()
    capability: str | None = _string()
    trial: int | None = _integer()
    seed: int | None = _integer()
    success: bool | None = None
    rules: int | None = _integer()
    """Version of our grading rules that judged; null for another grader's verdict."""
    reward: float | None = None
    verdicts: str | None = _string()
    """JSON list: verdicts of sources other than that of `success`; null without any."""
    termination: str | None = _string()
    time: str | None = _string()
    messages: int = _integer()
    tool_calls: int = _integer()
    tool_errors: int = _integer()
    malformed_calls: int = _integer()
    """Tool calls whose arguments are not a JSON object."""
    loops: int = _integer()
    """Findings of the rule `tool_loop`; counted also for rollouts without a verdict."""
    category: str | None = _string()
    categories: str = _string()
    """JSON list: every rule that holds, in the order of the rules."""
    pivot: str | None = _string()
    evidence: str | None = _string()
    """JSON: category -> findings, the turns and calls that show it."""
    trace_key: str = _string()
    """Hash of the task and the tool calls; equal rollouts are deduplicated by it."""
    kind: str | None = _string()
    """`ENV/GENERATOR` of a generated task. anchors.py reads this column, `tools` and `words`."""
    tools: str = _string()
    """JSON list: tools in the task's gold actions and in the agent's calls."""
    words: str | None = _string()
    """Signature of the first request's words; null if `kind` is set or it is sealed."""
    round: int | None = _integer()
    """Number of the round that claimed it; null until then."""
    outdated: bool | None = None
    """Whether the numbers of that round leave it out: its policy did not answer the alias at the
    round's close, newer rules judged its kind of task, or the agent's environment cannot write such
    a task."""
    partition: int = _pointer()


class Call(ProjectionTable, table=True):
    """One request to the model. Events fill the row: the call's start, its end, and its rollout."""

    __tablename__ = "calls"
    __table_args__ = (
        Index("ix_calls_session", "session"),
        Index("ix_calls_alias", "alias", "started"),
        Index("ix_calls_started", "partition", "event_source", "started_sequence"),
        _partial_index("ix_calls_loose", "session", where="rollout IS NULL"),
        _partial_index("ix_calls_holdout", "alias", "started", where="holdout IS NOT NULL"),
    )
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
    endpoint: str | None = _string()
    attribution: str | None = _string()
    client: str | None = _string()
    purpose: str | None = _string()
    routed: str | None = _string()
    shares: str | None = _string()
    """JSON: policy -> share in the route by which the call was drawn; null without a draw."""
    holdout: float | None = None
    """Held-out share of the route by which the call was drawn; null without a draw."""
    held_out: bool | None = None
    member: str | None = _string()
    """The panel's member (adapter, or base by name) that answered; null without a panel."""
    skill: str | None = _string()
    """Skill that the member was chosen for; null if the router chose none."""
    router_doubt: str | None = _string()
    """Why the base answered in place of a member; null if a member was chosen."""
    router_ms: int | None = _integer()
    """Milliseconds that the router took; null if it was not asked for this call."""
    upstream: str | None = _string()
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
    """Id of the rollout that names the call; null until the session has become a rollout."""
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    started_sequence: int | None = _pointer()
    ended_sequence: int | None = _pointer()
    started_offset: int | None = _offset()
    ended_offset: int | None = _offset()

    @classmethod
    def loose(cls) -> ColumnElement[bool]:
        """Return the SQL condition for started calls that no rollout names yet."""
        columns = cls.table().c
        return columns.rollout.is_(None) & columns.started.is_not(None)


class SessionEnd(EventTable, table=True):
    """One end of a session. The calls before it become a rollout."""

    __tablename__ = "session_ends"
    __table_args__ = (Index("ix_session_ends_session", "session"),)
    MERGE: ClassVar[Merge] = Merge.FIRST

    session_end: str = _key()
    session: str = _string()
    because: str = _string()
    rollout: str = _string()
    """Id of the rollout that its calls become, derived from the event's id."""
    time: str | None = _string()
    partition: int = _pointer()


class Feedback(EventTable, table=True):
    """Feedback on a call or session."""

    __tablename__ = "feedback"
    __table_args__ = (
        Index("ix_feedback_session", "session"),
        _partial_index(
            "ix_feedback_judged",
            "partition",
            "event_source",
            "sequence",
            where="success IS NOT NULL",
        ),
    )
    MERGE: ClassVar[Merge] = Merge.FIRST

    feedback: str = _key()
    """The event's id, made from the sender's idempotency key if it has one."""
    session: str = _string()
    call: str | None = _string()
    score: float | None = None
    success: bool | None = None
    tags: str = _string()
    verified: bool = False
    time: str | None = _string()
    partition: int = _pointer()


class Task(ProjectionTable, table=True):
    """A task of an agent, as its proposal or else its earliest rollout defines it."""

    __tablename__ = "tasks"
    __table_args__ = (_partial_index("ix_tasks_event", "event", where="event IS NOT NULL"),)
    MERGE: ClassVar[Merge] = Merge.LEAST

    alias: str = _key()
    task: str = _key()
    environment: str | None = _string()
    capability: str | None = _string()
    instruction: str | None = _string()
    gold_actions: str | None = _string()
    """JSON list of actions; null if none was recorded."""
    outputs: str = _string()
    reward_basis: str = _string()
    definition: str | None = _string()
    origin: str = _string()
    """`rollout`, or `proposed` for a task written for a pattern."""
    pattern: str | None = _string()
    source_rollout: str | None = _string()
    base: str | None = _string()
    """Base for which it was proposed. Null if not proposed, as are `cycle` to `text_by`."""
    cycle: str | None = _string()
    mode: str | None = _string()
    verified: str | None = _string()
    """JSON list of {check, note}: the checks that the task passed."""
    text_by: str | None = _string()
    plans: str | None = _string()
    """Id of its set of plans; null without a plan, as are the next two columns."""
    plan: str | None = _string()
    plan_revision: int | None = _integer()
    order_key: str = _string()
    event: str | None = _pointer(STRING)
    offset: int | None = _offset()


class TaskBody(EventTable, table=True):
    """The body of a task whose id is a hash of the body (envs/task.py), shared by all agents."""

    __tablename__ = "task_bodies"
    MERGE: ClassVar[Merge] = Merge.FIRST

    task: str = _key()
    environment: str = _string()
    body: str = _string()
    """JSON: the definition without its id; if sealed, environment, key id, ciphertext and
    origin."""
    keyid: str | None = _string()
    """Id of the key that seals the body; null if it has no person's data."""
    operator: str | None = _string()
    """Operator that made its lesson: `recorded`, or a perturbation; null without a lesson."""


class TaskState(EventTable, table=True):
    """Whether new jobs of an agent may draw a task. Tasks without a row may be drawn."""

    __tablename__ = "task_states"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    task: str = _key()
    state: str = _string()
    """`retired`, `rejected`, or `active` again."""
    reason: str = _string()
    time: str | None = _pointer(STRING)


SKIPPED: Final = "skipped"
"""Outcome of a repair search if the rollout could not be replayed; it may be searched again."""


class Repair(EventTable, table=True):
    """Result of the search for the smallest repair of a failed rollout. Readers of a category or
    pivot must join this table (diagnosis/labelled.py). Its events have an order with rounds, but
    rollouts have none."""

    __tablename__ = "repairs"
    MERGE: ClassVar[Merge] = Merge.LAST

    rollout: str = _key()
    rules: str = _string()
    outcome: str = _string()
    category: str | None = _string()
    """The proven category; null if the label of the rules stays. So is `pivot`."""
    pivot: str | None = _string()
    edits: str = _string()
    """JSON list: events/learning.py."""
    replays: int = _integer()
    reason: str = _string()
    time: str | None = _pointer(STRING)


class SkillComparison(EventTable, table=True):
    """The last comparison of an agent's failures and successes on a base, to find skills."""

    __tablename__ = "skill_comparisons"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    since: int = _integer()
    """First round of the history that the comparison read."""
    round: int = _integer()
    """Last round that the comparison read."""
    failures: int = _integer()
    successes: int = _integer()
    labeller: str | None = _string()
    """Model that labelled; null for rules."""
    left_out: int | None = _integer()
    """Representative rollouts that could not be shown to the model."""
    refused: int | None = _integer()
    """Labellings by the model that were refused."""
    time: str | None = _pointer(STRING)


class Skill(EventTable, table=True):
    """A skill of an agent on a base, with the figures of the last comparison that had it."""

    __tablename__ = "skills"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    skill: str = _key()
    description: str = _string()
    patterns: str = _string()
    """JSON list: the failure patterns that the skill unites."""
    state: str = _string()
    delta: float = 0.0
    delta_deviation: float = 0.0
    coverage: float = 0.0
    coverage_deviation: float = 0.0
    selected: int = _integer()
    """Number of labellings that choose the skill."""
    labellings: int = _integer()
    failures: int = _integer()
    """Number of failures to which the skill applies."""
    successes: int = _integer()
    within: str | None = _string()
    """Selected skill that most failures lacking this one lack too; null for none."""
    examples: str = _string()
    labeller: str | None = _string()
    """Model that named the skill and labelled rollouts; null for rules."""
    round: int = _integer()
    """Last round of the history that the comparison read."""
    time: str | None = _pointer(STRING)


class TaskPattern(ProjectionTable, table=True):
    """A task's tag: a pattern for which it was proposed or that a failure on it showed. The
    daemon's rollouts on such a task are evidence of the pattern."""

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
    """Priority after the operator's override."""
    status: str = _string()
    operator: str | None = _string()
    """`pinned`, `muted` or null."""
    operator_reason: str | None = _string()
    anchors: str = _string()
    """JSON object: anchor -> weight (consumers/diagnosis/anchors.py)."""
    examples: str = _string()
    """JSON list of rollouts, from the last round with a failure."""
    first_round: int = _integer()
    round: int = _integer()


class PatternRound(ProjectionTable, table=True):
    """A failure pattern after one round; the rows are the history of its priority."""

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
    """The versions of our rules behind the verdicts on a kind of task, for one (alias, base)."""

    __tablename__ = "rule_versions"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _key()
    kind: str = _key()
    environment: str = _string()
    rules: int = _integer()
    """The newest version that a round has seen, in rollouts of any purpose."""
    counted: int | None = _integer()
    """The version whose verdicts the patterns count; null if they count none."""
    before: int | None = _integer()
    """The version that they counted before the last change; null without one, as is `changed`."""
    changed: int | None = _integer()
    """The round of the last change, in which the patterns began anew."""


class Round(EventTable, table=True):
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
    """Patterns with a failure in this round."""
    other: int = _integer()
    """Deduplicated failures that no rule explains; they form no pattern."""
    position: str = _pointer(STRING)
    time: str | None = _pointer(STRING)


class Leader(EventTable, table=True):
    """The leader whose decisions count: one row, or none before the first leader."""

    __tablename__ = "leaders"
    MERGE: ClassVar[Merge] = Merge.LAST

    name: str = _key()
    epoch: int = _integer()
    holder: str = _pointer(STRING)
    since: str | None = _pointer(STRING)


class Cycle(EventTable, table=True):
    """A cycle of an agent on a base, from its trigger to its outcome."""

    __tablename__ = "learning_cycles"
    __table_args__ = (Index("ix_learning_cycles_alias", "alias", "base", "number"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    cycle: str = _key()
    alias: str = _string()
    base: str = _string()
    number: int = _integer()
    """Number of the cycle for this agent on this base, from 1."""
    environment: str = _string()
    trigger: str = _string()
    reason: str = _string()
    position: str = _pointer(STRING)
    """JSON: position up to which the start decision had read rollouts."""
    slot: str | None = _pointer(STRING)
    acted: str | None = _pointer(STRING)
    """Id of the event by which a person asked for the cycle, if any."""
    round: int | None = _integer()
    """Number of its round in the training history; null until diagnosed."""
    directive: str | None = _string()
    """JSON; null until it is written, as are the next four columns."""
    findings: str | None = _string()
    """JSON list: the analyzer's patterns."""
    summary: str | None = _string()
    analyzer: str | None = _string()
    """Name of the analyzer; also null without an analyzer."""
    trouble: str | None = _string()
    accepted: int = _integer()
    """Number of tasks that it wrote and that passed every check."""
    rejected: int = _integer()
    job: str | None = _string()
    """Id of its first job; null until one is requested."""
    panel: str | None = _string()
    """Panel composed of its jobs' adapters; null without one."""
    outcome: str | None = _string()
    """Null while the cycle is open."""
    ended_because: str | None = _string()
    event: str = _pointer(STRING)
    started: str | None = _pointer(STRING)
    diagnosed: str | None = _pointer(STRING)
    directed: str | None = _pointer(STRING)
    ended: str | None = _pointer(STRING)


class Rejection(EventTable, table=True):
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
    """Set of the plan that the try followed; null without one, as are the next two columns."""
    plan: str | None = _string()
    plan_revision: int | None = _integer()
    time: str | None = _pointer(STRING)


class PlanSet(EventTable, table=True):
    """A set of plans, by which the tasks of an agent are written and judged."""

    __tablename__ = "plan_sets"
    __table_args__ = (Index("ix_plan_sets_alias", "alias", "base"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    plans: str = _key()
    alias: str = _string()
    base: str = _string()
    environment: str = _string()
    cycle: str | None = _string()
    patterns: str = _string()
    """JSON list: failure patterns for which they were written; empty for all."""
    overlap: float = 0.0
    uncovered: str = _string()
    """JSON list: tools that no plan needs."""
    writer: str | None = _string()
    """Model that wrote the plans; null for rules."""
    refused: str = _string()
    """JSON list: why plans of the model were refused."""
    trouble: str = _string()
    round: int = _integer()
    """Rounds of revisions so far."""
    stopped: str = _string()
    """Why no further round of revisions follows; empty if one may follow."""
    time: str | None = _pointer(STRING)


class PlanLine(EventTable, table=True):
    """A plan of a set in its present revision, and the results of its tasks."""

    __tablename__ = "plans"
    MERGE: ClassVar[Merge] = Merge.LAST

    plans: str = _key()
    plan: str = _key()
    number: int = _integer()
    revision: int = _integer()
    definition: str = _string()
    """JSON: events/synthesis/plans.py."""
    tries: int = _integer()
    """Number of tries; this and the counts below are of the present revision."""
    accepted: int = _integer()
    task_faults: int = _integer()
    """Rollouts that failed by the task's fault; next, by the user's and the agent's."""
    user_faults: int = _integer()
    trajectory_faults: int = _integer()
    disagreements: int = _integer()
    """Rollouts on which a model and the rules disagreed."""
    time: str | None = _pointer(STRING)


class PlanChange(EventTable, table=True):
    """A revision of a plan that was tried."""

    __tablename__ = "plan_changes"
    MERGE: ClassVar[Merge] = Merge.FIRST

    plans: str = _key()
    plan: str = _key()
    round: int = _number_key()
    revision: int = _integer()
    """Revision of the plan that was changed."""
    definition: str = _string()
    """JSON: the changed plan that was tried."""
    reason: str = _string()
    failures: str = _string()
    """JSON list: ids of the events that report the failures."""
    tries_before: int = _integer()
    accepted_before: int = _integer()
    tries: int = _integer()
    accepted: int = _integer()
    kept: bool = False
    writer: str | None = _string()
    time: str | None = _pointer(STRING)


class TrajectoryVerdict(EventTable, table=True):
    """The verdict on the fault by which a rollout of a written task failed."""

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
    """`task`, `user` or `trajectory`; null if the rollout is accepted."""
    rule: str = _string()
    reason: str = _string()
    opinion_by: str | None = _string()
    """Model that was asked for an opinion; null without one, as are the next three columns."""
    opinion: str | None = _string()
    """Fault in the model's opinion; also null if the model accepts the rollout."""
    opinion_reason: str | None = _string()
    agrees: bool | None = None
    trouble: str = _string()
    siblings: str = _string()
    """JSON list: sibling tasks that were reviewed because of this verdict."""
    time: str | None = _pointer(STRING)


class Job(EventTable, table=True):
    """A training run that was requested, whether open or over."""

    __tablename__ = "jobs"
    __table_args__ = (_partial_index("ix_jobs_open", "offset", where="outcome IS NULL"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    job: str = _key()
    cycle: str | None = _string()
    alias: str = _string()
    base: str = _string()
    capability: str | None = _string()
    skill: str | None = _string()
    """Skill for which it trains; null if its cycle trains one adapter for everything."""
    teaches: str | None = _string()
    """`router` or `user` if it trains a router or a user; null if it trains the agent."""
    spec: str = _string()
    """JSON: events/jobs.py."""
    minutes: float = 0.0
    """Time limit in minutes, after which the job is stopped."""
    outcome: str | None = _string()
    """Null while the job is open, as are the next seven columns."""
    reason: str | None = _string()
    adapter: str | None = _string()
    """Folder of its adapter; null if it made none, as is the next column."""
    sha256: str | None = _string()
    steps: int | None = _integer()
    rollouts: int | None = _integer()
    seconds: float | None = None
    attempts: int | None = _integer()
    event: str = _pointer(STRING)
    requested: str | None = _pointer(STRING)
    ended: str | None = _pointer(STRING)


class JobRound(EventTable, table=True):
    """A round that a job closed over its own rollouts."""

    __tablename__ = "job_rounds"
    __table_args__ = (Index("ix_job_rounds_cycle", "cycle"),)
    MERGE: ClassVar[Merge] = Merge.LAST

    job: str = _key()
    number: int = _number_key()
    cycle: str = _string()
    directive: str = _string()
    tasks: str = _string()
    """JSON list: the tasks that were written for the round and passed every check."""
    rejected: int = _integer()
    rollouts: int | None = _integer()
    """Number of rollouts that it read; null until the round is closed, as are the next three."""
    failures: int | None = _integer()
    unread: int | None = _integer()
    pools: str | None = _string()
    """JSON list: each pool's share after the round and before it."""
    time: str | None = _pointer(STRING)


class Adapter(EventTable, table=True):
    """An adapter and its lifecycle state (events/lifecycle.py)."""

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
    """JSON: the members that it was merged from; null if it was not merged."""
    panel: str | None = _string()
    """JSON: the members and the router of a panel; null for an adapter."""
    role: str = _string()
    """`agent`, or `user` for an adapter that plays users and answers no client."""
    user_gate: str | None = _string()
    """JSON: the last result of its gate as a user; null for an agent, or before that gate."""
    state: str = _string()
    reason: str = _string()
    """Why the adapter is in this state; may be empty."""
    replicas: str = _string()
    """JSON list: URLs of replicas on which it was proven since it was last unloaded."""
    distance: float | None = None
    from_base: float | None = None
    incumbent: str | None = _string()
    """Adapter with which the gate compared it last; null for the base, or before a gate."""
    gate: str | None = _string()
    """JSON: the report of the gate's last decision."""
    since: str | None = _pointer(STRING)
    cause: str = _pointer(STRING)
    """Id of the event that moved the adapter into this state."""


class Route(EventTable, table=True):
    """The policies that answer an alias. The base answers an alias that has no row."""

    __tablename__ = "routes"
    MERGE: ClassVar[Merge] = Merge.LAST

    alias: str = _key()
    base: str = _string()
    shares: str = _string()
    """JSON list of {adapter, share} of the sessions that are not held out; null for the base."""
    holdout: float | None = None
    """Share of all sessions that the base always answers; null for none."""
    shadow: str | None = _string()
    incumbent: str | None = _string()
    """The policy that last answered alone, with which a canary is compared; null for the base."""
    previous: str = _string()
    """JSON list: policies that answered alone before the incumbent, newest first (null: base)."""
    why: str = _string()
    reason: str = _string()
    since: str | None = _pointer(STRING)
    cause: str = _pointer(STRING)


class LifecycleStep(EventTable, table=True):
    """The change that an event made to an adapter or a route, or why it made none."""

    __tablename__ = "serving_steps"
    __table_args__ = (Index("ix_serving_steps_event", "event"),)
    MERGE: ClassVar[Merge] = Merge.FIRST

    kind: str = _key()
    """Kind of `subject`: `adapter` or `alias`."""
    subject: str = _key()
    number: int = _number_key()
    """Number among the steps of its subject, from 0."""
    type: str = _string()
    state: str | None = _string()
    """State of the adapter afterwards; null for an alias and for a refused event."""
    refused: str | None = _string()
    """Why the event changed nothing; null if it was accepted."""
    reason: str = _string()
    event: str = _pointer(STRING)
    cause: str | None = _pointer(STRING)
    time: str | None = _pointer(STRING)


class Evaluation(EventTable, table=True):
    """A measurement of an adapter and of the incumbent on the same tasks."""

    __tablename__ = "evaluations"
    MERGE: ClassVar[Merge] = Merge.FIRST

    adapter: str = _key()
    number: int = _number_key()
    """Number among the adapter's evaluations, from 0."""
    incumbent: str | None = _string()
    environment: str = _string()
    tasks: int = _integer()
    trials: int = _integer()
    incumbent_pass: float = 0.0
    candidate_pass: float = 0.0
    event: str = _pointer(STRING)
    time: str | None = _pointer(STRING)


class Erasure(EventTable, table=True):
    """A person whose key is destroyed: only the key's id, so that nothing identifies the person."""

    __tablename__ = "erasures"
    MERGE: ClassVar[Merge] = Merge.FIRST

    keyid: str = _key()
    events: int = _integer()
    """Number of events that were sealed with the key when it was destroyed."""
    rollouts: int = _integer()
    time: str | None = _pointer(STRING)


class OperatorAction(EventTable, table=True):
    """An action that a person asked for."""

    __tablename__ = "operator_actions"
    MERGE: ClassVar[Merge] = Merge.FIRST

    event: str = _pointer_key(STRING)
    actor: str = _string()
    action: str = _string()
    arguments: str = _string()
    """JSON object of texts."""
    reason: str = _string()
    time: str | None = _pointer(STRING)


class DeadLetter(ProjectionTable, table=True):
    """A pointer to an event that could not be folded; its bytes stay in the log."""

    __tablename__ = "dead_letters"
    __table_args__ = (
        _partial_index("ix_dead_letters_rollout", "rollout", where="rollout IS NOT NULL"),
    )
    MERGE: ClassVar[Merge] = Merge.FIRST

    stream: str = _key()
    partition: int = _number_key()
    event_source: str = _pointer_key(STRING)
    sequence: int = _pointer_key(INTEGER)
    type: str | None = _string()
    reason: str = _string()
    rollout: str | None = _string()
    """The live rollout that is missing because a `RolloutEnded` could not be folded or a session
    could not be made into one; null for any other event."""
    offset: int = _offset()


class Offset(ProjectionTable, table=True):
    """The next offset to fold, moved by compare-and-set in the transaction of its rows."""

    __tablename__ = "positions"
    MERGE: ClassVar[Merge] = Merge.LAST

    stream: str = _key()
    partition: int = _number_key()
    next_offset: int = _integer()
    last_offset: int | None = _integer()
    """Place of the record folded last, by this version; null if an earlier version folded all."""
    last_sha256: str | None = _string()


class Source(ProjectionTable, table=True):
    """The last folded sequence of each source; the fold drops repeated events by it."""

    __tablename__ = "sources"
    MERGE: ClassVar[Merge] = Merge.LAST

    stream: str = _key()
    partition: int = _number_key()
    source: str = _key()
    sequence: int = _integer()
    beyond: int | None = _integer()
    """The highest sequence that came before its predecessor; null if none is missing."""
    last_sequence: int | None = _integer()
    """Place of the record folded last, by this version; null if an earlier version folded all."""
    last_sha256: str | None = _string()


class Projection(ProjectionTable, table=True):
    """The version of the code that folded these tables."""

    __tablename__ = "projection"
    MERGE: ClassVar[Merge] = Merge.LAST

    name: str = _key()
    fold_version: int = _integer()


class Gateway(SQLModel, table=True):
    """A running gateway's last report: its route table and its use of adapters. The table is no
    projection: it is not hashed, compared or rebuilt, and a lost row comes back with the next
    report. Only reads/gateways.py uses it."""

    __tablename__ = "gateways"

    gateway: str = _key()
    """Id of the process; after a restart it is another gateway."""
    host: str = Field(sa_type=STRING)
    started: float = 0.0
    seen: float = 0.0
    """Time of the last report. This and `started` are by the database's clock."""
    position: int = Field(sa_type=INTEGER)
    """Offset in `learning`: the gateway has applied the routes after all events before it."""
    in_flight: str = Field(sa_type=STRING)
    """JSON object: adapter -> calls in flight."""
    open_sessions: str = Field(sa_type=STRING)
    """JSON object: adapter -> sessions that would stay with it."""


class Lease(SQLModel, table=True):
    """The process that acts under a name until the lease ends. The table is no projection: it says
    which process may try to decide; the log says whose decisions count. Only leases.py uses it."""

    __tablename__ = "leases"

    name: str = _key()
    holder: str = Field(sa_type=STRING)
    """Id of the process; after a restart it is another holder."""
    epoch: int | None = Field(default=None, sa_type=INTEGER)
    """Epoch that the holder has claimed as leader; null before the claim."""
    expires: float = 0.0
    """End of the lease by the database's clock, in seconds since 1970."""


class Spool(SQLModel, table=True):
    """The last report on a process's own log. The table is no projection: it tells of events that
    the log may lack. Only reads/spools.py uses it."""

    __tablename__ = "spools"

    source: str = _key()
    """Source of its events: the id of the spool's file, not of a process."""
    host: str = Field(sa_type=STRING)
    path: str = Field(sa_type=STRING)
    seen: float = 0.0
    """Time of the last report by the database's clock, in seconds since 1970."""
    ends: str = Field(sa_type=STRING)
    """JSON object: stream -> for each partition, the offset after its last event."""


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
"""The positions and the version of the fold, neither hashed nor compared."""


def create_tables(engine: Engine) -> None:
    """Create all tables in a database that has none of them, without a migration."""
    METADATA.create_all(engine, [model.table() for model in (*PROJECTED, *BOOKKEEPING)])
