"""Progress reports of a job: figures per pool and capability, one `Progress` per update.

Counts come from trajectories alone, so a resumed job has the same figures as an uninterrupted one.
Verdict counts leave out unjudged rollouts and reference trajectories.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from daemon.solver.telemetry.metrics import StepMetrics
from daemon.solver.trajectory import Trajectory
from events.jobs import JobSpec, RewardKind
from events.messages import StrictModel


class Figures(StrictModel):
    """Figures of a set of rollouts, such as those of one pool."""

    attempts: int
    passed: float
    groups: int
    informative: float
    """Share of groups with both passed and failed rollouts."""


class Both(StrictModel):
    """The same figures for the last batch and for the job so far."""

    batch: Figures | None
    """Figures of the batch; None if the batch had no such rollout."""
    so_far: Figures
    """Figures since the job began, or since its warm start."""
    reward: RewardKind | None = None
    """The pool's reward, if it is not the verdict."""


class WarmStartReport(StrictModel):
    """Figures of a warm start."""

    pools: tuple[str, ...]
    references: int
    """Number of the oracle's trajectories trained on, including siblings and replay."""
    successes: int = 0
    """Number of the agent's own recorded successes trained on."""
    left_out: tuple[str, ...]
    steps: int
    tokens: int
    """Number of written tokens trained on, over all epochs."""
    first_loss: float
    """Loss of the first step, in nats per written token."""
    last_loss: float


class Progress(StrictModel):
    """Report after an update, a warm start, or an assessment of a supervised job."""

    batch: int
    steps: int
    """Number of optimizer steps so far, including supervised ones."""
    rollouts: int
    """Number of rollouts used of the budget so far."""
    budget: int
    metrics: StepMetrics | None = None
    """Metrics of the update; None for a warm start and an assessment."""
    warm_start: WarmStartReport | None = None
    pools: dict[str, Both] = {}
    capabilities: dict[str, Both] = {}
    user_faults: int = 0
    """Rollouts of the batch without a verdict because their user failed."""
    rollout_seconds: float = 0.0
    """Seconds spent on playing rollouts; 0 if the journal had the batch."""
    update_seconds: float = 0.0
    round_seconds: float = 0.0
    """Seconds of the round closed before this update; 0 if no round was closed."""


@dataclass(slots=True)
class Count:
    """Counts of rollouts and groups of one pool or capability."""

    attempts: int = 0
    passes: int = 0
    groups: int = 0
    informative: int = 0

    def add(self, verdicts: Iterable[bool]) -> None:
        """Count a group of rollouts by their verdicts."""
        own = list(verdicts)
        self.attempts += len(own)
        self.passes += sum(own)
        self.groups += 1
        self.informative += 0 < sum(own) < len(own)

    def figures(self) -> Figures:
        """Return the counts as shares."""
        return Figures(
            attempts=self.attempts,
            passed=self.passes / max(self.attempts, 1),
            groups=self.groups,
            informative=self.informative / max(self.groups, 1),
        )


@dataclass(slots=True)
class History:
    """Counts of sampled rollouts, by pool and by capability."""

    pools: dict[str, Count] = field(default_factory=dict)
    capabilities: dict[str, Count] = field(default_factory=dict)
    rollouts: int = 0
    cut_off: int = 0
    """Number of rollouts with an answer that a limit cut off."""
    unjudged: int = 0
    """Number of rollouts without a verdict because their user failed."""

    def add(
        self, batch: Iterable[Trajectory], pool: Callable[[str], str], kind: Callable[[str], str]
    ) -> None:
        """Count a batch. `pool` and `kind` return the pool and the capability of a task."""
        batch = list(batch)
        self.rollouts += len(batch)
        self.cut_off += sum(
            any(turn.truncated for turn in trajectory.turns) for trajectory in batch
        )
        self.unjudged += sum(trajectory.user_fault is not None for trajectory in batch)
        for task, verdicts in by_group(batch):
            self.pools.setdefault(pool(task), Count()).add(verdicts)
            self.capabilities.setdefault(kind(task), Count()).add(verdicts)

    def pool(self, name: str) -> Count:
        """Return the counts of a pool, zeros if it has no rollouts."""
        return self.pools.get(name, Count())


def by_group(batch: Iterable[Trajectory]) -> list[tuple[str, list[bool]]]:
    """Return (task, verdicts) of each group with a verdict, in the batch's order."""
    groups: dict[tuple[str, str], list[bool]] = {}
    for trajectory in batch:
        if trajectory.success is not None:
            groups.setdefault((trajectory.group, trajectory.task), []).append(trajectory.success)
    return [(task, verdicts) for (_, task), verdicts in groups.items()]


def compare_figures(
    batch: Mapping[str, Count],
    so_far: Mapping[str, Count],
    rewards: Mapping[str, RewardKind] | None = None,
) -> dict[str, Both]:
    """Return name -> figures of the batch and so far. `rewards`: of pools beyond the verdict."""
    return {
        name: Both(
            batch=batch[name].figures() if name in batch else None,
            so_far=so_far[name].figures(),
            reward=(rewards or {}).get(name),
        )
        for name in sorted(so_far)
    }


class ProbeResult(StrictModel):
    """Judgement of the pools without replay, from the first groups that a policy attempted."""

    weak: tuple[str, ...]
    """Pools in which most rollouts fail and too few groups are informative."""
    hopeless: bool
    """Whether every pool has too few informative groups and no rollout passed."""


def probe_pools(spec: JobSpec, history: History) -> ProbeResult:
    """Judge the pools by the rollouts so far; a pool without rollouts counts as all failed."""
    counts = {pool.name: history.pool(pool.name) for pool in spec.target_pools}
    below = {n for n, c in counts.items() if c.figures().informative < spec.probe.below}
    return ProbeResult(
        weak=tuple(name for name, c in counts.items() if name in below and _mostly_fails(c)),
        hopeless=len(below) == len(counts) and not any(c.passes for c in counts.values()),
    )


def _mostly_fails(count: Count) -> bool:
    return 2 * count.passes <= count.attempts


def complete(spec: JobSpec, history: History) -> bool:
    """Return whether every pool without replay has as many groups as the probe needs."""
    return all(history.pool(pool.name).groups >= spec.probe.groups for pool in spec.target_pools)


def gap(history: History) -> str:
    """Say in one sentence that there is nothing to learn from, with each capability's figures."""
    kinds = "; ".join(
        f"{name}: {count.passes} of {count.attempts} passed, "
        f"{count.informative} of {count.groups} groups informative"
        for name, count in sorted(history.capabilities.items())
    )
    return f"nothing to learn from ({kinds}): {_remedy(history)}"


def _remedy(history: History) -> str:
    if 2 * history.cut_off > history.rollouts:
        return (
            f"{history.cut_off} of {history.rollouts} rollouts end in the middle of an answer; "
            "raise sampler.max_tokens, or the length of the source"
        )
    return "it needs supervised data or a larger model"
