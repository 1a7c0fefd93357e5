"""A job's figures in an experiment tracker, for people who like to watch curves.

    with tracked("trackio:shop", run="job-1", folder=out) as tracker:
        tracker.log(progress.steps, progress.model_dump())

The setting is LIBRARY:PROJECT, the library `trackio` (local files where `trackio show` looks, or in
TRACKIO_DIR) or `wandb` (offline, in `folder`: `wandb sync` sends it when somebody wants that).
Neither is a requirement of ours; the one that is named is imported when it is asked for. A run that
is opened again by its name goes on.

The log of events is the record of a job; this is a copy for the eye, and nothing reads it back. Not
covered: what a library does when its disk is full.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from events.errors import KintsugiError


class UnknownTracker(KintsugiError):
    """A setting that names no tracker."""


class TrackerMissing(KintsugiError):
    """The library is not installed."""


class Tracker:
    """An open run."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Every number in a document, at this step; texts, lists and what is None are left out."""
        self._run.log(flat(figures), step=step)


def flat(figures: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of nested mappings, each by the names on its way: `metrics/loss`."""
    return dict(_numbers(figures, ""))


def _numbers(figures: Mapping[str, Any], before: str) -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}/")
        elif isinstance(value, (int, float)):
            yield f"{before}{name}", float(value)


@contextmanager
def tracked(setting: str, run: str, folder: Path) -> Iterator[Tracker]:
    """A run of this name, finished at the end, come what may.

    Raises UnknownTracker, TrackerMissing and what the library raises.
    """
    library, _, project = setting.partition(":")
    if library not in _OPENING or not project:
        raise UnknownTracker(
            f"{setting!r} names no tracker; write LIBRARY:PROJECT with one of "
            f"{', '.join(_OPENING)}, or leave the tracker out"
        )
    try:
        module = importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise TrackerMissing(
            f"{library} is not installed: pip install {library}, or leave the tracker out"
        ) from None
    opened = _OPENING[library](module, project, run, folder)
    try:
        yield Tracker(opened)
    finally:
        opened.finish()


def _trackio(module: Any, project: str, run: str, _: Path) -> Any:
    return module.init(
        project=project, name=run, resume="allow", auto_log_gpu=False, auto_log_cpu=False
    )


def _wandb(module: Any, project: str, run: str, folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return module.init(
        project=project, name=run, id=run, resume="allow", mode="offline", dir=str(folder)
    )


_OPENING: Final[Mapping[str, Callable[[Any, str, str, Path], Any]]] = {
    "trackio": _trackio,
    "wandb": _wandb,
}
