"""A home in which the loop has been round once, and how its metrics are read."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from consumers.reads import learning
from daemon.config.settings import Agent, Log, Metrics, Scheduler, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.jobs.attempts import JobFolder
from daemon.jobs.runner import Job
from daemon.jobs.runner_factory import jobs_of
from daemon.solver.telemetry.metrics import StepMetrics
from daemon.solver.telemetry.progress import Progress
from events.envelope import utc_now
from events.learning import Decision, SkillsContrasted
from events.rollouts import CallStarted, MemberChoice
from tests.consumers.cycling import job_over
from tests.consumers.deciding import composed, decided, evaluated, produced, routed, staged
from tests.consumers.folding import ended, entry
from tests.consumers.methods.skills.test_skills import CLEAR, contrast
from tests.daemon.written import Fixed

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

ADAPTER = "agent-1"
PANEL = "panel-1"

UPDATE = Progress(
    batch=2, steps=2, rollouts=128, budget=1280, rollout_seconds=3.0, update_seconds=1.0,
    metrics=StepMetrics(
        step=2, updated=True, rollouts=64, refused=0, groups=8, informative=0.5, success=0.25,
        reward=0.3, malformed=0.0, zero_advantage=0.5, mismatch_mean=0.001, mismatch_max=0.02,
        kl=0.01, entropy=1.5, gradient_norm=0.7,
    ),
)  # fmt: skip
"""What the learner says of an update."""


def settings_of(home: Path, port: int | None = None) -> Settings:
    """Of a home whose next cycle does not begin by itself."""
    return Settings(
        home=home, log=Log(durability="process"), metrics=Metrics(port=port),
        scheduler=Scheduler(min_rollouts=2, min_failures=1, cooldown_seconds=1e6),
        agents=(Agent(alias="agent", environment="shop"),),
    )  # fmt: skip


def once_round(app: App) -> None:
    """Two failures, a cycle, its job, and the adapter as a canary beside the base."""
    app.append([ended("fails", utc_now()), ended("fails-too", utc_now(), session="s")])
    leadership = Leadership(app)
    leader = Leader(app, Fixed(), leadership)
    leader.tick()
    with app.reading() as connection:
        (job,) = learning.open_jobs(connection)
    folder = JobFolder(jobs_of(app.settings).folder(job.job))
    folder.prepare(Job(job.job, job.spec))
    attempt = folder.begin(1)
    lines = ['{"heartbeat": {"seconds": 0.1}}', UPDATE.model_dump_json(exclude_none=True)]
    attempt.with_suffix(".out").write_text("\n".join([*lines, '{"heartbeat": {"seconds": 2}}', ""]))
    say(app, job_over(), *gated(ADAPTER), routed("canary", {ADAPTER: 0.25, None: 0.75}))
    leadership.resign()


def serve_panel(app: App, panel: str = PANEL, before: str = ADAPTER) -> None:
    """A selected skill, and a panel that is promoted after `before` and in which `ADAPTER` answers
    it: of its four sessions the member had two, and one of them passed."""
    skill = contrast("cancelling", *10 * [CLEAR], patterns=("missing_write_action|cancel_order",))
    skills = SkillsContrasted(
        alias="agent", base="base", since=0, round=0, failures=20, successes=20, skills=(skill,)
    )
    say(
        app, routed("promoted", {before: 1}), skills, composed(panel, {"cancelling": ADAPTER}),
        staged(panel), evaluated(panel, before), decided(panel, "PROMOTE", before),
        routed("promoted", {panel: 1}),
    )  # fmt: skip
    own, none = MemberChoice(skill="cancelling", adapter=ADAPTER), MemberChoice(doubt="tie")
    for number, (member, success) in enumerate(
        ((own, True), (own, False), (none, None), (none, False))
    ):
        name = f"{panel} {number}"
        call = CallStarted(
            call=name, session=name, alias="agent", base="base", policy=panel, routed="drawn",
            member=member,
        )  # fmt: skip
        over = ended(
            f"{name} ended", utc_now(), session=name, success=success, policy=panel, member=member
        )
        app.append([entry(call, name, utc_now()), over])
    app.settle()


def gated(adapter: str) -> tuple[Decision, ...]:
    """The way of an adapter of the home's job up to a passed gate."""
    with_job = produced(adapter).model_copy(update={"job": job_over().job})
    return with_job, staged(adapter), evaluated(adapter), decided(adapter, "PROMOTE")


def say(app: App, *decisions: Decision) -> None:
    """Append and fold; each must count."""
    taken = Decisions(app)
    for number, data in enumerate(decisions):
        taken.take(data, f"{number} {data.model_dump_json()}", data.TYPE)


@contextmanager
def registered(*collectors: Collector) -> Iterator[CollectorRegistry]:
    """A registry of these."""
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    yield registry


def series(metrics: Iterable[Metric]) -> Series:
    """Every sample by its name and labels."""
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in metrics
        for one in family.samples
    }


def labelled(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A series."""
    return name, tuple(sorted(labels.items()))
