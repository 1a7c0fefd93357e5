"""Records a job as events: its journal as `RolloutEnded` of purpose `train`, its rounds as their
directives, tasks and pools.

An event has no content and repeats no token: these stay in the journal, those of persons' tasks as
ciphertext. It names task, policy version, verdict and reward. So figures of training stay apart
from those of traffic (a fold never mixes purposes), and an adapter can be traced to its rollouts.

Event ids depend on job and rollout, so recording again changes nothing. A file beside the journal
has the recorded length; recording that was cut short is repeated. Not covered: reference
trajectories of a warm start, because the oracle played them.
"""

from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumers.reads import learning
from consumers.reads.learning import JobRow
from daemon.core.decision_log import Decisions
from daemon.core.task_definitions import open_event_environment
from daemon.jobs.runner import JOURNAL, OUT
from daemon.solver import journal
from daemon.solver.methods import REWARDS
from daemon.solver.rounds.record import read_record
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.spec import digest
from daemon.solver.trajectory import ORACLE, Trajectory
from envs.environment import Environment, UnknownTask
from envs.episode import Termination
from envs.grading import get_version
from envs.task import TaskDefinition
from events.files import replace_file
from events.jobs import TaskPool
from events.rollouts import RolloutEnded, Task, clip_reason
from producers.simulation import SOURCE, append_rollouts, name_user

if TYPE_CHECKING:
    from daemon.core.app import App

_RECORDED: Final = "recorded"
"""File beside the spec: how many batches of the journal were recorded."""
_BATCH: Final = 512


def record_rollouts(app: "App", job: JobRow, folder: Path) -> int:
    """Append the rollouts of a job that are not recorded yet; return their number. Raises LogError,
    BadJournal, UnknownEnvironment, EnvironmentBroken."""
    path, note = folder / OUT / JOURNAL, folder / _RECORDED
    done = int(note.read_text()) if note.exists() else 0
    batches, _ = journal.read(path, digest(job.spec))
    if len(batches) == done:
        return 0
    environments = JobEnvironments(job.spec, partial(open_event_environment, app))
    pools = {task: pool for pool in job.spec.pools for task in pool.tasks}
    new = [
        trajectory
        for batch in batches[done:]
        for trajectory in batch
        if not _is_reference(trajectory)
    ]
    events = (
        _event(job, environments, pools.get(trajectory.task), trajectory) for trajectory in new
    )
    while some := list(islice(events, _BATCH)):
        append_rollouts(app.spool, app.blobs, some)
    replace_file(note, str(len(batches)).encode())
    return len(new)


def record_rounds(app: "App", job: JobRow, folder: Path) -> int:
    """Append rounds that the tables lack; return their number. Raises LogError, BadJournal."""
    rounds = job.spec.rounds
    if rounds is None:
        return 0
    with app.reading() as connection:
        known = {row.number for row in learning.job_rounds(connection, job.job)}
    count = 0
    for number in range(1, rounds.count):
        if number in known:
            continue
        record = read_record(folder / OUT, number, digest(job.spec))
        if record is None:
            break
        Decisions(app).record(record.decisions(job.spec), job.event)
        count += 1
    return count


def _is_reference(trajectory: Trajectory) -> bool:
    return trajectory.policy == ORACLE


def _event(
    job: JobRow, environments: JobEnvironments, pool: TaskPool | None, trajectory: Trajectory
) -> RolloutEnded:
    """Return a rollout's event; `pool` has its task, None if the job wrote the task."""
    environment = environments.find(trajectory.task)
    try:
        task = environments.task(trajectory.task)
    except UnknownTask:
        if trajectory.sealed is None:
            raise
        # The task's person was erased after the rollout was played.
        task = None
    reward = None if pool is None else REWARDS.get(pool.reward)
    judge = _name_judge(environment, task, None if reward is None else reward.rules)
    user = None if pool is None else pool.user
    return RolloutEnded(
        rollout=journal.rollout_id(job.job, trajectory.rollout),
        alias=job.alias,
        base=job.base,
        policy=trajectory.policy,
        source=SOURCE,
        purpose="train",
        task=Task(id=trajectory.task, environment=environment.name)
        if task is None
        else task.record(),
        trial=_member(trajectory.rollout),
        success=trajectory.success,
        reward=trajectory.reward,
        reward_parts={} if trajectory.repair is None else {"repair": trajectory.repair},
        grader=None if trajectory.user_fault is not None else judge,
        termination=None if trajectory.user_fault is None else Termination.USER_ERROR,
        reason=None if trajectory.user_fault is None else clip_reason(trajectory.user_fault),
        simulator=name_user(environment, None if user is None else user.simulator),
        write_tools=tuple(sorted(environment.writes)),
        known_tools=()
        if task is None
        else tuple(s["function"]["name"] for s in environment.schemas(task)),
        tool_roles=environment.recorded_tool_roles,
    )


def _name_judge(
    environment: Environment, task: TaskDefinition | None, rules: str | None
) -> str | None:
    """Return a rollout's judge, with the version of `rules` or of the task's, if known."""
    if rules is not None:
        return f"{environment.name}/{rules}"
    return None if task is None else f"{environment.name}/{get_version(task)}"


def _member(rollout: str) -> int:
    """Return a rollout's index in its group; the learner names it JOB/BATCH/GROUP/MEMBER."""
    return int(rollout.rpartition("/")[2])
