"""The bodies of the tasks by content that a job or a trial plays: from the tables to its directory.

    bodies, missing = collect_bodies(app, list_tasks(spec))
    write_definitions(bodies)                       the file that lies in its OUT before it begins
    reject_missing(app, job, missing)               an event for each task that cannot be played

The spec names a task by the hash of its body, so it needs not hold the body: 640 bodies would be
more than Kafka takes in one record. What is missing here is rejected by an event, and the job goes
on without it (daemon/solver/spec.py, drop_tasks).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from consumers.folds.task_states import REJECTED
from consumers.reads.learning import JobRow, read_inactive_tasks
from daemon.core.decision_log import Decisions
from daemon.core.task_definitions import read_open_body
from envs.environment import UnknownTask
from envs.task import BadDefinition, is_content_id, read_body
from events.envelope import derive_id
from events.learning import Decision, TaskRejected
from events.rollouts import clip_reason

if TYPE_CHECKING:
    from daemon.core.app import App


def collect_bodies(app: "App", tasks: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return task -> the text of its body, and task -> why there is none, of the tasks by content
    among these; the others are generated or loaded, and need none. Raises DatabaseUnavailable."""
    bodies: dict[str, str] = {}
    missing: dict[str, str] = {}
    with app.reading() as connection:
        for task in filter(is_content_id, tasks):
            try:
                text = read_open_body(app, connection, task)
                if text is None:
                    missing[task] = f"no event has brought the body of task {task}"
                    continue
                if read_body(task, text).salt is not None:
                    # The file of bodies would have a person's words in the open.
                    missing[task] = f"task {task} is sealed with the key of a person"
                    continue
            except (BadDefinition, UnknownTask) as error:
                missing[task] = str(error)
            else:
                bodies[task] = text
    return bodies, missing


def reject_missing(app: "App", job: JobRow, missing: Mapping[str, str]) -> list[str]:
    """Append the rejection of each task of a job that cannot be played and is not rejected yet;
    return these as sentences. Raises LogError, DecisionRefusal."""
    with app.reading() as connection:
        states = read_inactive_tasks(connection, job.alias)
    new = [task for task in missing if states.get(task) != REJECTED]
    pools = {task: pool.name for pool in job.spec.pools for task in (*pool.tasks, *pool.references)}
    events: dict[str, Decision] = {
        derive_id(job.job, "task rejected", task): TaskRejected(
            cycle=job.cycle,
            alias=job.alias,
            base=job.base,
            # A sibling or a task that is only known stands in no pool.
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
