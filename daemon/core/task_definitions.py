"""Let environments find the bodies of tasks by content in the tables. These are folded from the
log, so every machine with the log finds a task, also after `kintsugi rebuild`. The environment
checks each body by its hash. A body that is sealed with a person's key is opened with the key
store, until the person is erased.
"""

from typing import TYPE_CHECKING

from consumers.folds.task_states import ERASED
from consumers.reads.learning import read_task_body
from envs.environment import UnknownTask
from envs.registry import open_from_event
from envs.sealed_body import open_body
from envs.task import BadDefinition
from events.privacy.sealing import KeyMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from daemon.core.app import App
    from envs.environment import Environment, FindBody


def open_event_environment(app: "App", place: str) -> "Environment":
    """Open the environment of an event. Raises UnknownEnvironment, also for a file that no setting
    names, and EnvironmentBroken."""
    settings = app.settings
    environment = open_from_event(
        place,
        benchmarks=settings.benchmarks,
        paths=settings.environments.paths,
        places=settings.environment_places,
    )
    return with_definitions(app, environment)


def with_definitions(
    app: "App", environment: "Environment", own: "Mapping[str, str] | None" = None
) -> "Environment":
    """Have an environment find bodies in `own`, read at each lookup, and in the tables; return it.
    Its `task` raises DatabaseUnavailable, and KeysUnavailable for a sealed body."""
    environment.use_definitions(find_body_in(app, own))
    return environment


def find_body_in(app: "App", own: "Mapping[str, str] | None" = None) -> "FindBody":
    """Return a function that looks up a body in `own`, then in the tables, at each call."""

    def find(task: str) -> str | None:
        if own is not None and task in own:
            return own[task]
        with app.reading() as connection:
            return read_open_body(app, connection, task)

    return find


def read_open_body(app: "App", connection: "Connection", task: str) -> str | None:
    """Return the text of a task's body, opened; None if no event has it. Raises UnknownTask for an
    erased person's body or a missing or wrong key, and KeysUnavailable."""
    text = read_task_body(connection, task)
    if text is None:
        return None
    try:
        opened = open_body(task, text, app.find_key)
    except (BadDefinition, KeyMissing) as error:
        raise UnknownTask(str(error)) from error
    if opened is None:
        raise UnknownTask(f"task {task} cannot be opened: {ERASED}")
    return opened
