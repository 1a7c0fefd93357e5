"""What the agent did: the events of the stream `rollouts`.

An event is a head, which every fold reads, and a content with what was said. The content is stored
apart, so it can be encrypted or destroyed without the head. Token ids and log-probabilities are a
third section, which no fold reads (codec.py).
"""

from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from events.messages import Action, Message, StrictModel

NOBODY: Final = "unknown"
"""Base and policy of a live call that no engine answered, or an imported base without a name."""

Id = Annotated[str, Field(min_length=1, max_length=256)]
Name = Annotated[str, Field(min_length=1, max_length=128)]
"""Short enough that any key of the tables fits PostgreSQL's 2,704 bytes of an index row."""

Count = Annotated[int, Field(ge=0, lt=2**63)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]

MOST_REASON: Final = 1000
Reason = Annotated[str, Field(max_length=MOST_REASON)]
"""Why something happened, as a sentence."""

LOWEST_LOGPROB: Final = -9998.0
"""Engines write about -9999 for minus infinity, which JSON has not: no token is drawn with it."""
HIGHEST_LOGPROB: Final = 1e-4
"""A hair above 0 is rounding; more is no probability."""

Purpose = Literal["live", "import", "train", "evaluate", "probe"]
"""Why a rollout was made: `live` and `import` are the agent's own traffic."""

Outcome = Literal["completed", "aborted", "failed", "timeout"]

Attribution = Literal["header", "key", "path", "prefix", "none"]
"""How a call's session was found: by one of three names, by the earlier call and answer with which
it begins, or not at all, so that it begins a session."""

Routed = Literal["named", "drawn", "kept", "fallback"]
"""Why a policy was asked: by exact name; drawn by shares; kept; in place of a missing one."""

EndCause = Literal["asked", "feedback", "idle"]
"""Why a session was closed: somebody said so; its outcome was posted; nothing came for long."""


def has_unknown_model(base: str, policy: str) -> bool:
    """Return whether `policy` is a client's own text: the name of a model that no engine has."""
    return base == NOBODY != policy and not policy.startswith(f"{NOBODY}-")


def hash_model_name(name: str) -> str:
    """Return the name that is stored in the place of a client's own text."""
    return f"{NOBODY}-{sha256(name.encode()).hexdigest()[:16]}"


def clip_reason(text: str) -> str:
    """The beginning of a text, as much as a reason holds."""
    return text[:MOST_REASON]


def is_logprob(value: float) -> bool:
    """Whether a number can be the log-probability of a token that was drawn; NaN cannot."""
    return LOWEST_LOGPROB < value <= HIGHEST_LOGPROB


class EventData(StrictModel):
    """Base of the heads: what an event says, without what was said."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1
    STREAM: ClassVar[str]
    PRIVATE: ClassVar[tuple[str, ...]] = ()
    """Fields that may hold what was said: sealed with a person's content; without a key, at
    defaults."""

    def key(self) -> str:
        """What orders and places the event: events of one key are in one partition."""
        raise TypeError(f"{type(self).__name__} has no key; an event type must define one")


class Task(StrictModel):
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


class Labels(StrictModel):
    """What the rules say of a rollout that no fold can read, by who could read it."""

    messages: Count
    tool_calls: Count
    tool_errors: Count
    malformed_calls: Count
    loops: Count
    category: Name | None = None
    """The primary one; None where it did not fail, or nobody judged."""
    categories: tuple[Name, ...] = ()
    pivot: str
    trace_key: str
    """Digest of task and tool calls; for a sealed rollout keyed, equal within one person."""
    tools: tuple[str, ...] = ()
    """Tools that the agent called; of a sealed rollout, those of them that it was offered."""
    words: str | None = None
    """Signature of the user's first message, alike for similar requests; None where sealed."""


ToolName = Annotated[str, Field(min_length=1, max_length=256)]


class ToolRoles(StrictModel):
    """Roles of tools that an environment declares for the rules (envs/catalog.py)."""

    writes: tuple[ToolName, ...] = ()
    """Tools that change state."""
    transfer: tuple[ToolName, ...] = ()
    """Tools that hand the user over to a person."""
    authenticating: tuple[ToolName, ...] = ()
    """Tools whose success identifies the user."""
    user_record: tuple[ToolName, ...] = ()
    """Tools whose success means that the user's record was reached."""
    record_arguments: tuple[ToolName, ...] = ()
    """Arguments that name the record a write works on, the most specific first."""
    selection_arguments: tuple[ToolName, ...] = ()
    """Arguments that choose among what is offered."""
    unordered: dict[ToolName, tuple[ToolName, ...]] = {}
    """Tool -> its arguments that are unordered lists, paired item by item."""
    unordered_groups: dict[ToolName, tuple[tuple[ToolName, ...], ...]] = {}
    """The same for a tool with several groups of lists, each paired in itself."""


ChoiceDoubt = Literal["none", "disagreement", "tie", "timeout", "failed", "absent"]
"""Why no member was chosen: no skill; two orders disagree; equal scores; too late; no answer; no
engine has the member."""


class MemberChoice(StrictModel):
    """The member of a panel that answered, and how it was chosen."""

    skill: Name | None = None
    """Skill that the router found; None: none, so that the base answers."""
    adapter: Name | None = None
    """What answered; None for the base."""
    kept: bool = False
    """Whether the session had it from an earlier call."""
    doubt: ChoiceDoubt | None = None
    """Why the base answers instead of a member; None where a skill was found."""
    router_ms: Count | None = None
    """How long the router took, in milliseconds; None where it was not asked."""

    @property
    def name(self) -> str | None:
        """Return the member's name in its policy; None: the base answers."""
        return self.skill


