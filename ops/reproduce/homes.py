"""Settings of a reproduction's homes, and the verdicts of their rollouts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from consumers.reads.rollouts import rollout_lines
from daemon.config.settings import Agent, Log, Proposer, Settings, Training
from daemon.core.app import App
from envs.environment import Environment
from envs.registry import open_environment
from events.jobs import EndpointSource, InProcessSource, VllmSource
from ops.reproduce.settings import Served

ALIAS: Final = "agent"

AnySource = InProcessSource | EndpointSource | VllmSource

Verdicts = Mapping[str, Sequence[bool]]
"""Task -> for each trial, whether it passed."""


def open_plan_environment(plan: Served) -> Environment:
    """Return the plan's environment, with the operator's folder of real tasks."""
    return open_environment(plan.env, benchmarks=plan.benchmarks)


def build_settings(
    plan: Served, home: Path, training: Training, proposer: Proposer | None = None
) -> Settings:
    """Return a home's settings, which use no other configuration of this machine."""
    return Settings(
        home=home,
        database_url=None,
        kafka_bootstrap_servers="",
        benchmarks=plan.benchmarks,
        log=Log(durability="process"),
        agents=(Agent(alias=ALIAS, environment=plan.env, checkpoint=plan.checkpoint),),
        proposer=proposer or Proposer(),
        training=training,
    )


def build_source(plan: Served, other: AnySource) -> AnySource:
    """Return the source of a job's rollouts: the plan's endpoint, or its spec's source."""
    if plan.source != "endpoint":
        return other
    return EndpointSource(
        kind="endpoint", url=plan.base_url, model=plan.model, concurrency=plan.concurrency
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """A judged attempt of a policy at a task."""

    policy: str
    task: str
    number: int
    success: bool
    rollout: str


def list_trials(app: App, policies: Mapping[str, str]) -> Iterator[Trial]:
    """Yield the judged trials of `policies`: name at the endpoint -> name in the table."""
    app.settle()
    with app.reading() as connection:
        lines = rollout_lines(connection)
    for line in lines:
        name = policies.get(line.policy)
        if name is None or line.task is None or line.trial is None or line.success is None:
            continue
        yield Trial(name, line.task, line.trial, line.success, line.rollout)


def read_verdicts(
    settings: Settings, policies: Mapping[str, str], environment: str, count: int
) -> dict[str, dict[str, list[bool]]]:
    """Return policy -> verdicts on tasks with `count` trials; `policies` as in `list_trials`."""
    trials: dict[str, dict[str, dict[int, bool]]] = {policy: {} for policy in policies.values()}
    with App(settings) as app:
        for trial in list_trials(app, policies):
            if trial.task.startswith(f"{environment}/"):
                own = trials[trial.policy].setdefault(trial.task, {})
                own.setdefault(trial.number, trial.success)
    return {policy: keep_whole(own, count) for policy, own in trials.items()}


def keep_whole(trials: Mapping[str, Mapping[int, bool]], count: int) -> dict[str, list[bool]]:
    """Return task -> verdicts in the order of trials, for tasks with exactly `count` trials."""
    return {
        task: [own[trial] for trial in sorted(own)]
        for task, own in trials.items()
        if len(own) == count
    }
