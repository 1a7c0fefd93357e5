"""Describe panels and skills in the status document, and in its lines.

read_taught_skills(app, connection)     the skills that agents lack, and what of them is taught
list_member_lines(document)             panel -> its members, in words
list_skill_lines(document)              agent -> what is taught, in words
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from consumers.methods.skills.measures import SkillState
from consumers.methods.skills.reads import read_skills
from consumers.reads import agents
from daemon.methods.skills.choice import read_skill_status

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App


def read_taught_skills(app: "App", connection: "Connection") -> list[dict[str, Any]]:
    """Return the skills that the last comparison of each agent selected, the largest contrast of
    each first, and what of them is taught."""
    documents = []
    for pair in sorted(agents.present(connection)):
        taught = read_skill_status(connection, app.settings, pair, SkillState.SELECTED)
        for line in read_skills(connection, pair.alias, SkillState.SELECTED):
            if line.base == pair.base:
                own = taught[line.skill]
                names = ("skill", "alias", "base", "delta", "coverage")
                values = {name: getattr(line, name) for name in names}
                documents.append(
                    {**values, "taught": own.state, "why": own.reason, "adapter": own.adapter}
                )
    return documents


def list_member_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of a line -> the members of a panel, for each panel of a status document."""
    return {
        f"members of {panel['panel']}": "; ".join(
            _describe_member(member, panel["base"]) for member in panel["members"]
        )
        for panel in document["panels"]
    }


def list_skill_lines(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of a line -> what is taught of an agent's skills, for each agent."""
    lines: dict[str, str] = {}
    for skill in document["skills"]:
        name = f"taught of {skill['alias']}"
        state = ", ".join(filter(None, [f"{skill['skill']} {skill['taught']}", skill["adapter"]]))
        lines[name] = "; ".join(filter(None, [lines.get(name), state]))
    return lines


def _describe_member(member: Mapping[str, Any], base: str) -> str:
    """Return what a member of a panel answers and won, as the status document has it."""
    parts = [f"{member['skill'] or 'no skill'}: {member['adapter'] or base}"]
    if member["share"] is not None:
        parts.append(f"{member['share']:.0%} of the last day's sessions")
    if member["judged"]:
        parts.append(f"{member['passed']:,} of {member['judged']:,} judged passed")
    if member["gate"] is not None:
        rates = member["gate"]["incumbent_pass"], member["gate"]["candidate_pass"]
        parts.append("gate {:.1%} to {:.1%}".format(*rates))
    return ", ".join(parts)
