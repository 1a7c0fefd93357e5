"""`kintsugi plans`: the plans by which tasks are written, and their results."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import Columns, facts, plain_line

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.methods.synthesis.plans import PlanChangeLine, PlanCounts, PlanSetLine, PlanState

group = noun("plans", "Plans by which tasks are written, and what became of them.")

_SHORT = 12
"""Characters of a set's id that a terminal shows; `plans show` needs no more."""


@command(group)
def ls(
    cli: Cli,
    alias: Annotated[str | None, typer.Option("--alias", help="Only one agent's.")] = None,
    base: Annotated[str | None, typer.Option(help="Only of this base.")] = None,
) -> None:
    """List the sets of plans in the order of the log, with the counts of their present plans."""
    from consumers.methods.synthesis.plans import list_plan_sets

    with cli.app() as app, app.reading() as connection:
        _check_agent(connection, alias)
        lines = list_plan_sets(connection, alias, base)
    cli.out.show_rows(
        lines,
        _SET_COLUMNS,
        nothing="no plans are written yet; a cycle writes some with improve.synthesis = "
        '"auto" or "always"',
        describe=_SET_FIELDS.document,
    )


@command(group)
def show(
    cli: Cli,
    plans: Annotated[str, typer.Argument(metavar="SET", help="Its id, or how that begins.")],
    plan: Annotated[
        str | None, typer.Argument(metavar="PLAN", help="Only this plan of the set.")
    ] = None,
) -> None:
    """Show a set of plans or one of them: its texts, counts, faults and revisions."""
    from consumers.methods.synthesis.plans import (
        find_plan,
        find_plan_set,
        read_plan_changes,
        read_plans,
    )

    with cli.app() as app, app.reading() as connection:
        line = find_plan_set(connection, plans)
        states: tuple[PlanState, ...]
        if plan is None:
            states = read_plans(connection, line.plans)
        else:
            states = (find_plan(connection, line, plan),)
        name = None if plan is None else states[0].plan.plan
        changes = read_plan_changes(connection, line.plans, name)
    if cli.out.json:
        cli.out.document(
            {
                **_SET_FIELDS.document(line),
                "entries": [
                    _build_plan_document(
                        state, [item for item in changes if item.plan == state.plan.plan]
                    )
                    for state in states
                ],
            }
        )
        return
    cli.out.show(_describe_set(line))
    if name is None:
        cli.out.show("", _PLAN_COLUMNS.build_table(states))
    else:
        cli.out.show("", _describe_plan(states[0]))
    if changes:
        cli.out.show("", _CHANGE_COLUMNS.build_table(changes))


def _check_agent(connection: "Connection", alias: str | None) -> None:
    """Raise BadParameter if the agent has neither rollouts nor plans."""
    from consumers.methods.synthesis.plans import list_plan_sets
    from consumers.reads import agents

    if alias is None:
        return
    names = {pair.alias for pair in agents.present(connection)}
    names |= {line.alias for line in list_plan_sets(connection)}
    if alias not in names:
        raise typer.BadParameter(
            f"no agent {alias[:200]!r} was seen; there are: {', '.join(sorted(names)) or 'none'}",
            param_hint="--alias",
        )


_SET_FIELDS: Final = Columns(
    "plans", "alias", "base", "environment", "patterns", "writer", "plans_count",
    ("tries", "counts.tries"), ("accepted", "counts.accepted"), "rounds", "stopped", "state",
    ("faults", "counts.faults"), ("disagreements", "counts.disagreements"), "overlap", "uncovered",
    "refused", "trouble", "cycle", "time",
)  # fmt: skip
"""Fields of a set in `plans ls --json`, the promised ones first."""

