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

from sqlalchemy import BigInteger, Index, MetaData, Table, Text, text
from sqlmodel import Field, SQLModel

REVISION: Final = "0002"
"""The migration that makes these tables; a test holds it to the newest one in migrations/."""

FOLD_VERSION: Final = 3
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


class Projected(SQLModel):
    """Base of all tables."""

    MERGE: ClassVar[Merge]

    @classmethod
    def table(cls) -> Table:
        """The SQLAlchemy table."""
        return SQLModel.metadata.tables[str(cls.__tablename__)]


class Rollout(Projected, table=True):
    """One attempt at a task, judged and labelled."""

    __tablename__ = "rollouts"
    __table_args__ = (
        Index("ix_rollouts_round", "round", "alias", "base"),
        Index("ix_rollouts_unread", "partition", "event_source", "sequence",
              sqlite_where=text("round IS NULL"), postgresql_where=text("round IS NULL")),
    )  # fmt: skip
    MERGE: ClassVar[Merge] = Merge.FIRST

    rollout: str = _key()
    alias: str = _string()
    base: str = _string()
    policy: str = _string()
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
    reward: float | None = None
    termination: str | None = _string()
    time: str | None = _string()
    messages: int = _integer()
    tool_calls: int = _integer()
    tool_errors: int = _integer()
    category: str | None = _string()
    categories: str = _string()
    """JSON list: every rule that holds, in the order of the rules."""
    pivot: str | None = _string()
    evidence: str | None = _string()
    """JSON: which turns and calls show it."""
    trace_key: str = _string()
    """The dedup key: same task and same tool-call trace."""
    round: int | None = _integer()
    """The round that counted it; None until one has."""
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    sequence: int = _pointer()
    offset: int = _offset()


class Call(Projected, table=True):
    """One request to the model: filled by its start, then by its end."""

    __tablename__ = "calls"
    __table_args__ = (Index("ix_calls_session", "session"),)
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
    partition: int = _pointer()
    event_source: str = _pointer(STRING)
    started_sequence: int | None = _pointer()
    ended_sequence: int | None = _pointer()
    started_offset: int | None = _offset()
    ended_offset: int | None = _offset()


class SessionEnd(Projected, table=True):
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


class Feedback(Projected, table=True):
    """What somebody said of a call or session."""

    __tablename__ = "feedback"
    __table_args__ = (Index("ix_feedback_session", "session"),)
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


class Task(Projected, table=True):
    """What the agent was asked to do, as its earliest rollout or its proposal defines it."""

    __tablename__ = "tasks"
    MERGE: ClassVar[Merge] = Merge.LEAST

    alias: str = _key()
    task: str = _key()
    environment: str | None = _string()
    capability: str | None = _string()
    instruction: str | None = _string()
    gold_actions: str | None = _string()
    """JSON list of actions; None when nobody wrote them down."""
    outputs: str = _string()
    reward_basis: str = _string()
    definition: str | None = _string()
    origin: str = _string()
    """`rollout`, or `proposed` for a task written for a pattern."""
    pattern: str | None = _string()
    source_rollout: str | None = _string()
    order_key: str = _string()


class TaskPattern(Projected, table=True):
    """A task is tagged with a pattern: proposed for it, or a failure on it was attributed to it."""

    __tablename__ = "task_patterns"
    MERGE: ClassVar[Merge] = Merge.FIRST

    alias: str = _key()
    base: str = _key()
    task_key: str = _key()
    pattern: str = _key()


class Pattern(Projected, table=True):
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
    priority: float = 0.0
    status: str = _string()
    examples: str = _string()
    """JSON list of rollouts: of the last round that saw a failure."""
    first_round: int = _integer()
    round: int = _integer()


class PatternRound(Projected, table=True):
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
    priority: float = 0.0
    status: str = _string()


class Cycle(Projected, table=True):
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


class DeadLetter(Projected, table=True):
    """An event that could not be folded: a pointer, for the bytes are in the log."""

    __tablename__ = "dead_letters"
    MERGE: ClassVar[Merge] = Merge.FIRST

    stream: str = _key()
    partition: int = _number_key()
    event_source: str = _pointer_key(STRING)
    sequence: int = _pointer_key(INTEGER)
    type: str | None = _string()
    reason: str = _string()
    offset: int = _offset()


class Offset(Projected, table=True):
    """Where the fold reads on: moved by compare-and-set in the transaction of its rows."""

    __tablename__ = "positions"
    MERGE: ClassVar[Merge] = Merge.LAST

    stream: str = _key()
    partition: int = _number_key()
    next_offset: int = _integer()


class Source(Projected, table=True):
    """The last sequence folded of each source: what drops duplicates."""

    __tablename__ = "sources"
    MERGE: ClassVar[Merge] = Merge.LAST

    stream: str = _key()
    partition: int = _number_key()
    source: str = _key()
    sequence: int = _integer()
    beyond: int | None = _integer()
    """The highest sequence that came too early; None where nothing is missing."""


class Projection(Projected, table=True):
    """Which code folded these tables."""

    __tablename__ = "projection"
    MERGE: ClassVar[Merge] = Merge.LAST

    name: str = _key()
    fold_version: int = _integer()


METADATA: Final[MetaData] = SQLModel.metadata

PROJECTED: Final[tuple[type[Projected], ...]] = (
    Rollout, Call, SessionEnd, Feedback, Task, TaskPattern, Pattern, PatternRound, Cycle,
    DeadLetter,
)  # fmt: skip
"""The tables that hash and comparison cover, in this order."""

BOOKKEEPING: Final[tuple[type[Projected], ...]] = (Offset, Source, Projection)
"""How far they were folded and by what: neither hashed nor compared."""
