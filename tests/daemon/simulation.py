"""Two daemons over one home that are killed and paused between any two appends, in one process.

    world = World(folder, seed)
    world.run(cycles=4)      faults, then peace; raises Broken where an invariant does not hold

Log, folds, tables, lease, epochs, the leader and the process manager are the real ones; what lies
outside the log (directories of jobs, engines, what gateways answer with) is simulated, and so is
the part of the role `work` that acts on it, which appends under ids as the real one does. A pause
runs the other daemon in the middle of an append, beyond the end of the lease; whoever was paused
may find that its own clock stood still. Everything follows from the seed.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from sqlalchemy import text

from consumers import database
from consumers.reads import agents, learning, serving
from consumers.reads.cycle_state import CycleState
from consumers.reads.serving import AdapterRow
from daemon.config.settings import Agent, Log, Scheduler, Settings
from daemon.core.app import App, Progress
from daemon.core.decision_log import Act, DecisionRefusal, Decisions
from daemon.core.leadership import Leadership, LeaseTimes
from daemon.cycle.leader import Leader
from daemon.cycle.state_machine import Step
from daemon.cycle.views import read_next_step
from events.learning import CycleOutcome, Decision
from events.lifecycle import LOADED
from events.serving import RouteChanged, Why
from tests.consumers.cycling import job_over
from tests.consumers.deciding import decided, evaluated, produced, routed, staged
from tests.consumers.folding import at, ended
from tests.daemon.invariants import Broken, Inspection
from tests.daemon.written import Fixed

if TYPE_CHECKING:
    from consumers.runner import Runner
    from events.log import Entry, EventLog

ALIAS: Final = "agent"
TIMING: Final = LeaseTimes(lease=1000.0, renewal=300.0, margin=100.0)
"""Far above what a test takes: time passes only where the world lets it."""
BATCH: Final = 3
"""Rollouts that make a cycle due."""
FATES: Final[Sequence[CycleOutcome]] = ("promoted", "rejected", "nothing_learnable", "rolled_back")
"""How the cycles come out, in turn."""

CRASH: Final = 0.04
PAUSE: Final = 0.03
LATE: Final = 0.2
AGAIN: Final = 0.1
RESTART: Final = 0.05
PERSON: Final = 0.15
"""Chances: killed and paused at any point, paused just before what others see, an append sent
twice, engines and gateways that were restarted and know nothing, a person who replaces the
incumbent between two looks (where there is one)."""
REPLACEMENTS: Final = 2
"""By a person, of one cycle: what they want then stays."""


ADA: Final = Act("ada", "she prefers it")
PUSHED: Final = ("pushed-1", "pushed-2")
"""Adapters of a person."""


class Crashed(BaseException):
    """A daemon was killed. No `except Exception` may survive it."""


class Home(App):
    """A home as one daemon has it: killed and paused around its appends and folds."""

    def __init__(self, settings: Settings, daemon: "Daemon") -> None:
        super().__init__(settings)
        self._daemon = daemon

    def append(self, entries: "Sequence[Entry]") -> None:
        """Append, perhaps twice: as a client does that did not hear the answer."""
        self._daemon.point(LATE)
        super().append(entries)
        if self._daemon.happens(AGAIN):
            super().append(entries)
        self._daemon.point()

    def settle(
        self, on_progress: Progress | None = None, log: "EventLog | None" = None
    ) -> "Runner":
        """Fold."""
        self._daemon.point()
        return super().settle(on_progress, log)


class Daemon:
    """One daemon, in all its lives: the leader's part and the worker's."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.now = 0.0
        self.lives = 0
        self.is_paused = False
        self._begin()

    def _begin(self) -> None:
        self.lives += 1
        self.home = Home(self.world.settings, self)
        holder = f"{self.name}-{self.lives}"
        self.leadership = Leadership(self.home, holder, lambda: self.now, TIMING)
        self._leader = Leader(self.home, Fixed(), self.leadership, self.world.clock)
        self._hands = Hands(self.world, self.home, self)

    def tick(self) -> None:
        """One look of each part; killed, it begins anew."""
        try:
            self._leader.tick()
            self._hands.tick()
        except Crashed:
            self.world.crashes += 1
            self.close()
            self._begin()

    def close(self) -> None:
        """Let go of the home."""
        self.home.close()

    def happens(self, chance: float) -> bool:
        """Whether a fault of this chance happens now."""
        return self.world.is_faulty and self.world.random.random() < chance

    def point(self, pause: float = PAUSE) -> None:
        """Here a daemon may be killed or paused."""
        if self.happens(CRASH):
            raise Crashed
        if self.happens(pause):
            self.world.pause(self)


