"""The job of a first cycle, made as the loop makes it: the base's rollouts on traffic are recorded
in a log, folded and diagnosed, and the planner writes directive, tasks, pools and spec.

Everything follows from the run's seed, so every configuration of a seed has the same pools.
"""

import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

from consumers.reads.learning import CycleRow
from daemon.config.settings import Agent, Log, Proposer, Training
from daemon.config.settings import Settings as HomeSettings
from daemon.core.app import App
from daemon.cycle.planner import CyclePlanner
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.solver.sampling.local import InProcess
from envs.environment import Environment
from envs.shop.environment import Shop
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.learning import JobRequested
from ops.learning.arms import convert_rollout, make_attempts
from ops.learning.screen.settings import Configuration, Settings
from ops.learning.seeds import Seeds
from producers.simulation import Provenance, append_rollouts, build_rollout_event

_ALIAS = "agent"


class NoJob(KintsugiError):
    """The recorded traffic gave the planner nothing to train on."""


class Recorder:
    """The base, which plays traffic, and the jobs that follow from what is recorded of it."""

    def __init__(self, settings: Settings, seed: int, seeds: Seeds) -> None:
        self._settings, self._seed, self._seeds = settings, seed, seeds
        self._shop: Environment = Shop()
        self.policy = Policy.load(settings.checkpoint, settings.base)
        engine = Engine(self.policy, 64, 512)
        self.player = InProcess(engine, Chat(settings.checkpoint), max_tokens=64)

    def build_spec(self, configuration: Configuration) -> JobSpec:
        """Return the job of this configuration. Raises NoJob."""
        with (
            tempfile.TemporaryDirectory() as home,
            App(self._home(Path(home), configuration)) as app,
        ):
            self._record_traffic(app)
            row = self._cycle(app)
            planner = CyclePlanner(app)
            directive = planner.write_directive(row).directive
            proposal = planner.propose_tasks(replace(row, directive=directive))
        jobs = [event.spec for event in proposal.said.values() if isinstance(event, JobRequested)]
        if not jobs:
            raise NoJob(f"seed {self._seed} has no job: {proposal.lacking}; take another seed")
        return jobs[0].model_copy(update={"algorithm": configuration.algorithm})

    def _home(self, folder: Path, configuration: Configuration) -> HomeSettings:
        settings = self._settings
        training = {**settings.training, "threads": 1, **configuration.training}
        return HomeSettings(
            home=folder,
            database_url=None,
            kafka_bootstrap_servers="",
            log=Log(durability="process"),
            agents=(
                Agent(alias=_ALIAS, environment=self._shop.name, checkpoint=settings.checkpoint),
            ),
            proposer=Proposer(
                tasks=settings.written,
                targeted_step=settings.targeted,
                targeted_most=settings.targeted,
                probe=False,
            ),
            training=Training.model_validate(training),
        )

    def _record_traffic(self, app: App) -> None:
        mixed = self._shop.mixture(
            self._settings.traffic, seed=self._seed, first_task=self._seeds.traffic
        )
        attempts = make_attempts(islice(mixed, self._settings.recorded), self._seed, "traffic")
        base = self._settings.base
        provenance = Provenance(alias=_ALIAS, base=base, policy=base, purpose="live")
        events = [
            build_rollout_event(
                attempt, self._shop, provenance, derive_id("screen", attempt.task.id)
            )
            for attempt in map(convert_rollout, self.player.play(self._shop, attempts, self.policy))
        ]
        append_rollouts(app.spool, app.blobs, events)

    def _cycle(self, app: App) -> CycleRow:
        """Return the first cycle of the agent, diagnosed; its id follows from the seed alone."""
        closed = app.diagnose("diagnose")
        if closed is None:
            raise NoJob(f"seed {self._seed}: none of the recorded rollouts could be diagnosed")
        return CycleRow(
            cycle=f"screen-{self._seeds.first}", alias=_ALIAS, base=self._settings.base, number=1,
            environment=self._shop.name, trigger="operator", reason="screen", position={},
            slot=None, acted=None, round=closed.round, directive=None, findings=(), summary=None,
            analyzer=None, trouble=None, accepted=0, rejected=0, job=None, outcome=None,
            ended_because=None, event="screen", started=None, diagnosed=None, directed=None,
            ended=None,
        )  # fmt: skip
