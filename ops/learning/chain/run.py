"""A chain of cycles: traffic, round, directive, tasks, job, gate, promotion, again and again.

    for record in Chain(out, seed, "demo", SETTINGS).run(8): ...

Everything that is decided is the product's: the leader begins cycles and plans them, jobs run as
the role `work` runs them, and the gate compares candidate and incumbent. What is left out is what
serves: an adapter is proven where it is played, and one that passes its gate is promoted at once,
without a canary. Held-out tasks decide nothing.

The home in OUT/home is the chain's state, and OUT/cycle-N.json what cycle N did (0: the base); a
chain that was killed goes on.
"""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Final

import torch

from consumers.reads import learning, rollouts, serving, succession
from consumers.reads.cycle_state import CycleState, read_cycle_state
from consumers.reads.learning import CycleRow
from consumers.reads.serving import AdapterRow
from daemon.adapters.adoption import read_expectation
from daemon.adapters.fingerprint import distance
from daemon.config.settings import Agent, Log, Scheduler
from daemon.config.settings import Settings as HomeSettings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.planner import CyclePlanner
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.evaluation.candidate_evaluation import CandidateEvaluation
from daemon.jobs.training_runs import advance
from daemon.solver.sampling.local import InProcess
from daemon.solver.telemetry.progress import Figures, Progress
from envs.environment import Environment
from envs.shop.environment import Shop
from events.envelope import derive_id
from events.errors import KintsugiError
from events.gate import GateReport
from events.lifecycle import State
from events.messages import StrictModel
from events.serving import AdapterStaged, RouteChanged, RouteShare
from ops.learning.arms import make_attempts
from ops.learning.chain.runner import InProcessRunner
from ops.learning.chain.settings import CONFIGURATIONS, MIXTURES, Settings
from ops.learning.evaluation import evaluate, generate_holdout
from ops.learning.recording import record_rollouts
from ops.learning.results import Source, write_document
from ops.learning.run import describe_source
from ops.learning.seeds import Seeds
from producers.simulation import Provenance

_HERE: Final = "in process"
"""Replica that a staged adapter is on."""
_CYCLE: Final = timedelta(days=1)
"""Between the first sessions of two cycles, in the log's time."""


class ChainBreak(KintsugiError):
    """A cycle that did not go on."""


class PoolRecord(StrictModel):
    """A pool of a cycle's job."""

    share: float
    tasks: int
    references: int
    figures: Figures | None
    """Of its groups; None where none was drawn."""


class CycleRecord(StrictModel):
    """A cycle, and the held-out figures of whoever answers after it."""

    number: int
    outcome: str
    reason: str
    policy: str
    """Who answers after it."""
    parent: str | None = None
    """The adapter that its job trained on from."""
    traffic: float
    """Held-out pass^1, weighted as the traffic is."""
    kinds: Mapping[str, float]
    """Kind -> held-out pass^1."""
    live: float | None = None
    """Share of the live rollouts before it that passed."""
    quotas: Mapping[str, int] = {}
    """Pattern -> tasks that the directive asks for."""
    pools: Mapping[str, PoolRecord] = {}
    warm_start: int = 0
    """Trajectories that a warm start trained on."""
    gate: GateReport | None = None
    seconds: Mapping[str, float] = {}
    """Wall time by part of the cycle."""
    source: Source


