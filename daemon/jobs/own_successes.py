"""Collect the agent's own successes for a warm start: live sessions that passed, as tokens.

A success is a live session of the agent on this base. An environment computed its verdict by
replay, no rule contradicts it, and all its calls have exact tokens. Supervised training applies no
sampling parameter, so the tokens were drawn from the plain softmax at temperature 1. Its task is of
the pool's own generator (or the very task where none is generated), and of no seed reserved for
reports and gates. The file depends on the log alone, so any machine can make it again.

A person's sealed session is left out: its words would lie unsealed in the job's folder. Rollouts of
probes, trials and earlier jobs are left out too, because the log holds no tokens of them.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from consumers.reads.evidence import PassedRollout, passed_sessions
from consumers.reads.rollouts import rollout_row
from consumers.reads.sessions import find_call
from daemon.proposer.candidate import FIRST_HELD_OUT
from daemon.proposer.verification import seed_of
from daemon.solver.journal import write_successes
from daemon.solver.trajectory import Trajectory, Turn
from envs.environment import Environment, UnknownTask
from envs.task import GENERATED
from events.bodies import Whole
from events.codec import decode
from events.errors import BlobError, BlobUnavailable, KintsugiError, LogTruncated
from events.jobs import TaskPool
from events.rollouts import CallEnded, RolloutEnded
from events.streams import ROLLOUTS
from producers.gateway.http.sampling_fields import find_departures

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

log = logging.getLogger(__name__)

_MOST_READ: Final = 2048
"""Maximum number of passed sessions that are read, newest first."""


class NotShown(KintsugiError):
    """A rollout's content cannot be shown to a job."""

    def __init__(self, message: str, *, sealed: bool = False) -> None:
        """`sealed`: whether the rollout is sealed with a person's key."""
        super().__init__(message)
        self.sealed = sealed


def offer_successes(
    app: "App",
    connection: "Connection",
    environment: Environment,
    alias: str,
    base: str,
    pools: Sequence[TaskPool],
    most: int,
) -> tuple[list[TaskPool], str | None]:
    """Return the pools, those to learn with up to `most` successes, and the sha256 of the file of
    all successes; None without any."""
    kinds = {pool.name: {_kind(environment, task) for task in pool.tasks} for pool in pools}
    wanted = set().union(*(kinds[pool.name] for pool in pools if not pool.replay))
    readable: dict[str, Trajectory] = {}
    by_kind: dict[str, list[PassedRollout]] = {}
    for passed in passed_sessions(connection, alias, base, _MOST_READ):
        kind = _kind(environment, passed.task)
        held_out = (seed_of(passed.task) or 0) >= FIRST_HELD_OUT
        own = by_kind.setdefault(kind, [])
        if kind not in wanted or held_out or len(own) >= most:
            continue
        try:
            readable[passed.rollout] = _read_trajectory(app, connection, passed)
        except NotShown as error:
            log.info("not shown in a warm start: %s", error)
            continue
        own.append(passed)
    offered = [
        pool
        if pool.replay
        else pool.model_copy(update={"successes": _of_kinds(by_kind, kinds[pool.name], most)})
        for pool in pools
    ]
    names = {name for pool in offered for name in pool.successes}
    if not names:
        return list(pools), None
    return offered, sha256(_file([readable[name] for name in names])).hexdigest()


def read_file(app: "App", connection: "Connection", rollouts: Sequence[str]) -> bytes:
    """Return the file of these rollouts. Raises NotShown for one whose event or content is gone."""
    return _file([_read_named(app, connection, name) for name in set(rollouts)])


def _file(trajectories: Sequence[Trajectory]) -> bytes:
    return write_successes(sorted(trajectories, key=lambda item: item.rollout))


def _of_kinds(
    by_kind: dict[str, list[PassedRollout]], kinds: set[str], most: int
) -> tuple[str, ...]:
    """Return the rollouts of these kinds, ordered by their tasks. The learner keeps the order; an
    order by random names would give each run other batches."""
    own = [passed for kind in kinds for passed in by_kind.get(kind, ())]
    own.sort(key=lambda passed: (passed.task, passed.rollout))
    return tuple(passed.rollout for passed in own[:most])