_SET_COLUMNS: Final = Columns(
    ("set", lambda line: line.plans[:_SHORT]), "alias", "base", "environment",
    ("patterns", lambda line: ", ".join(line.patterns) or "all"), ("written by", "author"),
    ("plans", "plans_count"), ("accepted", lambda line: _describe_acceptance(line.counts)),
    "rounds", "state", ("why", "stopped"),
    right=("plans", "rounds"), whole=("set", "state"),
)  # fmt: skip

_PLAN_FIELDS: Final = Columns(
    "revision", ("tries", "counts.tries"), ("accepted", "counts.accepted"),
    ("faults", "counts.faults"), ("disagreements", "counts.disagreements"),
)  # fmt: skip

_PLAN_COLUMNS: Final = Columns(
    ("plan", "plan.plan"), ("about", "plan.summary"), "revision",
    ("accepted", lambda state: _describe_acceptance(state.counts)),
    ("faults", lambda state: _describe_faults(state.counts)),
    ("disagreements", lambda state: state.counts.disagreements or ""), ("writing", "plan.writing"),
    right=("revision", "disagreements"), whole=("plan",),
)  # fmt: skip

_CHANGE_FIELDS: Final = Columns(
    "round", "revision", "reason", "failures", "tries_before", "accepted_before", "tries",
    "accepted", "kept", "writer",
    ("definition", lambda change: change.definition.model_dump(mode="json")), "time",
)  # fmt: skip

_CHANGE_COLUMNS: Final = Columns(
    "plan", "round", ("revision", lambda change: f"{change.revision} to {change.revision + 1}"),
    ("kept", lambda change: "kept" if change.kept else "not kept"),
    ("accepted before", lambda change: f"{change.accepted_before} of {change.tries_before}"),
    ("accepted", lambda change: f"{change.accepted} of {change.tries}"), ("why", "reason"),
    ("failures", lambda change: ", ".join(change.failures)),
    right=("round",), whole=("plan", "kept"),
)  # fmt: skip


def _build_plan_document(state: "PlanState", changes: "list[PlanChangeLine]") -> dict[str, Any]:
    return {
        **state.plan.model_dump(mode="json"),
        **_PLAN_FIELDS.document(state),
        "revisions": [_CHANGE_FIELDS.document(change) for change in changes],
    }


def _describe_acceptance(counts: "PlanCounts") -> str:
    return f"{counts.accepted:,} of {counts.tries:,}"


def _describe_faults(counts: "PlanCounts") -> str:
    return ", ".join(f"{fault}: {count:,}" for fault, count in counts.faults.items() if count)


def _describe_set(line: "PlanSetLine") -> Any:
    values = {
        "set": line.plans,
        "agent": f"{line.alias} on {line.base}",
        "environment": line.environment,
        "patterns": ", ".join(line.patterns) or "all",
        "cycle": line.cycle or "",
        "written by": line.author,
        "tries": f"{_describe_acceptance(line.counts)} accepted",
        "faults": _describe_faults(line.counts),
        "disagreements": str(line.counts.disagreements or ""),
        "rounds": f"{line.rounds}; {line.stopped or 'another one may follow'}",
        "largest overlap": f"{line.overlap:.2f}",
        "tools of no plan": ", ".join(line.uncovered),
        "not taken": "; ".join(line.refused),
        "trouble": line.trouble,
    }
    return facts({name: value for name, value in values.items() if value})


def _describe_plan(state: "PlanState") -> Any:
    from rich.text import Text

    plan = state.plan
    rules = (f"{rule.aspect}, {rule.check}: {rule.text}" for rule in plan.rules)
    values = {
        "plan": plan.plan,
        "about": plan.summary,
        "tools": ", ".join(plan.tools),
        "revision": str(state.revision),
        "writing": plan.writing,
        "judging": plan.judging,
        "rules": Text("\n".join(map(plain_line, rules))),
        "tries": f"{_describe_acceptance(state.counts)} accepted",
        "faults": _describe_faults(state.counts),
        "disagreements": str(state.counts.disagreements or ""),
    }
    return facts({name: value for name, value in values.items() if value})
