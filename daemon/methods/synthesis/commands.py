"""`kintsugi plans`: by which plans tasks are written, and what became of them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import facts, plain_line, table

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.methods.synthesis.plans import PlanChangeLine, PlanCounts, PlanSetLine, PlanState

group = noun("plans", "Plans by which tasks are written, and what became of them.")

_SHORT = 12
"""Characters of a set's id that a terminal shows: enough for `plans show`."""


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
    if cli.out.json:
        cli.out.document([build_set_document(line) for line in lines])
    elif lines:
        cli.out.show(_build_table(lines))
    if not lines:
        cli.out.hint(
            'no plans are written yet; a cycle writes some with improve.synthesis = "auto" or '
            '"always"'
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
                **build_set_document(line),
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
        cli.out.show("", _build_plans_table(states))
    else:
        cli.out.show("", _describe_plan(states[0]))
    if changes:
        cli.out.show("", _build_changes_table(changes))


def _check_agent(connection: "Connection", alias: str | None) -> None:
    """Raise BadParameter for an agent of which nothing was seen and no plan is written."""
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


def build_set_document(line: "PlanSetLine") -> dict[str, Any]:
    """Return a set as `plans ls --json` has it, the promised fields first."""
    return {
        "plans": line.plans,
        "alias": line.alias,
        "base": line.base,
        "environment": line.environment,
        "patterns": list(line.patterns),
        "writer": line.writer,
        "plans_count": line.plans_count,
        "tries": line.counts.tries,
        "accepted": line.counts.accepted,
        "rounds": line.rounds,
        "stopped": line.stopped,
        "state": line.state,
        "faults": line.counts.faults,
        "disagreements": line.counts.disagreements,
        "overlap": line.overlap,
        "uncovered": list(line.uncovered),
        "refused": list(line.refused),
        "trouble": line.trouble,
        "cycle": line.cycle,
        "time": line.time,
    }


def _build_plan_document(state: "PlanState", changes: "list[PlanChangeLine]") -> dict[str, Any]:
    return {
        **state.plan.model_dump(mode="json"),
        "revision": state.revision,
        "tries": state.counts.tries,
        "accepted": state.counts.accepted,
        "faults": state.counts.faults,
        "disagreements": state.counts.disagreements,
        "revisions": [_build_change_document(change) for change in changes],
    }


def _build_change_document(change: "PlanChangeLine") -> dict[str, Any]:
    return {
        "round": change.round,
        "revision": change.revision,
        "reason": change.reason,
        "failures": list(change.failures),
        "tries_before": change.tries_before,
        "accepted_before": change.accepted_before,
        "tries": change.tries,
        "accepted": change.accepted,
        "kept": change.kept,
        "writer": change.writer,
        "definition": change.definition.model_dump(mode="json"),
        "time": change.time,
    }


def _build_table(lines: "list[PlanSetLine]") -> Any:
    cells = [
        [line.plans[:_SHORT], line.alias, line.base, line.environment,
         ", ".join(line.patterns) or "all", line.author, line.plans_count,
         _describe_acceptance(line.counts), line.rounds, line.state, line.stopped]
        for line in lines
    ]  # fmt: skip
    columns = [
        "set", "alias", "base", "environment", "patterns", "written by", "plans", "accepted",
        "rounds", "state", "why",
    ]  # fmt: skip
    return table(columns, cells, right=("plans", "rounds"), whole=("set", "state"))


def _describe_acceptance(counts: "PlanCounts") -> str:
    return f"{counts.accepted:,} of {counts.tries:,}"


def _describe_faults(counts: "PlanCounts") -> str:
    """The faults of rollouts in words; empty without one."""
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


def _build_plans_table(states: "tuple[PlanState, ...]") -> Any:
    cells = [
        [state.plan.plan, state.plan.summary, state.revision, _describe_acceptance(state.counts),
         _describe_faults(state.counts), state.counts.disagreements or "", state.plan.writing]
        for state in states
    ]  # fmt: skip
    columns = ["plan", "about", "revision", "accepted", "faults", "disagreements", "writing"]
    return table(columns, cells, right=("revision", "disagreements"), whole=("plan",))


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


def _build_changes_table(changes: "list[PlanChangeLine]") -> Any:
    cells = [
        [change.plan, change.round, f"{change.revision} to {change.revision + 1}",
         "kept" if change.kept else "not kept",
         f"{change.accepted_before} of {change.tries_before}",
         f"{change.accepted} of {change.tries}", change.reason, ", ".join(change.failures)]
        for change in changes
    ]  # fmt: skip
    columns = [
        "plan", "round", "revision", "kept", "accepted before", "accepted", "why", "failures",
    ]  # fmt: skip
    return table(columns, cells, right=("round",), whole=("plan", "kept"))
