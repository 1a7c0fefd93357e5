"""make demo: a deployed agent keeps failing at something, and gets better by itself.

    python -m ops.demo [--home FOLDER] [--fresh] [--seed N] [--small] [--general]
                       [--out FOLDER]

Starts `kintsugi up` on a home of its own and customers who talk to its gateway, follows the tables
until the first cycle has ended, then has the base and the adapter play held-out tasks, and writes
demo-report.json and demo-report.html. Nothing is done by hand: the daemon is configured, and
watched. Kill any of its processes, this one included, and run it again: it goes on where it was.
Exit code 0 when an adapter was promoted, 3 when the cycle came out otherwise, 1 when it failed.
"""

import argparse
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from daemon.core.app import App
from events.errors import KintsugiError
from ops.demo import report, view
from ops.demo.children import PROGRAMS, Children
from ops.demo.crowd import write
from ops.demo.ending import build_story, tell
from ops.demo.follow import Clock, follow
from ops.demo.place import SIZES, Place, make
from ops.demo.watch import look

PROMOTED, FAILED, OTHERWISE, INTERRUPTED = 0, 1, 3, 130
_SEEDS = 20


def main() -> int:
    """The command line."""
    options = _parser().parse_args()
    # However it is stopped, what it started is stopped with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else view.WIDTH)
    size = replace(SIZES["small" if options.small else "whole"], seed=options.seed)
    try:
        place = make(options.home, size, fresh=options.fresh)
        with App(place.settings()) as app:
            # Made and migrated before another process opens it.
            app.settle()
            clock = Clock(place)
            if not look(app).over:
                console.print(_page_hint(app, place), soft_wrap=True, markup=False)
                with Children(place, PROGRAMS) as children:
                    follow(app, place, console, clock, children)
            story = build_story(app, place, console, compared=options.general)
            document = report.build_report(story, clock.seconds())
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "demo-report.json", json.dumps(document, indent=1))
    write(options.out / "demo-report.html", report.page(document))
    tell(console, document, story)
    home = os.path.relpath(options.home)
    console.print(f"\nThe page: {options.out / 'demo-report.html'}. Look around:", end=" ")
    console.print(f"KINTSUGI_HOME={home} .venv/bin/kintsugi status", style="bold")
    if not story.rebuild_equal:
        return FAILED
    if story.cycle.outcome == "promoted":
        return PROMOTED
    other = (options.seed + 1) % _SEEDS
    console.print(
        "Nothing was promoted, and the agent answers as before: the gate is there for it, and "
        f"{OTHERWISE} is the exit code. Other customers: make demo DEMO='--fresh --seed {other}'",
        soft_wrap=True,
        markup=False,
    )
    return OTHERWISE


def _page_hint(app: App, place: Place) -> str:
    return f"Watch it in a browser, too: {place.page(app.settings.gateway.port)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.demo", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--home", type=Path, default=Path(".local/demo"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="of the reports")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument(
        "--seed", type=int, choices=range(_SEEDS), default=0, metavar="N", help="other customers"
    )
    parser.add_argument("--small", action="store_true", help="too little to learn from, but fast")
    parser.add_argument(
        "--general", action="store_true", help="the same budget on tasks of the traffic beside it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
