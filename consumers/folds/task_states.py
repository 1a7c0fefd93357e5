"""The folds of a written task's body and of its state: whether jobs may draw it. The body of a task
by content is checked here by its hash alone. A sealed body is not checked here, but when the task
is played. Sealed tasks of an erased person are refused. Folds read only their event and tables that
`learning` alone fills.
"""

from typing import Final

from sqlalchemy import select

from consumers.batch import Batch, Row
from consumers.folds.record import FoldInput
from consumers.tables import Erasure, TaskBody, TaskState
from envs.sealed_body import write_sealed
from envs.task import compute_content_id, find_operator, is_content_id, write_body
from events.learning import PlanName, TaskProposed, TaskRetired
from events.rollouts import clip_reason

ACTIVE: Final = "active"
RETIRED: Final = "retired"
REJECTED: Final = "rejected"
ERASED: Final = "it is made of a session of a person who was erased"
"""Reason for rejecting a sealed task of an erased person."""


def takes_body(folding: FoldInput, data: TaskProposed, batch: Batch) -> bool:
    """Return whether a proposed task may be stored: it is generated, or this event or an earlier
    one brought its body. If no right body is known, reject the task."""
    task = data.task.id
    problem = _find_problem(data) or _find_erasure(batch, data)
    if problem is None:
        return True
    if _has_body(batch, task):
        return data.definition is None and data.sealed is None
    reject_task(folding, data.alias, task, problem, batch)
    return False


def keep_body(folding: FoldInput, data: TaskProposed, batch: Batch) -> None:
    """Store the checked body that a proposal brings; a sealed body stays sealed."""
    environment, _, _ = data.task.id.partition("/")
    if data.sealed is not None:
        body, keyid = write_sealed(environment, data.sealed), data.sealed.keyid
        operator = data.sealed.operator
    elif data.definition is not None:
        body, keyid = write_body(data.definition), None
        operator = find_operator(data.definition)
    else:
        return
    row = {
        "task": data.task.id,
        "environment": environment,
        "body": body,
        "keyid": keyid,
        "operator": operator,
    }
    batch.stage(TaskBody, {**row, **folding.place()})


def _find_problem(data: TaskProposed) -> str | None:
    """Return why a proposal's body is wrong for its task; None if it is right or not needed."""
    task, body = data.task.id, data.definition
    if not is_content_id(task):
        bare = body is None and data.sealed is None
        return None if bare else f"{task} is not the id of a body, and came with one"
    if data.sealed is not None:
        return None if body is None else f"task {task} came with its body, and a sealed one"
    if body is None:
        return f"task {task} came without its body"
    try:
        write_body(body)
        actual = compute_content_id(body)
    except (ValueError, RecursionError) as error:
        return f"the body of task {task} is no JSON: {error}"
    return None if actual == task else f"the body of task {task} is that of {actual}"


def _find_erasure(batch: Batch, data: TaskProposed) -> str | None:
    if data.sealed is None:
        return None
    erasures = Erasure.table().c
    query = select(erasures.keyid).where(erasures.keyid == data.sealed.keyid)
    return None if batch.connection.execute(query).first() is None else ERASED


def restore_task(folding: FoldInput, data: TaskProposed, batch: Batch) -> None:
    """Let jobs draw a rejected task again that now has its body, or a retired task that an operator
    adds again. A retired task that a cycle writes again stays retired."""
    states = TaskState.table().c
    query = select(states.state).where(states.alias == data.alias, states.task == data.task.id)
    state = batch.connection.execute(query).scalar()
    if state == REJECTED or (state == RETIRED and data.cycle is None):
        _stage(folding, data.alias, data.task.id, ACTIVE, "", batch)


def reject_task(folding: FoldInput, alias: str, task: str, reason: str, batch: Batch) -> None:
    """Store that a task cannot be played, and the reason."""
    _stage(folding, alias, task, REJECTED, clip_reason(reason), batch)


def fold_task_retirement(folding: FoldInput, data: TaskRetired, batch: Batch) -> None:
    """Store that no new job may draw a task, and the reason."""
    _stage(folding, data.alias, data.task, RETIRED, data.reason, batch)


def _stage(
    folding: FoldInput, alias: str, task: str, state: str, reason: str, batch: Batch
) -> None:
    row = {"alias": alias, "task": task, "state": state, "reason": reason}
    batch.stage(TaskState, {**row, "time": folding.time, **folding.place()})


def _has_body(batch: Batch, task: str) -> bool:
    query = select(TaskBody.table().c.task).where(TaskBody.table().c.task == task)
    return batch.connection.execute(query).first() is not None


def name_plan(plan: PlanName | None) -> Row:
    """Return the columns of a task or a rejection that name its plan."""
    return {
        "plans": None if plan is None else plan.plans,
        "plan": None if plan is None else plan.plan,
        "plan_revision": None if plan is None else plan.revision,
    }
