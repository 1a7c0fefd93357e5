"""A finished cycle's minutes, rollouts, GPU-hours and hours per point, computed from its events.

A stage lasts from the previous stage's event to its own event; the last stage that began lasts
until the cycle's end. Hours per point divide the hours of all stages except `canary`, which keeps
no machine busy, by the gate's points of pass^1. They exist only for a promoted adapter. In a cycle
with branches, `train` includes the members' evaluation, and `stage` and `evaluate` are those of the
composed version. Not covered: the GPUs that a job really used; today's settings give their number.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.reads import learning, planning, serving
from consumers.reads.cycle_state import read_cycle_state
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow
from events.envelope import parse_timestamp
from events.lifecycle import SERVING, State
from events.rollouts import Purpose
from events.serving import GateDecided

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Settings
    from events.gate import Check, GateReport

STAGES: Final = ("diagnose", "direct", "propose", "train", "stage", "evaluate", "canary")
WRITING: Final = ("diagnose", "direct", "propose")
"""Stages before the training job."""
_PLAYED: Final[Mapping[str, Purpose]] = {"propose": "probe", "evaluate": "evaluate"}
StageEnds = dict[str, str | None]
_TARGET: Final = "target"
_OVERALL: Final = "overall"


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Numbers of rollouts that a cycle played."""

    probe: int
    """Rollouts of written tasks by the answering policy."""
    training: int
    evaluation: int
    """Rollouts of candidate and incumbent, those of the gate's pilot included."""

    @property
    def total(self) -> int:
        """Return the sum of all rollouts."""
        return self.probe + self.training + self.evaluation


@dataclass(frozen=True, slots=True)
class CycleCost:
    """The cost and the gain of a finished cycle."""

    minutes: Mapping[str, float | None]
    """Stage -> minutes; None if the cycle did not come to it."""
    total_minutes: float
    job_hours: float | None
    """Sum of all jobs' durations; None without jobs."""
    gpu_hours: float | None
    """None if neither the settings nor the job name a GPU."""
    rollouts: RolloutCounts
    gain: Mapping[str, float | None]
    """`target` and `overall` -> points of pass^1 that the gate measured; None without a gate."""
    hours: float
    """Hours of all stages except `canary`."""
    hours_per_point: Mapping[str, float | None]
    """Keys as in `gain`; None for a key without a gain."""
    without_gain: str | None
    """Reason why there are no hours per point; None if there are."""


def read_cost(connection: "Connection", settings: "Settings", row: CycleRow) -> CycleCost | None:
    """Return a cycle's cost; None if it is open, or if its events have no times."""
    if row.started is None or row.ended is None or row.outcome is None:
        return None
    jobs = [] if row.job is None else learning.list_cycle_jobs(connection, row.cycle)
    adapter = read_cycle_state(connection, row).adapter
    trained = sum(job.rollouts or 0 for job in jobs)
    has_members = any(job.branch is not None for job in jobs)
    moments = _Moments(
        row, _read_stage_ends(connection, row, jobs, adapter), trained, has_members=has_members
    )
    minutes = moments.minutes()
    times = [job.seconds for job in jobs if job.seconds is not None]
    seconds = sum(times) if times else None
    gpus = count_gpus(settings, jobs[0].spec.device) if jobs else None
    gain = measure_gain(None if adapter is None else adapter.gate)
    hours = sum(spent or 0.0 for stage, spent in minutes.items() if stage != "canary") / 60
    per_point, reason = _price_points(row, gain, hours)
    return CycleCost(
        minutes=minutes,
        total_minutes=minutes_between(row.started, row.ended),
        job_hours=None if seconds is None else seconds / 3600,
        gpu_hours=None if seconds is None or gpus is None else gpus * seconds / 3600,
        rollouts=moments.count_rollouts(connection),
        gain=gain,
        hours=hours,
        hours_per_point=per_point,
        without_gain=reason,
    )


def count_gpus(settings: "Settings", device: str) -> float | None:
    """Return a job's GPUs: its reservation on a Ray cluster, 1 for `cuda` here, else None."""
    if settings.jobs.runner == "ray":
        return settings.jobs.ray.gpus or None
    return 1.0 if device.startswith("cuda") else None


