"""What a planned cycle would take, from the finished cycles and jobs of the same home.

    history = read_history(connection, settings, alias, base)
    estimate(history, planned, gpus)
    read_job_budget(connection, settings, pair, now).find_refusal(requested)    whether jobs may run

Minutes of writing and of evaluation are medians over the finished cycles of the agent on this
base, or, where there are none, over those of other agents on it. Minutes of training follow from
the median of rollouts per second of earlier jobs. What no earlier cycle shows is None, and
`unknown` says why: no number is made up.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Final, Literal

from consumers.diagnosis.round_counts import Pair
from consumers.reads import learning
from consumers.reads.scheduling import job_seconds
from daemon.cycle.cost import WRITING, CycleCost, read_cost
from daemon.proposer.verification import SAMPLES

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Settings
    from events.jobs import JobSpec

LAST: Final = 10
"""Finished cycles, and jobs, that an estimate rests on at most: the newest."""
_LOOKED_AT: Final = 200
"""Cycles and jobs among which those are sought: the newest."""

Basis = Literal["agent", "home"]


@dataclass(frozen=True, slots=True)
class History:
    """What finished cycles on one base cost."""

    basis: Basis | None
    """Whose cycles they are: the agent's own, or other agents' of the home; None without any."""
    cycles: Sequence[CycleCost]
    rates: Sequence[float]
    """Rollouts per second of the jobs that trained."""


@dataclass(frozen=True, slots=True)
class PlannedRollouts:
    """How many rollouts a cycle would play."""

    probe: int
    training: int | None
    """The budget of its jobs; None without one."""
    evaluation: int | None
    """None where no earlier cycle shows it."""
    total: int | None
    """None where a part of it is unknown."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a cycle would take, in minutes, rollouts and GPU-hours."""

    basis: Basis | None
    cycles: int
    """Finished cycles that the minutes of writing and evaluation rest on."""
    jobs: int
    """Jobs that the minutes of training rest on."""
    writing_minutes: float | None
    training_minutes: float | None
    evaluation_minutes: float | None
    minutes: float | None
    """The sum; None where a part of it is unknown."""
    rollouts: PlannedRollouts
    gpu_hours: float | None
    """Of training; None where no GPU is named, and where its minutes are unknown."""
    unknown: tuple[str, ...]
    """What no earlier cycle shows, and why: one sentence each."""


def read_history(connection: "Connection", settings: "Settings", alias: str, base: str) -> History:
    """The finished cycles and the jobs of a home that a cycle of this agent is compared with."""
    finished = [
        row
        for row in learning.cycles(connection, limit=_LOOKED_AT)
        if row.base == base and row.outcome not in (None, "cancelled")
    ]
    own = [row for row in finished if row.alias == alias]
    costs = (read_cost(connection, settings, row) for row in (own or finished)[:LAST])
    cycles = [cost for cost in costs if cost is not None]
    rates = [
        job.rollouts / job.seconds
        for job in learning.jobs(connection, limit=_LOOKED_AT)
        if job.base == base and job.outcome == "trained" and job.rollouts and job.seconds
    ]
    basis: Basis | None = None if not cycles else "agent" if own else "home"
    return History(basis, cycles, rates[:LAST])


def estimate(
    history: History, probed: int, specs: "Sequence[JobSpec]", limit: float, gpus: float | None
) -> Estimate:
    """What a cycle would take that probes `probed` tasks and requests the jobs `specs`, each of
    which is stopped after `limit` minutes and takes `gpus`; None: no GPU is named. Several jobs
    are taken to run one after the other."""
    budget = sum(spec.sampler.rollouts for spec in specs)
    writing = _median_of(
        sum(cost.minutes[stage] or 0.0 for stage in WRITING) for cost in history.cycles
    )
    evaluation = _median_of(cost.minutes["evaluate"] for cost in history.cycles)
    played = _median_of(cost.rollouts.evaluation or None for cost in history.cycles)
    training = _estimate_training(history, specs, limit)
    probes = probed * SAMPLES
    rollouts = PlannedRollouts(
        probe=probes,
        training=budget or None,
        evaluation=None if played is None or not specs else round(played),
        total=None if played is None or not specs else probes + budget + round(played),
    )
    parts = (writing, training, evaluation)
    return Estimate(
        basis=history.basis,
        cycles=len(history.cycles),
        jobs=len(history.rates),
        writing_minutes=writing,
        training_minutes=training,
        evaluation_minutes=evaluation if specs else None,
        minutes=None if None in parts else sum(part for part in parts if part is not None),
        rollouts=rollouts,
        gpu_hours=None if training is None or gpus is None else gpus * training / 60,
        unknown=tuple(_list_unknown(writing, training, evaluation, specs)),
    )


@dataclass(frozen=True, slots=True)
class JobBudget:
    """Minutes of jobs that today's budget has left."""

    spent: float
    """Minutes that the jobs ran which ended today, of all agents."""
    running: int
    """Jobs that are open, of all agents."""
    minutes: float
    """How long a job takes."""
    budget: float
    """`scheduler.budget_minutes`."""

    def find_refusal(self, requested: int) -> str | None:
        """Return why a cycle that has requested so many jobs requests no other one; None where it
        may. That it may have a first one was asked when it began."""
        ahead = self.running + requested
        planned = self.spent + ahead * self.minutes
        if not requested or planned < self.budget:
            return None
        return (
            f"jobs ran {self.spent:.0f} minutes today, {ahead} that are open may take "
            f"{self.minutes:.0f} each, and scheduler.budget_minutes is {self.budget:g}"
        )


def read_job_budget(
    connection: "Connection", settings: "Settings", pair: Pair, now: datetime
) -> JobBudget:
    """Return what jobs may still run on the day (UTC) of `now`. A job is taken to run as long as
    the last ones on this base did that trained an agent; where none did, as long as it may."""
    times = [
        job.seconds / 60
        for job in learning.jobs(connection, limit=_LOOKED_AT)
        if job.base == pair.base
        and job.teaches is None
        and job.outcome == "trained"
        and job.seconds
    ]
    expected = _median_of(times[:LAST])
    return JobBudget(
        spent=job_seconds(connection, now) / 60,
        running=len(learning.open_jobs(connection)),
        minutes=settings.jobs.minutes if expected is None else expected,
        budget=settings.scheduler.budget_minutes,
    )


def _estimate_training(history: History, specs: "Sequence[JobSpec]", limit: float) -> float | None:
    rate = _median_of(history.rates)
    if not specs or rate is None:
        return None
    return sum(min(limit, spec.sampler.rollouts / rate / 60) for spec in specs)


def _median_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _list_unknown(
    writing: float | None,
    training: float | None,
    evaluation: float | None,
    specs: "Sequence[JobSpec]",
) -> Iterable[str]:
    if writing is None:
        yield "minutes of writing: no cycle on this base has finished in this home"
    if not specs:
        yield "minutes of training and evaluation: no job would be requested"
        return
    if training is None:
        yield "minutes of training: no job on this base has trained in this home"
    if evaluation is None:
        yield "minutes and rollouts of evaluation: no adapter of this base was evaluated by a cycle"
