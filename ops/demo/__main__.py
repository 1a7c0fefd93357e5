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
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from daemon.app import App
from events.errors import KintsugiError
from ops.demo import report, view
from ops.demo.children import Children
from ops.demo.crowd import PACE, PER_MINUTE, write
from ops.demo.ending import measured, tell
from ops.demo.place import SIZES, Place, make
from ops.demo.watch import Seen, look

CALM: Final = 40.0
"""Customers a minute while a job or a trial runs: with so few cores they take the time from each
other."""

_LOOK_SECONDS: Final = 0.5
_SERVES, _STILL = 0, 6
PROMOTED, FAILED, OTHERWISE, INTERRUPTED = 0, 1, 3, 130


class Clock:
    """Seconds that the demo ran in a home, all its runs together."""

    def __init__(self, place: Place) -> None:
        self._file = place.home / "seconds"
        before = float(self._file.read_text()) if self._file.exists() else 0.0
        self._began = time.monotonic() - before

    def seconds(self) -> float:
        """Until now, and remembered."""
        found = time.monotonic() - self._began
        write(self._file, f"{found:.1f}")
        return found


def main() -> int:
    """The command line."""
    given = _parser().parse_args()
    # Whoever stops it, what it started is stopped with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else view.WIDTH)
    size = replace(SIZES["small" if given.small else "whole"], seed=given.seed)
    try:
        place = make(given.home, size, fresh=given.fresh)
        with App(place.settings()) as app:
            # Made and migrated before anybody else opens it.
            app.settle()
            clock = Clock(place)
            follow(app, place, console, clock)
            story = measured(app, place, console, compared=given.general)
            document = report.made(story, clock.seconds())
    except KintsugiError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return INTERRUPTED
    given.out.mkdir(parents=True, exist_ok=True)
    write(given.out / "demo-report.json", json.dumps(document, indent=1))
    write(given.out / "demo-report.html", report.page(document))
    tell(console, document, story)
    home = os.path.relpath(given.home)
    console.print(f"\nThe page: {given.out / 'demo-report.html'}. Look around:", end=" ")
    console.print(f"KINTSUGI_HOME={home} .venv/bin/kintsugi status", style="bold")
    if not story.rebuild_equal:
        return FAILED
    return PROMOTED if story.cycle.outcome == "promoted" else OTHERWISE


def follow(app: App, place: Place, console: Console, clock: Clock) -> None:
    """Start everything and watch until the first cycle has ended. Raises WillNotRun."""
    if look(app).over:
        return
    with Children(place) as children:
        if console.is_terminal:
            with Live(console=console, refresh_per_second=4) as live:
                for seen in _watched(app, place, children):
                    live.update(view.picture(seen, clock.seconds()))
            return
        told = set[str]()
        for seen in _watched(app, place, children):
            seconds = clock.seconds()
            for name, words in view.steps(seen):
                if name not in told:
                    told.add(name)
                    console.print(f"{seconds:5.0f} s  {words}", soft_wrap=True)


def _watched(app: App, place: Place, children: Children) -> Iterator[Seen]:
    """Look again and again, and keep everything running. Raises WillNotRun."""
    while True:
        seen = look(app)
        busy = view.stop(seen) in (_SERVES, _STILL)
        write(place.home / PACE, str(PER_MINUTE if busy else CALM))
        yield seen
        if seen.over:
            return
        children.look_after()
        time.sleep(_LOOK_SECONDS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ops.demo", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--home", type=Path, default=Path(".local/demo"), metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="of the reports")
    parser.add_argument("--fresh", action="store_true", help="begin anew")
    parser.add_argument(
        "--seed", type=int, choices=range(20), default=0, metavar="N", help="other customers"
    )
    parser.add_argument("--small", action="store_true", help="too little to learn from, but fast")
    parser.add_argument(
        "--general", action="store_true", help="the same budget on tasks of the traffic beside it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
