"""Check of models by role: would they be asked, and do they answer?"""

import asyncio
from typing import TYPE_CHECKING, Final

from daemon.status.doctor.finding import Finding

if TYPE_CHECKING:
    from daemon.config.settings import Model
    from daemon.core.app import App

_SECONDS: Final = 10.0
"""Seconds an endpoint may take to list its models."""


def models(app: "App") -> Finding:
    """Check that the endpoint of each role is allowed, answers and knows the key. Nothing is asked
    of a model: a name that the endpoint does not have shows with the first question."""
    own = app.settings.models
    roles = {"analyzer": own.analyzer, "proposer": own.proposer, "user": own.user}
    configured = {role: model for role, model in roles.items() if model.url}
    if not configured:
        return True, "none is configured; rules, templates and scripts do their work"
    problems = {role: _find_problem(role, model) for role, model in configured.items()}
    failed = [f"models.{role}: {problem}" for role, problem in problems.items() if problem]
    if failed:
        return False, "; ".join(failed)
    return True, f"{', '.join(configured)}: the endpoints answer"


def _find_problem(role: str, model: "Model") -> str | None:
    """Return why a role's model would not answer, with the remedy; None where it would."""
    from daemon.controller.model_answers import ModelFailure
    from envs.endpoint import EndpointRefusal, EndpointUnavailable

    try:
        asyncio.run(_reach(role, model))
    except (EndpointRefusal, EndpointUnavailable, ModelFailure) as error:
        return str(error)
    return None


async def _reach(role: str, model: "Model") -> None:
    """Raises EndpointRefusal, EndpointUnavailable, ModelFailure."""
    from daemon.controller.model_answers import open_endpoint

    patient = model.model_copy(update={"timeout_seconds": min(model.timeout_seconds, _SECONDS)})
    async with open_endpoint(patient, role) as endpoint:
        await endpoint.check()
