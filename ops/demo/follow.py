"""Follow a home until its last cycle has ended, and show a picture or lines."""

import time
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.live import Live

from daemon.core.app import App
from ops.demo import view
from ops.demo.children import Children
from ops.demo.crowd import PACE, PER_MINUTE, write
from ops.demo.place import Place
from ops.demo.watch import DemoState, look

CALM: Final = 40.0
"""Customers per minute while a job or a trial runs, because all share a few cores."""

_LOOK_SECONDS: Final = 0.5
_SERVES, _STILL = 0, 6


class Clock:
    """Counts the seconds of a home's demo, over all its runs."""

    def __init__(self, place: Place) -> None:
        self._file = place.home / "seconds"
        before = float(self._file.read_text()) if self._file.exists() else 0.0
        self._began = time.monotonic() - before

    def seconds(self) -> float:
        """Return the seconds until now, and store them."""
        elapsed = time.monotonic() - self._began
        write(self._file, f"{elapsed:.1f}")
        return elapsed


def follow(app: App, place: Place, console: Console, clock: Clock, children: Children) -> None:
    """Show progress and restart programs until all cycles have ended. Raise WillNotRun."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4) as live:
            for seen in _poll(app, place, children):
                live.update(view.picture(seen, clock.seconds()))
        return
    printed = set[str]()
    for seen in _poll(app, place, children):
        seconds = clock.seconds()
        for name, words in view.steps(seen):
            if name not in printed:
                printed.add(name)
                console.print(f"{seconds:5.0f} s  {words}", soft_wrap=True)


def _poll(app: App, place: Place, children: Children) -> Iterator[DemoState]:
    """Yield the state until all cycles have ended. Raise WillNotRun."""
    cycles = place.size.cycles
    while True:
        seen = look(app, cycles)
        busy = view.stop(seen) in (_SERVES, _STILL)
        write(place.home / PACE, str(PER_MINUTE if busy else CALM))
        yield seen
        if seen.over:
            return
        children.look_after()
        time.sleep(_LOOK_SECONDS)
