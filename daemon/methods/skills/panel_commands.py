"""`kintsugi panels`: several adapters behind a router, served as one policy."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.adapters import STEP_COLUMNS, build_document
from daemon.cli.command import Cli, OnlyAgent, command, noun
from daemon.cli.output import Columns, facts, table
from daemon.cli.serving import ActorName, EngineUrls, WhyNot, act_of, open_publisher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumers.methods.skills.panel_reads import PanelTraffic
    from consumers.reads.serving import AdapterRow

group = noun("panels", "Several adapters behind a router, served as one policy.")

_BASE: Final = "base"
"""Name of the base model in a list of members."""


@command(group)
def compose(
    cli: Cli,
    members: Annotated[
        list[str],
        typer.Argument(
            metavar="SKILL=ADAPTER...", help="Who answers which skill; `base` is the base."
        ),
    ],
    alias: Annotated[
        str | None, typer.Option(help="The agent it is for; default: the members'.")
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(metavar="ADAPTER", help="Trained to choose; default: the base chooses."),
    ] = None,
    describe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SKILL=TEXT", help="What the router reads of a skill; may be repeated."
        ),
    ] = None,
    examples: Annotated[
        bool,
        typer.Option(
            "--examples", help="Show an untrained router a successful conversation of each skill."
        ),
    ] = False,
    stage: Annotated[bool, typer.Option("--stage", help="Load it on every engine, too.")] = False,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Compose a panel of adapters of one agent; it answers nothing until it has passed the gate.

    A skill is described as `kintsugi skills` has it, where --describe does not say otherwise. The
    same panel again is the one that is there.
    """
    from daemon.methods.skills.panels import Composition, compose

    named = _parse_pairs(members, "SKILL=ADAPTER...", "refunds=refunds-40-0f3c9a1e")
    composition = Composition(
        members={skill: None if name == _BASE else name for skill, name in named.items()},
        alias=alias,
        router=router,
        descriptions=_parse_pairs(describe or (), "--describe", "refunds='pays money back'"),
        shows_examples=examples,
    )
    act = act_of(actor, reason)
    with open_publisher(cli, upstream) as publisher:
        row = compose(publisher.app, publisher.fleet, composition, act)
        if stage:
            row = publisher.stage(row.adapter, act)
    if cli.out.json:
        cli.out.document(build_document(cli, row))
    else:
        cli.out.show(_build_facts(row))
        _show_options(cli, row)
    if not stage:
        cli.out.hint(f"load it on every engine: kintsugi adapters stage {row.adapter}")


