"""A task as an environment can execute it: who calls, what a perfect agent does, how it is judged.

A `TaskDefinition` is plain data: it can be stored, sent and compared by its digest. The log's
`Task` (events/rollouts.py) is a part of it, which `record()` makes.

A definition that no generator makes is named by its content: ENVIRONMENT/=SHA256. The sha256 is of
the body, the definition without its id, so it shows whether an id and a body belong together.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from envs.milestones.graph import Milestones
from envs.patterns.search import find_fault
from events.canonical import canonical_json, exact_json, sha256
from events.errors import KintsugiError
from events.messages import Action, Message, Requestor, StrictModel
from events.registry import first_problem
from events.rollouts import Id, Int64, Name, Task

C = TypeVar("C")
P = TypeVar("P")

Basis = Literal[
    "DB",
    "COMMUNICATE",
    "ACTION",
    "POLICY",
    "TURNS",
    "ABSTENTION",
    "MILESTONES",
    "ENV_ASSERTION",
    "NL_ASSERTION",
]
"""The factors of a reward. TURNS and ABSTENTION are BFCL's, MILESTONES is ToolSandbox's,
POLICY is ours, the others are tau2-bench's.

DB             the database is as the gold actions leave it
COMMUNICATE    every output was said by the agent
ACTION         every gold action was called
POLICY         the environment found no violation of its policy in the transcript
TURNS          after each turn of the user, state and results are what the gold actions make them
ABSTENTION     no call in a turn that cannot be fulfilled
ENV_ASSERTION  every assertion of the task holds in the state that the calls leave
MILESTONES     how far the milestones were reached, between 0 and 1; 0 where a minefield was
NL_ASSERTION   needs a judge: never evaluated, unless there is nothing to assert
"""

GENERATED: Final = "generated"
"""The split of the tasks that an environment writes itself."""

_SEED_DIGITS: Final = 18
"""Most digits of the seed in a task's id: any number of 18 digits fits 64 bits."""


def is_seed(text: str) -> bool:
    """Return whether a part of a task's id is the seed of a generated one."""
    return len(text) <= _SEED_DIGITS and text.isascii() and text.isdecimal()


_CONTENT_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}/=[0-9a-f]{64}")


def is_content_id(task_id: str) -> bool:
    """Return whether an id names a task by the sha256 of its body: ENVIRONMENT/=SHA256."""
    return _CONTENT_ID.fullmatch(task_id) is not None


def compute_content_id(body: Mapping[str, Any]) -> str:
    """Return the id of the task with this body, which is a definition as JSON without its id. The
    bytes that are hashed are `exact_json`'s, so the order of keys is no part of it."""
    return f"{body.get('environment')}/={sha256(exact_json(body))}"


class BadDefinition(KintsugiError):
    """A body that is no task, or not the task of its id."""


