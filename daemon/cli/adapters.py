"""`kintsugi adapters`: the adapters, their gates and their routes."""

import asyncio
from dataclasses import asdict
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from daemon.cli.command import DONE, FAILED, PARTLY, Cli, OnlyAgent, command, noun
from daemon.cli.output import Columns, facts, table
from daemon.cli.serving import (
    ActorName,
    EngineUrls,
    WhyNot,
    act_of,
    describe_members,
    locate_files,
    open_engines,
    open_publisher,
    parse_share,
    print_live_route,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumers.reads.serving import AdapterLine, AdapterRow
    from daemon.evaluation.comparison import Comparison, ComparisonResult
    from daemon.serving.push import PushResult
    from events.gate import GateReport, TargetReport
    from events.serving import UserFaultRate

group = noun("adapters", "What was trained, and what serves.")

CheckpointFolder = Annotated[
    Path | None, typer.Option(help="Folder of its base; default: that of the setting.")
]
Named = Annotated[str, typer.Argument(metavar="ADAPTER", help="Its name, or how it begins.")]


@command(group)
def ls(cli: Cli, alias: OnlyAgent = None) -> None:
    """List adapters, the one that moved last first."""
    from consumers.reads.serving import adapter_lines, list_fields

    with cli.app() as app, app.reading() as connection:
        lines = adapter_lines(connection, alias)
    nothing = "there is no adapter yet: kintsugi adapters push FOLDER"
    cli.out.show_rows(lines, _COLUMNS, nothing=nothing, describe=list_fields)


def _describe_purpose(line: "AdapterLine") -> str | None:
    if line.role == "user":
        return "playing users"
    from events.learning import VERSION

    return line.capability if line.members is None else f"{VERSION} of {', '.join(line.members)}"


def _describe_gate(line: "AdapterLine") -> str | None:
    if line.role_passed is not None:
        return "PASS" if line.role_passed else "REJECT"
    return line.gate["decision"] if line.gate else None


def _list_detectable(line: "AdapterLine") -> str | None:
    """Return, for each target, the gain in points that the gate would show with a power of 80 %."""
    targets = () if line.gate is None else line.gate.get("targets", ())
    words = [
        f"{target['name']} {100 * target['detectable']:+.1f}"
        for target in targets
        if target["detectable"] is not None
    ]
    return ", ".join(words) or None


_COLUMNS: Final = Columns(
    "adapter",
    "state",
    "alias",
    "base",
    ("for", _describe_purpose),
    ("gate", _describe_gate),
    ("could see", _list_detectable),
    "since",
    "reason",
    whole=("adapter", "state"),
)
STEP_COLUMNS: Final = Columns(
    ("when", "time"),
    "state",
    ("why", lambda step: step.refused or step.reason),
    whole=("when", "state"),
)


@command(group)
def show(cli: Cli, adapter: Named) -> None:
    """Show one adapter: what it is, what became of it, and what the gate said."""
    from consumers.reads.explanation import describe_evidence
    from consumers.reads.serving import adapter_steps, evaluation_lines, find_adapter

    with cli.app() as app, app.reading() as connection:
        row = find_adapter(connection, adapter)
        life = adapter_steps(connection, row.adapter)
        measured = evaluation_lines(connection, row.adapter)
    if cli.out.json:
        cli.out.document(
            {
                **build_document(cli, row),
                "steps": [asdict(step) for step in life],
                "evaluations": [asdict(line) for line in measured],
            }
        )
        return
    cli.out.show(_about(cli, row), "")
    cli.out.show(STEP_COLUMNS.build_table(life))
    if row.gate is not None:
        cli.out.show("", *_build_tables(row.gate))
        if row.gate.evidence is not None:
            cli.out.show("", describe_evidence(row.gate.evidence.model_dump()))
    if row.role_rates:
        cli.out.show("", _show_rates(row.role_rates))


def _show_rates(rates: "Mapping[str, UserFaultRate]") -> Any:
    rows = [
        [name, "PASS" if rate.holds else "FAIL", f"{rate.count:,} of {rate.of:,}",
         f"{rate.upper:.2%}", f"{rate.limit:.2%}"]
        for name, rate in rates.items()
    ]  # fmt: skip
    columns = ["fault", "verdict", "count", "upper 95 %", "limit"]
    return table(columns, rows, right=columns[2:], whole=("fault", "verdict"))


def build_document(cli: Cli, row: "AdapterRow") -> dict[str, Any]:
    """Return the JSON document of an adapter, or of a version with members."""
    from pydantic import BaseModel

    from consumers.reads.serving import list_fields

    fields = {
        name: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        for name, value in list_fields(row).items()
    }
    return {**fields, "state": str(row.state), "path": locate_files(cli, row.path)}


def _about(cli: Cli, row: "AdapterRow") -> Any:
    proof = (
        "not proven"
        if row.distance is None or not row.replicas
        else f"{row.distance:.2g} nats from what it should say, {row.from_base:.2g} from its base, "
        f"on {', '.join(row.replicas)}"
    )
    return facts(
        {
            "adapter": row.adapter,
            "state": f"{row.state}, since {row.since}",
            "for": f"{row.alias} on {row.base}, {_describe_role(row)}",
            "from": row.merge.summary if row.merge else row.job or row.origin,
            **({"files": locate_files(cli, row.path)} if row.has_files else _describe_parts(row)),
            "sha256": row.sha256,
            "proof": proof,
        }
    )


def _describe_role(row: "AdapterRow") -> str:
    if row.role == "user":
        return "playing its users; it answers no client"
    return row.capability or "any kind of task"


def _describe_parts(row: "AdapterRow") -> dict[str, str]:
    from events.jobs import CHOOSER

    assert row.chooser is not None, "it has members"
    members = describe_members(row.members, row.base).strip(" ()")
    return {row.origin: f"{members}; {CHOOSER}: {row.chooser.adapter or row.base}"}


_CHECK_COLUMNS: Final = Columns(
    ("check", "name"),
    "verdict",
    ("measured", "value:.4g"),
    ("limit", "limit:.4g"),
    ("at least", "low:.4g"),
    ("tasks", "tasks:,"),
    right=("measured", "limit", "at least", "tasks"),
    whole=("check", "verdict"),
)


def _describe_detectable(target: "TargetReport") -> str | None:
    if target.detectable is None:
        return None
    return f"could have seen {100 * target.detectable:+.1f} points with 80 %"


_VERDICTS: Final = {"PASS": "lifted", "FAIL": "not lifted", "EXTEND": "open"}

_TARGET_COLUMNS: Final = Columns(
    ("target", "name"),
    ("verdict", lambda target: _VERDICTS[target.verdict]),
    ("points", lambda target: f"{100 * target.gain:+.1f}"),
    ("p", "p_value:.2g"),
    ("level", "level:.2g"),
    ("tasks", "tasks:,"),
    ("power", "power:.0%"),
    ("detectable", _describe_detectable),
    ("patterns", lambda target: ", ".join(target.patterns)),
    right=("points", "p", "level", "tasks", "power"),
    whole=("target", "verdict"),
)


def _build_tables(report: "GateReport") -> list[Any]:
    tables = [_CHECK_COLUMNS.build_table(report.checks)]
    return [*tables, "", _TARGET_COLUMNS.build_table(report.targets)] if report.targets else tables


@command(group, "push")
def push_(
    cli: Cli,
    folder: Annotated[Path, typer.Argument(help="A directory of PEFT.")],
    alias: Annotated[
        str | None, typer.Option(help="The agent it is for; default: the gateway's.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="Its base as the engines call it; default: theirs.")
    ] = None,
    capability: Annotated[
        str | None, typer.Option(metavar="KIND", help="The kind of task it is for.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Default: made of its kind, steps and weights.")
    ] = None,
    checkpoint: CheckpointFolder = None,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Bring an adapter into the home, whoever trained it: checked, named and never changed."""
    from daemon.serving.push import push

    with cli.app() as app, open_engines(app, upstream) as fleet:
        pushed = push(
            app,
            fleet,
            folder,
            act_of(actor, reason),
            alias=alias or app.settings.gateway.alias,
            base=base,
            capability=capability,
            name=name,
            checkpoint=checkpoint,
        )
    _print_result(cli, pushed, "these very files were pushed before")


def _print_result(cli: Cli, pushed: "PushResult", repetition: str) -> None:
    """Print an adapter that came into the home; `repetition` is the hint where it was there."""
    row = pushed.adapter
    if cli.out.json:
        cli.out.document({**build_document(cli, row), "new": pushed.new})
        return
    cli.out.show(_about(cli, row))
    if not pushed.new:
        cli.out.hint(repetition)
    cli.out.hint(f"is it any good? kintsugi adapters evaluate {row.adapter} --env ENV")


@command(group)
def merge(
    cli: Cli,
    adapters: Annotated[
        list[str],
        typer.Argument(
            metavar="ADAPTER...",
            help="Two or more. NAME=WEIGHT scales them; without weights it is their mean.",
        ),
    ],
    method: Annotated[
        Literal["sum", "core_tsv"], typer.Option(help="How they become one.")
    ] = "sum",
    rank: Annotated[
        int | None, typer.Option(min=1, help="Default: the largest of a member.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Default: made of its weights.")] = None,
    checkpoint: CheckpointFolder = None,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Make one adapter of several of one agent, where engines have no slots for all of them.

    It answers nothing until it has passed the gate, as any other.
    """
    from daemon.serving.merging import merge_adapters

    parts = _parse_parts(adapters, 1 / len(adapters) if method == "sum" else 1.0)
    with cli.app() as app, open_engines(app, upstream) as fleet:
        result = merge_adapters(
            app,
            fleet,
            parts,
            act_of(actor, reason),
            method=method,
            rank=rank,
            name=name,
            checkpoint=checkpoint,
        )
    for ancestor, times in result.repeated.items():
        cli.out.hint(
            f"several of them go on from {ancestor}, whose change counts {times:.3g} times; "
            f"weights that sum to 1, or {ancestor}={1 - times:.3g} more, make it count once"
        )
    _print_result(cli, result.pushed, "these very adapters were merged so before")


def _parse_parts(texts: list[str], default: float) -> list[tuple[str, float]]:
    parts = [text.partition("=") for text in texts]
    weighted = [separator for _, separator, _ in parts]
    if any(weighted) and not all(weighted):
        name = next(name for name, separator, _ in parts if not separator)
        raise typer.BadParameter(
            f"{name} has no weight, and others have; give all of them one, or none",
            param_hint="ADAPTER...",
        )
    return [(name, _parse_weight(weight) if weight else default) for name, _, weight in parts]


def _parse_weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = nan
    if not isfinite(weight):
        raise typer.BadParameter(f"{text!r} is no weight", param_hint="ADAPTER...")
    return weight


@command(group)
def export(
    cli: Cli,
    adapter: Named,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="A .tar.gz, or a folder by any other name."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
) -> None:
    """Write an adapter into one bundle: PEFT, the gate's evidence, lineage, probes, a model card.

    The same adapter, tables and settings give the same bytes.
    """
    from daemon.adapters.bundle import build_bundle, write_bundle
    from daemon.cli.methods import read_version_files
    from daemon.serving.export import find_version, read_files

    with cli.app() as app, app.reading() as connection:
        row = find_version(connection, adapter)
        read = read_files if row.has_files else read_version_files
        contents = build_bundle(row.adapter, read(app, connection, row))
    write_bundle(contents, row.adapter, out, force=force)
    if cli.out.json:
        files = {name: len(content) for name, content in sorted(contents.items())}
        cli.out.document({"adapter": row.adapter, "out": str(out), "files": files})
    else:
        size = sum(map(len, contents.values()))
        cli.out.show(f"{row.adapter} is in {out}: {len(contents)} files, {size:,} bytes")


@command(group)
def stage(
    cli: Cli,
    adapter: Named,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Load an adapter on every engine, and see that they answer with it; it gets no sessions."""
    with open_publisher(cli, upstream) as publisher:
        row = publisher.stage(adapter, act_of(actor, reason))
    _print(cli, row)


def _print(cli: Cli, row: "AdapterRow") -> None:
    if cli.out.json:
        cli.out.document(build_document(cli, row))
    else:
        cli.out.show(_about(cli, row))


@command(group)
def promote(
    cli: Cli,
    adapter: Named,
    share: Annotated[
        str, typer.Option(metavar="SHARE", help="Part of the sessions: below 1 it is a canary.")
    ] = "1",
    override: Annotated[
        bool, typer.Option("--override", help="Although no gate was passed; needs --reason.")
    ] = False,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Have an adapter answer its alias. It must have passed the gate."""
    part = parse_share(share, "--share")
    with open_publisher(cli, upstream) as publisher:
        act = act_of(actor, reason)
        row = publisher.promote(adapter, act, share=part, override=override)
        print_live_route(cli, publisher.app, row)


@command(group)
def rollback(
    cli: Cli,
    alias: Annotated[
        str | None, typer.Argument(metavar="[ALIAS]", help="Default: the gateway's.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="ADAPTER", help="Who answered before; default: the last.")
    ] = None,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Have whoever answered an alias before answer it again, from every session's next call on."""
    with open_publisher(cli, upstream) as publisher:
        wanted = alias or cli.settings.gateway.alias
        row = publisher.rollback(wanted, act_of(actor, reason), to)
        print_live_route(cli, publisher.app, row)


@command(group)
def pin(
    cli: Cli,
    adapter: Named,
    off: Annotated[bool, typer.Option("--off", help="No longer.")] = False,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Keep an adapter loaded, for calls that name it exactly, whatever becomes of routes."""
    with open_publisher(cli, upstream) as publisher:
        row = publisher.pin(adapter, act_of(actor, reason), off=off)
    _print(cli, row)


@command(group)
def retire(cli: Cli, adapter: Named, actor: ActorName = None, reason: WhyNot = "") -> None:
    """Take an adapter that no route names out of service; unloaded when nobody uses it."""
    with open_publisher(cli) as publisher:
        row = publisher.retire(adapter, act_of(actor, reason))
    _print(cli, row)


@command(group)
def evaluate(
    cli: Cli,
    adapter: Named,
    env: Annotated[str, typer.Option(help="Name or path of the environment.")],
    tasks: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of the kind it is to be better at.")
    ] = 200,
    others: Annotated[
        int, typer.Option(min=0, metavar="N", help="Of all other kinds together.")
    ] = 200,
    trials: Annotated[int, typer.Option(min=1, help="Attempts at each task.")] = 4,
    target: Annotated[
        str | None, typer.Option(metavar="KIND", help="Default: the adapter's own.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Default: fresh tasks each time.")] = None,
    spent: Annotated[
        bool, typer.Option("--spent", help="No more will be run: what is not shown is rejected.")
    ] = False,
    concurrency: Annotated[int, typer.Option(min=2, help="Episodes at once.")] = 16,
    temperature: Annotated[float | None, typer.Option(min=0, help="Default: the engine's.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of one answer.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one answer.")] = 300.0,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> int:
    """Let an adapter and the incumbent play the same fresh tasks; the gate says which is better.

    Killed, the same command goes on where it was.
    """
    from daemon.cli.environments import load_environment
    from daemon.evaluation.comparison import Questions, judge, play

    questions = Questions(tasks, others, trials, target, seed, temperature, max_tokens, timeout)
    environment = load_environment(cli, env)
    act = act_of(actor, reason)
    with open_publisher(cli, upstream) as publisher:
        comparison, means = publisher.compare(adapter, environment, questions, act, concurrency)
        with cli.out.progress("Playing", comparison.attempts, "episodes") as advance:
            report_attempts = lambda attempts: advance(len(attempts))  # noqa: E731
            asyncio.run(play(publisher.app, environment, comparison, means, report_attempts))
        judged = judge(publisher.app, comparison, cli.settings.gate, act, spent)
    _print_decision(cli, comparison, judged)
    return {"PROMOTE": DONE, "EXTEND": PARTLY, "REJECT": FAILED}[judged.report.decision]


def _print_decision(cli: Cli, comparison: "Comparison", judged: "ComparisonResult") -> None:
    name, report = comparison.adapter.adapter, judged.report
    if cli.out.json:
        cli.out.document(
            {
                "adapter": name,
                "incumbent": comparison.incumbent,
                "target": comparison.target,
                "tasks": len(comparison.candidate.lines),
                "trials": comparison.candidate.spec.trials,
                "pass_hat_1": judged.rates.model_dump(),
                "gate": report.model_dump(mode="json"),
                "user_faults": judged.user_faults,
            }
        )
        return
    rates = judged.rates
    cli.out.show(
        f"pass^1 {rates.candidate:.3f}, of {comparison.incumbent or comparison.adapter.base} "
        f"{rates.incumbent:.3f}: {report.decision}",
        *_build_tables(report),
    )
    if judged.user_faults is not None:
        cli.out.hint(judged.user_faults)
    if report.decision == "PROMOTE":
        cli.out.hint(f"let it answer: kintsugi adapters promote {name} --share 0.05")
    elif report.decision == "EXTEND":
        cli.out.hint("neither better nor worse is shown; run it again with more --tasks")
