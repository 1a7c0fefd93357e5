"""A task in executable form: the user, a perfect agent's calls, and the criteria of the verdict.

A `TaskDefinition` is plain data: it can be stored, sent and compared by its digest. The log's
`Task` (events/rollouts.py) is a part of it, which `record()` makes.

A definition that no generator makes has an id by content: ENVIRONMENT/=SHA256. The SHA-256 is that
of the body (the definition without its id), so it shows whether an id and a body belong together.
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
"""The split with the tasks that an environment generates itself."""

_SEED_DIGITS: Final = 18
"""Largest number of digits of the seed in a task's id. Any number of 18 digits fits 64 bits."""


def is_seed(text: str) -> bool:
    """Return whether a part of a task's id can be the seed of a generated task."""
    return len(text) <= _SEED_DIGITS and text.isascii() and text.isdecimal()


_CONTENT_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}/=[0-9a-f]{64}")


def is_content_id(task_id: str) -> bool:
    """Return whether a task's id is an id by content: ENVIRONMENT/=SHA256 of its body."""
    return _CONTENT_ID.fullmatch(task_id) is not None


def compute_content_id(body: Mapping[str, Any]) -> str:
    """Return the id by content for a body, which is a definition as JSON without its id. The hash
    is of `exact_json`'s bytes, so the order of keys does not matter."""
    return f"{body.get('environment')}/={sha256(exact_json(body))}"


class BadDefinition(KintsugiError):
    """A text is no task, or not the task that its id names."""


class Scenario(StrictModel):
    """A user's knowledge and wishes; the fields are tau2-bench's user instructions."""

    reason_for_call: str
    known_info: str = ""
    unknown_info: str = ""
    task_instructions: str = ""
    """Instructions on the user's behaviour, with conditions."""
    persona: str = ""

    def text(self) -> str:
        """Return one labelled paragraph for each part that is not empty."""
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
RE2 must take those of new tasks; stored tasks with others can still be played."""

Line = Annotated[str, Field(min_length=1)]


class Answer(StrictModel):
    """A scripted user's answer to each text of the agent that matches a pattern."""

    asks: Pattern
    says: Line
    once: bool = False
    """Whether it is given only once. Afterwards, later answers that match are used."""


class Script(StrictModel):
    """The lines of a scripted user. For a text of the agent the first match decides: `ends`, then
    the answers in order, then `otherwise`."""

    opening: Line
    answers: tuple[Answer, ...] = ()
    otherwise: Line = "I have nothing to add."
    ends: Pattern = ""
    """Pattern of a text after which the user hangs up. Empty: never."""
    patience: int = Field(default=3, ge=1)
    """Number of times that `otherwise` is said before the user hangs up."""

    def find_fault(self) -> str | None:
        """Return the reason why RE2 does not take one of the patterns, or None."""
        patterns = (self.ends, *(answer.asks for answer in self.answers))
        return next(filter(None, map(find_fault, patterns)), None)


class StateCall(StrictModel):
    """A call of an environment's function that no party of an episode can call."""

    name: Name
    arguments: dict[str, Any] = {}
    side: Requestor = "assistant"
    """The party to whose side the function belongs."""


class Assertion(StateCall):
    """A question about the final state that a function answers with true or false."""

    expected: bool = True


class _Sparse(StrictModel):
    """A model whose dump leaves out later added fields while they are empty. So definitions that
    were stored before these fields existed keep their digests."""

    @model_serializer(mode="wrap")
    def _omit_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        return {name: value for name, value in fields.items() if value or name not in _LATER}


_LATER: Final = frozenset(
    {"assertions", "lesson", "milestones", "prefix", "rules", "salt", "setup", "ticket"}
)
"""Fields of task definitions that the first version of the format lacked."""


class Source(StrictModel):
    """A record from which an output is read: fields of an object in the result of a call."""

    identity: dict[str, Any]
    """Names and values of the fields that identify the record."""
    fields: tuple[Name, ...] = ()
    """Other fields that the object must have, with any value."""

    @classmethod
    def of(cls, record: Mapping[str, Any], identity: str, *fields: str) -> "Source":
        """Return the source for a record, from its fields `identity` and `fields`. Raise KeyError
        for a missing field."""
        for name in fields:
            record[name]
        return cls(identity={identity: record[identity]}, fields=fields)


class Rules(StrictModel):
    """Rules of a verdict beyond tau2-bench's (grading.py). Generated tasks have them. Loaded tasks
    never do, so that their verdicts stay those of their benchmark."""

    sources: tuple[tuple[Source, ...], ...] = ()
    """For each output, the records that must be read before the agent says it (evidence.py). An
    output without an entry, or with an empty one, has no such condition."""


class Criteria(_Sparse):
    """The criteria by which a task's rollouts are judged."""

    gold_actions: tuple[Action, ...] | None = None
    """The calls of a perfect agent, in order. (): it must change nothing. None: unknown."""
    outputs: tuple[str, ...] = ()
    """Texts that the agent must say, each inside one of its messages."""
    nl_assertions: tuple[str, ...] = ()
    reward_basis: tuple[Basis, ...] = ("DB", "COMMUNICATE")
    assertions: tuple[Assertion, ...] = ()
    """Assertions about the final state, for the part ENV_ASSERTION."""
    milestones: Milestones | None = None
    """Milestones for the part MILESTONES."""
    rules: Rules | None = None
    """None: tau2-bench's rules apply alone."""


def signature(gold: Sequence[Action]) -> str:
    """Return a digest of a perfect agent's calls, in order: 16 hexadecimal digits."""
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
"""Operators that put a wrong call into a right trajectory."""