class Scenario(StrictModel):
    """A user's knowledge and wishes; the fields are tau2-bench's user instructions."""

    reason_for_call: str
    known_info: str = ""
    unknown_info: str = ""
    task_instructions: str = ""
    """How to behave, conditions included."""
    persona: str = ""

    def text(self) -> str:
        """Return one labelled paragraph per part that is not empty."""
        return "\n".join(
            f"{name.replace('_', ' ').capitalize()}: {value}"
            for name, value in self.model_dump().items()
            if value
        )


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern[:80]!r} is no regular expression: {error}; mend it") from error
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression, searched in the agent's text without regard to case (patterns/search.py).
New tasks may have what RE2 takes; others are played where they are stored."""

Line = Annotated[str, Field(min_length=1)]


class Answer(StrictModel):
    """The answer of a scripted user to a text of the agent that matches."""

    asks: Pattern
    says: Line
    once: bool = False
    """Whether it is given at most once; later answers get their turn afterwards."""


class Script(StrictModel):
    """The lines of a scripted user. Of the agent's text, the first that matches counts:
    `ends`, then the answers in order, then `otherwise`."""

    opening: Line
    answers: tuple[Answer, ...] = ()
    otherwise: Line = "I have nothing to add."
    ends: Pattern = ""
    """The agent is done and the user hangs up. Empty: never."""
    patience: int = Field(default=3, ge=1)
    """How often `otherwise` is said; then the user hangs up."""

    def find_fault(self) -> str | None:
        """Return why RE2 does not take one of the patterns; None where it takes all."""
        patterns = (self.ends, *(answer.asks for answer in self.answers))
        return next(filter(None, map(find_fault, patterns)), None)


class StateCall(StrictModel):
    """A call of a function of the environment that no party of an episode can make."""

    name: Name
    arguments: dict[str, Any] = {}
    side: Requestor = "assistant"
    """Party whose tools have the function."""


class Assertion(StateCall):
    """A question about the final state; the function answers it with true or false."""

    expected: bool = True


class _Sparse(StrictModel):
    """A model that leaves out fields which were added later and are empty, so that what was stored
    before keeps its digest."""

    @model_serializer(mode="wrap")
    def _omit_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if value or name not in _LATER}


_LATER: Final = frozenset(
    {"assertions", "lesson", "milestones", "prefix", "rules", "salt", "setup", "ticket"}
)
"""Fields of task definitions that the first version of the format did not have."""


class Source(StrictModel):
    """A record that an output is read from, as fields of an object in the result of a call."""

    identity: dict[str, Any]
    """Names and values of the fields that tell the record from others."""
    fields: tuple[Name, ...] = ()
    """Other fields that the object must have, whatever their values are."""

    @classmethod
    def of(cls, record: Mapping[str, Any], identity: str, *fields: str) -> "Source":
        """Return the source with a record's `identity` and `fields`. Raise KeyError if one is
        missing."""
        for name in fields:
            record[name]
        return cls(identity={identity: record[identity]}, fields=fields)


class Rules(StrictModel):
    """Rules that a verdict keeps beyond tau2-bench's (grading.py). Generated tasks have them,
    loaded ones never: their verdicts stay those of their benchmark."""

    sources: tuple[tuple[Source, ...], ...] = ()
    """For each output, the records that must be read before the agent says it (evidence.py). An
    output without an entry, or with an empty one, needs none."""


class Criteria(_Sparse):
    """How a rollout of a task is judged."""

    gold_actions: tuple[Action, ...] | None = None
    """The calls of a perfect agent, in order; () when it must change nothing; None: unknown."""
    outputs: tuple[str, ...] = ()
    """Texts that the agent must say, each as a part of one of its messages."""
    nl_assertions: tuple[str, ...] = ()
    reward_basis: tuple[Basis, ...] = ("DB", "COMMUNICATE")
    assertions: tuple[Assertion, ...] = ()
    """Assertions of ENV_ASSERTION about the final state."""
    milestones: Milestones | None = None
    """Milestones that MILESTONES measures."""
    rules: Rules | None = None
    """None: the rules of the first version of grading."""


def signature(gold: Sequence[Action]) -> str:
    """Return the digest of a perfect agent's calls, in order: 16 hexadecimal digits."""
    called = [(action.requestor, action.name, action.arguments) for action in gold]
    return sha256(canonical_json(called))[:16]


Operator = Literal["recorded", "swap", "redundant", "missing", "argument"]
"""How the call at the end of a lesson's prefix came to be wrong.

recorded   an agent made it; the others change a trajectory that was right
swap       the next call instead of the one that it depends on
redundant  the same call twice
missing    a call without the one that it needs before it, or another tool in that one's place
argument   the right tool with a wrong argument
"""


PERTURBATIONS: Final[tuple[Operator, ...]] = ("argument", "redundant", "swap", "missing")
"""Operators that change a trajectory."""

MAKER: Final = "kintsugi lessons make"
"""The command that makes tasks of persons' sessions and seals them (sealed_body.py)."""

Split = Literal["train", "test"]


def find_split(source: str) -> Split:
    """Return the split of what is made of a source task: a sixth of the sources is for tests."""
    return "test" if int(sha256(source), 16) % 6 == 0 else "train"


class Lesson(StrictModel):
    """A right agent's next message in a task whose prefix ends with a call that went wrong."""

    operator: Operator
    reflection: Annotated[str, Field(min_length=1)]
    """Description of the mistake in a sentence or two, without tags."""
    calls: tuple[Action, ...] = ()
    """The calls of its next message; () where it has to speak first."""
    final: str = ""
    """The text of that message beside the calls."""
    source: Id
    """Task that the trajectory is of."""
    rollout: Id | None = None
    """Rollout in which the call was made; None for a call that an operator put in."""


