"""Find the model that plays the users in an agent's simulated dialogues.

Jobs, probes and both sides of a gate ask here, so all play with the same user. A caller reads
within one `database.read_transaction`.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from consumers.reads import serving
from daemon.controller.model_answers import ModelFailure, check_host
from daemon.jobs.user_endpoints import KEY_VARIABLE
from daemon.methods.synthesis.manners import MANNERS
from envs.environment import Environment
from envs.evaluation import EnvironmentFailure, environment_code
from envs.registry import EnvironmentBroken, UnknownEnvironment, open_place
from events.jobs import AdapterUser, EndpointUser, ModelUser
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Settings


def find_user(
    connection: "Connection", settings: "Settings", alias: str, base: str
) -> ModelUser | None:
    """Return the model that plays an agent's users; None for the environment's own user. An adapter
    plays once it has passed its gate with the agent's manners and replicas serve it."""
    improve = settings.improve
    if improve.users == "script" or find_obstacle(settings, alias) is not None:
        return None
    if improve.users == "model":
        return _build_endpoint_user(settings)
    row = find_user_adapter(connection, alias, base)
    if row is None or not row.replicas or not has_manners(settings, row):
        return None
    assert row.role_gate is not None, "it has the manners of its gate"
    return build_adapter_user(row, row.role_gate.candidates)


def build_adapter_user(row: "AdapterRow", candidates: int) -> AdapterUser:
    """Return an adapter as a user that chooses the best of `candidates` lines."""
    return AdapterUser(
        adapter=row.adapter,
        folder=row.path,
        sha256=row.sha256,
        candidates=candidates,
    )


def find_user_adapter(connection: "Connection", alias: str, base: str) -> "AdapterRow | None":
    """Return the adapter that passed its gate for these users on this base, if not replaced."""
    rows = serving.list_user_adapters(connection, alias)
    return next((row for row in rows if row.base == base and row.state is State.GATED), None)


def list_manners(settings: "Settings") -> tuple[str, ...]:
    """Return the manners that written tasks may have; () if they keep the generator's words."""
    return () if settings.improve.synthesis == "off" else tuple(MANNERS)


def has_manners(settings: "Settings", row: "AdapterRow") -> bool:
    """Return whether the adapter's gate had all manners that written tasks may have."""
    return row.role_gate is not None and {*list_manners(settings)} <= {*row.role_gate.manners}


def _build_endpoint_user(settings: "Settings") -> EndpointUser:
    model = settings.models.user
    return EndpointUser(
        url=model.url,
        model=model.model,
        temperature=model.temperature,
        max_tokens=model.line_tokens,
        candidates=model.candidates,
        timeout=model.timeout_seconds,
        api_key_variable=None if model.api_key is None else KEY_VARIABLE,
        budget=model.max_tokens,
    )


def find_obstacle(settings: "Settings", alias: str) -> str | None:
    """Return why no model can play an agent's users; None if one can or the settings want none."""
    improve = settings.improve
    if improve.users == "script":
        return None
    agent = settings.find_agent(alias)
    if agent is None or agent.environment is None:
        return f"{alias} has no environment in the setting agents, so nothing is simulated for it"
    if improve.users == "model":
        return _find_endpoint_obstacle(settings)
    if agent.checkpoint is None:
        return f"{alias} has no checkpoint in the setting agents, so no adapter is trained for it"
    try:
        facts = read_environment(
            agent.environment, settings.benchmarks, settings.environments.paths
        )
    except (EnvironmentBroken, UnknownEnvironment) as error:
        return str(error)
    if facts.has_exact_user:
        return None
    return (
        f"tasks of {agent.environment} have no exact user: what a user who keeps to the task would "
        "say is not known, so no dialogue can be accepted and no gate can be held"
    )


def _find_endpoint_obstacle(settings: "Settings") -> str | None:
    model = settings.models.user
    if not model.url:
        return 'improve.users is "model", and models.user.url names none'
    if settings.training.source == "in_process":
        return (
            'improve.users is "model", and rollouts in a job\'s own process wait for no endpoint; '
            'set training.source to "vllm" or "endpoint"'
        )
    try:
        check_host(model.url, model.allowed_hosts, "user")
    except ModelFailure as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class EnvironmentFacts:
    """Properties of an environment's users, independent of an agent."""

    name: str
    has_exact_user: bool
    """Whether generated tasks have an exact user: a script, or the environment's own user."""


@lru_cache(maxsize=16)
def read_environment(
    place: str, benchmarks: Path | None, paths: tuple[Path, ...]
) -> EnvironmentFacts:
    """Return the facts about an environment. Raise UnknownEnvironment, EnvironmentBroken."""
    environment = open_place(place, benchmarks=benchmarks, paths=paths)
    if not environment.capabilities:
        return EnvironmentFacts(environment.name, has_exact_user=False)
    try:
        with environment_code(environment, "its first tasks"):
            tasks = [next(environment.mixture({kind: 1.0})) for kind in environment.capabilities]
    except EnvironmentFailure as error:
        raise EnvironmentBroken(f"{place} makes no tasks: {error}") from error
    own = type(environment).user is not Environment.user
    exact = all((own or task.script is not None) and not task.solo for task in tasks)
    return EnvironmentFacts(environment.name, has_exact_user=exact)
