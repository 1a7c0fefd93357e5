"""make demo: a deployed agent keeps failing at something, and gets better by itself.

    python -m ops.demo [--home FOLDER] [--fresh] [--seed N] [--small] [--general]
                       [--mix FILE] [--cycles N] [--out FOLDER]

Starts `kintsugi up` on a home of its own, and customers who talk to its gateway. Follows the tables
until N cycles have ended (the first one, without --cycles). Then has the base and the adapters play
held-out tasks, and writes demo-report.json and demo-report.html. Nothing is done by hand: the demo
only configures the daemon and watches it. You may kill any of its processes, this one included, and
run the same command again: it continues. Exit code 0 when an adapter was promoted, 3 when every
cycle had another outcome, 1 when the demo failed.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from daemon.core.app import App
from events.errors import KintsugiError
from ops.command_line import build_parser
from ops.demo import fruitless, progress_chart, report, view
from ops.demo.children import PROGRAMS, Children, end_jobs
from ops.demo.crowd import write
from ops.demo.ending import build_story, tell
from ops.demo.follow import Clock, follow
from ops.demo.mixture import MIX, BadMixture, read_mixture
from ops.demo.place import SEEDS, SIZES, Place, check_request, make
from ops.demo.progress import choose_subject, read_results
from ops.demo.watch import look

PROMOTED, FAILED, OTHERWISE, INTERRUPTED = 0, 1, 3, 130
MOST_CYCLES = 100


def main() -> int:
    """Run the command line."""
    options = _parser().parse_args()
    # On SIGTERM, stop everything that the demo started, as on an interrupt.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else view.WIDTH)
    size = SIZES["small" if options.small else "whole"]
    size = replace(size, seed=options.seed, cycles=options.cycles or 1)
    try:
        place = make(options.home, size, mix=options.mix or MIX, fresh=options.fresh)
        check_request(place, options.mix, options.cycles, options.seed)
        with App(place.settings()) as app:
            # Create and migrate the database before another process opens it.
            app.settle()
            clock = Clock(place)
            if not look(app, place.size.cycles).over:
                page = place.page(app.settings.gateway.port)
                hint = f"Watch it in a browser, too: {page}"
                console.print(hint, soft_wrap=True, markup=False)
                with Children(place, PROGRAMS) as children:
                    follow(app, place, console, clock, children)
            if place.size.cycles > 1:
                # On a slow machine, one more cycle may have begun before the end of the last was
                # seen.
                end_jobs(app.settings)
            return _end(app, place, console, clock, options)
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _end(
    app: App, place: Place, console: Console, clock: Clock, options: argparse.Namespace
) -> int:
    """Measure, write the reports, and return the exit code."""
    with app.reading() as connection:
        results = read_results(connection, place.size.cycles)
    if choose_subject(results) is None:
        document = fruitless.build_report(app, place, results, console, clock)
        _write(options.out, document, fruitless.page(document))
        console.print(f"{progress_chart.summary(document['cycles'])} {document['reason']}")
    else:
        story = build_story(app, place, results, console, compared=options.general)
        document = report.build_report(story, clock.seconds())
        _write(options.out, document, report.page(document))
        tell(console, document, story)
    home = os.path.relpath(options.home)
    console.print(f"\nThe page: {options.out / 'demo-report.html'}. Look around:", end=" ")
    console.print(f"KINTSUGI_HOME={home} .venv/bin/kintsugi status", style="bold")
    if not document["rebuild_equal"]:
        return FAILED
    if any(result.cycle.outcome == "promoted" for result in results):
        return PROMOTED
    other = (place.size.seed + 1) % SEEDS
    console.print(
        "Nothing was promoted, and the agent answers as before: the gate is there for it, and "
        f"{OTHERWISE} is the exit code. Other customers: the same command, with --fresh --seed "
        f"{other}",
        soft_wrap=True,
        markup=False,
    )
    return OTHERWISE


def _write(folder: Path, document: Mapping[str, Any], page: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "demo-report.json", json.dumps(document, indent=1))
    write(folder / "demo-report.html", page)


def _parser() -> argparse.ArgumentParser:
    parser = build_parser(__doc__)
    parser.add_argument("--home", type=Path, default=Path(".local/demo"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="of the reports")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument(
        "--seed", type=int, choices=range(SEEDS), default=0, metavar="N", help="other customers"
    )
    parser.add_argument(
        "--mix", type=_mixture, metavar="FILE",
        help="what customers ask for: a JSON object {kind: share}",
    )  # fmt: skip
    parser.add_argument(
        "--cycles", type=int, choices=range(1, MOST_CYCLES + 1), metavar="N",
        help="cycles that end before the demo does",
    )  # fmt: skip
    parser.add_argument("--small", action="store_true", help="too little to learn from, but fast")
    parser.add_argument(
        "--general", action="store_true", help="the same budget on tasks of the traffic beside it"
    )
    return parser


def _mixture(text: str) -> dict[str, float]:
    try:
        return read_mixture(Path(text))
    except BadMixture as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
