"""A whole GRPO step on the reference policy, split into its rollouts and its update.

    python -m ops.bench.step [--steps 12] [--threads 1] [--checkpoint DIR]

Method. A job as the daemon runs it (daemon/solver/job.py), rollouts in its own process, on the
kinds that the policy is weak at: 8 tasks, 8 rollouts each, per step. All groups are trained on, so
every step costs an update. The first step, which warms up, is left out; medians of the others.
"""

import argparse
import json
import statistics
import tempfile
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

FIRST: Final = 1_000
"""Seed of the first task."""


def main() -> None:
    """Print one JSON document."""
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as name:
        spec = _spec(options.checkpoint, options.steps + 1, options.threads)
        with Job(spec, Path(name)) as job:
            _, *measured = list(job)
    print(json.dumps(_summary(spec, measured), indent=2))


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    return parser


if __name__ == "__main__":
    main()