class World:
    """Everything outside the log, time, and the two daemons."""

    def __init__(
        self, folder: Path, seed: int, reconciles: bool = True, has_person: bool = False
    ) -> None:
        self.random = Random(seed)
        self.reconciles = reconciles
        self._has_person = has_person
        self.settings = Settings(
            home=folder,
            log=Log(durability="process"),
            agents=(Agent(alias=ALIAS, environment="shop"),),
            scheduler=Scheduler(
                min_rollouts=BATCH, min_failures=1, cooldown_seconds=0, backoff=1,
                min_priority=1e9, max_age_seconds=1e9,
            ),
        )  # fmt: skip
        self.is_faulty = True
        self.crashes = self.pauses = self.replacements = 0
        self.folders: dict[str, str] = {}
        """Directory of a job -> its cycle."""
        self.loaded: set[str] = set()
        """What engines hold."""
        self.route: dict[str | None, float] = {None: 1.0}
        """What gateways answer with."""
        # After whatever the clock of this machine says, which is what events have.
        self._now = datetime(2100, 3, 4, tzinfo=UTC)
        self._rollouts = 0
        self.app = App(self.settings)
        self.app.settle()
        self.inspection = Inspection(self.app)
        self.daemons = (Daemon(self, "one"), Daemon(self, "other"))
        if has_person:
            self._push()

    def clock(self) -> datetime:
        """The time of day, everywhere."""
        return self._now

    def run(self, cycles: int) -> None:
        """So many cycles between faults, and then peace. Raises Broken."""
        try:
            for number in range(1, cycles + 1):
                self._arrive(BATCH)
                self._until_over(number)
            self.is_faulty = False
            self._until_quiet()
            self.inspection.check_end(self.route, self.loaded, self.folders)
        finally:
            for one in (*self.daemons, self.app):
                one.close()

    def _until_over(self, number: int, most: int = 120) -> None:
        for _ in range(most):
            self._step()
            if self.inspection.over >= number:
                return
        raise Broken(f"a stall: cycle {number} is not over after {most} looks")

    def _until_quiet(self) -> None:
        for _ in range(3):
            for one in self.daemons:
                self._wait(one, 2 * TIMING.lease)
                one.tick()
        self.inspection.check(self.folders)

    def _step(self) -> None:
        one = self.random.choice(self.daemons)
        if self.random.random() < 0.4:
            self._wait(one, self.random.choice((60.0, 400.0, 2 * TIMING.lease)))
        if one.happens(RESTART):
            self.loaded, self.route = set(), {None: 1.0}
        if self._has_person and one.happens(PERSON):
            self._replace(self.inspection.over + 1)
        one.tick()
        self.inspection.check(self.folders)

    def _push(self) -> None:
        """A person brings adapters of their own."""
        decisions = Decisions(self.app)
        for name in PUSHED:
            came = produced(name).model_copy(update={"job": None, "origin": "push"})
            steps: dict[str, Decision] = {"produced": came, "staged": staged(name)}
            decisions.take_all(steps, decisions.act(ADA, "adapters push", {"adapter": name}))

    def _replace(self, number: int) -> None:
        """A person has the base or one of their adapters answer alone, whoever does now."""
        if self.replacements >= number * REPLACEMENTS:
            return
        now = self._read_incumbent()
        wanted = self.random.choice([name for name in (None, *PUSHED) if name != now])
        decisions = Decisions(self.app)
        cause = decisions.act(ADA, "route set", {"alias": ALIAS})
        decisions.take(routed("operator", {wanted: 1.0}), "route", cause)
        self.replacements += 1
        with self.app.reading() as connection:
            waits = learning.open_cycle(connection, ALIAS) is None
        if waits:
            self._arrive(BATCH)  # What the former incumbent failed at makes no cycle due.

    def _read_incumbent(self) -> str | None:
        """Who answers by the log: an adapter; None for the base."""
        self.app.settle()
        with self.app.reading() as connection:
            route = serving.route_row(connection, ALIAS)
        return None if route is None else route.standing.incumbent

    def pause(self, paused: Daemon) -> None:
        """The other one lives on meanwhile, and the lease runs out."""
        if any(one.is_paused for one in self.daemons):
            return
        self.pauses += 1
        paused.is_paused = True
        stands_still = self.random.random() < 0.5
        (other,) = (one for one in self.daemons if one is not paused)
        self._wait(other, 2 * TIMING.lease)
        if not stands_still:
            paused.now += 2 * TIMING.lease
        for _ in range(self.random.choice((0, 0, 1, 2))):
            other.tick()
        if self.random.random() < 0.75:
            self._lead(other)
        paused.is_paused = False

    def _lead(self, one: Daemon) -> None:
        """It takes the lead, and does nothing yet."""
        try:
            one.leadership.lead()
        except Crashed:
            one.tick()

    def _wait(self, awake: Daemon, seconds: float) -> None:
        """Time passes, for all leases and for whoever is awake."""
        awake.now += seconds
        for one in self.daemons:
            if one is not awake and not one.is_paused and not awake.is_paused:
                one.now += seconds
        self._now += timedelta(seconds=1)
        with database.write_transaction(self.app.engine) as connection:
            connection.execute(text("UPDATE leases SET expires = expires - :s"), {"s": seconds})

    def _arrive(self, count: int) -> None:
        """The agent, answered by the incumbent, failed at something."""
        policy = self._read_incumbent() or "base"
        for _ in range(count):
            self._rollouts += 1
            name = f"rollout-{self._rollouts}"
            self.app.append([ended(name, at(self._rollouts), policy=policy)])


