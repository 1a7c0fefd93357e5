"""Check of the models by role."""

import asyncio
from typing import TYPE_CHECKING, Final

from daemon.status.doctor.finding import Finding

if TYPE_CHECKING:
    from daemon.config.settings import Model, Settings
    from daemon.core.app import App

_SECONDS: Final = 10.0
"""Seconds an endpoint may take to list its models."""
_NAMES: Final = 5
"""Maximum number of names that a finding quotes from a list."""
_VERSION: Final = "/v1"
"""End of most base URLs."""


def models(app: "App") -> Finding:
    """Check that each role's endpoint is allowed, answers, knows the key and lists the model. No
    model is asked: without a list, a wrong name shows with the first question."""
    own = app.settings.models
    roles = {"analyzer": own.analyzer, "proposer": own.proposer, "user": own.user}
    findings = {role: _examine(role, model) for role, model in roles.items() if model.url}
    failed = [f"models.{role}: {text}" for role, (ok, text) in findings.items() if not ok]
    if problem := _find_missing_user(app.settings):
        failed.append(problem)
    if failed:
        return False, "; ".join(failed)
    if not findings:
        return True, "none is configured; rules, templates and scripts do their work"
    remarks = [f"models.{role}: {text}" for role, (_, text) in findings.items() if text]
    return True, "; ".join([f"{', '.join(findings)}: the endpoints answer", *remarks])


def _find_missing_user(settings: "Settings") -> str | None:
    """Return a problem if a model has to play users and the settings name none."""
    if settings.improve.users != "model" or settings.models.user.url:
        return None
    return (
        'improve.users is "model", and models.user.url names none, so scripts play the users; set '
        'models.user.url and models.user.model, or set improve.users to "script"'
    )


def _examine(role: str, model: "Model") -> Finding:
    """Return a role's problem with its remedy, if any, and a remark if its answer is uncertain."""
    from daemon.controller.model_answers import ModelFailure
    from envs.endpoint import EndpointRefusal, EndpointUnavailable

    try:
        names = asyncio.run(_list_models(role, model))
    except (EndpointRefusal, EndpointUnavailable, ModelFailure) as error:
        return False, str(error)
    if not names:
        return _examine_silence(role, model)
    if model.model in names or f"{model.model}:latest" in names:  # Ollama adds a tag to the name
        return True, ""
    listed = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
    return False, (
        f"{model.url} lists {listed}, and models.{role}.model is {model.model!r}; correct the name"
    )


def _examine_silence(role: str, model: "Model") -> Finding:
    """Examine an endpoint that answers and lists no models: its URL may be incomplete."""
    from daemon.controller.model_answers import ModelFailure
    from envs.endpoint import EndpointRefusal, EndpointUnavailable

    url = model.url.rstrip("/")
    if not url.endswith(_VERSION):
        longer = model.model_copy(update={"url": url + _VERSION})
        try:
            is_incomplete = bool(asyncio.run(_list_models(role, longer)))
        except (EndpointRefusal, EndpointUnavailable, ModelFailure):
            is_incomplete = False  # an unset URL without an engine is no problem
        if is_incomplete:
            return False, f"{url} lists no models, and {longer.url} does; set that URL"
    return True, (
        f"{url} lists no models, so whether it serves {model.model!r} shows with the first question"
    )


async def _list_models(role: str, model: "Model") -> tuple[str, ...] | None:
    """Return the models that a role's endpoint lists; None without a list. Raise EndpointRefusal,
    EndpointUnavailable, ModelFailure."""
    from daemon.controller.model_answers import open_endpoint

    patient = model.model_copy(update={"timeout_seconds": min(model.timeout_seconds, _SECONDS)})
    async with open_endpoint(patient, role) as endpoint:
        return await endpoint.list_models()