def _parse_pairs(texts: "Sequence[str]", what: str, example: str) -> dict[str, str]:
    """Parse texts of the form NAME=VALUE; return NAME -> VALUE. Raise BadParameter."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (separator and name and value) or name in pairs:
            wrong = "names a skill twice" if name in pairs else "is no NAME=VALUE"
            raise typer.BadParameter(f"{text!r} {wrong}; write {example}", param_hint=what)
        pairs[name] = value
    return pairs


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None) -> None:
    """List panels, the one that moved last first, with who of each answered which calls."""
    from consumers.methods.skills.panel_reads import list_panels, read_traffic
    from events.lifecycle import State

    with cli.app() as app, app.reading() as connection:
        rows = list_panels(connection, alias)
        traffic = read_traffic(connection, [row.adapter for row in rows])
    lines = [_build_line(row, traffic[row.adapter]) for row in rows]
    cli.out.show_rows(lines, _COLUMNS, describe=dict)
    for row in rows:
        if row.state is State.PRODUCED:
            cli.out.hint(
                f"{row.adapter} was never staged, and its parts are kept for it: kintsugi adapters "
                f"stage {row.adapter}, or give it up: kintsugi adapters retire {row.adapter}"
            )
    if not rows:
        cli.out.hint("there is no panel yet: kintsugi panels compose SKILL=ADAPTER ...")


def _build_line(row: "AdapterRow", traffic: "PanelTraffic") -> dict[str, Any]:
    assert row.composition is not None, "it is one of list_panels"
    return {
        "panel": row.adapter,
        "state": str(row.state),
        "alias": row.alias,
        "base": row.base,
        "members": [
            {
                "skill": member.skill,
                "adapter": member.adapter,
                "calls": traffic.by_skill.get(member.skill, 0),
                "share": _divide(traffic.by_skill.get(member.skill, 0), traffic.calls),
            }
            for member in row.composition.members
        ],
        "router": row.composition.router.adapter,
        "form": row.composition.router.form,
        "calls": traffic.calls,
        "doubts": traffic.doubts,
        "since": row.since,
        "reason": row.reason,
    }


def _divide(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _describe_members(line: dict[str, Any]) -> str:
    return "; ".join(_describe_member(member, line["base"]) for member in line["members"])


def _describe_member(member: "dict[str, Any]", base: str) -> str:
    share = "" if member["share"] is None else f" {member['share']:.0%}"
    return f"{member['skill']}: {member['adapter'] or base}{share}"


def _describe_doubts(line: dict[str, Any]) -> str:
    return ", ".join(f"{count:,} {doubt}" for doubt, count in line["doubts"].items())


_COLUMNS: Final = Columns(
    "panel",
    "state",
    "alias",
    ("members", _describe_members),
    ("router", lambda line: line["router"] or line["base"]),
    ("calls", "calls:,"),
    ("to the base", _describe_doubts),
    "since",
    right=("calls",),
    whole=("panel", "state"),
)


@command(group)
def show(
    cli: Cli,
    panel: Annotated[str, typer.Argument(metavar="PANEL", help="Its name, or how it begins.")],
) -> None:
    """Show one panel: its members, what its router reads, its traffic, what its members passed and
    what became of it."""
    from consumers.methods.skills.members import read_member_shares
    from consumers.methods.skills.panel_reads import read_traffic
    from consumers.reads.serving import adapter_steps, find_adapter

    with cli.app() as app, app.reading() as connection:
        row = find_adapter(connection, panel)
        if row.composition is None:
            raise typer.BadParameter(
                f"{row.adapter} is an adapter; see kintsugi adapters show", param_hint="PANEL"
            )
        line = _build_line(row, read_traffic(connection, [row.adapter])[row.adapter])
        shares = read_member_shares(connection, row.adapter)
        life = adapter_steps(connection, row.adapter)
    if cli.out.json:
        cli.out.document(
            {
                **line,
                "options": [option.model_dump() for option in row.composition.router.options],
                "calibration": row.composition.router.calibration,
                "replicas": row.replicas,
                "gate": None if row.gate is None else row.gate.model_dump(mode="json"),
                "rollouts": [asdict(share) for share in shares],
                "steps": [asdict(step) for step in life],
            }
        )
        return
    cli.out.show(_build_facts(row), "", _COLUMNS.build_table([line]), "")
    _show_options(cli, row)
    if shares:
        cli.out.show("", _SHARE_COLUMNS.build_table(shares))
    cli.out.show("", STEP_COLUMNS.build_table(life))


def _build_facts(row: "AdapterRow") -> Any:
    assert row.composition is not None, "it is a panel"
    return facts(
        {
            "panel": row.adapter,
            "state": f"{row.state}, since {row.since}",
            "for": f"{row.alias} on {row.base}",
            "router": _describe_router(row),
            "on": ", ".join(row.replicas) or "no engine",
        }
    )


def _describe_router(row: "AdapterRow") -> str:
    assert row.composition is not None, "it is a panel"
    router = row.composition.router
    if router.form == "head":
        return f"{router.adapter}, a head: it reads the session's own prompt"
    return router.adapter or f"{row.base}, without training"


_SHARE_COLUMNS: Final = Columns(
    ("rollouts of", "purpose"),
    ("kind", lambda share: share.capability or "(no task)"),
    ("who answered", "member"),
    ("for the skill", lambda share: share.skill or "(none)"),
    ("number", "rollouts"),
    ("passed", lambda share: f"{share.passed / share.judged:.2f}" if share.judged else ""),
)
"""Columns for each member's rollouts by kind of task, and how often they passed."""


def _show_options(cli: Cli, row: "AdapterRow") -> None:
    assert row.composition is not None, "it is a panel"
    cells = [
        [
            option.label,
            option.skill or "(none)",
            row.composition.find_adapter(option.skill) or row.base,
            option.description,
        ]
        for option in row.composition.router.options
    ]
    cli.out.show(table(["label", "skill", "who answers", "as the router reads it"], cells))
