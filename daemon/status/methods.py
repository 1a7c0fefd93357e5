"""Wire the status document with the methods: their practice for each agent, and their lines."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from sqlalchemy import Connection

    from consumers.reads.cycle_state import CycleState
    from daemon.config.settings import Settings
    from daemon.core.app import App
    from events.jobs import JobSpec


def read_documents(app: "App", connection: "Connection", now: datetime) -> dict[str, Any]:
    """Return the practice of each setting of `[improve]` for each agent, the players of users, the
    answering versions with members, and the taught skills."""
    from daemon.methods.lessons.practice import read_practices
    from daemon.methods.skills.practice import (
        read_panel_states,
        read_skill_practices,
        read_taught_skills,
    )
    from daemon.methods.synthesis.practice import read_synthesis_practices
    from daemon.methods.synthesis.users.practice import read_user_documents

    practices: dict[str, Sequence[DataclassInstance]] = {
        "lessons": read_practices(connection, app.settings),
        "skills": read_skill_practices(connection, app.settings),
        "synthesis": read_synthesis_practices(connection, app.settings),
    }
    return {
        "improve": {name: [asdict(item) for item in items] for name, items in practices.items()},
        "skills": read_taught_skills(app, connection),
        "users": read_user_documents(app, connection),
        "panels": [asdict(panel) for panel in read_panel_states(connection, now)],
    }


def describe_branches(
    connection: "Connection", settings: "Settings", state: "CycleState"
) -> list[dict[str, str | None]]:
    """Return the jobs of a cycle with branches, and their results."""
    from daemon.methods.skills.choice import describe_jobs

    return describe_jobs(connection, settings, state)


def describe_job(spec: "JobSpec") -> dict[str, Any]:
    """Return the fields that methods add to a job."""
    return {"lessons": sum(pool.repair_count for pool in spec.pools)}


def list_member_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> line about the members of the answering versions."""
    from daemon.methods.skills import practice

    return practice.list_member_lines(document)


def list_branch_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> line about the skills that are taught."""
    from daemon.methods.skills import practice

    return practice.list_skill_lines(document)