class Hands:
    """The worker's part of a daemon, on the world instead of engines and processes."""

    def __init__(self, world: World, app: App, daemon: Daemon) -> None:
        self._world = world
        self._app = app
        self._daemon = daemon
        self._decisions = Decisions(app)

    def tick(self) -> None:
        """Do the next thing of the open cycle, then bring the world to what the log says."""
        self._app.settle()
        with self._app.reading() as connection:
            cycle = learning.open_cycle(connection, ALIAS)
            pair = next(iter(agents.present(connection)), None)
            if cycle is None or pair is None:
                reached = None
            else:
                reached = read_next_step(connection, self._app.settings, cycle, pair)
        if reached is not None:
            stands, step = reached
            # Refused: the other one was there first.
            with suppress(DecisionRefusal):
                self._take(stands, step if isinstance(step, Step) else None)
        if self._world.reconciles:
            self._reconcile()

    def _take(self, stands: CycleState, step: Step | None) -> None:
        row, fate = stands.adapter, FATES[(stands.cycle.number - 1) % len(FATES)]
        match step:
            case Step.TRAIN:
                self._train(stands, fate)
            case Step.STAGE if row is not None:
                self._daemon.point()
                self._world.loaded.add(row.adapter)
                self._decide(staged(row.adapter), f"staged {row.adapter}", row.cause)
            case Step.EVALUATE if row is not None:
                self._evaluate(row, fate)
            case Step.ROUTE if row is not None:
                shares = {row.adapter: 0.5, row.incumbent: 0.5}
                self._turn("canary", shares, row.cause)
            case Step.WATCH if row is not None:
                if fate == "promoted":
                    self._turn("promoted", {row.adapter: 1.0}, row.cause)
                else:
                    self._turn("rollback", {row.incumbent: 1.0}, row.cause)
            case _:
                pass

    def _train(self, stands: CycleState, fate: CycleOutcome) -> None:
        job, number = stands.job, stands.cycle.number
        assert job is not None, "a job is wanted"
        if job.job not in self._world.folders:
            self._world.folders[job.job] = stands.cycle.cycle
            return
        said: dict[str, Decision] = {"job-ended": job_over(number, "trained")}
        if fate == "nothing_learnable":
            said = {"job-ended": job_over(number, "competence_gap")}
        else:
            made = produced(f"adapter-{number}").model_copy(update={"job": job.job})
            said["produced"] = made
        self._decisions.take_all(said, job.event, origin=job.job)

    def _evaluate(self, row: AdapterRow, fate: CycleOutcome) -> None:
        with self._app.reading() as connection:
            route = serving.route_row(connection, ALIAS)
        incumbent = None if route is None else route.standing.incumbent
        if row.state in ("staged", "gated"):
            self._decide(evaluated(row.adapter, incumbent), "evaluated", row.cause)
        else:
            verdict = decided(row.adapter, "REJECT" if fate == "rejected" else "PROMOTE", incumbent)
            self._decide(verdict, "gated", row.cause)

    def _turn(self, why: Why, shares: dict[str | None, float], cause: str) -> None:
        route: RouteChanged = routed(why, shares)
        self._decide(route, f"route {ALIAS}", cause)
        self._daemon.point(LATE)
        # Perhaps long after: then it is wrong until somebody looks at the log again.
        self._world.route = dict(shares)

    def _decide(self, data: Decision, step: str, cause: str) -> None:
        self._decisions.take(data, step, cause)

    def _reconcile(self) -> None:
        with self._app.reading() as connection:
            table = serving.route_table(connection)
        route = table.route(ALIAS)
        if route is not None:
            self._world.route = {part.adapter: part.share for part in route.standing.shares}
        self._world.loaded = {row.adapter for row in table.adapters if row.state in LOADED}
