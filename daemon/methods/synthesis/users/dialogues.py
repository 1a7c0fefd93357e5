"""Choose recorded dialogues for a job that trains a user's model, beside the oracle's dialogues.

A dialogue is a simulated rollout that passed its task, whose messages the log has unencrypted, and
whose user has no fault by rule (envs/evidence/user_faults.py), whichever model played it. It is the
newest of its task, whose seed is not reserved for reports or gates. Tasks of benchmarks, and
lessons whose source is kept for tests, reports or gates, are left out: their ids do not show it. A
spec names the rollouts as successes of a pool, and the file's sha256 as `dialogues` and as that of
its successes. The file follows from the log alone. Persons' sessions are left out and counted:
their words would stand unencrypted in the job's folder.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from consumers.reads.evidence import PassedRollout, list_dialogue_successes, list_dialogue_tasks
from consumers.reads.rollouts import rollout_row
from daemon.jobs.own_successes import NotShown, read_event
from daemon.methods.synthesis.user_training.dialogue_file import DialogueRecord, write_dialogues
from daemon.proposer.candidate import is_evaluation_seed
from daemon.proposer.verification import seed_of
from envs.environment import Environment, UnknownTask
from envs.evaluation import environment_code
from envs.evidence.user_faults import find_user_fault
from envs.task import GENERATED, TaskDefinition, find_split
from events.rollouts import RolloutEnded

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

PERSON: Final = "a person's"
UNREADABLE: Final = "unreadable"
FAULT: Final = "a fault of its user"
FOR_TESTS: Final = "of a task that is kept for tests"
"""Reasons why a rollout is left out."""


@dataclass(frozen=True, slots=True)
class DialogueOffer:
    """The recorded dialogues that a job can learn from, and the reasons why others are left out."""

    rollouts: tuple[str, ...]
    sha256: str | None
    """Sha256 of the file with the dialogues; None without dialogues."""
    left_out: Mapping[str, int]
    """Reason -> number of rollouts that are left out."""


def choose_dialogues(
    connection: "Connection", alias: str, environment: str
) -> tuple[PassedRollout, ...]:
    """Return an agent's dialogues in an environment: the newest one of each task, newest first."""
    newest: dict[str, PassedRollout] = {}
    for dialogue in list_dialogue_successes(connection, alias, environment):
        if dialogue.task not in newest and may_teach(dialogue.task):
            newest[dialogue.task] = dialogue
    return tuple(newest.values())


def count_dialogues(connection: "Connection", alias: str, environment: str) -> int:
    """Return the number of dialogues that `choose_dialogues` returns."""
    tasks = list_dialogue_tasks(connection, alias, environment)
    return sum(map(may_teach, tasks))


def may_teach(task: str) -> bool:
    """Return whether a job may learn from a task: its seed is not reserved for reports or gates."""
    return not is_evaluation_seed(seed_of(task))


def offer_dialogues(
    app: "App", environment: Environment, passed: Iterable[PassedRollout], most: int
) -> DialogueOffer:
    """Return the first `most` usable rollouts. Raise EnvironmentFailure, BlobUnavailable."""
    shown: list[DialogueRecord] = []
    left_out: Counter[str] = Counter()
    for rollout in passed:
        if len(shown) == most:
            break
        try:
            dialogue = _read_dialogue(app, rollout)
        except NotShown as error:
            left_out[PERSON if error.sealed else UNREADABLE] += 1
            continue
        if problem := _find_problem(environment, dialogue):
            left_out[problem] += 1
        else:
            shown.append(dialogue)
    if not shown:
        return DialogueOffer((), None, left_out)
    names = tuple(sorted(dialogue.rollout for dialogue in shown))
    return DialogueOffer(names, sha256(write_dialogues(shown)).hexdigest(), left_out)


def read_dialogues(
    app: "App", connection: "Connection", rollouts: Sequence[str]
) -> list[DialogueRecord]:
    """Return the dialogues of these rollouts. Raise NotShown if one is lost or trimmed."""
    dialogues = []
    for name in dict.fromkeys(rollouts):
        row = rollout_row(connection, name)
        if row is None or row.line.task is None:
            raise NotShown(f"rollout {name} is not in the tables; kintsugi rebuild folds the log")
        passed = PassedRollout(name, row.line.task, row.partition, row.offset)
        dialogues.append(_read_dialogue(app, passed))
    return dialogues


def _read_dialogue(app: "App", passed: PassedRollout) -> DialogueRecord:
    """Return a rollout's dialogue from its event. Raise NotShown."""
    name = passed.rollout
    data = read_event(app, name, passed.partition, passed.offset, arrays=False).event.data
    if not isinstance(data, RolloutEnded) or data.rollout != name or not data.success:
        raise NotShown(f"rollout {name} is not where the tables say; kintsugi rebuild repairs them")
    if data.content is None or not data.content.messages:
        raise NotShown(f"the log has no messages of rollout {name}")
    spoken = tuple(message for message in data.content.messages if message.role != "system")
    return DialogueRecord(rollout=name, task=passed.task, policy=data.policy, messages=spoken)


def _find_problem(environment: Environment, dialogue: DialogueRecord) -> str | None:
    """Return why a dialogue is not usable, or None. With an unknown task it counts as faulty."""
    try:
        with environment_code(environment, f"task {dialogue.task}"):
            task = environment.task(dialogue.task)
            if task.salt is not None:
                return PERSON
            if _is_for_tests(task):
                return FOR_TESTS
            has_fault = find_user_fault(environment, task, dialogue.messages) is not None
    except UnknownTask:
        return FAULT
    return FAULT if has_fault else None


def _is_for_tests(task: TaskDefinition) -> bool:
    """Return whether a task is a benchmark's, or a lesson kept for tests, reports or gates."""
    if task.split != GENERATED or task.source == task.id:
        return task.split != GENERATED
    return find_split(task.source) == "test" or is_evaluation_seed(seed_of(task.source))
