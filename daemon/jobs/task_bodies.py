"""The bodies of the tasks by content that a job or a trial plays, from the tables to its folder.
The spec names a task by the hash of its body: 640 bodies exceed a record of Kafka. An event rejects
a task without body; the job continues without it (daemon/solver/spec.py, drop_tasks). A task whose
key is missing, though its person was not erased, is only withheld: a backup may bring the key
back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.folds.task_states import ERASED, REJECTED
from consumers.reads.learning import JobRow, read_inactive_tasks, read_task_body
from daemon.core.decision_log import Decisions
from daemon.core.task_definitions import read_open_body
from envs.environment import UnknownTask
from envs.sealed_body import find_seal
from envs.task import BadDefinition, is_content_id, read_body
from events.envelope import derive_id
from events.learning import Decision, TaskRejected
from events.privacy.sealing import Key, KeyMissing
from events.rollouts import clip_reason

if TYPE_CHECKING:
    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class TaskBodies:
    """The bodies of some tasks by content."""

    found: Mapping[str, str]
    """Task -> text of its body; for a person's task, its ciphertext."""
    missing: Mapping[str, str]
    """Task -> reason why it has no body."""
    withheld: Sequence[str]
    """Persons' tasks that were left out because sealed bodies were not asked for."""
    locked: Mapping[str, str]
    """Task -> why its key is missing, though its person was not erased."""


@dataclass(frozen=True, slots=True)
class TaskKeys:
    """The keys of some sealed bodies."""

    found: tuple[Key, ...]
    """The keys, in the order of their ids."""
    erased: Mapping[str, str]
    """Task -> sentence which says that its person was erased."""
    locked: Mapping[str, str]
    """Task -> why its key is missing, though its person was not erased."""


def collect_bodies(app: "App", tasks: Iterable[str], *, sealed: bool = False) -> TaskBodies:
    """Return the bodies of those `tasks` that are named by content. With `sealed`, include persons'
    bodies. Raises DatabaseUnavailable, KeysUnavailable."""
    bodies: dict[str, str] = {}
    missing: dict[str, str] = {}
    withheld: list[str] = []
    locked: dict[str, str] = {}
    with app.reading() as connection:
        for task in filter(is_content_id, tasks):
            stored = read_task_body(connection, task)
            if stored is None:
                missing[task] = f"no event has brought the body of task {task}"
                continue
            if not sealed and find_seal(stored) is not None:
                withheld.append(task)
                continue
            try:
                read_body(task, read_open_body(app, connection, task) or "")
            except (BadDefinition, UnknownTask) as error:
                is_locked = isinstance(error.__cause__, KeyMissing)
                (locked if is_locked else missing)[task] = str(error)
            else:
                bodies[task] = stored
    return TaskBodies(bodies, missing, withheld, locked)


def collect_keys(app: "App", bodies: Mapping[str, str]) -> TaskKeys:
    """Return the keys of these bodies. Raises DatabaseUnavailable, KeysUnavailable."""
    keys: dict[str, Key] = {}
    erased: dict[str, str] = {}
    locked: dict[str, str] = {}
    for task, text in bodies.items():
        keyid = find_seal(text)
        if keyid is None:
            continue
        try:
            key = app.find_key(keyid)
        except KeyMissing as error:
            locked[task] = str(error)
            continue
        if key is None:
            erased[task] = f"task {task} cannot be opened: {ERASED}"
        else:
            keys[keyid] = key
    return TaskKeys(tuple(keys[name] for name in sorted(keys)), erased, locked)


def reject_missing(app: "App", job: JobRow, missing: Mapping[str, str]) -> list[str]:
    """Reject missing tasks by events, once; describe each. Raises LogError, DecisionRefusal."""
    with app.reading() as connection:
        states = read_inactive_tasks(connection, job.alias)
    new = [task for task in missing if states.get(task) != REJECTED]
    pools = {task: pool.name for pool in job.spec.pools for task in pool.all_tasks}
    events: dict[str, Decision] = {
        derive_id(job.job, "task rejected", task): TaskRejected(
            cycle=job.cycle,
            alias=job.alias,
            base=job.base,
            # A sibling, or a task that the job only knows, is in no pool.
            pattern=pools.get(task, "none"),
            check="schema",
            reason=clip_reason(missing[task]),
            task=task,
        )
        for task in new
    }
    if events:
        Decisions(app).record(events, job.event)
    return [f"job {job.job} goes on without task {task}: {missing[task]}" for task in new]