class Chain:
    """One chain and its home."""

    def __init__(self, out: Path, seed: int, name: str, settings: Settings) -> None:
        torch.set_num_threads(1)
        out.mkdir(parents=True, exist_ok=True)
        self._out, self._seed, self._settings = out, seed, settings
        self._configuration = CONFIGURATIONS[name]
        self.mixture = MIXTURES[self._configuration.mixture]
        self._seeds = Seeds.of(seed, development=True)
        self._shop: Environment = Shop()
        self._alias = f"agent{seed}"
        self._base = Policy.load(settings.checkpoint, settings.base)
        engine = Engine(self._base, 64, 512)
        self._player = InProcess(engine, Chat(settings.checkpoint), max_tokens=64)
        self._progress: Progress | None = None
        self._shown = 0
        self._source = describe_source(
            settings.checkpoint, settings.compute_digest(self._configuration)
        )

    def run(self, cycles: int) -> Iterator[CycleRecord]:
        """Yield the record of each cycle, those made before included. Raises ChainBreak and what
        the parts of a cycle raise."""
        records: list[CycleRecord] = []
        with App(self._build_home()) as app:
            leadership = Leadership(app, holder="chain")
            leader = Leader(app, CyclePlanner(app), leadership)
            for number in range(cycles + 1):
                path = self._out / f"cycle-{number}.json"
                if path.exists():
                    record = CycleRecord.model_validate_json(path.read_bytes())
                else:
                    before = records[-1] if records else None
                    record = self._run_cycle(app, leader, number, before)
                    write_document(path, record)
                records.append(record)
                yield record
            leadership.resign()

    def _build_home(self) -> HomeSettings:
        settings = self._settings
        return HomeSettings.model_validate(
            {
                "home": self._out / "home",
                "database_url": None,
                "kafka_bootstrap_servers": "",
                "log": Log(durability="process"),
                "agents": (
                    Agent(
                        alias=self._alias, environment=self._shop.name,
                        checkpoint=settings.checkpoint, traffic=dict(self.mixture),
                    ),
                ),
                "scheduler": Scheduler(
                    min_rollouts=1, min_failures=1, cooldown_seconds=0, backoff=1,
                    budget_minutes=100_000,
                ),
                **self._configuration.build_sections(),
            }
        )  # fmt: skip

    def _run_cycle(
        self, app: App, leader: Leader, number: int, before: CycleRecord | None
    ) -> CycleRecord:
        if before is None:
            return CycleRecord(
                number=0, outcome="base", reason="", policy=self._base.name, source=self._source,
                **self._measure(self._base),
            )  # fmt: skip
        seconds: dict[str, float] = {}
        began = time.monotonic()

        def clock(part: str) -> None:
            nonlocal began
            seconds[part] = round(time.monotonic() - began, 1)
            began = time.monotonic()

        policy = self._load(app)
        live = self._record_traffic(app, policy, number)
        clock("traffic")
        self._tick(leader)
        clock("plan")
        self._progress, self._shown = None, 0
        runner = InProcessRunner(app.settings.adapter_paths, "jobs", self._note)
        while advance(app, runner):
            app.settle()
        clock("job")
        with app.reading() as connection:
            cycle = self._read_cycle(app, number)
            state = read_cycle_state(connection, cycle)
        if state.adapter is not None and cycle.outcome is None:
            self._examine(app, state.adapter)
        clock("gate")
        self._tick(leader)
        cycle = self._read_cycle(app, number)
        if cycle.outcome is None:
            raise ChainBreak(f"cycle {number} has not ended; look at the home of {self._out}")
        promoted = cycle.outcome == "promoted"
        figures = (
            self._measure(self._load(app))
            if promoted
            else {"traffic": before.traffic, "kinds": before.kinds}
        )
        clock("held out")
        return self._describe(app, cycle, live, figures, seconds)

    def _describe(
        self, app: App, cycle: CycleRow, live: float, figures: Mapping[str, object],
        seconds: Mapping[str, float],
    ) -> CycleRecord:  # fmt: skip
        with app.reading() as connection:
            state: CycleState = read_cycle_state(connection, cycle)
        played = {} if self._progress is None else self._progress.pools
        pools = {} if state.job is None else {
            pool.name: PoolRecord(
                share=round(pool.share, 4), tasks=len(pool.tasks), references=len(pool.references),
                figures=played[pool.name].so_far if pool.name in played else None,
            )
            for pool in state.job.spec.pools
        }  # fmt: skip
        assert cycle.outcome is not None, "a cycle that has ended"
        return CycleRecord.model_validate(
            {
                "number": cycle.number,
                "outcome": cycle.outcome,
                "reason": cycle.ended_because or "",
                "policy": self._load(app).name,
                "parent": None if state.job is None else _name_parent(app, state),
                "live": live,
                "quotas": {} if cycle.directive is None else {
                    quota.pattern: quota.tasks for quota in cycle.directive.quotas
                },
                "pools": pools,
                "warm_start": self._shown,
                "gate": None if state.adapter is None else state.adapter.gate,
                "seconds": seconds,
                "source": self._source,
                **figures,
            }
        )  # fmt: skip

    # Parts of a cycle

    def _record_traffic(self, app: App, policy: Policy, number: int) -> float:
        """Have the incumbent play this cycle's customers; return the share that was served well."""
        count = self._settings.recorded
        mixed = self._shop.mixture(
            self.mixture, seed=self._seed, first_task=self._seeds.traffic + (number - 1) * count
        )
        origin = f"chain {self._seed} {number}"
        tasks = list(islice(mixed, count))
        names = [derive_id(origin, task.id) for task in tasks]
        app.settle()
        with app.reading() as connection:
            known = rollouts.verdicts(connection, names)
        if not known:
            provenance = Provenance(
                alias=self._alias, base=self._base.name, policy=policy.name, purpose="live"
            )
            attempts = make_attempts(iter(tasks), self._seed, "traffic")
            played = self._player.play(self._shop, attempts, policy)
            begin = datetime(2026, 1, 1, tzinfo=UTC) + number * _CYCLE
            record_rollouts(app, played, self._shop, provenance, origin, begin)
            app.settle()
            with app.reading() as connection:
                known = rollouts.verdicts(connection, names)
        return fmean(bool(verdict.success) for verdict in known.values())

    def _tick(self, leader: Leader) -> None:
        result = leader.tick()
        if result.epoch is None or result.troubles:
            raise ChainBreak(f"the leader did not go on: {result.troubles or 'another leads'}")

    def _note(self, progress: Progress) -> None:
        self._progress = progress
        if progress.warm_start is not None:
            self._shown += progress.warm_start.references + progress.warm_start.successes

    def _examine(self, app: App, row: AdapterRow) -> None:
        """Stage, evaluate and promote an adapter, as far as its gate lets it."""
        decisions, agent = Decisions(app), app.settings.agents[0]
        if row.state is State.PRODUCED:
            expected = read_expectation(app.settings.adapter_paths.locate(row.path))
            apart = distance(expected.adapter, expected.base)
            staged = AdapterStaged(
                adapter=row.adapter, replicas=(_HERE,), distance=0.0, from_base=apart
            )
            decisions.take(staged, f"staged {row.adapter}", row.cause)
        runner = InProcessRunner(app.settings.adapter_paths, "trials")
        while (row := self._read_adapter(app, row.adapter)).state in (
            State.STAGED,
            State.EVALUATED,
        ):
            incumbent = self._read_incumbent(app)
            examination = CandidateEvaluation(app, runner, agent, row, incumbent)
            if not list(examination.advance()):
                raise ChainBreak(f"the evaluation of {row.adapter} does not go on")
            app.settle()
        if row.state is State.GATED:
            route = RouteChanged(
                alias=self._alias, base=self._base.name, why="promoted",
                shares=(RouteShare(adapter=row.adapter, share=1),), reason="it passed the gate",
            )  # fmt: skip
            decisions.take(route, f"route {self._alias}", row.cause)

    # Reading

    def _read_cycle(self, app: App, number: int) -> CycleRow:
        with app.reading() as connection:
            for row in learning.cycles(connection, self._alias):
                if row.number == number:
                    return row
        raise ChainBreak(f"the leader began no cycle {number}; take another seed")

    def _read_adapter(self, app: App, name: str) -> AdapterRow:
        with app.reading() as connection:
            return serving.find_adapter(connection, name)

    def _read_incumbent(self, app: App) -> AdapterRow | None:
        with app.reading() as connection:
            route = serving.route_row(connection, self._alias)
            name = None if route is None else route.standing.incumbent
            return None if name is None else serving.adapter_row(connection, name)

    def _load(self, app: App) -> Policy:
        """Who answers now."""
        row = self._read_incumbent(app)
        if row is None:
            return self._base
        return self._base.with_adapter(app.settings.adapter_paths.locate(row.path), row.adapter)

    def _measure(self, policy: Policy) -> dict[str, object]:
        """Held-out pass^1 of a policy, of every kind and weighted as the traffic is."""
        settings = self._settings
        tasks = generate_holdout(self._shop, self.mixture, self._seeds.holdout, settings.tasks)
        outcomes = evaluate(self._player, self._shop, policy, tasks, settings.trials, self._seed)
        kinds = {
            kind: fmean(fmean(trials) for trials in by_task.values())
            for kind, by_task in outcomes.items()
        }
        traffic = sum(share * kinds[kind] for kind, share in self.mixture.items())
        return {"traffic": traffic, "kinds": kinds}


def _name_parent(app: App, state: CycleState) -> str | None:
    path = None if state.job is None else state.job.spec.parent
    if path is None:
        return None
    with app.reading() as connection:
        row = succession.find_adapter_at(connection, path)
    return None if row is None else row.adapter
