"""The job of a first cycle, made as the loop makes it: the base's rollouts on traffic are recorded
in a log, folded and diagnosed, and the planner writes directive, tasks, pools and spec.

Everything follows from the run's seed, so every configuration of a seed has the same pools.
"""

import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from consumers.reads.learning import CycleRow
from daemon.config.settings import Agent, Log, Proposer, Training
from daemon.config.settings import Settings as HomeSettings
from daemon.core.app import App
from daemon.cycle.planner import CyclePlanner
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.jobs.own_successes import read_file
from daemon.solver.journal import SUCCESSES
from daemon.solver.sampling.local import InProcess
from envs.environment import Environment
from envs.registry import locate, open_place
from envs.shop.environment import Shop
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.learning import JobRequested
from ops.learning.arms import make_attempts
from ops.learning.recording import record_rollouts
from ops.learning.screen.settings import Configuration, Settings
from ops.learning.seeds import Seeds
from producers.simulation import Provenance

_ALIAS: Final = "agent"


class NoJob(KintsugiError):
    """The recorded traffic gave the planner nothing to train on."""


class Recorder:
    """The base, which plays traffic, and the jobs that follow from what is recorded of it."""

    def __init__(
        self, settings: Settings, seed: int, seeds: Seeds, environment: str = Shop.name
    ) -> None:
        """`environment` is the name or the path of the one whose customers it serves."""
        self._settings, self._seed, self._seeds = settings, seed, seeds
        self._environment: Environment = open_place(environment)
        self._place = locate(environment)
        self.policy = Policy.load(settings.checkpoint, settings.base)
        engine = Engine(self.policy, 64, 512)
        self.player = InProcess(engine, Chat(settings.checkpoint), max_tokens=64)

    def build_spec(self, configuration: Configuration, folder: Path) -> JobSpec:
        """Return the job of this configuration; what it shows of recorded rollouts is written to
        its folder. Raises NoJob."""
        with (
            tempfile.TemporaryDirectory() as home,
            App(self._home(Path(home), configuration)) as app,
        ):
            self._record_traffic(app)
            row = self._cycle(app)
            planner = CyclePlanner(app)
            directive = planner.write_directive(row).directive
            proposal = planner.propose_tasks(replace(row, directive=directive))
            events = proposal.said.values()
            jobs = [event.spec for event in events if isinstance(event, JobRequested)]
            if not jobs:
                raise NoJob(f"seed {self._seed} has no job: {proposal.lacking}; take another seed")
            spec = _restrict(jobs[0], configuration)
            _write_successes(app, spec, folder)
        return spec

    def _home(self, folder: Path, configuration: Configuration) -> HomeSettings:
        settings = self._settings
        training = {**settings.training, "threads": 1, **configuration.training}
        return HomeSettings(
            home=folder,
            database_url=None,
            kafka_bootstrap_servers="",
            log=Log(durability="process"),
            agents=(Agent(alias=_ALIAS, environment=self._place, checkpoint=settings.checkpoint),),
            proposer=Proposer(
                tasks=settings.written,
                targeted_step=settings.targeted,
                targeted_most=settings.targeted,
                probe=False,
            ),
            training=Training.model_validate(training),
        )

    def _record_traffic(self, app: App) -> None:
        mixed = self._environment.mixture(
            self._settings.traffic, seed=self._seed, first_task=self._seeds.traffic
        )
        attempts = make_attempts(islice(mixed, self._settings.recorded), self._seed, "traffic")
        base = self._settings.base
        provenance = Provenance(alias=_ALIAS, base=base, policy=base, purpose="live")
        rollouts = self.player.play(self._environment, attempts, self.policy)
        record_rollouts(app, rollouts, self._environment, provenance, "screen")

    def _cycle(self, app: App) -> CycleRow:
        """Return the first cycle of the agent, diagnosed; its id follows from the seed alone."""
        closed = app.diagnose("diagnose")
        if closed is None:
            raise NoJob(f"seed {self._seed}: none of the recorded rollouts could be diagnosed")
        return CycleRow(
            cycle=f"screen-{self._seeds.first}", alias=_ALIAS, base=self._settings.base, number=1,
            environment=self._place, trigger="operator", reason="screen", position={},
            slot=None, acted=None, round=closed.round, directive=None, findings=(), summary=None,
            analyzer=None, trouble=None, accepted=0, rejected=0, job=None, panel=None,
            outcome=None, ended_because=None, event="screen", started=None, diagnosed=None,
            directed=None, ended=None,
        )  # fmt: skip


def _restrict(spec: JobSpec, configuration: Configuration) -> JobSpec:
    """Return the spec with the configuration's algorithm, and with a warm start that shows only
    what the configuration says."""
    changes: dict[str, object] = {"algorithm": configuration.algorithm}
    if spec.warm_start is not None and configuration.shows == "oracle":
        changes["warm_start"] = spec.warm_start.model_copy(update={"successes": None})
        changes["pools"] = tuple(pool.model_copy(update={"successes": ()}) for pool in spec.pools)
    if configuration.shows == "own":
        changes["pools"] = tuple(
            pool.model_copy(update={"tasks": pool.tasks + pool.references, "references": ()})
            for pool in spec.pools
        )
    return JobSpec.model_validate(spec.model_copy(update=changes).model_dump())


def _write_successes(app: App, spec: JobSpec, folder: Path) -> None:
    names = [name for pool in spec.pools for name in pool.successes]
    if names:
        folder.mkdir(parents=True, exist_ok=True)
        with app.reading() as connection:
            (folder / SUCCESSES).write_bytes(read_file(app, connection, names))
