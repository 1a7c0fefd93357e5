"""Environments of the daemon that find tasks by content in the tables.

    environment = open_event_environment(app, spec.environment)         that an event names
    environment = with_definitions(app, open_place(...))       any other
    environment.task("shop/=4f2a...")       from the body that the log brought

The tables are folded from the log, so a task is found on every machine that has the log, also after
`kintsugi rebuild`. The environment checks each body by its hash.
"""

from typing import TYPE_CHECKING

from consumers.reads.learning import read_task_body
from envs.registry import open_from_event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.core.app import App
    from envs.environment import Environment, FindBody


def open_event_environment(app: "App", place: str) -> "Environment":
    """Open the environment that an event names. Raises UnknownEnvironment, also for a file that no
    setting names, and EnvironmentBroken."""
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
    """Have an environment find the bodies of tasks by content in the tables; return it. `own`: more
    of them, as they are when they are looked up. Its `task` raises DatabaseUnavailable where the
    tables cannot be read."""
    environment.use_definitions(find_body_in(app, own))
    return environment


def find_body_in(app: "App", own: "Mapping[str, str] | None" = None) -> "FindBody":
    """Return the function that looks up a body in `own`, then in the tables, as they are when it is
    called."""

    def find(task: str) -> str | None:
        if own is not None and task in own:
            return own[task]
        with app.reading() as connection:
            return read_task_body(connection, task)

    return find
