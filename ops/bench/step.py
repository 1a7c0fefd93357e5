"""Measure a whole GRPO step on the reference policy, split into its rollouts and its update.

    python -m ops.bench.step [--steps 12] [--threads 1]

Method. A job as the daemon runs it (daemon/solver/job.py), rollouts in its own process, on the
kinds that the policy is weak at: 8 tasks, 8 rollouts each, per step. All groups are trained on, so
every step costs an update. The first step, which warms up, is left out; medians of the others.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from daemon.engine.reference.recipe import WEAK
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.job import Job
from daemon.solver.reference.evaluate import ANSWER
from daemon.solver.telemetry.progress import Progress
from events.algorithm import Algorithm, FilterConfig
from events.jobs import JobSpec, Limits, Sampler, TaskPool
from ops.command_line import run_command

FIRST: Final = 1_000


def measure(folder: Path, steps: int, threads: int) -> dict[str, Any]:
    """Run one job and return its figures."""
    spec = _spec(CHECKPOINT, steps + 1, threads)
    with Job(spec, folder / "job") as job:
        _, *measured = list(job)
    return _summary(spec, measured)


def _spec(checkpoint: Path, steps: int, threads: int) -> JobSpec:
    groups, size = 8, 8
    seeds = range(FIRST, FIRST + steps * groups)
    pools = [
        TaskPool(name=kind, tasks=tuple(f"shop/{kind}/{seed}" for seed in seeds)) for kind in WEAK
    ]
    return JobSpec(
        job="step",
        base="reference",
        checkpoint=str(checkpoint),
        environment="shop",
        pools=tuple(pools),
        sampler=Sampler(
            groups=groups, size=size, rollouts=steps * groups * size, max_tokens=ANSWER
        ),
        algorithm=Algorithm(filter=FilterConfig(informative=False)),
        limits=Limits(kl=None, entropy_factor=None, malformed_factor=None),
        threads=threads,
    )


def _summary(spec: JobSpec, measured: Sequence[Progress]) -> dict[str, Any]:
    rollout = statistics.median(step.rollout_seconds for step in measured)
    update = statistics.median(step.update_seconds for step in measured)
    rollouts = spec.batch
    tokens = statistics.median(step.metrics.tokens for step in measured if step.metrics)
    return {
        "steps": len(measured),
        "rollouts_per_step": rollouts,
        "written_tokens_per_step": round(tokens),
        "rollout_seconds": round(rollout, 3),
        "update_seconds": round(update, 3),
        "rollout_share": round(rollout / (rollout + update), 2),
        "rollouts_per_minute": round(60 * rollouts / (rollout + update)),
    }


if __name__ == "__main__":
    run_command(__doc__, measure, indent=2, steps=12, threads=1)
