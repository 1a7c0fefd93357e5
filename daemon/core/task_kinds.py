"""Find the kinds of task that the agents' environments can write and that jobs train on. A cycle
works only on failures of these kinds (consumers/diagnosis/task_kinds.py).

    find_kinds(settings, "retail")     ("retail/=cancel_order", "retail/cancel_order", ...)

A process opens each environment once, and again after a change of a file that may define it. If it
could not be opened, the next call tries again.
"""

import logging
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.diagnosis.kinds import find_kind
from daemon.core.kind_exclusions import find_exclusions
from envs.environment import Environment
from envs.registry import open_from_event

if TYPE_CHECKING:
    from daemon.config.settings import Settings

log = logging.getLogger(__name__)


def find_kinds(settings: "Settings", environment: str) -> tuple[str, ...] | None:
    """Return the kinds that an environment (name or path) writes and jobs train on. Return None if
    the environment cannot be opened; then failures count whatever the kinds of their tasks are."""
    paths = tuple(settings.environments.paths)
    files = tuple(_list_files([Path(environment.rpartition(":")[0] or environment), *paths]))
    try:
        known = _open(environment, settings.benchmarks, paths, settings.environment_places, files)
        return list_kinds(known, find_exclusions(settings, known))
    except Exception as error:  # an environment's own code, which may raise anything
        _warn(environment, str(error))
        return None


def list_agent_kinds(settings: "Settings") -> dict[str, tuple[str, ...]]:
    """Return alias -> kinds of task, for every agent whose environment can be opened."""
    kinds = {
        agent.alias: find_kinds(settings, agent.environment)
        for agent in settings.agents
        if agent.environment is not None
    }
    return {alias: own for alias, own in kinds.items() if own is not None}


def list_kinds(environment: Environment, excluded: Collection[str] = ()) -> tuple[str, ...]:
    """Return the kinds of task that an environment writes, sorted, without the capabilities in
    `excluded`. An environment that only plays loaded tasks has none."""
    name = environment.name
    capabilities = [label for label in environment.capabilities if label not in excluded]
    drawn = {find_kind(environment.task_id(capability, 0)) for capability in capabilities}
    by_content = {f"{name}/={capability}" for capability in capabilities}
    return tuple(sorted(by_content | {f"{name}/" if kind is None else kind for kind in drawn}))


def _list_files(paths: list[Path]) -> list[tuple[str, int]]:
    files = []
    for path in (path.expanduser() for path in paths):
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            if file.is_file():
                files.append((str(file), file.stat().st_mtime_ns))
    return files


@lru_cache(maxsize=64)
def _open(
    environment: str,
    benchmarks: Path | None,
    paths: tuple[Path, ...],
    places: tuple[str, ...],
    files: tuple[tuple[str, int], ...],
) -> Environment:
    """Open an environment. `files` only extends the cache key: changed files are read again."""
    return open_from_event(environment, benchmarks=benchmarks, paths=paths, places=places)


@lru_cache(maxsize=64)
def _warn(environment: str, reason: str) -> None:
    """Log once for each reason, because every tick of the leader asks for the kinds."""
    log.warning(
        "failures count whatever their tasks are: %s cannot be opened: %s", environment, reason
    )
