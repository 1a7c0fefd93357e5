"""Make a cycle's panel (`Composer`) and its router's job (`RouterTeacher`), over a home's replicas.

A replica of the base says which tokens the labels are, so the learner's packages are not needed.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from consumers.methods.skills.reads import read_skills
from daemon.adapters.compatibility import BadBase, count_parameters
from daemon.cycle.branches import VersionRefusal
from daemon.cycle.job_spec import NotTrainable
from daemon.cycle.proposal import RetryLater
from daemon.methods.skills.panel_parts import PanelParts, RouterLesson
from daemon.methods.skills.panels import (
    Composition,
    CompositionRefusal,
    build_options,
    compose,
    find_engine,
)
from daemon.methods.skills.router_job import build_router_spec
from daemon.serving.fleet import Fleet, NoReplica, open_fleet
from daemon.serving.replica import ReplicaError
from events.jobs import JobSpec

if TYPE_CHECKING:
    from daemon.core.app import App

NO_SKILL_NAME: Final = "none of these"
"""How a trained router's prompt describes the option for no skill."""


def teach_router(app: "App", lesson: RouterLesson, urls: Sequence[str] = ()) -> JobSpec:
    """Return the spec of the job that trains a router; `urls` replace the settings' replicas. Raise
    RetryLater; raise NotTrainable if no router can tell the skills apart."""
    settings = app.settings
    form: Literal["labels", "head"] = (
        "head" if settings.improve.skills_router == "head" else "labels"
    )
    # The router learns a skill's meaning from tasks: long descriptions confuse a small model, and
    # every session waits for the prompt.
    names = {skill: skill.replace("_", " ") for skill in lesson.skills}
    try:
        with open_fleet(settings, urls) as fleet:
            engine = find_engine(fleet, lesson.base)
            options = build_options(engine, lesson.base, names, no_skill=NO_SKILL_NAME)
    except (NoReplica, ReplicaError) as error:
        raise RetryLater(f"the router of {lesson.agent.alias} waits: {error}") from error
    except CompositionRefusal as error:
        raise NotTrainable(str(error)) from error
    try:
        return build_router_spec(
            settings.training,
            lesson.agent,
            job=lesson.job,
            base=lesson.base,
            options=options,
            tasks=lesson.tasks,
            benchmarks=settings.benchmarks,
            environments=settings.environments.paths,
            parameters=None if form == "head" else _count_parameters(app, lesson),
            form=form,
        )
    except NotTrainable as error:
        # The settings are at fault; the members that passed wait for better ones.
        raise RetryLater(
            f"the router of {lesson.agent.alias} waits: {error}, or set improve.skills_router = "
            '"labels" to have the base choose'
        ) from error


def _count_parameters(app: "App", lesson: RouterLesson) -> int | None:
    """Return the base's number of weights; None if a setting gives the rate. Raise NotTrainable."""
    checkpoint = lesson.agent.checkpoint
    if app.settings.training.warm_start_lr is not None or checkpoint is None:
        return None
    try:
        return count_parameters(checkpoint)
    except BadBase as error:
        raise NotTrainable(
            f"no learning rate of a router follows from the base: {error}; set "
            "training.warm_start_lr"
        ) from error


def compose_panel(app: "App", parts: PanelParts, *, fleet: Fleet) -> str:
    """Append a cycle's panel; return a sentence. Raise VersionRefusal, NoReplica, ReplicaError,
    LogError."""
    composition = Composition(
        members={member.skill: member.adapter for member in parts.members},
        alias=parts.alias,
        router=parts.router,
        descriptions={} if parts.router is not None else _name_unknown_skills(app, parts),
        shows_examples=parts.router is None,
        cycle=parts.cycle,
    )
    try:
        row = compose(app, fleet, composition, parts.cause)
    except CompositionRefusal as error:
        raise VersionRefusal(str(error)) from error
    return f"{row.adapter} is composed of {len(parts.members)} members"


def _name_unknown_skills(app: "App", parts: PanelParts) -> dict[str, str]:
    """Describe members whose skills the last comparison no longer names. The text is the skill's
    description on another base, or else its name."""
    with app.reading() as connection:
        lines = [line for line in read_skills(connection, parts.alias) if line.description]
    known = {line.skill for line in lines if line.base == parts.base}
    elsewhere = {line.skill: line.description for line in lines if line.base != parts.base}
    return {
        member.skill: elsewhere.get(member.skill) or member.skill.replace("_", " ")
        for member in parts.members
        if member.skill not in known
    }