def _kind(environment: Environment, task: str) -> str:
    """Return the generator of a task, or the task itself if no generator made it."""
    try:
        known = environment.task(task)
    except UnknownTask:
        return task
    if known.split != GENERATED:
        return task
    parts = task.split("/")
    place = next((n for n, part in enumerate(parts) if n and part.isdecimal()), len(parts))
    return "/".join(parts[:place])


def _read_named(app: "App", connection: "Connection", rollout: str) -> Trajectory:
    row = rollout_row(connection, rollout)
    if row is None or row.line.task is None:
        raise NotShown(f"rollout {rollout} is not in the tables; kintsugi rebuild folds the log")
    return _read_trajectory(
        app, connection, PassedRollout(rollout, row.line.task, row.partition, row.offset)
    )


def _read_trajectory(app: "App", connection: "Connection", passed: PassedRollout) -> Trajectory:
    name = passed.rollout
    ended = read_event(app, name, passed.partition, passed.offset, arrays=False)
    data = ended.event.data
    if not isinstance(data, RolloutEnded) or data.rollout != name or not data.success:
        raise NotShown(f"rollout {name} is not where the tables say; kintsugi rebuild repairs them")
    environment = passed.task.partition("/")[0]
    if data.grader is None or not data.grader.startswith(f"{environment}/"):
        raise NotShown(f"rollout {name} was judged by {data.grader}, and not by a replay")
    if not data.calls:
        raise NotShown(f"rollout {name} names no calls")
    return Trajectory(
        rollout=name,
        group=name,
        task=passed.task,
        policy=data.policy,
        turns=tuple(_read_turns(app, connection, name, data.calls)),
        success=True,
        reward=data.reward,
    )


def _read_turns(
    app: "App", connection: "Connection", rollout: str, calls: Sequence[str]
) -> Iterator[Turn]:
    for name in calls:
        row = find_call(connection, name)
        if row is None or row.ended_offset is None:
            raise NotShown(f"call {name} of rollout {rollout} has no end")
        if departures := find_departures(json.loads(row.sampling or "{}")):
            raise NotShown(
                f"call {name} of rollout {rollout} was not drawn from the plain softmax at "
                f"temperature 1: it has {', '.join(departures)}"
            )
        whole = read_event(app, rollout, row.partition, row.ended_offset, arrays=True)
        data = whole.event.data
        if not isinstance(data, CallEnded) or data.call != name or not data.trainable:
            raise NotShown(f"call {name} of rollout {rollout} has no exact tokens")
        prompt, written = whole.arrays.get("prompt_token_ids"), whole.arrays.get("token_ids")
        if not prompt or not written:
            raise NotShown(f"call {name} of rollout {rollout} has no exact tokens")
        # Supervised training needs no log-probabilities, so they are 0 as in the oracle's turns.
        yield Turn(tuple(prompt), tuple(written), (0.0,) * len(written))


def read_event(app: "App", rollout: str, partition: int, offset: int, *, arrays: bool) -> Whole:
    """Read an event of a rollout. Raises NotShown for a sealed or trimmed one, or one that lost its
    blob; BlobUnavailable where waiting may bring the blob back."""
    gone = f"an event of rollout {rollout} is no longer in the log"
    try:
        records = app.log.read(ROLLOUTS.name, partition, offset, limit=1)
    except LogTruncated as error:
        raise NotShown(gone) from error
    if not records or records[0].offset != offset:
        raise NotShown(gone)
    if decode(records[0]).sealed:
        raise NotShown(f"rollout {rollout} is a person's, and sealed", sealed=True)
    try:
        return app.bodies.whole(records[0], arrays=arrays)
    except BlobUnavailable:
        raise
    except BlobError as error:
        raise NotShown(f"an event of rollout {rollout} cannot be read: {error}") from error
