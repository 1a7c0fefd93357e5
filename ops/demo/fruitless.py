"""The report of a demo whose cycles made no adapter; its fields about an adapter are null."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from rich.console import Console

from consumers.reads import rollouts
from daemon.core.app import App
from ops.demo import heldout, progress, progress_chart
from ops.demo.ending import is_rebuild_equal, measure
from ops.demo.follow import Clock
from ops.demo.place import ALIAS, Place
from ops.demo.progress import CycleResult
from ops.demo.watch import tallies


def build_report(
    app: App, place: Place, results: Sequence[CycleResult], console: Console, clock: Clock
) -> dict[str, Any]:
    """Return the document of demo-report.json. Raise PlayError or RebuildError."""
    mix, last = place.mix, results[-1].cycle
    (base,) = measure(place, console, last.base, [])
    traffic = heldout.overall(base, mix)
    with app.reading() as connection:
        patterns = rollouts.pattern_lines(connection, ALIAS)
        live = list(tallies(connection))
    rates = {kind: heldout.pass_rate(base, kind) for kind in mix}
    return {
        "seconds": round(clock.seconds(), 1),
        "outcome": last.outcome,
        "reason": last.ended_because,
        "traffic": {"before": traffic, "after": traffic, "low": 0.0, "high": 0.0},
        "target": None,
        "others": {kind: {"before": rate, "after": rate} for kind, rate in rates.items()},
        "patterns": [asdict(line) for line in patterns],
        "tasks_written": last.accepted,
        "tasks_rejected": last.rejected,
        "adapter": None,
        "gate": {"decision": "NONE", "p_value": None, "tasks": 0},
        "rebuild_equal": is_rebuild_equal(place),
        "lift": None,
        "live": [{**asdict(line), "rate": line.rate} for line in live],
        "training": None,
        "general": None,
        "explained": None,
        "cycles": progress.build_entries(results, {None: base}, mix),
    }


def page(document: Mapping[str, Any]) -> str:
    """Return the document as one self-contained page of HTML without script."""
    count = len(document["cycles"]) - 1
    headline = (
        "the cycle left no adapter" if count == 1 else f"{count} cycles, and none left an adapter"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(headline)}</title></head>\n<body><h1>{escape(headline)}</h1>"
        f"<p>{escape(document['reason'] or '')}</p>"
        f"{progress_chart.section(document['cycles'])}</body></html>\n"
    )
