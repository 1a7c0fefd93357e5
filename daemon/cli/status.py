"""`kintsugi status`: the state of the log, the fold and the cycles."""

from collections import Counter
from typing import Any

import typer

from daemon.cli.command import DONE, UNAVAILABLE, Cli, command
from daemon.cli.output import facts
from daemon.cli.serving import describe_members


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(status)


def status(cli: Cli) -> int:
    """Where everything stands: log, fold, rounds, cycles, and what the next one waits for."""
    from daemon.status.snapshot import situation

    with cli.app() as app:
        document = situation(app)
    if cli.out.json:
        cli.out.document(document)
    else:
        cli.out.show(_facts(document))
    if document["log"]["error"] is not None:
        cli.out.warn(document["log"]["error"])
        return UNAVAILABLE
    if not document["rollouts"]:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
    return DONE


def _facts(document: dict[str, Any]) -> Any:
    from daemon.cycle.methods import list_member_lines
    from daemon.status.stages import describe_job_wait, describe_lift, describe_share

    cycle = document["cycle"]
    values: dict[str, Any] = {"home": document["home"], "log": document["log"]["at"]}
    for name, of in (document["streams"] or {}).items():
        values[f"stream {name}"] = (
            f"{of['events']:,} events, {of['bytes']:,} bytes, lag {document['lag'][name]:,}"
        )
    fold = document["projection"]
    values["fold"] = "; ".join([fold["state"], *fold["halted"], *fold["gaps"]])
    values["rollouts"] = (
        f"{document['rollouts']:,}, unjudged {document['unjudged']:,}, not in a round yet "
        f"{document['undiagnosed']:,}"
    )
    repairs = document["repairs"]
    if any(repairs.values()):
        values["repairs"] = (
            f"{repairs['repaired']:,} failures repaired, {repairs['state_right']:,} with the state "
            f"right, {repairs['exhausted']:,} without a repair within the bounds, "
            f"{repairs['skipped']:,} that cannot be replayed, {repairs['waiting']:,} to search"
        )
    values["dead letters"] = f"{document['dead_letters']:,}"
    values["last round"] = (
        "none"
        if cycle["round"] is None
        else f"{cycle['round']} by {cycle['trigger']}: {cycle['failed']:,} failures, "
        f"{cycle['patterns']:,} patterns, {cycle['other']:,} unexplained"
    )
    for change in (*document["rule_changes"], *document["older_verdicts"]):
        name = f"patterns of {change['alias']}"
        values[name] = "; ".join(filter(None, [values.get(name), change["says"]]))
    for kinds in document["kinds"]:
        if kinds["says"]:
            values[f"kinds of {kinds['alias']}"] = kinds["says"]
    for route in document["routes"]:
        members = describe_members(route["members"], route["base"])
        who = f"{route['adapter'] or route['base']}{members}, {describe_share(route)}"
        values[f"route {route['alias']}"] = "; ".join(
            filter(None, [values.get(f"route {route['alias']}"), who])
        )
    values |= list_member_lines(document)
    for lift in document["lift"]:
        values[f"lift of {lift['alias']}"] = describe_lift(lift).partition(": ")[2]
    if document["job"] is not None and document["job"]["waits_for"]:
        values[f"job {document['job']['job']}"] = describe_job_wait(document["job"])
    for wait in document["gates"]:
        values[f"gate of {wait['adapter']}"] = wait["says"]
    states = Counter(adapter["state"] for adapter in document["adapters"])
    values["adapters"] = ", ".join(f"{n:,} {state}" for state, n in states.items()) or "none"
    values |= _loop(document)
    return facts(values)


def _loop(document: dict[str, Any]) -> dict[str, str]:
    from daemon.cycle.methods import list_branch_lines

    cycle = document["cycle"]
    values = {"cycle": "none yet"}
    if cycle["cycle"] is not None:
        came = (
            f"needs {cycle['step']} next"
            if cycle["outcome"] is None
            else f"{cycle['outcome']}: {cycle['ended_because']}"
        )
        began = f"{cycle['number']} of {cycle['alias']} by {cycle['due_by']} ({cycle['reason']})"
        values["cycle"] = f"{began}, {came}"
    expected = document["next_cycle"]
    for agent in expected["agents"]:
        missing = "; ".join(agent["missing"])
        values[f"next cycle of {agent['alias']}"] = "due" if agent["due"] else f"not due; {missing}"
        if agent["rollouts"] is not None:
            values[f"it reads of {agent['alias']}"] = _describe_reads(agent)
    for name, practices in document["improve"].items():
        for practice in practices:
            values[f"{name} of {practice['alias']}"] = practice["says"]
    for practice in document["users"]:
        values[f"users of {practice['alias']}"] = practice["says"]
    values |= list_branch_lines(document)
    if not expected["agents"]:
        values["next cycle"] = f"not due; missing {'; '.join(expected['missing'])}"
    return values


def _describe_reads(agent: dict[str, Any]) -> str:
    reads = [f"{agent['rollouts']:,} new rollouts, {agent['failures']:,} new failures"]
    weights = [f"{line['pattern']} {line['priority']:.3g}" for line in agent["patterns"]]
    reads.append(f"patterns of the last round: {', '.join(weights) or 'none'}")
    if agent["unusable_text"]:
        reads.append(agent["unusable_text"])
    if agent["last_minutes"]:
        minutes = ", ".join(f"{spent:.1f}" for spent in agent["last_minutes"])
        reads.append(f"the last cycles took {minutes} minutes")
    return "; ".join(reads)
