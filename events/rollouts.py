"""What the agent did: the events of the stream `rollouts`.

Each event is a head (small, always readable, read by every fold) and, where it carries what people
or the model said, a content: a separate section of the stored value, so that it can be encrypted or
destroyed per person without touching the head. Token ids and log-probabilities are a third section
that no fold ever reads (codec.py).
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from events.messages import Action, Frozen, Message

Id = Annotated[str, Field(min_length=1, max_length=256)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
"""Short enough that any key of the tables fits PostgreSQL's 2,704 bytes of an index row."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]

Purpose = Literal["live", "import", "train", "evaluate", "probe"]
"""Why a rollout was made: `live` and `import` are the agent's own traffic."""

Outcome = Literal["completed", "aborted", "failed", "timeout"]


class EventData(Frozen):
    """Base of the heads: what an event says, without what was said."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1
    STREAM: ClassVar[str]

    def key(self) -> str:
        """What orders and places the event: events of one key are in one partition."""
        raise TypeError(f"{type(self).__name__} has no key; an event type must define one")


class Task(Frozen):
    """What was to be done, as far as anyone wrote it down."""

    id: Id
    environment: str | None = None
    """Name of the environment whose tools these are; None for tools nobody declared."""
    capability: str | None = None
    instruction: str | None = None
    """What the user wants, as given to the user's simulator."""
    gold_actions: tuple[Action, ...] | None = None
    """The calls that a perfect agent makes; None when unknown, () when it must change nothing."""
    outputs: tuple[str, ...] = ()
    """What the agent must say to the user."""
    reward_basis: tuple[str, ...] = ()
    definition: str | None = None
    """sha256 of the full task definition as it was when the rollout was graded."""


class RolloutContent(Frozen):
    """What was said in a rollout."""

    messages: tuple[Message, ...] = ()


class RolloutEnded(EventData):
    """One attempt at a task is over; a live one is a closed session."""

    TYPE: ClassVar[str] = "RolloutEnded"
    STREAM: ClassVar[str] = "rollouts"

    rollout: Id
    alias: Name
    """The public name under which the agent is served: statistics never cross it."""
    base: Name
    """The base model."""
    policy: Name
    """Policy version that answered: an adapter's name, or the base model's."""
    source: Name
    """Who recorded it: `live`, or the format of an imported file."""
    purpose: Purpose = "live"
    session: str | None = None
    task: Task | None = None
    trial: Int64 | None = None
    seed: Int64 | None = None
    success: bool | None = None
    """The unshaped verdict; None where nobody judged."""
    reward: float | None = None
    """The reward as recorded, shaped where the environment shapes."""
    reward_parts: dict[str, float | None] = {}
    grader: str | None = None
    """Who judged, with version; None where nobody did."""
    termination: str | None = None
    """Why it ended, in the words of its source (`user_stop`, `max_steps`, ...)."""
    reason: Annotated[str, Field(max_length=1000)] | None = None
    """Why it ended, in words, where the termination does not say."""
    simulator: str | None = None
    """The user's simulator; None for a person or where unknown."""
    write_tools: tuple[str, ...] | None = None
    """Tools that change state, for an environment nobody declared; None when unknown."""
    known_tools: tuple[str, ...] | None = None
    """Tools the agent was offered; None when unknown."""
    calls: tuple[str, ...] = ()
    """Its calls in order; their events hold the tokens."""
    forks: tuple[str, ...] = ()
    """Calls that left the main line (a compaction, a rewritten system prompt)."""

    content: RolloutContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session or self.rollout


class CallStartedContent(Frozen):
    """The part of the request that its parent call did not hold already."""

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()


class CallStarted(EventData):
    """A request went to the model."""

    TYPE: ClassVar[str] = "CallStarted"
    STREAM: ClassVar[str] = "rollouts"

    call: Id
    session: Id
    alias: Name
    base: Name
    policy: Name
    task: str | None = None
    parent: str | None = None
    """The longest earlier call of the session that this one extends."""
    parent_messages: Count = 0
    """How many leading messages are the parent's; the content holds the rest."""
    stream: bool = False
    sampling: dict[str, Any] = {}
    """Effective sampling parameters."""

    content: CallStartedContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session


class CallEndedContent(Frozen):
    """What the model answered, one message per choice."""

    messages: tuple[Message, ...] = ()


class CallEnded(EventData):
    """A request was answered, or came to nothing.

    Arrays: `prompt_token_ids`, `token_ids` (int32) and `logprobs` (float32), the last two of equal
    length; absent when the call is untrainable.
    """

    TYPE: ClassVar[str] = "CallEnded"
    STREAM: ClassVar[str] = "rollouts"

    call: Id
    session: Id
    outcome: Outcome
    finish_reason: str | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    duration_ms: Count | None = None
    trainable: bool = False
    untrainable_because: str | None = None
    invalid_tool_calls: Count = 0
    error: str | None = None

    content: CallEndedContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session


class FeedbackContent(Frozen):
    """What a person wrote."""

    comment: str | None = None


class FeedbackReceived(EventData):
    """Somebody said how a call or session went."""

    TYPE: ClassVar[str] = "FeedbackReceived"
    STREAM: ClassVar[str] = "rollouts"

    session: Id
    call: str | None = None
    score: float | None = None
    success: bool | None = None
    tags: tuple[str, ...] = ()
    verified: bool = False
    """Whether the sender's key may judge (scope `trusted`)."""

    content: FeedbackContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session
