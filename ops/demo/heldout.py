"""Measure base and trained policies on tasks that were never used to train or to choose. All
players get the same tasks and random numbers, in parallel processes of `daemon.evaluation.trial`.
Tasks with results on disk are not played again. Differences between two players are paired by task,
with intervals of envs/statistics.py.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

from consumers.reads.serving import AdapterRow
from daemon.evaluation.players import Adapter
from daemon.evaluation.trial import CHUNK, Plan, read_attempts
from daemon.jobs.runner import JOURNAL
from envs.shop.environment import Shop
from envs.statistics import LEVEL, RESAMPLES, Interval, mean
from events.canonical import exact_json, sha256
from events.errors import KintsugiError
from ops.demo.owned_process import owned_process
from ops.demo.place import ALIAS, Place
from ops.reproduce.figures import measure_difference

FIRST_TASK: Final = 1 << 27
PER_SEED: Final = 10_000
TRIALS: Final = 3
PARTS: Final = 2
"""Number of parallel processes, each with its own tasks."""
_LOOK_SECONDS: Final = 0.5

Outcomes = Mapping[str, Mapping[str, Sequence[bool]]]
"""Kind of task -> task -> for each trial, whether it passed."""


class PlayError(KintsugiError):
    """A process that played held-out tasks ended early."""


def measure(
    place: Place,
    base: str,
    players: Sequence[Adapter | None],
    on_progress: Callable[[int, int], None],
) -> list[Outcomes]:
    """Return each player's outcomes. `on_progress` gets (played rollouts, all rollouts). Raise
    PlayError."""
    plans = [_plan(place, base, players, part) for part in range(PARTS)]
    folders = [place.home / "held-out" / plan.digest[:16] for plan in plans]
    whole = sum(len(plan.tasks) for plan in plans) * TRIALS * len(players)
    with ExitStack() as stack:
        running = [
            stack.enter_context(_start(place, folder, plan))
            for folder, plan in zip(folders, plans, strict=True)
        ]
        while any(process.poll() is None for process in running):
            on_progress(min(whole, sum(_chunks(folder) for folder in folders) * CHUNK), whole)
            time.sleep(_LOOK_SECONDS)
    for process, folder in zip(running, folders, strict=True):
        if process.returncode != 0:
            raise PlayError(
                f"held-out tasks were not played to the end, see {folder}.log; make demo goes on "
                "where it was"
            )
    on_progress(whole, whole)
    return _outcomes(plans, folders, len(players))


def describe(place: Place, row: AdapterRow) -> Adapter:
    """Return the player that answers with an adapter of the home."""
    folder = place.settings().adapter_paths.locate(row.path)
    return Adapter(name=row.adapter, folder=str(folder), sha256=row.sha256)


def _plan(place: Place, base: str, players: Sequence[Adapter | None], part: int) -> Plan:
    shop, settings = Shop(), place.settings()
    tasks = [
        shop.generate(kind, FIRST_TASK + place.size.seed * PER_SEED + number).id
        for number in range(place.size.held_out)
        for kind in place.mix
    ]
    names = [None if player is None else player.sha256 for player in players]
    name = f"held-out {part} of seed {place.size.seed}: {sha256(exact_json(names))}"
    return Plan(
        name=name,
        environment=shop.name,
        checkpoint=str(settings.agents[0].checkpoint),
        alias=ALIAS,
        base=base,
        players=tuple(players),
        tasks=tuple(tasks[part::PARTS]),
        trials=TRIALS,
        seed=Random("held-out").getrandbits(48),
        max_tokens=settings.trial.max_tokens,
        threads=1,
    )


@contextmanager
def _start(place: Place, folder: Path, plan: Plan) -> Iterator["subprocess.Popen[bytes]"]:
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "plan.json"
    spec.write_text(plan.model_dump_json())
    arguments = ("daemon.evaluation.trial", str(spec), "--out", str(folder))
    with (
        folder.with_suffix(".log").open("wb") as output,
        owned_process(arguments, place, folder.with_suffix(".lock"), output, output) as process,
    ):
        yield process


def _chunks(folder: Path) -> int:
    journal = folder / JOURNAL
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def _outcomes(plans: Sequence[Plan], folders: Sequence[Path], players: int) -> list[Outcomes]:
    outcomes: list[dict[str, dict[str, list[bool]]]] = [{} for _ in range(players)]
    for plan, folder in zip(plans, folders, strict=True):
        for chunk in read_attempts(folder, plan):
            for rollout in chunk:
                task = rollout.head.task
                assert task is not None, "a trial's rollouts have tasks"
                assert task.capability is not None, "generated tasks have a kind"
                verdicts = outcomes[rollout.player].setdefault(task.capability, {})
                verdicts.setdefault(task.id, []).append(bool(rollout.head.success))
    return list(outcomes)


def pass_interval(outcomes: Outcomes, kind: str) -> Interval:
    """Return pass^1 on a kind of task, with its interval."""
    return mean([fmean(trials) for trials in outcomes[kind].values()])


def gain(before: Outcomes, after: Outcomes, kind: str) -> Interval:
    """Return the gain in pass^1 on a kind, paired by task, with its interval."""
    own = [fmean(after[kind][task]) for task in before[kind]]
    return measure_difference(own, [fmean(trials) for trials in before[kind].values()])


def overall(outcomes: Outcomes, mix: Mapping[str, float]) -> float:
    """Return pass^1 of all traffic: the mean of the kinds, weighted by their shares in `mix`."""
    return sum(share * pass_rate(outcomes, kind) for kind, share in mix.items())


def pass_rate(outcomes: Outcomes, kind: str) -> float:
    """Return pass^1 of a kind."""
    return fmean(fmean(trials) for trials in outcomes[kind].values())


def overall_gain(before: Outcomes, after: Outcomes, mix: Mapping[str, float]) -> Interval:
    """Return the difference over all traffic, bootstrapped over tasks within each kind."""
    chance = Random("traffic 0")
    pairs = {
        kind: [fmean(after[kind][task]) - fmean(trials) for task, trials in before[kind].items()]
        for kind in mix
    }
    drawn = sorted(
        sum(
            share * fmean(chance.choices(pairs[kind], k=len(pairs[kind])))
            for kind, share in mix.items()
        )
        for _ in range(RESAMPLES // 10)
    )
    tail = int(len(drawn) * (1 - LEVEL) / 2)
    return Interval(overall(after, mix) - overall(before, mix), drawn[tail], drawn[-1 - tail])