class RolloutVerdict(StrictModel):
    """A verdict on a rollout from another source than its `success`."""

    source: Literal["check"]
    """`check`: the rules of generated tasks, in a task whose `success` is by its benchmark's."""
    success: bool | None
    score: float | None = None
    """The unshaped reward."""
    confidence: float | None = None
    """None for an executable verdict, which is certain."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """The parts of the reward with their values. It quotes nothing of the rollout."""


class RolloutContent(StrictModel):
    """What was said in a rollout."""

    messages: tuple[Message, ...] = ()


class RolloutEnded(EventData):
    """One attempt at a task is over; a live one is a closed session."""

    TYPE: ClassVar[str] = "RolloutEnded"
    STREAM: ClassVar[str] = "rollouts"
    PRIVATE: ClassVar[tuple[str, ...]] = ("reason", "known_tools")

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
    verdicts: tuple[RolloutVerdict, ...] = ()
    """Verdicts from other sources than `success`, which nothing is learnt from."""
    termination: str | None = None
    """Why it ended, in the words of its source (`user_stop`, `max_steps`, ...)."""
    reason: Reason | None = None
    """Why it ended, in words, where the termination does not say."""
    simulator: str | None = None
    """The user's simulator; None for a person or where unknown."""
    write_tools: tuple[str, ...] | None = None
    """Tools that change state, for an environment nobody declared; None when unknown."""
    known_tools: tuple[str, ...] | None = None
    """Tools the agent was offered; None when unknown."""
    tool_roles: ToolRoles | None = None
    """What the environment declares of its tools; None where its name or the rules tell it."""
    calls: tuple[str, ...] = ()
    """Its calls in order; their events hold the tokens."""
    forks: tuple[str, ...] = ()
    """Calls that left the main line (a compaction, a rewritten system prompt)."""
    gathered: Count = 0
    """Calls and forks that earlier `CallsGathered` events name; then `calls` and `forks` are
    empty."""
    labels: Labels | None = None
    """The rules' labels for a rollout that no fold can read (sealed, or in a blob); else None."""
    member: MemberChoice | None = None
    """The member of the panel that answered last; None where the policy is no panel."""

    content: RolloutContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session or self.rollout


class CallsGathered(EventData):
    """Some of the calls of a rollout that has too many for its own head: written before it."""

    TYPE: ClassVar[str] = "CallsGathered"
    STREAM: ClassVar[str] = "rollouts"

    rollout: Id
    session: Id
    number: Count
    """Which of these events of the rollout it is, from 0."""
    calls: tuple[str, ...] = ()
    """Calls of the main line, after those of the events with smaller numbers."""
    forks: tuple[str, ...] = ()

    def key(self) -> str:
        return self.session


class CallStartContent(StrictModel):
    """The part of the request that its parent call did not hold already."""

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Of an endpoint without messages: each prompt as text or token ids."""


class HoldoutDraw(StrictModel):
    """Whether chance held a session out, so that the base answers it whatever is promoted."""

    share: Annotated[float, Field(gt=0, lt=1)]
    """Probability with which a session is held out."""
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
    """The longest earlier call of the session that this one extends."""
    parent_messages: Count = 0
    """How many leading messages are the parent's; the content holds the rest."""
    stream: bool = False
    sampling: dict[str, Any] = {}
    """Effective sampling parameters."""
    endpoint: Literal["chat", "completions", "messages"] = "chat"
    """Which protocol it was asked over; `messages` is Anthropic's."""
    parent_tools: bool = False
    """The tools are the parent's and not repeated in the content."""
    attribution: Attribution | None = None
    client: Name | None = None
    """Name of the key that asked; None where no keys are configured."""
    purpose: Purpose = "live"
    upstream: str | None = None
    """Which server was asked first; `CallEnded` says which one answered."""
    routed: Routed | None = None
    """Why this policy was asked; None where no route had a say."""
    shares: dict[Name, Annotated[float, Field(gt=0, lt=1)]] | None = None
    """Policy -> probability that chance chose it here, unless held out; None without a choice."""
    holdout: HoldoutDraw | None = None
    """Whether this call's draw held the session out; None without such a draw."""
    member: MemberChoice | None = None
    """The member of the panel that answered; None where the policy is no panel."""

    content: CallStartContent | None = Field(default=None, exclude=True)

    def key(self) -> str:
        return self.session


class CallEndContent(StrictModel):
    """What the model answered, one message per choice."""

    messages: tuple[Message, ...] = ()


class CallEnded(EventData):
    """A request was answered, or failed. Arrays: `prompt_token_ids`, `token_ids` (int32) and
    `logprobs` (float32), the last two of equal length; absent when the call is untrainable. They
    are of the first choice; those of choice 1 are `token_ids.1` and `logprobs.1`, and a second
    prompt's `prompt_token_ids.1`."""

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
    """HTTP status that the client got; None when it got none."""
    upstream: str | None = None
    """Which server answered; None where none did."""

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
    """An ended session cannot become a rollout: a dead letter for a person. Its calls stay with
    this end until `kintsugi dlq retry` has made the rollout."""

    TYPE: ClassVar[str] = "ClosingFailed"
    STREAM: ClassVar[str] = "rollouts"

    session: Id
    end: Id
    """Id of the `SessionEnded`."""
    rollout: Id
    """The id that its rollout has once it could be made."""
    error: Name
    """Class of the error."""
    reason: Reason
    """Why, as a sentence that quotes nothing of the session."""

    def key(self) -> str:
        return self.session


class FeedbackContent(StrictModel):
    """What a person wrote."""

    comment: str | None = None


class FeedbackReceived(EventData):
    """Somebody said how a call or session went."""

    TYPE: ClassVar[str] = "FeedbackReceived"
    STREAM: ClassVar[str] = "rollouts"
    PRIVATE: ClassVar[tuple[str, ...]] = ("tags",)

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
