"""The sources of lessons: recorded rollouts in which a call failed, and fresh tasks.

    reader = RecordingReader(app, alias, environment, "train")
    report = make_lessons(environment, draw_sources(environment, "train", seed, 200), 100, seed,
                          recordings=reader.read())
    reader.left_out          reason -> unused rollouts
    sealed = seal_lessons(report.lessons, reader.keys)    persons' lessons get salted ids

Live and training rollouts are used if the environment knows their task. These are left out and
counted: sessions without a task; persons' sessions that were recorded unencrypted or whose key is
missing; tasks that were changed since, come from a person's session, or were used to evaluate
policies, also in a gate. Fresh tasks have seeds that no report and no gate draws
(docs/proposing.md). A lesson from a person's encrypted rollout has to be encrypted with the same
key, from `keys`; a salted task can be written in no other way (task_buffer.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from consumers.reads import evidence
from consumers.reads.rollouts import rollout_row
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED, is_evaluation_seed
from daemon.proposer.verification import seed_of
from daemon.sessions.transcript import Transcript, is_sealed, read
from envs.environment import Environment, UnknownTask
from envs.lessons.trajectories import Trajectory, count_greeting
from envs.registry import EnvironmentBroken
from envs.sealed_body import salt_task
from envs.task import GENERATED, Split, TaskDefinition, find_split, signature
from events.errors import BlobError, BlobUnavailable, KintsugiError, LogTruncated
from events.messages import Message
from events.privacy.sealing import Key, KeyMissing

if TYPE_CHECKING:
    from daemon.core.app import App

MOST_RECORDINGS: Final = 10_000
"""Most rollouts that are read; the newest are read first."""

NO_TASK: Final = "it names no task, so it cannot be executed"
PERSON: Final = "it is a person's, and jobs practise no sealed lesson"
UNSEALED: Final = "it is a person's, and was recorded unsealed"
KEY_LOST: Final = "the key of its person is not in the key store"
ERASED: Final = "its person was erased"
SEALED_TASK: Final = "its task is made of a person's session"
UNKNOWN_TASK: Final = "its environment does not know the task"
CHANGED_TASK: Final = "its task was changed since"
TRIMMED: Final = "the log no longer has it"
BLOB_LOST: Final = "what was said in it is lost"
EVALUATED: Final = "policies are evaluated on its task"
OTHER_SPLIT: Final = "its task is of the other split"
OTHER_ENVIRONMENT: Final = "its task is of another environment"


class RecordingReader:
    """Reads an agent's recorded rollouts in which a call failed, newest first."""

    def __init__(
        self,
        app: "App",
        alias: str,
        environment: Environment,
        split: Split,
        *,
        persons: bool = True,
    ) -> None:
        """`persons` tells whether persons' rollouts are read; their lessons must be encrypted."""
        self._app = app
        self._alias = alias
        self._environment = environment
        self._split = split
        self._persons = persons
        self.left_out: Counter[str] = Counter()
        """Reason -> number of rollouts that were left out for it."""
        self.keys: dict[str, Key] = {}
        """A person's rollout that was read -> the key that encrypts lessons made of it."""

    def read(self, among: Sequence[str] | None = None) -> Iterator[Trajectory]:
        """Yield the conversations of all rollouts, or only of those in `among`. Raise LogError,
        BlobUnavailable, DatabaseUnavailable, KeysUnavailable, EnvironmentBroken."""
        with self._app.reading() as connection:
            rollouts = evidence.read_error_rollouts(connection, self._alias, MOST_RECORDINGS, among)
            evaluated = {
                signature(actions)
                for actions in evidence.read_evaluated_tasks(connection, self._alias)
            }
        for rollout in rollouts:
            recording = self._read_rollout(rollout.rollout, rollout.task, evaluated)
            if isinstance(recording, str):
                self.left_out[recording] += 1
            elif recording is not None:
                yield recording

    def _read_rollout(
        self, rollout: str, name: str | None, evaluated: set[str]
    ) -> Trajectory | str | None:
        """Return the conversation of a rollout of the task `name`, or why it is not used; None
        while the tables are rebuilt."""
        task = self._find_task(name, evaluated)
        if isinstance(task, str):
            return task
        with self._app.reading() as connection:
            row = rollout_row(connection, rollout)
        if row is None:
            return None
        try:
            if not self._persons and is_sealed(row, self._app.readable_log):
                return PERSON
            transcript = read(row, self._app.readable_log, self._app.bodies)
            reason = _find_objection(transcript, task)
            if reason is not None:
                return reason
            if transcript.keyid is not None:
                # It may have been destroyed since the conversation was opened.
                key = self._app.find_key(transcript.keyid)
                if key is None:
                    return ERASED
                self.keys[rollout] = key
        except LogTruncated:
            return TRIMMED
        except KeyMissing:
            return KEY_LOST
        except BlobUnavailable:
            raise
        except BlobError:
            return BLOB_LOST
        return Trajectory(task, trim(self._environment, task, transcript.messages), rollout)

    def _find_task(self, name: str | None, evaluated: set[str]) -> TaskDefinition | str:
        """Return the task with this id, or the reason why its rollouts are not used."""
        if name is None:
            return NO_TASK
        if name.partition("/")[0] != self._environment.name:
            return OTHER_ENVIRONMENT
        try:
            task = _call(self._environment, self._environment.task, name)
        except UnknownTask:
            return UNKNOWN_TASK
        if task.salt is not None:
            return SEALED_TASK
        source = task.source
        if (
            is_evaluation_seed(seed_of(source))
            or task.split != GENERATED
            or task.signature in evaluated
        ):
            return EVALUATED
        if find_split(source) != self._split:
            return OTHER_SPLIT
        return task


