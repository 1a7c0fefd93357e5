"""Tasks that an operator adds: a file of definitions, each checked like the Proposer's tasks.

A definition is a task of envs/task.py as JSON. Its id may be left out: the id ENVIRONMENT/=SHA256
follows from the rest, and a wrong id of this form is refused. A definition that equals a generated
task keeps that task's id and needs no stored body. Any other id is the file's own name and serves
only to find the task's seed. All checks of verification.py run except V8, which plays rollouts. Not
covered: a task of a gate under another id, if the environment's seeds are not its generator's.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

from pydantic import ValidationError

from daemon.proposer.candidate import (
    FIRST_HELD_OUT,
    MOST_BODY,
    Candidate,
    CandidateFacts,
    CheckFailure,
    Evaluation,
    PriorTask,
)
from daemon.proposer.verification import seed_of, verify
from envs.environment import Environment, FindBody, UnknownTask
from envs.registry import EnvironmentBroken, UnknownEnvironment
from envs.sealed_body import seal_body
from envs.task import (
    GENERATED,
    MAKER,
    TaskDefinition,
    compute_content_id,
    is_content_id,
    is_seed,
    write_body,
)
from events.learning import Check, SealedDefinition, Verified
from events.privacy.sealing import Key
from events.registry import first_problem

OpenEnvironment = Callable[[str], Environment]
"""Opens the environment that a definition names. Raises UnknownEnvironment, EnvironmentBroken."""


@dataclass(frozen=True, slots=True)
class RawDefinition:
    """One task definition of a file, as bytes that are not parsed yet."""

    position: str
    text: bytes | None
    """None if the text is longer than `MOST_BODY` bytes."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A definition that passed all checks."""

    position: str
    task: TaskDefinition
    """The task with its final id."""
    verified: tuple[Verified, ...]
    is_known: bool
    """Whether the agent or an earlier definition of the file already had this task."""
    key: Key | None = None
    """Key of the person from whose session the task was made, if any."""

    @property
    def body(self) -> dict[str, Any] | None:
        """Return the unencrypted body for the event. Return None for generated tasks, and for tasks
        made from a person's session."""
        is_open = is_content_id(self.task.id) and self.key is None
        return self.task.dump_body() if is_open else None

    @property
    def sealed(self) -> SealedDefinition | None:
        """Return the encrypted body for the event; None for a task from no person's session."""
        return None if self.key is None else seal_body(self.task, self.key)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A definition that failed a check, with the check and the reason."""

    position: str
    check: Check
    reason: str


def read_definitions(file: IO[bytes]) -> Iterator[RawDefinition]:
    """Yield a file's definitions: one JSON value, or one in each line. Raise OSError."""
    beginning = file.read(MOST_BODY + 1)
    if len(beginning) <= MOST_BODY and _is_json(beginning):
        yield RawDefinition("line 1", beginning)
        return
    for number, line in enumerate(_read_lines(BytesIO(beginning), file), start=1):
        if len(line) > MOST_BODY:
            yield RawDefinition(f"line {number}", None)
        elif line.strip():
            yield RawDefinition(f"line {number}", line)


