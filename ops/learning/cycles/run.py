"""One arm on one seed: train, then play the held-out tasks of the demo; a JSON file is left.

Everything of a seed lies in the folder `seedN`: the demo's home, what it reported, and the jobs of
the other arms. What was cut short goes on there, and an arm that has a file is not run again.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from daemon.core.app import App
from daemon.evaluation.trial import Adapter
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.messages import StrictModel
from ops.demo import general, heldout, progress
from ops.demo.owned_process import owned_process
from ops.demo.place import Place, check_request, make
from ops.demo.watch import Point
from ops.learning.cycles.arms import build_general, build_sft
from ops.learning.cycles.settings import Arm, Settings
from ops.learning.results import Source, write_document
from ops.learning.run import describe_source

_ENDS = (0, 3)
"""Exit codes of a demo that came to its end."""


class LoopError(KintsugiError):
    """A demo that did not come to its end."""


class ArmResult(StrictModel):
    """A policy on held-out tasks, and what it cost."""

    arm: Arm
    seed: int
    source: Source
    rollouts: int = 0
    """That jobs sampled for training."""
    references: int = 0
    """Trajectories of the oracle that were trained on."""
    adapter: str | None = None
    """sha256 of the weights; None for the base."""
    cycles: tuple[Mapping[str, Any], ...] = ()
    """`cycles` of the demo's report; only of the loop."""
    seconds: float
    """Wall time of the run that made it, which may have gone on from an earlier one."""
    outcomes: Mapping[str, Mapping[str, tuple[bool, ...]]]
    """Kind -> held-out task -> whether each trial passed."""


class _Policy(StrictModel):
    """What an arm made."""

    player: Adapter | None = None
    rollouts: int = 0
    references: int = 0
    cycles: tuple[Mapping[str, Any], ...] = ()


def path_of(folder: Path, arm: Arm, seed: int) -> Path:
    """Return where a result is."""
    return folder / f"{arm}-seed{seed}.json"


def run(arm: Arm, seed: int, settings: Settings, folder: Path) -> ArmResult:
    """Make one result. Raises PlaceConflict, LoopError, TrainingError, PlayError."""
    began = time.monotonic()
    own = folder / f"seed{seed}"
    own.mkdir(parents=True, exist_ok=True)
    place = make(own / "home", settings.build_size(seed), mix=settings.mixture)
    check_request(place, settings.mixture, settings.cycles, seed)
    policy = _MAKERS[arm](place, settings, own)
    show = _show("held-out tasks")
    (outcomes,) = heldout.measure(place, settings.base_model, [policy.player], show)
    checkpoint = place.settings().agents[0].checkpoint
    assert checkpoint is not None, "the demo's configuration names one"
    return ArmResult.model_validate(
        {
            "arm": arm,
            "seed": seed,
            "source": describe_source(checkpoint, settings.digest),
            "rollouts": policy.rollouts,
            "references": policy.references,
            "adapter": None if policy.player is None else policy.player.sha256,
            "cycles": policy.cycles,
            "seconds": time.monotonic() - began,
            "outcomes": outcomes,
        }
    )


def write(folder: Path, result: ArmResult) -> None:
    """Leave the result, whole or not at all."""
    write_document(path_of(folder, result.arm, result.seed), result)


def _make_base(place: Place, settings: Settings, folder: Path) -> _Policy:
    return _Policy()


def _make_loop(place: Place, settings: Settings, folder: Path) -> _Policy:
    """Run the demo in its home, or read what it left there. Raises LoopError."""
    arguments = (
        "ops.demo", "--home", str(place.home), "--out", str(folder),
        "--cycles", str(settings.cycles), "--seed", str(place.size.seed),
    )  # fmt: skip
    with (
        (folder / "demo.log").open("ab") as output,
        owned_process(arguments, place, folder / "demo.lock", output, output) as process,
    ):
        process.wait()
    if process.returncode not in _ENDS:
        raise LoopError(
            f"the demo ended with {process.returncode}, see {folder / 'demo.log'}; the same "
            "command goes on"
        )
    report = json.loads((folder / "demo-report.json").read_text())
    with App(place.settings()) as app, app.reading() as connection:
        results = progress.read_results(connection, settings.cycles)
    row = results[-1].incumbent
    player = row and heldout.describe(place, row)
    spent = sum(item.job.rollouts or 0 for item in results if item.job is not None)
    return _Policy(player=player, rollouts=spent, cycles=tuple(report["cycles"]))


def _make_general(place: Place, settings: Settings, folder: Path) -> _Policy:
    """Raises TrainingError."""
    spec = build_general(place, settings)
    return _Policy(
        player=_train(place, folder / "general", spec, "general"), rollouts=spec.sampler.rollouts
    )


def _make_sft(place: Place, settings: Settings, folder: Path) -> _Policy:
    """Raises TrainingError."""
    spec = build_sft(place, settings)
    return _Policy(
        player=_train(place, folder / "sft", spec, "sft"), references=spec.reference_count
    )


def _train(place: Place, folder: Path, spec: JobSpec, kind: str) -> Adapter:
    """The adapter of a job, which goes on where it was. Raises TrainingError."""
    show = _show(kind)

    def show_curve(points: list[Point]) -> None:
        show(points[-1].rollouts if points else 0, spec.sampler.rollouts)

    return general.run_learner(place, folder, spec, kind, show_curve)


def _show(what: str) -> Callable[[int, int], None]:
    """Return what says on stderr, tenth by tenth, how much is done."""
    shown = -1

    def show(done: int, whole: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(1, whole)
        if tenth > shown:
            shown = tenth
            print(f"  {what}: {done:,} of {whole:,}", file=sys.stderr, flush=True)

    return show


_MAKERS: Mapping[Arm, Callable[[Place, Settings, Path], _Policy]] = {
    "base": _make_base, "loop": _make_loop, "general": _make_general, "sft": _make_sft,
}  # fmt: skip