def _find_objection(transcript: Transcript, task: TaskDefinition) -> str | None:
    if transcript.erased:
        return ERASED
    if transcript.person is not None and transcript.keyid is None:
        return UNSEALED
    recorded = transcript.data.task
    if recorded is not None and recorded.definition not in (None, task.digest()):
        return CHANGED_TASK
    return None


def seal_lessons(
    lessons: Sequence[TaskDefinition], keys: Mapping[str, Key]
) -> dict[str, tuple[TaskDefinition, Key | None]]:
    """Return id -> lesson and its encryption key (None for an open lesson), in order. `keys` is
    rollout of a person -> key. A person's lesson gets a salt, and so a new id."""
    sealed: dict[str, tuple[TaskDefinition, Key | None]] = {}
    for task in lessons:
        rollout = task.source_rollout
        key = None if rollout is None else keys.get(rollout)
        owned = task if key is None else salt_task(task, key)
        sealed[owned.id] = owned, key
    return sealed


def trim(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> tuple[Message, ...]:
    """Return a recorded conversation without system prompts and the agent's greeting."""
    spoken = [message for message in messages if message.role not in ("system", "developer")]
    greeted = count_greeting(environment, task) and spoken and spoken[0].role == "assistant"
    return tuple(spoken[1:] if greeted else spoken)


def _call(
    environment: Environment, make: Callable[..., TaskDefinition], *arguments: Any
) -> TaskDefinition:
    """Call `make`, a method that makes tasks. Raise UnknownTask, EnvironmentBroken."""
    try:
        return make(*arguments)
    except KintsugiError:
        raise
    except Exception as error:  # an environment's own code may raise anything
        raise EnvironmentBroken(
            f"environment {environment.name} raised {type(error).__name__}: {error}; mend its code"
        ) from error


def draw_sources(
    environment: Environment, split: Split, seed: int, most: int
) -> Iterator[TaskDefinition]:
    """Yield at most `most` fresh tasks of a split, kinds in turn. Raise EnvironmentBroken."""
    chance = Random(f"sources of lessons {environment.name} {seed}")
    capabilities = list(environment.capabilities)
    drawn = 0
    while capabilities and drawn < most:
        capability = capabilities[drawn % len(capabilities)]
        number = chance.randint(FIRST_SEED, LAST_SEED)
        if find_split(environment.task_id(capability, number)) == split:
            drawn += 1
            yield _call(environment, environment.generate, capability, number)