MAKER: Final = "kintsugi lessons make"
"""The command that makes tasks from persons' sessions and seals them (sealed_body.py)."""

Split = Literal["train", "test"]


def find_split(source: str) -> Split:
    """Return the split of tasks made from a source task: `test` for a sixth of the sources."""
    return "test" if int(sha256(source), 16) % 6 == 0 else "train"


class Lesson(StrictModel):
    """The expected next message in a task whose prefix ends with a wrong call."""

    operator: Operator
    reflection: Annotated[str, Field(min_length=1)]
    """Description of the mistake in one or two sentences, without tags."""
    calls: tuple[Action, ...] = ()
    """The calls of the expected message. (): it has to speak first."""
    final: str = ""
    """The text of the expected message, beside its calls."""
    source: Id
    """Id of the task in whose trajectory the wrong call is."""
    rollout: Id | None = None
    """Id of the recorded rollout with the wrong call. None if an operator made the call."""


def describe_origin(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of a definition that tells the origin of the wrong call in its prefix:
    operator, task and rollout. `find_operator` reads it."""
    return {"lesson": origin}


def find_operator(definition: Mapping[str, Any]) -> str | None:
    """Return the operator that made the wrong call in a definition's prefix, or None if it names
    none. The definition may come from another version, so it may be any JSON."""
    lesson = definition.get("lesson")
    operator = lesson.get("operator") if isinstance(lesson, dict) else None
    return operator if isinstance(operator, str) else None


class Kind(NamedTuple, Generic[C, P]):
    """A kind of generated task: its demand, and a function that draws its tasks."""

    demands: str
    plan: Callable[[C], P]
    """Draws the user's wish and a perfect agent's calls, from a case."""


class TaskDefinition(_Sparse):
    """A task that an environment can execute."""

    id: Id
    environment: Name
    capability: Name
    """The environment's label for this kind of task."""
    split: Name = GENERATED
    seed: Int64 = 0
    """Seed of the generated database. It has no meaning for a loaded task."""
    scenario: Scenario
    script: Script | None = None
    """None: the scripted user improvises from the scenario (users.py)."""
    criteria: Criteria
    setup: tuple[StateCall, ...] = ()
    """Calls that turn the environment's pristine state into this task's first state."""
    ticket: str | None = None
    """The written request for an agent that works alone, with the tools of both parties and no
    user. None if there is a user."""
    prefix: tuple[Message, ...] = ()
    """The conversation before the episode, without system prompt and greeting: messages, calls and
    results. The calls are made again at the start of every episode (episode.py)."""
    lesson: Lesson | None = None
    """The expected message after a prefix that ends with a wrong call."""
    salt: str | None = None
    """Keyed digest in a task that is made from a person's session; None in other tasks. Without the
    key, nobody can test a guess of the body by the id (sealed_body.py)."""

    @property
    def operator(self) -> Operator | None:
        """The operator that made the wrong call at the prefix's end. None without a lesson."""
        return None if self.lesson is None else self.lesson.operator

    @property
    def source(self) -> str:
        """Id of the task that the prefix's conversation is about; without a lesson, its own id."""
        return self.id if self.lesson is None else self.lesson.source

    @property
    def source_rollout(self) -> str | None:
        """Id of the rollout in which the prefix was recorded, or None."""
        return None if self.lesson is None else self.lesson.rollout

    @property
    def first_aside(self) -> str | None:
        """The expected aside in the agent's first message, or None."""
        return None if self.lesson is None else self.lesson.reflection

    @property
    def solo(self) -> bool:
        """Whether the agent works alone."""
        return self.ticket is not None

    def make_solo(self, task_id: str, ticket: str) -> "TaskDefinition":
        """Return the task for an agent that works alone. All its gold actions are the agent's."""
        gold = self.criteria.gold_actions
        if gold is not None:
            gold = tuple(action.model_copy(update={"requestor": "assistant"}) for action in gold)
        criteria = self.criteria.model_copy(update={"gold_actions": gold})
        return self.model_copy(update={"id": task_id, "ticket": ticket, "criteria": criteria})

    def digest(self) -> str:
        """Return the SHA-256 of the whole definition, which differs between versions of a task."""
        return sha256(exact_json(self.model_dump(mode="json")))

    def dump_body(self) -> dict[str, Any]:
        """Return the body: the definition as JSON without its id, whose SHA-256 is the id by
        content. Later added fields are left out while they are empty, so that the id stays."""
        return self.model_dump(mode="json", exclude={"id"})

    def name_by_content(self) -> "TaskDefinition":
        """Return the same task with the id by content."""
        return self.model_copy(update={"id": compute_content_id(self.dump_body())})

    @property
    def signature(self) -> str | None:
        """Digest that is equal for tasks with equal gold actions. None if these are unknown."""
        gold = self.criteria.gold_actions
        return None if gold is None else signature(gold)

    def record(self) -> Task:
        """Return the task as rollouts store it: without content if made from a person's session."""
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
    """Return a body as text to store: ASCII, keys in their order, because a policy sees calls'
    arguments in that order. Parsing it gives a body with the same hash (compute_content_id)."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False)


def has_nul(body: Mapping[str, Any]) -> bool:
    """Return whether a body has the character NUL, which no database table can store."""
    # With escaped backslashes removed, each remaining `\\u0000` is an escaped NUL.
    return "\\u0000" in write_body(body).replace("\\\\", "")


def read_body(task_id: str, text: str) -> TaskDefinition:
    """Return the task from the text of its body. Raise BadDefinition if the text is no body, has
    another id by content, or is no task of this version."""
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
