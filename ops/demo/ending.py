"""The end of the demo: held-out tasks, an explanation of the adapter, a rebuild, and a summary.

results = read_results(connection, cycles)
story = build_story(app, place, results, console, compared=False)
tell(console, document, story)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from consumers.reads import rollouts
from consumers.reads.explanation import Node, explain
from consumers.reads.learning import JobRow
from consumers.reads.serving import AdapterRow
from daemon.cli.explain import tree
from daemon.core.app import App
from daemon.evaluation.players import Adapter
from daemon.serving.lift import read_lifts
from events.errors import KintsugiError
from ops.demo import general, heldout, progress
from ops.demo.heldout import Outcomes
from ops.demo.place import Place
from ops.demo.progress import CycleResult
from ops.demo.report import PolicyResult, Story, gate_words
from ops.demo.watch import Point, curve, tallies
from ops.processes import run_kintsugi

_EXAMPLES: Final = {"rollout": 2, "task": 1, "pattern": 2}


class NoAdapter(KintsugiError):
    """The cycle ended without an adapter."""


class RebuildError(KintsugiError):
    """The log could not be folded again."""


def build_story(
    app: App, place: Place, results: Sequence[CycleResult], console: Console, *, compared: bool
) -> Story:
    """Measure ended cycles. Raise NoAdapter, PlayError, TrainingError or RebuildError."""
    subject = progress.choose_subject(results)
    if subject is None or subject.job is None or subject.candidate is None:
        last = results[-1].cycle
        raise NoAdapter(
            f"the cycle ended, {last.outcome}: {last.ended_because}; begin anew with --fresh"
        )
    job, adapter = subject.job, subject.candidate
    adapters = progress.list_adapters(results, subject)
    budget = progress.sum_budgets(results) if compared else None
    trained = None if budget is None else (job, budget)
    outcomes = measure(place, console, job.base, adapters, trained)
    names = (None, *(row.adapter for row in adapters))
    measured = dict(zip(names, outcomes, strict=False))
    with app.reading() as connection:
        return Story(
            cycle=subject.cycle,
            patterns=rollouts.pattern_lines(connection, subject.cycle.alias),
            live=list(tallies(connection)),
            job=job,
            adapter=adapter,
            before=measured[None],
            after=PolicyResult(list(curve(place.home / "jobs" / job.job)), outcomes[1]),
            general=PolicyResult(list(curve(general.folder_of(place))), outcomes[-1])
            if compared
            else None,
            explained=explain(connection, adapter.adapter),
            rebuild_equal=is_rebuild_equal(place),
            mix=place.mix,
            cycles=progress.build_entries(results, measured, place.mix),
            lift=next(
                (lift for lift in read_lifts(connection) if lift.alias == subject.cycle.alias), None
            ),
        )


def measure(
    place: Place,
    console: Console,
    base: str,
    adapters: Sequence[AdapterRow],
    general_rl: tuple[JobRow, int] | None = None,
) -> list[Outcomes]:
    """Return the outcomes on held-out tasks for the base, the adapters and, with `general_rl` (job,
    rollouts), for general RL. Raise PlayError or TrainingError."""
    players: list[Adapter | None] = [
        None,
        *(heldout.describe(place, row) for row in adapters),
    ]
    columns = TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as shown:
        if general_rl is not None:
            job, rollouts = general_rl
            training = shown.add_task("general RL", total=rollouts)

            def show_training(points: list[Point]) -> None:
                shown.update(training, completed=points[-1].rollouts if points else 0)

            players.append(general.train(place, job, rollouts, show_training))
        playing = shown.add_task("held-out tasks", total=None)

        def show_tasks(done: int, whole: int) -> None:
            shown.update(playing, completed=done, total=whole)

        return heldout.measure(place, base, players, show_tasks)


def is_rebuild_equal(place: Place) -> bool:
    """Return whether a rebuild from the log gives equal tables. Raise RebuildError."""
    done = run_kintsugi(["rebuild", "--json"], place.variables)
    if not done.stdout.strip():
        raise RebuildError(f"kintsugi rebuild: {done.stderr.strip()}")
    return json.loads(done.stdout)["equal"] is True


def tell(console: Console, report: Mapping[str, Any], story: Story) -> None:
    """Print earlier failures, the training, the gate's decision and the explanation."""
    console.print("\n[bold]What failed before[/bold]")
    for line in story.patterns[:4]:
        kind = "failure" if line.failures == 1 else "failures"
        console.print(
            f"  {line.pattern}: {line.failures} {kind}, priority {line.priority:.3f}", markup=False
        )
    training = report["training"]
    console.print("\n[bold]What was trained[/bold]")
    console.print(
        f"  {report['adapter']} for {report['target']['capability']}: {report['tasks_written']} "
        f"tasks written ({report['tasks_rejected']} rejected), {training['rollouts']:,} rollouts "
        f"in {training['seconds']:.0f} s"
    )
    console.print("\n[bold]The gate[/bold]")
    console.print(f"  {gate_words(report['gate'])}")
    console.print("\n[bold]Held-out tasks, pass^1 (95 %)[/bold]")
    console.print(_table(report))
    console.print("\n[bold]Why this adapter[/bold]")
    console.print(tree(short(story.explained)))
    equal = "equal, row for row" if report["rebuild_equal"] else "NOT EQUAL"
    if len(report["cycles"]) > 2:
        console.print("\n[bold]Cycle after cycle[/bold]")
        console.print(_cycles_table(report["cycles"]))
    console.print(f"\nThe tables, folded again from the log: {equal}.")
    console.print(
        f"[bold]{report['outcome']}[/bold] after {report['seconds']:.0f} s: {report['reason']}"
    )


def _table(report: Mapping[str, Any]) -> Table:
    target, others, beside = report["target"], report["others"], report["general"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  kind")
    for name in ("before", "after", "gain", *(["general RL"] if beside else [])):
        table.add_column(name, justify="right")

    def row(
        name: str, figures: Mapping[str, Any], bounds: list[float], other: float | None
    ) -> None:
        gain = f"{figures['after'] - figures['before']:+.1%} [{bounds[0]:+.1%}, {bounds[1]:+.1%}]"
        gone = [] if other is None else [f"{other:.1%}"]
        table.add_row(
            f"  {name}", f"{figures['before']:.1%}", f"{figures['after']:.1%}", gain, *gone
        )

    row(
        f"{target['capability']} (target)", target, [target["low"], target["high"]],
        beside and beside["target"]["after"],
    )  # fmt: skip
    for kind, figures in others.items():
        row(kind, figures, figures["gain_interval"], beside and beside["others"][kind])
    traffic = report["traffic"]
    row(
        "all traffic", traffic, [traffic["low"], traffic["high"]],
        beside and beside["traffic"]["after"],
    )  # fmt: skip
    return table


def _cycles_table(entries: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("  cycle", "job for", "outcome", "who answers then", "all traffic"):
        table.add_column(name)
    for entry in entries:
        table.add_row(
            f"  {entry['number']}", entry["capability"] or "", entry["outcome"] or "",
            entry["adapter"] or "the base", f"{entry['traffic']:.1%}",
        )  # fmt: skip
    return table


def short(node: Node) -> Node:
    """Return a copy of the tree with a few children of each kind and the number of the others."""
    kept: list[Node] = []
    for kind in dict.fromkeys(child.kind for child in node.because):
        same = [child for child in node.because if child.kind == kind]
        most = _EXAMPLES.get(kind, len(same))
        kept += [short(child) for child in same[:most]]
        if len(same) > most:
            kept.append(Node(f"{len(same) - most} more", kind, ""))
    return replace(node, because=tuple(kept))
