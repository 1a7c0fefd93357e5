"""Read a job's spec (events/jobs.py), compute its digest, and drop tasks that cannot be played.

The digest is of the requested spec, before tasks are dropped.
"""

from collections.abc import Collection
from itertools import chain
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from daemon.config.job_ranges import find_excess
from events.canonical import exact_json, sha256
from events.errors import KintsugiError
from events.jobs import EndpointUser, JobSpec, TaskPool
from events.json_text.guard import UnstorableJson, parse_json
from events.registry import first_problem
from events.streams import MAX_VALUE_BYTES


class NothingPlayable(KintsugiError):
    """A job has no playable task left to learn from."""


class BadInput(KintsugiError):
    """A file for the learner is malformed."""


class BadSpec(BadInput):
    """The file is not a spec of a job, or has a value outside its range."""


_MOST_BYTES: Final = 4 * MAX_VALUE_BYTES
"""Maximum bytes of a spec's file: indented, it is larger than in an event."""
_MOST_VALUES: Final = MAX_VALUE_BYTES // 4
"""Maximum number of values in a spec: the shortest id in a list takes four bytes."""


def read_spec(path: Path) -> JobSpec:
    """Read the spec in a JSON file. Raise BadSpec, which names the field, and OSError."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    try:
        return parse_spec(content)
    except BadSpec as error:
        raise BadSpec(f"{path} is no spec of a job: {error}") from None


def parse_spec(content: bytes) -> JobSpec:
    """Return the spec in a JSON text. Raise BadSpec, which names the field."""
    if len(content) > _MOST_BYTES:
        raise BadSpec(f"it is longer than {_MOST_BYTES:,} bytes; name fewer tasks")
    # Pydantic describes every wrong value: that takes a minute for some millions of them.
    if content.count(b",") > _MOST_VALUES:
        raise BadSpec(f"it has more than {_MOST_VALUES:,} values; name fewer tasks")
    try:
        parse_json(content.decode())
        spec = JobSpec.model_validate_json(content)
    except UnstorableJson as error:
        raise BadSpec(str(error)) from None
    except UnicodeDecodeError as error:
        raise BadSpec(f"it is no UTF-8: {error.reason} at byte {error.start}") from None
    except ValidationError as error:
        raise BadSpec(first_problem(error)) from None
    if problem := find_excess(spec):
        raise BadSpec(problem)
    return spec


REWARDS: Final = ("verdict", "repair", "both")
"""Rewards of pools that this learner computes."""


class NotSupported(KintsugiError):
    """A spec asks for what this learner does not do."""


def check_ranges(spec: JobSpec) -> None:
    """Raise NotSupported if a value of the spec is outside its range."""
    if problem := find_excess(spec):
        raise NotSupported(problem)


def check_pools(spec: JobSpec) -> None:
    """Raise NotSupported if this learner cannot play a pool of the spec."""
    for pool in spec.pools:
        if pool.reward not in REWARDS:
            raise NotSupported(
                f"pool {pool.name} has the reward {pool.reward!r}, which this learner does not "
                "compute; give it 'verdict', 'repair' or 'both'"
            )
        if isinstance(pool.user, EndpointUser) and spec.sampler.source.kind == "in_process":
            raise NotSupported(
                f"the users of pool {pool.name} are played by {pool.user.model} at "
                f"{pool.user.url}, and rollouts in the job's own process wait for no endpoint; "
                "sample from a server (sampler.source.kind 'endpoint' or 'vllm'), or leave out the "
                "pool's user"
            )


def digest(spec: JobSpec) -> str:
    """Return the sha256 of the whole spec, defaults included."""
    return sha256(exact_json(spec.model_dump(mode="json")))


def list_tasks(spec: JobSpec) -> list[str]:
    """Return a spec's tasks, each once, including those that its rounds must not write again."""
    pools = (task for pool in spec.pools for task in pool.all_tasks)
    siblings = spec.warm_start.siblings if spec.warm_start else ()
    known = spec.rounds.known if spec.rounds else ()
    return list(dict.fromkeys(chain(pools, siblings, known)))


def drop_tasks(spec: JobSpec, missing: Collection[str]) -> JobSpec:
    """Return the spec without the `missing` tasks, and without pools and a warm start that become
    empty. Raise NothingPlayable if no task is left to learn from."""
    if not missing:
        return spec
    dropped = frozenset(missing)
    pools = tuple(_keep_playable(pool, dropped) for pool in spec.pools)
    pools = tuple(pool for pool in pools if pool.tasks)
    targets = [pool for pool in pools if not pool.replay]
    if not targets:
        names = ", ".join(pool.name for pool in spec.target_pools)
        raise NothingPlayable(
            f"no task is left of what shall be learnt ({names}): bodies of its tasks are missing, "
            "their prefixes do not replay, or they are made of sessions of persons who were erased "
            f"or whose keys no job gets here; the first is {min(dropped)}; add what is missing "
            "(kintsugi tasks add FILE), and the next cycle asks for a job again"
        )
    warm, rounds = spec.warm_start, spec.rounds
    if warm is not None:
        siblings = tuple(task for task in warm.siblings if task not in dropped)
        warm = warm.model_copy(update={"siblings": siblings})
        if not any(pool.references or pool.successes for pool in targets):
            warm = None
    if rounds is not None:
        known = tuple(task for task in rounds.known if task not in dropped)
        rounds = rounds.model_copy(update={"known": known})
    if warm is None and not spec.grpo:
        raise NothingPlayable(
            "the job is a warm start alone, and nothing is left that it could show: the bodies of "
            f"its tasks are missing, the first is {min(dropped)}; add them (kintsugi tasks add "
            "FILE), and request the job anew"
        )
    changes = {"pools": pools, "warm_start": warm, "rounds": rounds}
    return spec.model_copy(update=changes)


def _keep_playable(pool: TaskPool, dropped: frozenset[str]) -> TaskPool:
    changes = {
        name: tuple(task for task in getattr(pool, name) if task not in dropped)
        for name in ("tasks", "references")
    }
    return pool.model_copy(update=changes)
