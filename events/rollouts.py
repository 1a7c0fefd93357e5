"""Events of the stream `rollouts`: the agent's calls, sessions and rollouts. An event has a head,
which every fold reads. Its content is stored apart, so that it can be encrypted or destroyed. Token
ids and log-probabilities are a third section, which no fold reads (codec.py)."""

from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from events.messages import Action, Message, StrictModel

NOBODY: Final = "unknown"
"""Base and policy of a live call that no engine answered; base of an import that names none."""

Id = Annotated[str, Field(min_length=1, max_length=256)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
"""Short enough that any key of the tables fits PostgreSQL's index rows of 2,704 bytes."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]

MOST_REASON: Final = 1000
Reason = Annotated[str, Field(max_length=MOST_REASON)]

LOWEST_LOGPROB: Final = -9998.0
"""Bound of valid values: engines write about -9999 for minus infinity, which JSON lacks."""
HIGHEST_LOGPROB: Final = 1e-4
"""Largest valid value; slightly above 0, because engines round."""

Purpose = Literal["live", "import", "train", "evaluate", "probe"]
"""Purpose of a rollout: `live` and `import` are the agent's own traffic."""

Outcome = Literal["completed", "aborted", "failed", "timeout"]

Attribution = Literal["header", "key", "path", "prefix", "none"]
"""How a call's session was found: named by a header, the API key or the path; by an earlier call
whose messages it begins with; or `none`, so that it begins a session."""

Routed = Literal["named", "drawn", "kept", "fallback"]
"""How a policy was chosen: by exact name, by shares, as before, or in place of a missing one."""

EndCause = Literal["asked", "feedback", "idle"]
"""Why a session was closed: on request, by posted feedback, or after a long pause."""


def has_unknown_model(base: str, policy: str) -> bool:
    """Return whether `policy` is a model name that a client made up and no engine has."""
    return base == NOBODY != policy and not policy.startswith(f"{NOBODY}-")


def hash_model_name(name: str) -> str:
    """Return the hashed name that is stored in place of a client's text."""
    return f"{NOBODY}-{sha256(name.encode()).hexdigest()[:16]}"


def clip_reason(text: str) -> str:
    """Return the first `MOST_REASON` characters of a text."""
    return text[:MOST_REASON]


def is_logprob(value: float) -> bool:
    """Return whether a number can be a drawn token's log-probability; NaN cannot."""
    return LOWEST_LOGPROB < value <= HIGHEST_LOGPROB


class EventData(StrictModel):
    """Base of the heads of events."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1
    STREAM: ClassVar[str]
    PRIVATE: ClassVar[tuple[str, ...]] = ()
    """Head fields that may hold content. They are sealed together with a person's content."""

    def key(self) -> str:
        """Return the key: events of one key are ordered in one partition."""
        raise TypeError(f"{type(self).__name__} has no key; an event type must define one")


class Task(StrictModel):
    """The task of a rollout, as far as its source recorded it."""

    id: Id
    environment: str | None = None
    """Environment of the tools; None if no known environment declares them."""
    capability: str | None = None
    instruction: str | None = None
    """The user's request, as told to the user simulator."""
    gold_actions: tuple[Action, ...] | None = None
    """Calls of a perfect agent; None if unknown, () if the agent must change nothing."""
    outputs: tuple[str, ...] = ()
    reward_basis: tuple[str, ...] = ()
    definition: str | None = None
    """sha256 of the full task definition as it was when the rollout was graded."""


class Labels(StrictModel):
    """Labels of the rules for a rollout whose content folds cannot read (sealed, or in a blob)."""

    messages: Count
    tool_calls: Count
    tool_errors: Count
    malformed_calls: Count
    loops: Count
    category: Name | None = None
    """The primary failure category; None without a failure or verdict."""
    categories: tuple[Name, ...] = ()
    pivot: str
    trace_key: str
    """Digest of task and tool calls; if sealed, keyed, so it is equal only within one person."""
    tools: tuple[str, ...] = ()
    """Tools that the agent called; for a sealed rollout, only those that were offered."""
    words: str | None = None
    """Signature of the user's first message, alike for similar requests; None where sealed."""


ToolName = Annotated[str, Field(min_length=1, max_length=256)]


class ToolRoles(StrictModel):
    """Roles of tools that an environment declares for the rules (envs/catalog.py)."""

    writes: tuple[ToolName, ...] = ()
    transfer: tuple[ToolName, ...] = ()
    authenticating: tuple[ToolName, ...] = ()
    """Tools whose success identifies the user."""
    user_record: tuple[ToolName, ...] = ()
    """Tools whose success means that the user's record was reached."""
    record_arguments: tuple[ToolName, ...] = ()
    """Arguments that identify the record that a write changes, the most specific first."""
    selection_arguments: tuple[ToolName, ...] = ()
    """Arguments that choose among offers."""
    unordered: dict[ToolName, tuple[ToolName, ...]] = {}
    """Tool -> its arguments that are unordered lists, paired item by item."""
    unordered_groups: dict[ToolName, tuple[tuple[ToolName, ...], ...]] = {}
    """The same for a tool with several groups of lists, each paired in itself."""


ChoiceDoubt = Literal["none", "disagreement", "tie", "timeout", "failed", "absent"]
"""Why no member was chosen: no skill is needed, the two prompts disagree, scores are equal, the
router was too late, it failed, or no engine has it."""


class MemberChoice(StrictModel):
    """The panel's member that answered, and how it was chosen."""

    skill: Name | None = None
    """Skill that the router chose; None: no skill, so the base answers."""
    adapter: Name | None = None
    """Adapter that answered; None for the base."""
    kept: bool = False
    """Whether an earlier call of the session chose it."""
    doubt: ChoiceDoubt | None = None
    """Why the base answers; None if a skill was chosen."""
    router_ms: Count | None = None
    """Duration of the router's choice in milliseconds; None if it was not asked."""

    @property
    def name(self) -> str | None:
        """Return the member's name in its policy; None: the base answers."""
        return self.skill


class RolloutVerdict(StrictModel):
    """A verdict on a rollout from another source than its `success`."""

    source: Literal["check"]
    """`check`: the rules of generated tasks, for a task whose `success` follows its benchmark."""
    success: bool | None
    score: float | None = None
    confidence: float | None = None
    """Confidence of a judge; None for an executable verdict, which is certain."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """Parts of the reward with their values, without quotes of the rollout."""


class RolloutContent(StrictModel):
    """The conversation of a rollout."""

    messages: tuple[Message, ...] = ()


class RolloutEnded(EventData):
    """An attempt at a task is over; a live one is a closed session."""

    TYPE: ClassVar[str] = "RolloutEnded"
    STREAM: ClassVar[str] = "rollouts"
    PRIVATE: ClassVar[tuple[str, ...]] = ("reason", "known_tools")

    rollout: Id
    alias: Name
    """Public name of the agent. Statistics never mix two aliases."""
    base: Name
    policy: Name
    """Policy version that answered: an adapter's name, or the base model's."""
    source: Name
    """Origin of the record: `live`, or the format of an imported file."""
    purpose: Purpose = "live"
    session: str | None = None
    task: Task | None = None
    trial: Int64 | None = None
    seed: Int64 | None = None
    success: bool | None = None
    """The unshaped verdict; None without one."""
    reward: float | None = None
    """Recorded reward, shaped where the environment shapes."""
    reward_parts: dict[str, float | None] = {}
    grader: str | None = None
    """Judge, with version; None without a verdict."""
    verdicts: tuple[RolloutVerdict, ...] = ()
    """Verdicts of other sources. Training does not use them."""
    termination: str | None = None
    """Why the rollout ended, as its source names it (`user_stop`, `max_steps`, ...)."""
    reason: Reason | None = None
    """Why it ended in words, if `termination` does not tell."""
    simulator: str | None = None
    """Name of the user simulator; None for a person or if unknown."""
    write_tools: tuple[str, ...] | None = None
    """Tools that change state, for an undeclared environment; None when unknown."""
    known_tools: tuple[str, ...] | None = None
    """Offered tools; None when unknown."""
    tool_roles: ToolRoles | None = None
    """Roles of tools; None if they follow from the environment's name or the rules."""
    calls: tuple[str, ...] = ()
    """Ids of its calls in order; the events of the calls hold the tokens."""
    forks: tuple[str, ...] = ()
    """Calls that left the main line (a compaction, a rewritten system prompt)."""
    gathered: Count = 0
    """Number of calls and forks in earlier `CallsGathered`; above 0, this event lists none."""
    labels: Labels | None = None
    """Labels of the rules if folds cannot read the content (sealed, or in a blob); else None."""
    member: MemberChoice | None = None
    """Member of the panel that answered last; None without a panel."""

    content: RolloutContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session or self.rollout


class CallsGathered(EventData):
    """Part of a rollout's calls, written before the rollout if these are too many for its head."""

    TYPE: ClassVar[str] = "CallsGathered"
    STREAM: ClassVar[str] = "rollouts"

    rollout: Id
    session: Id
    number: Count
    """Number of this event in the rollout, from 0."""
    calls: tuple[str, ...] = ()
    """Calls of the main line, after those of the events with smaller numbers."""
    forks: tuple[str, ...] = ()

    def key(self) -> str:
        return self.session


class CallStartContent(StrictModel):
    """The part of a request that its parent call does not hold."""

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Prompts as text or token ids, for an endpoint without messages."""


class HoldoutDraw(StrictModel):
    """A random draw that decides whether a session is held out, so that the base answers it."""

    share: Annotated[float, Field(gt=0, lt=1)]
    """Probability of being held out."""
    held_out: bool


class CallStarted(EventData):
    """A request went to the model."""

    TYPE: ClassVar[str] = "CallStarted"
    STREAM: ClassVar[str] = "rollouts"
    PRIVATE: ClassVar[tuple[str, ...]] = ("sampling",)

    call: Id
    session: Id
    alias: Name
    base: Name
    policy: Name
    task: str | None = None
    parent: str | None = None
    """Longest earlier call of the session whose messages this call begins with."""
    parent_messages: Count = 0
    """Number of leading messages that the parent holds; this event's content holds the rest."""
    stream: bool = False
    sampling: dict[str, Any] = {}
    endpoint: Literal["chat", "completions", "messages"] = "chat"
    """Protocol; `messages` is Anthropic's."""
    parent_tools: bool = False
    """Whether the tools equal the parent's and are not repeated in the content."""
    attribution: Attribution | None = None
    client: Name | None = None
    """Name of the client's key; None if no keys are configured."""
    purpose: Purpose = "live"
    upstream: str | None = None
    """Engine that was asked first; `CallEnded` names the engine that answered."""
    routed: Routed | None = None
    """How the policy was chosen; None without a route."""
    shares: dict[Name, Annotated[float, Field(gt=0, lt=1)]] | None = None
    """Policy -> its probability in the draw, given no holdout; None without a draw."""
    holdout: HoldoutDraw | None = None
    """Draw for the holdout; None if there was no draw."""
    member: MemberChoice | None = None
    """Member of the panel that answered; None without a panel."""

    content: CallStartContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session


class CallEndContent(StrictModel):
    """The answer, one message per choice."""

    messages: tuple[Message, ...] = ()


class CallEnded(EventData):
    """A request was answered, or failed. Arrays of the first choice: `prompt_token_ids`,
    `token_ids` (int32) and `logprobs` (float32), the last two equally long; absent when the call is
    untrainable. Choice 1 has `token_ids.1` and `logprobs.1`, prompt 2 `prompt_token_ids.1`."""

    TYPE: ClassVar[str] = "CallEnded"
    STREAM: ClassVar[str] = "rollouts"
    PRIVATE: ClassVar[tuple[str, ...]] = ("finish_reason", "untrainable_because", "error")

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
    status: Count | None = None
    """HTTP status that the client got; None if it got none."""
    upstream: str | None = None
    """Engine that answered; None if no engine did."""

    content: CallEndContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session


class SessionEnded(EventData):
    """A conversation is over: its calls can become a rollout. A session that goes on may end again;
    each end closes the calls that are in no rollout yet."""

    TYPE: ClassVar[str] = "SessionEnded"
    STREAM: ClassVar[str] = "rollouts"

    session: Id
    because: EndCause

    def key(self) -> str:
        return self.session


class ClosingFailed(EventData):
    """An ended session cannot become a rollout, and a person must repair it (dead letter). Its
    calls stay reserved until `kintsugi dlq retry` has made the rollout."""

    TYPE: ClassVar[str] = "ClosingFailed"
    STREAM: ClassVar[str] = "rollouts"

    session: Id
    end: Id
    rollout: Id
    """Id that the session's rollout will have."""
    error: Name
    reason: Reason
    """Reason in words, without quotes of the session."""

    def key(self) -> str:
        return self.session


class FeedbackContent(StrictModel):
    """A person's text."""

    comment: str | None = None


class FeedbackReceived(EventData):
    """Feedback on a call or session."""

    TYPE: ClassVar[str] = "FeedbackReceived"
    STREAM: ClassVar[str] = "rollouts"
    PRIVATE: ClassVar[tuple[str, ...]] = ("tags",)

    session: Id
    call: str | None = None
    score: float | None = None
    success: bool | None = None
    tags: tuple[str, ...] = ()
    verified: bool = False
    """Whether the sender's key may give verdicts (scope `trusted`)."""

    content: FeedbackContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session


EVENTS: Final = (
    CallStarted,
    CallEnded,
    SessionEnded,
    CallsGathered,
    RolloutEnded,
    ClosingFailed,
    FeedbackReceived,
)
"""The event types of this module; events/registry.py knows each."""