def describe_origin(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of a definition that says how the call at the end of its prefix came to be
    wrong, in which task and in which rollout; `find_operator` reads it."""
    return {"lesson": origin}


def find_operator(definition: Mapping[str, Any]) -> str | None:
    """Return how the call at the end of a definition's prefix came to be wrong; None where it does
    not say. A definition may have been written by another version, and is any JSON."""
    lesson = definition.get("lesson")
    operator = lesson.get("operator") if isinstance(lesson, dict) else None
    return operator if isinstance(operator, str) else None


class Kind(NamedTuple, Generic[C, P]):
    """A kind of generated task."""

    demands: str
    plan: Callable[[C], P]
    """Draws what the user wants and what a perfect agent does, from a case."""


class TaskDefinition(_Sparse):
    """A task that can be executed."""

    id: Id
    environment: Name
    capability: Name
    """The environment's label of this kind of task."""
    split: Name = GENERATED
    seed: Int64 = 0
    """Seed of the generated database; no meaning for a task that was loaded."""
    scenario: Scenario
    script: Script | None = None
    """None: the scripted user improvises from the scenario (users.py)."""
    criteria: Criteria
    setup: tuple[StateCall, ...] = ()
    """Calls that turn the environment's pristine state into the one in which the task begins."""
    ticket: str | None = None
    """The request in writing, for an agent that works alone: it has the tools of both parties and
    no user answers. None: there is a user."""
    prefix: tuple[Message, ...] = ()
    """The conversation before the episode, without system prompt and greeting: messages, calls and
    results. The calls are made again at the start of every episode (episode.py)."""
    lesson: Lesson | None = None
    """Expected reaction to a prefix that ends with a call that went wrong."""
    salt: str | None = None
    """Keyed digest in a task that is made of a person's session: without the key, nobody can test a
    guess of the body against the id (sealed_body.py). None in any other."""

    @property
    def operator(self) -> Operator | None:
        """How the call at the end of its prefix came to be wrong; None where none is."""
        return None if self.lesson is None else self.lesson.operator

    @property
    def source(self) -> str:
        """The task that the prefix is a conversation about; the task itself without one."""
        return self.id if self.lesson is None else self.lesson.source

    @property
    def source_rollout(self) -> str | None:
        """The rollout that the prefix was recorded in; None where it was not."""
        return None if self.lesson is None else self.lesson.rollout

    @property
    def first_aside(self) -> str | None:
        """The aside of a right agent's first message; None where none is expected."""
        return None if self.lesson is None else self.lesson.reflection

    @property
    def solo(self) -> bool:
        """Whether the agent works alone."""
        return self.ticket is not None

    def make_solo(self, task_id: str, ticket: str) -> "TaskDefinition":
        """Return the task for an agent that works alone: every gold action is the agent's then."""
        gold = self.criteria.gold_actions
        if gold is not None:
            gold = tuple(action.model_copy(update={"requestor": "assistant"}) for action in gold)
        criteria = self.criteria.model_copy(update={"gold_actions": gold})
        return self.model_copy(update={"id": task_id, "ticket": ticket, "criteria": criteria})

    def digest(self) -> str:
        """Return sha256 of the whole definition: tells two versions of a task apart."""
        return sha256(exact_json(self.model_dump(mode="json")))

    def dump_body(self) -> dict[str, Any]:
        """Return the definition as JSON without its id: what the id of a task by content is the
        sha256 of. Fields that came later are left out while they are empty, so it keeps its id."""
        return self.model_dump(mode="json", exclude={"id"})

    def name_by_content(self) -> "TaskDefinition":
        """Return the same task under the id that follows from its body."""
        return self.model_copy(update={"id": compute_content_id(self.dump_body())})

    @property
    def signature(self) -> str | None:
        """Digest that is equal for tasks with the same calls; None where the calls are unknown."""
        gold = self.criteria.gold_actions
        return None if gold is None else signature(gold)

    def record(self) -> Task:
        """Return the task for rollouts; name and kind alone if it is of a person's session."""
        if self.salt is not None:
            return Task(id=self.id, environment=self.environment, capability=self.capability)
        return Task(
            id=self.id,
            environment=self.environment,
            capability=self.capability,
            instruction=self.scenario.text(),
            gold_actions=self.criteria.gold_actions,
            outputs=self.criteria.outputs,
            reward_basis=self.criteria.reward_basis,
            definition=self.digest(),
        )


def write_body(body: Mapping[str, Any]) -> str:
    """Return a body as stored text: ASCII, keys in their order, because a policy sees the arguments
    of calls in that order. It reads back as a body with the same hash (compute_content_id)."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def has_nul(body: Mapping[str, Any]) -> bool:
    """Return whether a body has the character NUL, which no table holds."""
    # Without escaped backslashes, each such escape that is left is one of NUL.
    return "\\u0000" in write_body(body).replace("\\\\", "")


def read_body(task_id: str, text: str) -> TaskDefinition:
    """Return the task of an id by content, from the text of its body. Raise BadDefinition where
    the text is no body, hashes to another id, or is no task of this version."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadDefinition(f"the body of task {task_id} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadDefinition(f"the body of task {task_id} is no JSON object: {text[:80]!r}")
    if (actual := compute_content_id(body)) != task_id:
        raise BadDefinition(f"the body of task {task_id} is that of {actual}: it was changed")
    try:
        return TaskDefinition.model_validate_json(json.dumps({**body, "id": task_id}))
    except ValidationError as error:
        raise BadDefinition(
            f"the body of task {task_id} is no task of this version: {first_problem(error)}"
        ) from None
