"""Estimate a planned cycle from the finished cycles and jobs of the same home.

Minutes of writing and evaluation are medians over the agent's finished cycles on this base; without
any, over other agents' cycles. Minutes of training follow from the median rate of earlier jobs. A
value that no earlier cycle shows is None, and `unknown` gives the reason.
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
"""Most cycles, and most jobs, on which an estimate is based: the newest ones."""
_LOOKED_AT: Final = 200
"""Number of newest cycles and jobs among which suitable ones are searched."""

Basis = Literal["agent", "home"]


@dataclass(frozen=True, slots=True)
class History:
    """The costs of finished cycles on one base model."""

    basis: Basis | None
    """Owner of these cycles: the agent, or others of the home if it has none; None without any."""
    cycles: Sequence[CycleCost]
    rates: Sequence[float]
    """Rollouts per second in earlier jobs."""


@dataclass(frozen=True, slots=True)
class PlannedRollouts:
    """The numbers of rollouts that a planned cycle would play."""

    probe: int
    training: int | None
    """Rollout budget of the cycle's jobs; None without jobs."""
    evaluation: int | None
    """None if no earlier cycle shows it."""
    total: int | None
    """None if a part is unknown."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated minutes, rollouts and GPU-hours of a planned cycle."""

    basis: Basis | None
    cycles: int
    """Number of cycles from which the minutes of writing and evaluation were taken."""
    jobs: int
    """Number of jobs from which the minutes of training were taken."""
    writing_minutes: float | None
    training_minutes: float | None
    evaluation_minutes: float | None
    minutes: float | None
    """Sum of the three; None if one is unknown."""
    rollouts: PlannedRollouts
    gpu_hours: float | None
    """GPU-hours of training; None without a GPU or if the minutes are unknown."""
    unknown: tuple[str, ...]
    """Sentences that say why values are unknown."""


def read_history(connection: "Connection", settings: "Settings", alias: str, base: str) -> History:
    """Return the finished cycles and jobs from which this agent's next cycle is estimated."""
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
    """Estimate rollouts and minutes of a cycle that probes `probed` tasks and runs the jobs `specs`
    one by one. Each job takes at most `limit` minutes on `gpus` GPUs; None if no GPU is named."""
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
    """The minutes that jobs may still take today."""

    spent: float
    """Minutes of all jobs that ended today, of every agent."""
    running: int
    minutes: float
    """Expected duration of a job, in minutes."""
    budget: float

    def find_refusal(self, requested: int) -> str | None:
        """Return why a cycle that already requested `requested` jobs gets no further one, or None.
        The first job is always allowed: the cycle began within the budget."""
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
    """Return the budget for the day of `now` (UTC). The expected duration of a job is the median of
    the last trained jobs of agents on this base; without any, the longest allowed."""
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