def measure_gain(report: "GateReport | None") -> dict[str, float | None]:
    """Return the points of pass^1 that the gate measured; targets are weighted by their tasks."""
    checks = () if report is None else report.checks
    targets = [
        check for check in checks if check.name == _TARGET or check.name.startswith(f"{_TARGET} ")
    ]
    overall = [check for check in checks if check.name == _OVERALL]
    return {_TARGET: _mean_points(targets), _OVERALL: _mean_points(overall)}


def _mean_points(checks: "list[Check]") -> float | None:
    tasks = sum(check.tasks for check in checks)
    if not tasks:
        return None
    return 100 * sum(check.value * check.tasks for check in checks) / tasks


def _price_points(
    row: CycleRow, gain: Mapping[str, float | None], hours: float
) -> tuple[dict[str, float | None], str | None]:
    """Return the training hours per gained point, and the reason if there are none."""
    nothing: dict[str, float | None] = dict.fromkeys(gain)
    if row.outcome != "promoted":
        return nothing, f"it ended {row.outcome}, so nothing that answers was gained"
    prices = {
        name: hours / points if points is not None and points > 0 else None
        for name, points in gain.items()
    }
    if any(price is not None for price in prices.values()):
        return prices, None
    if all(points is None for points in gain.values()):
        return nothing, "no gate measured it"
    return nothing, "the gate measured no gain"


def _read_stage_ends(
    connection: "Connection", row: CycleRow, jobs: Sequence[JobRow], adapter: AdapterRow | None
) -> StageEnds:
    """Return stage -> time of its last event; None if that event has not come."""
    ends: StageEnds = dict.fromkeys(STAGES)
    ends |= {"diagnose": row.diagnosed, "direct": row.directed}
    ends["propose"] = jobs[0].requested if jobs else None
    if not jobs or adapter is None:
        return ends
    steps = [
        step
        for step in serving.adapter_steps(connection, adapter.adapter)
        if step.refused is None and step.time is not None and step.time <= (row.ended or "")
    ]
    if adapter.has_files:
        ends["train"] = jobs[0].ended
    else:
        ends["train"] = next((step.time for step in steps), None)
    ends["stage"] = next((step.time for step in steps if step.state is State.STAGED), None)
    if any(step.state in SERVING for step in steps):
        decided = [step.time for step in steps if step.type == GateDecided.TYPE]
        ends["evaluate"] = decided[-1] if decided else None
    return ends


class _Moments:
    def __init__(self, row: CycleRow, ends: StageEnds, trained: int, *, has_members: bool) -> None:
        """`trained` is the number of jobs' rollouts; `has_members` marks a cycle with branches."""
        self._row, self._ends, self._trained = row, ends, trained
        self._has_members = has_members

    def minutes(self) -> dict[str, float | None]:
        minutes: dict[str, float | None] = dict.fromkeys(STAGES)
        for stage, begin, end in self._spans():
            minutes[stage] = minutes_between(begin, end)
        return minutes

    def count_rollouts(self, connection: "Connection") -> RolloutCounts:
        """Count rollouts. Those of probes and evaluation are the agent's rollouts with that purpose
        during the stage."""
        spans = {stage: (begin, end) for stage, begin, end in self._spans()}
        if self._has_members and "train" in spans:
            # Members are evaluated while other branches still train.
            last = spans["evaluate"][1] if "evaluate" in spans else self._row.ended
            spans["evaluate"] = spans["train"][0], last or spans["train"][1]
        counts = {
            stage: planning.count_between(
                connection, self._row.alias, self._row.base, purpose, *spans[stage]
            )
            for stage, purpose in _PLAYED.items()
            if stage in spans
        }
        return RolloutCounts(counts.get("propose", 0), self._trained, counts.get("evaluate", 0))

    def _spans(self) -> Iterator[tuple[str, str, str]]:
        begin, over = self._row.started, self._row.ended
        assert begin is not None, "only a cycle with both times has moments"
        assert over is not None, "only a cycle with both times has moments"
        for stage, end in self._ends.items():
            yield stage, begin, end or over
            if end is None:
                return
            begin = end


def minutes_between(begin: str, end: str) -> float:
    """Return the minutes from `begin` to `end`; 0 if the clock was set back between them."""
    return max(0.0, (parse_timestamp(end) - parse_timestamp(begin)).total_seconds() / 60)
