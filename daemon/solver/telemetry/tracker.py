"""Send a job's figures to an experiment tracker, to be plotted.

    with open_tracker("trackio:shop", run="job-1", folder=out) as tracker:
        tracker.log(progress.batch, progress.model_dump())

The setting is LIBRARY:PROJECT, the library `trackio` (local files where `trackio show` looks, or in
TRACKIO_DIR) or `wandb` (offline, in `folder`; `wandb sync` uploads it), imported on use. A resumed
job repeats its steps: in trackio no step is there twice; wandb begins a folder at each start, and
the newest has the whole run. This is a copy for viewing; the event log is the record. Not covered:
a library's full disk.
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
    """A setting that names no tracker."""


class NoTrackerLibrary(KintsugiError):
    """The library is not installed."""


class TrackerRefusal(KintsugiError):
    """The library did not open the run."""


class Tracker:
    """An open run."""

    def __init__(self, run: Any, finish: Callable[[], None], last: int | None = None) -> None:
        self._run = run
        self._finish = finish
        self._last = last
        """Newest step that the run had when it was opened."""

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Log every number in a document, and nothing else, at this step unless the run has it."""
        if self._last is None or step > self._last:
            self._run.log(flat(figures), step=step)

    def finish(self) -> None:
        """Write what the library still buffers."""
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
    """Open a run, and finish it in any case. Raise UnknownTracker, NoTrackerLibrary,
    TrackerRefusal, and what the library raises later."""
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
    """Return a report that also writes the figures to a tracker."""

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
    # Not the run's own: the library would finish it again, and log that, when the process ends.
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