def _read_lines(beginning: IO[bytes], file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of `beginning` and of the rest of `file`, cut after `MOST_BODY` bytes."""
    while line := beginning.readline() or file.readline(MOST_BODY + 1):
        if not line.endswith(b"\n"):
            line += file.readline(MOST_BODY + 1)
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(MOST_BODY + 1)
        yield line


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class Additions:
    """Checks definitions in turn. Each later one must also differ from those that passed."""

    def __init__(
        self,
        open_named: OpenEnvironment,
        known: Collection[str] = (),
        prior: Iterable[PriorTask] = (),
        evaluation: Evaluation | None = None,
        find_body: FindBody = lambda _: None,
        trained_in: str | None = None,
    ) -> None:
        """`known` are the ids of tasks that jobs draw, `prior` their requests. `trained_in` is the
        environment of the agent's tasks; None if no setting names it."""
        self.keys: dict[str, Key] = {}
        """Id of a task from a person's session -> the person's key. Without a key here, such a task
        is refused, since its body would be stored unencrypted."""
        self._open_named, self._trained_in = open_named, trained_in
        self._known = set(known)
        self._prior = list(prior)
        self._evaluation = evaluation
        self._find_body = find_body
        self._own: dict[str, str] = {}
        self._environments: dict[str, Environment] = {}

    def examine(self, definitions: Iterable[RawDefinition]) -> Iterator[Addition | Refusal]:
        """Yield the result for each definition: an addition or a refusal."""
        for raw in definitions:
            try:
                yield self._examine(raw)
            except _Refused as refusal:
                yield Refusal(raw.position, refusal.check, str(refusal)[:1000])

    def _examine(self, raw: RawDefinition) -> Addition:
        """Check one definition and return its addition. Raise _Refused if it fails."""
        named, fields = _parse(raw)
        environment = self._open(fields)
        try:
            # Validate it as JSON: pydantic reads a list as a tuple only there.
            unnamed = TaskDefinition.model_validate_json(
                json.dumps({**fields, "id": f"{environment.name}/="})
            )
        except ValidationError as error:
            raise _Refused("schema", f"it is no task: {first_problem(error)}") from None
        task = _name(environment, unnamed, named)
        key = self.keys.get(task.id)
        if task.salt is not None and key is None:
            raise _Refused(
                "schema",
                "it is made of a person's session, and only the command that made it can seal it; "
                f"make it again: {MAKER}",
            )
        if task.id in self._known:
            return Addition(raw.position, task, (), is_known=True, key=key)
        if is_content_id(task.id):
            self._own[task.id] = write_body(task.dump_body())
        facts = CandidateFacts(
            environment, Candidate(task, None, None), self._prior, self._evaluation
        )
        verdict = verify(facts)
        if verdict.failed is not None:
            raise _Refused(verdict.failed, verdict.reason)
        self._known.add(task.id)
        self._prior.append(PriorTask.of(task))
        return Addition(raw.position, task, verdict.passed, is_known=False, key=key)

    def _open(self, fields: Mapping[str, Any]) -> Environment:
        """Return a definition's environment, prepared to look up the bodies of this file's tasks.
        Raise _Refused."""
        name = fields.get("environment")
        if not isinstance(name, str):
            raise _Refused("schema", f"its environment is {name!r}; give the name of one")
        if self._trained_in not in (None, name):
            raise _Refused(
                "schema",
                f"it is a task of {name[:200]!r}, and the agent's are played in "
                f"{self._trained_in!r}; add it to another agent",
            )
        if name not in self._environments:
            try:
                environment = self._open_named(name)
            except (UnknownEnvironment, EnvironmentBroken) as error:
                raise _Refused("schema", str(error)) from error
            if environment.name != name:
                raise _Refused(
                    "schema", f"it is a task of {name[:200]!r}, not of {environment.name!r}"
                )
            environment.use_definitions(self._find)
            self._environments[name] = environment
        return self._environments[name]

    def _find(self, task: str) -> str | None:
        return self._own.get(task) or self._find_body(task)


class _Refused(CheckFailure):
    def __init__(self, check: Check, reason: str) -> None:
        super().__init__(reason)
        self.check: Check = check


def _parse(raw: RawDefinition) -> tuple[str | None, dict[str, Any]]:
    """Return a definition's id (None without one) and its other fields. Raise _Refused."""
    if raw.text is None:
        raise _Refused("schema", f"it is longer than {MOST_BODY:,} bytes; write a shorter task")
    try:
        fields = json.loads(raw.text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _Refused("schema", f"it is no JSON: {error}; mend it") from None
    if not isinstance(fields, dict):
        shown = raw.text[:80].decode(errors="replace").strip()
        raise _Refused(
            "schema",
            f"it is no JSON object: {shown!r}; give one definition, or one in each line",
        )
    named = fields.pop("id", None)
    if named is not None and not isinstance(named, str):
        raise _Refused("schema", f"its id is {named!r}; leave it out, for it follows from the rest")
    return named, fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _name(environment: Environment, task: TaskDefinition, named: str | None) -> TaskDefinition:
    """Return the task with its final id. Raise _Refused."""
    by_content = compute_content_id(task.dump_body())
    if named is not None and is_content_id(named) and named != by_content:
        raise _Refused("schema", f"its id is {named}, and its body is that of {by_content}")
    for generated in _find_generated(environment, task, named):
        if generated.dump_body() == task.dump_body():
            return generated
        if generated.split != GENERATED:
            raise _Refused("contamination", f"it was made from {named}, which is a benchmark's")
    seed = None if named is None else seed_of(named)
    if seed is not None and seed >= FIRST_HELD_OUT:
        raise _Refused(
            "contamination", f"it was made from {named}, whose seed is kept for reports and gates"
        )
    return task.model_copy(update={"id": by_content})


def _find_generated(
    environment: Environment, task: TaskDefinition, named: str | None
) -> Iterator[TaskDefinition]:
    """Yield the generated tasks that may equal this definition: by its id, and by capability and
    seed. Raise _Refused."""
    names = [] if named is None or is_content_id(named) else [named]
    if task.capability in environment.capabilities and is_seed(str(task.seed)):
        names.append(environment.task_id(task.capability, task.seed))
    for name in names:
        try:
            yield environment.task(name)
        except UnknownTask:
            continue
        except Exception as error:  # an environment's own code may raise anything
            raise _Refused(
                "schema", f"the environment raised {type(error).__name__}: {error}"
            ) from error
