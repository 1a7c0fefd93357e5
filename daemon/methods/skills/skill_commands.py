"""`kintsugi skills`: the skills that an agent's failures lack and its successes have."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.command import FAILED, PARTLY, Cli, OnlyAgent, command, noun
from daemon.cli.output import Columns, facts
from daemon.cli.serving import ActorName, WhyNot, act_of
from events.errors import KintsugiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from consumers.diagnosis.round_counts import Pair
    from consumers.methods.skills.reads import SkillLine
    from daemon.core.app import App
    from daemon.methods.skills.choice import Teaching
    from events.learning import SkillsContrasted

group = noun("skills", "What an agent lacks that its successes have; list, show or find it.")


class NothingToCompare(KintsugiError):
    """No round is closed, or no rollout in it was judged."""


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None) -> None:
    """List the skills of the last comparison, the largest contrast first."""
    from consumers.methods.skills.reads import read_comparisons, read_skills

    with cli.app() as app, app.reading() as connection:
        _check_agent(connection, alias)
        compared = [pair for pair in read_comparisons(connection) if alias in (None, pair.alias)]
        lines = read_skills(connection, alias)
        teaching = _read_teaching(app, connection, lines)
    _print(cli, lines, teaching)
    if not compared:
        cli.out.hint("nothing was compared yet: kintsugi skills find")
    elif not lines:
        cli.out.hint("the last comparison had no candidate: little failed, or each time otherwise")


@command(group)
def show(
    cli: Cli,
    skill: Annotated[str, typer.Argument(metavar="SKILL", help="Its name.")],
    alias: Annotated[str | None, typer.Option(help="Whose; where several agents have it.")] = None,
    base: Annotated[
        str | None, typer.Option(help="On which base; default: that on which the agent runs.")
    ] = None,
) -> None:
    """Show one skill: its patterns, its figures and failed rollouts that lack it."""
    from consumers.methods.skills.reads import read_skills
    from consumers.reads import agents

    with cli.app() as app, app.reading() as connection:
        lines = read_skills(connection, alias)
        present = {pair.alias: pair.base for pair in agents.present(connection)}
        line = _find_skill(lines, skill, base, present)
        taught = _read_teaching(app, connection, [line])[line.alias, line.base, line.skill]
    if cli.out.json:
        row = {"line": line, "taught": taught}
        cli.out.document({**_FIELDS.document(row), **_DETAILS.document(line)})
        return
    values = {
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
        "labelled by": line.labeller or "rules",
        "failures": ", ".join(line.examples),
        "taught": "; ".join(filter(None, [taught.state, taught.reason])),
        "job": taught.job or "",
        "adapter": taught.adapter or "",
    }
    cli.out.show(facts({name: value for name, value in values.items() if value}))


@command(group)
def find(
    cli: Cli,
    alias: OnlyAgent = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="The last so many; default: improve.skills_rounds.")
    ] = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Compare the failures and successes of the last rounds now."""
    from consumers.methods.skills.reads import read_skills
    from daemon.controller.model_answers import ModelFailure
    from daemon.core.decision_log import Decisions

    contrasts, failures = [], 0
    with cli.app() as app:
        app.settle()
        most = rounds or app.settings.improve.skills_rounds
        with app.reading() as connection:
            pairs = _check_agent(connection, alias)
        decisions = Decisions(app)
        for pair, span in _find_spans(app, pairs, most):
            try:
                data = _contrast(app, pair, span)
            except ModelFailure as error:
                cli.out.warn(f"{pair.alias}: {error}")
                failures += 1
                continue
            # Recorded at once: an error at the next agent must not lose an answer that cost money.
            cause = decisions.act(act_of(actor, reason), "skills find", {"alias": data.alias})
            decisions.take(data, "contrasted", cause)
            contrasts.append(data)
        with app.reading() as connection:
            lines = read_skills(connection, alias)
            teaching = _read_teaching(app, connection, lines)
    _print(cli, lines, teaching)
    for data in contrasts:
        cli.out.hint(
            f"compared {data.failures:,} failures and {data.successes:,} successes of "
            f"{data.alias}, rounds {data.since} to {data.round}{_describe_labeller(data)}"
        )
    if failures:
        raise typer.Exit(PARTLY if contrasts else FAILED)


def _describe_labeller(data: "SkillsContrasted") -> str:
    if data.labeller is None:
        return ""
    parts = [f"; {data.labeller} labelled them"]
    if data.left_out:
        parts.append(f"{data.left_out:,} more rollouts could not be shown to it")
    if data.refused:
        parts.append(f"{data.refused} of its labellings were refused")
    return ", ".join(parts)


