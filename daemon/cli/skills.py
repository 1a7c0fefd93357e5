"""`kintsugi skills`: what an agent lacks that its successes have, found by contrast."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import facts, table
from daemon.cli.serving import ActorName, WhyNot, act_of
from events.errors import KintsugiError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.diagnosis.round_counts import Pair
    from consumers.reads.skills import SkillLine

group = noun("skills", "What an agent lacks that its successes have; list, show or find it.")

OfAgent = Annotated[str | None, typer.Option("--alias", help="Only one agent's.")]


class NothingToCompare(KintsugiError):
    """No round is closed, no such agent, or nothing of it failed."""


@command(group)
def ls(cli: Cli, alias: OfAgent = None) -> None:
    """List the skills of the last comparison, the largest contrast first."""
    from consumers.reads.skills import read_skills

    with cli.app() as app, app.reading() as connection:
        lines = read_skills(connection, alias)
    _print(cli, lines)
    if not lines:
        cli.out.hint("nothing was compared yet: kintsugi skills find")


@command(group)
def show(
    cli: Cli,
    skill: Annotated[str, typer.Argument(metavar="SKILL", help="Its name.")],
    alias: Annotated[str | None, typer.Option(help="Whose; where several agents have it.")] = None,
) -> None:
    """Show one skill: its patterns, its figures and failed rollouts that lack it."""
    from consumers.reads.skills import read_skills

    with cli.app() as app, app.reading() as connection:
        lines = read_skills(connection, alias)
    line = _find_skill(lines, skill)
    document = {**_build_document(line), **_build_details(line)}
    if cli.out.json:
        cli.out.document(document)
        return
    told = {
        "skill": line.skill,
        "agent": f"{line.alias} on {line.base}",
        "state": line.state,
        "what": line.description,
        "patterns": ", ".join(line.patterns),
        "contrast": f"{line.delta:.2f} (deviation {line.delta_deviation:.2f})",
        "coverage": f"{line.coverage:.2f} (deviation {line.coverage_deviation:.2f})",
        "selected": f"in {line.selected} of {line.labellings} labellings",
        "applies to": f"{line.failures:,} failures and {line.successes:,} successes",
        "within": line.within or "",
        "compared": f"round {line.round}",
        "failed": ", ".join(line.examples),
    }
    cli.out.show(facts({name: value for name, value in told.items() if value}))


@command(group)
def find(
    cli: Cli,
    alias: OfAgent = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="The last so many; default: improve.skills_rounds.")
    ] = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Compare the failures and successes of the last rounds now."""
    from consumers.reads.rollouts import last_round
    from consumers.reads.skills import read_skills
    from daemon.controller.skill_discovery import contrast_skills
    from daemon.core.decision_log import Decisions

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            pairs = _list_agents(connection, alias)
            last = last_round(connection)
            if last is None:
                raise NothingToCompare("no round is closed yet; close one: kintsugi diagnose")
            since = max(0, last.round + 1 - (rounds or app.settings.improve.skills_rounds))
            contrasts = [contrast_skills(connection, pair, since, last.round) for pair in pairs]
        decisions = Decisions(app)
        for data in contrasts:
            if data is not None:
                arguments = {"alias": data.alias}
                cause = decisions.act(act_of(actor, reason), "skills find", arguments)
                decisions.take(data, "contrasted", cause)
        with app.reading() as connection:
            lines = read_skills(connection, alias)
    if not any(contrasts):
        raise NothingToCompare(f"no judged rollout of rounds {since} to {last.round} failed")
    _print(cli, lines)


def _list_agents(connection: "Connection", alias: str | None) -> "list[Pair]":
    """Return the agents to compare. Raises NothingToCompare."""
    from consumers.reads import agents

    present = agents.present(connection)
    pairs = [pair for pair in present if alias in (None, pair.alias)]
    if not pairs:
        names = ", ".join(pair.alias for pair in present) or "none"
        raise NothingToCompare(f"no agent {alias or ''} was seen; there are: {names}")
    return pairs


def _find_skill(lines: "list[SkillLine]", skill: str) -> "SkillLine":
    """Return the skill of this name. Raises BadParameter for none, and for several."""
    named = [line for line in lines if line.skill == skill]
    if len(named) == 1:
        return named[0]
    if named:
        agents = ", ".join(f"{line.alias} on {line.base}" for line in named)
        raise typer.BadParameter(f"{agents} have {skill}; name one", param_hint="--alias")
    names = ", ".join(sorted({line.skill for line in lines})) or "none"
    raise typer.BadParameter(
        f"no skill is called {skill!r}; there are: {names}", param_hint="SKILL"
    )


def _print(cli: Cli, lines: "list[SkillLine]") -> None:
    if cli.out.json:
        cli.out.document([_build_document(line) for line in lines])
    elif lines:
        cells = [
            [line.skill, line.alias, f"{line.delta:+.2f}", f"{line.coverage:.2f}",
             f"{line.selected} of {line.labellings}", line.state]
            for line in lines
        ]  # fmt: skip
        columns = ["skill", "alias", "contrast", "coverage", "selected", "state"]
        right = ("contrast", "coverage", "selected")
        cli.out.show(table(columns, cells, right=right, whole=("skill", "state")))


def _build_document(line: "SkillLine") -> dict[str, Any]:
    return {
        "skill": line.skill,
        "alias": line.alias,
        "delta": line.delta,
        "coverage": line.coverage,
        "selected": line.selected,
        "of": line.labellings,
        "state": line.state,
        "adapter": None,
    }


def _build_details(line: "SkillLine") -> dict[str, Any]:
    more = asdict(line)
    names = (
        "base", "description", "patterns", "delta_deviation", "coverage_deviation", "failures",
        "successes", "within", "examples", "round", "time",
    )  # fmt: skip
    return {name: more[name] for name in names}
