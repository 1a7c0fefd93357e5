"""Send a job's figures to an experiment tracker, to be plotted.

    with open_tracker("trackio:shop", run="job-1", folder=out) as tracker:
        tracker.log(progress.batch, progress.model_dump())

The setting is LIBRARY:PROJECT. The library is `trackio` (local files where `trackio show` looks, or
in TRACKIO_DIR) or `wandb` (offline, in `folder`; `wandb sync` uploads it). It is imported on use. A
resumed job logs its steps again: trackio keeps each step once; wandb begins a folder at each start,
and the newest has the whole run. The figures are a copy for viewing; the event log is the record.
Not covered: a full disk under the library's files.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from events.errors import KintsugiError

if TYPE_CHECKING:
    from daemon.solver.telemetry.progress import Progress


class UnknownTracker(KintsugiError):
    """The setting does not name a known tracker."""


class NoTrackerLibrary(KintsugiError):
    """The tracker's library is not installed."""


class TrackerRefusal(KintsugiError):
    """The tracker's library did not open the run."""


class Tracker:
    """An open run of an experiment tracker."""

    def __init__(self, run: Any, finish: Callable[[], None], last: int | None = None) -> None:
        self._run = run
        self._finish = finish
        self._last = last
        """Newest step that the run had when it was opened."""

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Log every number in `figures` at this step, unless the run already has the step."""
        if self._last is None or step > self._last:
            self._run.log(flat(figures), step=step)

    def finish(self) -> None:
        """Write figures that the library still buffers."""
        self._finish()


def flat(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of nested mappings, each under its path: `metrics/loss`."""
    return dict(_numbers(figures, ""))


def _numbers(figures: Mapping[str, Any], before: str) -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}/")
        elif isinstance(value, (int, float)):
            yield f"{before}{name}", float(value)


@contextmanager
def open_tracker(setting: str, run: str, folder: Path) -> Iterator[Tracker]:
    """Open a run of the tracker, and finish it in any case. Raise UnknownTracker, NoTrackerLibrary,
    TrackerRefusal, and later errors of the library."""
    library, _, project = setting.partition(":")
    if library not in _OPENING or not project:
        raise UnknownTracker(
            f"{setting!r} names no tracker; write LIBRARY:PROJECT with one of "
            f"{', '.join(_OPENING)}, or leave the tracker out"
        )
    tracker = _open(library, project, run, folder)
    try:
        yield tracker
    finally:
        tracker.finish()


def _open(library: str, project: str, run: str, folder: Path) -> Tracker:
    try:
        return _OPENING[library](project, run, folder)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise NoTrackerLibrary(
            f"{library} is not installed: pip install {library}, or leave the tracker out"
        ) from None
    except Exception as error:
        raise TrackerRefusal(
            f"{library} did not open {project}: {error}; see to it, or leave the tracker out"
        ) from error


def join_reports(
    report: "Callable[[Progress], None]", tracker: Tracker
) -> "Callable[[Progress], None]":
    """Return a report function that calls `report` and also logs the figures to the tracker."""

    def report_both(progress: "Progress") -> None:
        tracker.log(progress.batch, progress.model_dump())
        report(progress)

    return report_both


def _trackio(project: str, run: str, _: Path) -> Tracker:
    library = importlib.import_module("trackio")
    stored = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    last = stored.get_max_step_for_run(project, run)
    settings = {"resume": "allow", "auto_log_gpu": False, "auto_log_cpu": False}
    opened = library.init(project=project, name=run, **settings)
    # Not the run's own `finish`: at exit the library would finish the run again and log that.
    return Tracker(opened, library.finish, last)


def _wandb(project: str, run: str, folder: Path) -> Tracker:
    library = importlib.import_module("wandb")
    folder.mkdir(parents=True, exist_ok=True)
    opened = library.init(project=project, name=run, id=run, mode="offline", dir=str(folder))
    return Tracker(opened, opened.finish)


_OPENING: Final[Mapping[str, Callable[[str, str, Path], Tracker]]] = {
    "trackio": _trackio,
    "wandb": _wandb,
}
