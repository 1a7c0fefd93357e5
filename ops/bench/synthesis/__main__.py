"""How fast the data engine writes tasks without a model, and the share of each stage.

    python -m ops.bench.synthesis [--env E] [--tasks N] [--plans N] [--rounds N]

Method. One process and one core; times are of the processor. A round writes `--tasks` tasks by
plans of its own, with all ten checks, the episode of the perfect agent and the examination of it;
the environment is opened anew, so no first state is known. The median of the rounds is reported
and the least. The first survey of what the generator draws is counted apart (`survey_seconds`): a
process does it once.

    {"benchmark": "synthesis", "environment", "tasks", "accepted", "rejected", "plans",
      "survey_seconds", "tasks_per_minute", "tasks_per_minute_least", "milliseconds_per_task",
      "shares": {"planning", "synthesis", "verification", "rollout", "examination", "events"}}

`tasks` are accepted ones. The rollout without an engine is the episode that the check `solvable`
has played, so its time is in `verification`.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from daemon.proposer.candidate import CandidateFacts
from daemon.proposer.verification import Verdict
from daemon.synthesis.cells import survey_kinds
from daemon.synthesis.engine import Parts, make_parts, synthesize
from daemon.synthesis.protocols import (
    Draft,
    Examination,
    PlanDrafts,
    PlanRequest,
    Trajectory,
)
from daemon.synthesis.stages import SynthesisRequest
from envs.environment import Environment
from envs.registry import open_environment
from envs.task import TaskDefinition
from events.learning import TaskProposed, TaskRejected
from events.synthesis.plans import MOST_PLANS, Plan

STAGES: Final = ("planning", "synthesis", "verification", "rollout", "examination")

Answer = TypeVar("Answer")


@dataclass
class Clock:
    """Processor time by stage."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    def measure(self, stage: str, function: Callable[[], Answer]) -> Answer:
        """Call a function and add its time to a stage."""
        began = time.process_time()
        try:
            return function()
        finally:
            self.seconds[stage] += time.process_time() - began


@dataclass
class PartsWithClock:
    """The parts of the engine, with a clock around each."""

    parts: Parts
    clock: Clock

    def plan(self, environment: Environment, request: PlanRequest) -> PlanDrafts:
        """As a planner."""
        planner = self.parts.planner
        return self.clock.measure("planning", lambda: planner.plan(environment, request))

    def write(self, plan: Plan, seed: int) -> Draft:
        """As a writer."""
        return self.clock.measure("synthesis", lambda: self.parts.writer.write(plan, seed))

    def roll(self, examined: CandidateFacts, place: str) -> Sequence[Trajectory]:
        """As a roller."""
        return self.clock.measure("rollout", lambda: self.parts.roller.roll(examined, place))

    def examine(
        self, environment: Environment, task: TaskDefinition, trajectory: Trajectory, plan: Plan
    ) -> Examination:
        """As an examiner."""
        examine = self.parts.examiner.examine
        return self.clock.measure(
            "examination", lambda: examine(environment, task, trajectory, plan)
        )

    def check(self, examined: CandidateFacts) -> Verdict:
        """As the ten checks."""
        return self.clock.measure("verification", lambda: self.parts.check(examined))


@dataclass(frozen=True)
class Round:
    """One round of the bench."""

    seconds: float
    accepted: int
    rejected: int
    clock: Clock

    @property
    def tasks_per_minute(self) -> float:
        """Return the accepted tasks per minute of processor time."""
        return 60 * self.accepted / self.seconds


def run_round(environment: Environment, number: int, tasks: int, plans: int) -> Round:
    """Write tasks, and return how long each stage took."""
    bodies: dict[str, str] = {}
    environment.use_definitions(bodies.get)
    request = SynthesisRequest(
        f"bench {number}", "agent", "base", "any", tasks, plans=plans, bodies=bodies
    )
    own, clock = make_parts(environment), Clock()
    parts_with_clock = PartsWithClock(own, clock)
    parts = Parts(
        parts_with_clock,
        parts_with_clock,
        parts_with_clock,
        parts_with_clock,
        own.reviser,
        parts_with_clock.check,
    )
    began = time.process_time()
    decisions = [data for _, data in synthesize(environment, request, parts)]
    seconds = time.process_time() - began
    accepted = sum(isinstance(data, TaskProposed) for data in decisions)
    rejected = sum(isinstance(data, TaskRejected) for data in decisions)
    return Round(seconds, accepted, rejected, clock)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="shop", help="name of the environment")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks of a round")
    parser.add_argument("--plans", type=int, default=MOST_PLANS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    folder = os.environ.get("KINTSUGI_BENCHMARKS")
    benchmarks = Path(folder) if folder else None
    began = time.process_time()
    survey_kinds(open_environment(options.env, benchmarks=benchmarks))
    survey_seconds = time.process_time() - began
    rounds = [
        run_round(
            open_environment(options.env, benchmarks=benchmarks),
            number,
            options.tasks,
            options.plans,
        )
        for number in range(options.rounds)
    ]
    document = describe(options, rounds, survey_seconds)
    print(json.dumps(document, indent=2))
    return 0


def describe(
    options: argparse.Namespace, rounds: Sequence[Round], survey_seconds: float
) -> dict[str, Any]:
    """Return the document of the bench."""
    total = sum(item.seconds for item in rounds)
    stage_seconds = {stage: sum(item.clock.seconds[stage] for item in rounds) for stage in STAGES}
    shares = {stage: seconds / total for stage, seconds in stage_seconds.items()}
    shares["events"] = 1 - sum(shares.values())
    rates = [item.tasks_per_minute for item in rounds]
    accepted = sum(item.accepted for item in rounds)
    return {
        "benchmark": "synthesis",
        "environment": options.env,
        "tasks": options.tasks,
        "accepted": accepted,
        "rejected": sum(item.rejected for item in rounds),
        "plans": options.plans,
        "survey_seconds": round(survey_seconds, 2),
        "tasks_per_minute": round(statistics.median(rates)),
        "tasks_per_minute_least": round(min(rates)),
        "milliseconds_per_task": round(1000 * total / max(1, accepted), 2),
        "shares": {stage: round(share, 3) for stage, share in shares.items()},
    }


if __name__ == "__main__":
    raise SystemExit(main())