def _find_spans(app: "App", pairs: "list[Pair]", most: int) -> "list[tuple[Pair, tuple[int, int]]]":
    """Return the agents with their first and last judged round. Raise NothingToCompare."""
    from consumers.methods.skills.reads import list_judged_rounds
    from consumers.reads.rollouts import last_round

    with app.reading() as connection:
        last = last_round(connection)
        if last is None:
            raise NothingToCompare("no round is closed yet; close one: kintsugi diagnose")
        rounds = {pair: list_judged_rounds(connection, pair, last.round, most) for pair in pairs}
    spans = [(pair, (own[-1], last.round)) for pair, own in rounds.items() if own]
    if not spans:
        names = ", ".join(pair.alias for pair in pairs) or "any agent"
        raise NothingToCompare(
            f"no rollout of {names} was judged until round {last.round}; import some with "
            "verdicts, or have sessions graded (docs/gateway.md)"
        )
    return spans


def _contrast(app: "App", pair: "Pair", span: tuple[int, int]) -> "SkillsContrasted":
    """Compare the rollouts of the rounds in `span`. Raise ModelFailure."""
    from daemon.methods.skills.analyzer import choose_labeller
    from daemon.methods.skills.discovery import contrast_skills

    since, until = span
    labeller = choose_labeller(app, pair, f"{pair.alias} {pair.base} {until}")
    data = contrast_skills(app, pair, since, until, labeller=labeller)
    assert data is not None, "a round with judged rollouts"
    return data


def _check_agent(connection: "Connection", alias: str | None) -> "list[Pair]":
    """Return the agents that `alias` selects. Raise BadParameter if the alias is unknown."""
    from consumers.reads import agents

    present = agents.present(connection)
    pairs = [pair for pair in present if alias in (None, pair.alias)]
    if alias is not None and not pairs:
        names = ", ".join(pair.alias for pair in present) or "none"
        raise typer.BadParameter(
            f"no agent {alias!r} was seen; there are: {names}", param_hint="--alias"
        )
    return pairs


def _find_skill(
    lines: "list[SkillLine]", skill: str, base: str | None, present: "Mapping[str, str]"
) -> "SkillLine":
    """Return the skill of this name, on `base` or else its agent's base. Raise BadParameter."""
    named = [line for line in lines if line.skill == skill and base in (None, line.base)]
    if len(named) > 1 and base is None:
        named = [line for line in named if present.get(line.alias) == line.base] or named
    if len(named) == 1:
        return named[0]
    if named:
        agents = ", ".join(f"{line.alias} on {line.base}" for line in named)
        raise typer.BadParameter(
            f"{agents} have {skill}; name one with --alias and --base", param_hint="SKILL"
        )
    names = ", ".join(sorted({line.skill for line in lines})) or "none"
    raise typer.BadParameter(
        f"no skill is called {skill!r}; there are: {names}", param_hint="SKILL"
    )


def _read_teaching(
    app: "App", connection: "Connection", lines: "list[SkillLine]"
) -> "dict[tuple[str, str, str], Teaching]":
    from consumers.diagnosis.round_counts import Pair
    from daemon.methods.skills.choice import read_skill_status

    pairs = dict.fromkeys(Pair(line.alias, line.base) for line in lines)
    return {
        (pair.alias, pair.base, skill): teaching
        for pair in pairs
        for skill, teaching in read_skill_status(connection, app.settings, pair).items()
    }


def _print(
    cli: Cli, lines: "list[SkillLine]", teaching: "Mapping[tuple[str, str, str], Teaching]"
) -> None:
    rows = [{"line": line, "taught": teaching[line.alias, line.base, line.skill]} for line in lines]
    cli.out.show_rows(rows, _COLUMNS, describe=_FIELDS.document)


_COLUMNS: Final = Columns(
    ("skill", "line.skill"), ("alias", "line.alias"), ("base", "line.base"),
    ("contrast", "line.delta:+.2f"), ("coverage", "line.coverage:.2f"),
    ("selected", lambda row: f"{row['line'].selected} of {row['line'].labellings}"),
    ("state", "line.state"), ("taught", "taught.state"), ("adapter", "taught.adapter"),
    ("why", "taught.reason"),
    right=("contrast", "coverage", "selected"), whole=("skill", "state"),
)  # fmt: skip

_FIELDS: Final = Columns(
    ("skill", "line.skill"), ("alias", "line.alias"), ("delta", "line.delta"),
    ("coverage", "line.coverage"), ("selected", "line.selected"), ("of", "line.labellings"),
    ("state", "line.state"), ("taught", "taught.state"), ("why", "taught.reason"),
    ("job", "taught.job"), ("adapter", "taught.adapter"), ("base", "line.base"),
)  # fmt: skip

_DETAILS: Final = Columns(
    "description", "patterns", "delta_deviation", "coverage_deviation", "failures", "successes",
    "within", "examples", "labeller", "round", "time",
)  # fmt: skip
