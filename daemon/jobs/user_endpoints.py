"""Checks that the models which play users are available, before a job or a trial begins. Without
them an attempt plays no episode, and a few such attempts end a job. A gate without its user model
cannot measure its candidate."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from daemon.adapters.adoption import intact
from daemon.adapters.directory import BadAdapter
from daemon.jobs.runner import JobStartError
from envs.endpoint import Endpoint, EndpointRefusal, EndpointUnavailable, read_key
from events.jobs import AdapterUser, EndpointUser, ModelUser

if TYPE_CHECKING:
    from daemon.config.settings import Settings

KEY_VARIABLE: Final = "KINTSUGI_MODELS__USER__API_KEY"
"""Environment variable with the API key of `models.user`, for the settings and for jobs."""
_REACH_SECONDS: Final = 10.0
"""Seconds that an endpoint may take to list its models."""


def export_key(settings: "Settings") -> None:
    """Put the key of `models.user` into the environment, where probes, jobs and trials look."""
    key = settings.models.user.api_key
    if key is not None:
        os.environ[KEY_VARIABLE] = key.get_secret_value()


def wait_for_users(what: str, users: Iterable[ModelUser | None]) -> None:
    """Raise JobStartError, naming the waiting `what`, if a user's endpoint is away or refuses."""
    for user in dict.fromkeys(users):
        if not isinstance(user, EndpointUser):
            continue
        try:
            asyncio.run(_reach(user))
        except (EndpointRefusal, EndpointUnavailable) as error:
            raise JobStartError(
                f"{what} waits for the model that plays the users: {error}; it is tried again"
            ) from error


def wait_for_files(what: str, user: ModelUser | None) -> None:
    """Raise JobStartError, naming the waiting `what`, if the user's adapter is not intact."""
    if not isinstance(user, AdapterUser):
        return
    try:
        intact(Path(user.folder), user.sha256, None, None)
    except (BadAdapter, OSError) as error:
        raise JobStartError(
            f"{what} waits for {user.adapter}, which plays the users: {error}; or take it out of "
            f"service: kintsugi adapters retire {user.adapter}"
        ) from error


async def _reach(user: EndpointUser) -> None:
    key = read_key(user.url, user.api_key_variable)
    timeout = min(user.timeout, _REACH_SECONDS)
    async with Endpoint(user.url, user.model, api_key=key, timeout=timeout) as endpoint:
        await endpoint.check()
