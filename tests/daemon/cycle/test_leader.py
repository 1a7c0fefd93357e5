"""The leader over a real home: it begins once, goes on from every step, and two count once."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest

from consumers.reads import learning, serving
from consumers.reads.cycle_state import CYCLE_CANCEL
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import CYCLE_START
from daemon.cli.roles import repeat
from daemon.config.settings import Agent, Log, Scheduler, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.cycle.proposal import Proposal, RetryLater, Skip, Study
from daemon.cycle.state_machine import MOST_GATES
from daemon.cycle.views import read_step
from events.codec import decode
from events.envelope import utc_now
from events.learning import CycleStarted, DirectiveWritten, LeaderClaimed
from tests.consumers.cycling import job_over
from tests.consumers.deciding import decided, evaluated, moved, produced, routed, staged
from tests.consumers.folding import at, ended
from tests.daemon.written import REJECTED, TASKS, Fixed

SCHEDULER = Scheduler(min_rollouts=2, min_failures=1, min_priority=1e9, cooldown_seconds=3600)


@pytest.fixture
def app(tmp_path: Path, clean: Path) -> Iterator[App]:
    """A home in which an agent failed twice."""
    settings = Settings(
        home=tmp_path / "home", log=Log(durability="process"), scheduler=SCHEDULER,
        agents=(Agent(alias="agent", environment="shop"),),
    )  # fmt: skip
    with App(settings) as app:
        app.append([ended("fails", at(1)), ended("fails-too", at(2))])
        yield app


def cycles(app: App) -> list[CycleRow]:
    with app.reading() as connection:
        return learning.cycles(connection)


def leader(app: App, author: Fixed | None = None) -> Leader:
    return Leader(app, author or Fixed(), Leadership(app))


def test_a_cycle_that_is_due_goes_to_its_job_in_one_look_and_then_waits(app: App) -> None:
    leads = leader(app)
    led = leads.tick()
    (cycle,) = cycles(app)
    assert (led.epoch, len(led.told), led.troubles) == (1, 4, [])
    assert (cycle.round, cycle.accepted, cycle.rejected) == (0, TASKS, REJECTED)
    assert (cycle.trigger, cycle.reason) == ("rollouts", "2 new rollouts, of 2")
    with app.reading() as connection:
        assert [job.job for job in learning.open_jobs(connection)] == [cycle.job]
    assert leads.tick().told == []
    assert cycles(app) == [cycle]


def test_a_job_that_left_nothing_ends_the_cycle_and_the_next_one_cools_down(app: App) -> None:
    leads = leader(app)
    leads.tick()
    Decisions(app).take(job_over(outcome="competence_gap"), "over", "job")
    (told,) = leads.tick().told
    assert "nothing_learnable" in told
    app.append([ended(f"new-{one}", at(10 + one)) for one in range(8)])
    assert leads.tick().told == []
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
    assert "(operator)" in leads.tick().told[0]
    assert [one.number for one in cycles(app)] == [2, 1]


def test_a_cycle_that_was_called_off_ends(app: App) -> None:
    leads = leader(app, Hesitating())
    leads.tick()
    (cycle,) = cycles(app)
    Decisions(app).act(Act("ada", "not now"), CYCLE_CANCEL, {"cycle": cycle.cycle})
    leads.tick()
    (cycle,) = cycles(app)
    assert (cycle.outcome, cycle.ended_because) == ("cancelled", "ada called it off: not now")


@pytest.mark.parametrize("examined", [False, True])
def test_the_adapter_of_a_cycle_that_was_called_off_is_given_up(app: App, examined: bool) -> None:
    """Engines keep what is staged, and nobody would bring it on any more."""
    leads = leader(app)
    leads.tick()
    (cycle,) = cycles(app)
    says = Decisions(app)
    says.take(job_over(), "over", "job")
    said = [produced("made").model_copy(update={"job": cycle.job}), staged("made", "replica")]
    said += [evaluated("made")] if examined else []
    for number, data in enumerate(said):
        says.take(data, f"step {number}", "job")
    assert leads.tick().told == [], "it is examined"
    says.act(Act("ada", "not now"), CYCLE_CANCEL, {"cycle": cycle.cycle})
    leads.tick()
    with app.reading() as connection:
        row = serving.find_adapter(connection, "made")
    assert (row.state, row.reason) == ("rejected", "ada called it off: not now")
    assert [one.outcome for one in cycles(app)] == ["cancelled"]
    assert leads.tick().troubles == []


def gated(app: App, cycle: CycleRow) -> None:
    """The cycle's adapter has passed its gate against the base."""
    came = produced("made").model_copy(update={"job": cycle.job})
    said = [job_over(), came, staged("made"), evaluated("made"), decided("made", "PROMOTE")]
    for number, data in enumerate(said):
        Decisions(app).take(data, f"step {number}", "job")


def replace_incumbent(app: App, name: str | None) -> None:
    """A person has another adapter answer alone, or the base."""
    says = Decisions(app)
    cause = says.act(Act("ada", "she prefers it"), "route set", {"alias": "agent"})
    says.take(routed("operator", {name: 1.0}), "route", cause)


def push(app: App, *names: str) -> None:
    for name in names:
        came = produced(name).model_copy(update={"job": None, "origin": "push"})
        Decisions(app).take_all({"came": came, "staged": staged(name)}, name)


def needs(app: App) -> str | None:
    """What the open cycle needs next."""
    (cycle,) = cycles(app)
    with app.reading() as connection:
        return read_step(connection, app.settings, cycle)


def test_a_gate_against_an_incumbent_that_a_person_replaced_is_passed_again(app: App) -> None:
    leads = leader(app)
    leads.tick()
    (cycle,) = cycles(app)
    gated(app, cycle)
    push(app, "hers")
    assert needs(app) == "route"
    replace_incumbent(app, "hers")
    assert needs(app) == "evaluate"
    assert leads.tick().told == []
    Decisions(app).take(evaluated("made", "hers"), "evaluated again", "gate")
    Decisions(app).take(decided("made", "PROMOTE", "hers"), "gated again", "gate")
    assert needs(app) == "route"


def test_an_adapter_whose_incumbent_is_replaced_after_every_gate_is_given_up(app: App) -> None:
    leads = leader(app)
    leads.tick()
    gated(app, cycles(app)[0])
    names = [f"hers-{number}" for number in range(MOST_GATES)]
    push(app, *names)
    for number, name in enumerate(names, start=1):
        assert needs(app) == "route"
        replace_incumbent(app, name)
        if number < MOST_GATES:
            Decisions(app).take(evaluated("made", name), "evaluated", name)
            Decisions(app).take(decided("made", "PROMOTE", name), "gated", name)
    assert needs(app) == "end"
    leads.tick()
    (cycle,) = cycles(app)
    assert cycle.outcome == "cancelled"
    assert "passed the gate against hers-1, and hers-2 is the incumbent now" in str(
        cycle.ended_because
    )
    with app.reading() as connection:
        assert serving.find_adapter(connection, "made").state == "rejected"


class Hesitating(Fixed):
    """Cannot write tasks now."""

    def propose_tasks(self, cycle: CycleRow) -> Proposal:
        raise RetryLater("the environment is away")


def test_what_cannot_be_done_now_is_said_and_tried_again(app: App) -> None:
    leads = leader(app, Hesitating())
    assert leads.tick().troubles == ["the environment is away"]
    assert leads.tick().troubles == ["the environment is away"]
    (cycle,) = cycles(app)
    assert cycle.job is None
    leads = Leader(app, Fixed(), Leadership(app))
    with app.reading() as connection:
        held = learning.leader(connection)
    assert held is not None
    assert leads.tick().epoch is None, "the other one leads"


class Killed(BaseException):
    """The process ends here."""


class Mortal(App):
    """Dies at its `last`-th append: before it, or right after it."""

    def __init__(self, settings: Settings, last: int, before: bool) -> None:
        super().__init__(settings)
        self._left = last
        self._before = before

    def append(self, entries: object) -> None:
        self._left -= 1
        if self._left == 0 and self._before:
            raise Killed
        super().append(entries)  # type: ignore[arg-type]
        if self._left == 0:
            raise Killed


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("last", range(1, 6))
def test_killed_at_any_append_the_next_leader_makes_one_cycle(
    app: App, last: int, before: bool
) -> None:
    """Appends: the claim, the start, the round, the directive, and the proposal."""
    with Mortal(app.settings, last, before) as mortal:
        leadership = Leadership(mortal)
        with suppress(Killed):
            Leader(mortal, Fixed(), leadership).tick()
        leadership.resign()
    leader(app).tick()
    (cycle,) = cycles(app)
    assert (cycle.number, cycle.accepted, cycle.rejected) == (1, TASKS, REJECTED)
    assert (cycle.round, cycle.outcome) == (0, None)
    with app.reading() as connection:
        assert [job.job for job in learning.jobs(connection)] == [cycle.job]


def test_a_cycle_without_a_job_ends_in_the_append_of_its_tasks(app: App) -> None:
    """Killed behind that append, nothing is written again, which a model would write otherwise."""
    with Mortal(app.settings, 5, before=False) as mortal:
        leadership = Leadership(mortal)
        with suppress(Killed):
            Leader(mortal, Fixed(lacking="no task passed"), leadership).tick()
        leadership.resign()
    app.settle()
    (cycle,) = cycles(app)
    assert (cycle.outcome, cycle.ended_because) == ("nothing_learnable", "no task passed")
    assert (cycle.accepted, cycle.rejected) == (TASKS, REJECTED)


class Failing(Fixed):
    """Cannot compare skills."""

    def study_round(self, cycle: CycleRow) -> Study | None:
        raise Skip(f"skills were not compared: rollout r1 of {cycle.alias} is labelled twice")


def test_a_comparison_that_fails_is_said_and_the_cycle_goes_on(app: App) -> None:
    led = leader(app, Failing()).tick()
    assert led.troubles == []
    reason = "skills were not compared: rollout r1 of agent is labelled twice"
    assert [reason in line for line in led.told].count(True) == 1
    (cycle,) = cycles(app)
    assert (cycle.accepted, cycle.rejected) == (TASKS, REJECTED)
    assert cycle.job is not None


class Interrupted(Fixed):
    """While it writes a directive, another process takes the lead and does everything."""

    def __init__(self, home: App, leadership: list[Leadership]) -> None:
        super().__init__()
        self._home = home
        self._leadership = leadership

    def write_directive(self, cycle: CycleRow) -> DirectiveWritten:
        self._leadership[0].resign()
        assert leader(self._home).tick().epoch == 2
        return super().write_directive(cycle).model_copy(update={"summary": "too late"})


def test_what_a_former_leader_wrote_meanwhile_is_not_heard(app: App) -> None:
    with App(app.settings) as other:
        leaderships = [Leadership(app)]
        Leader(app, Interrupted(other, leaderships), leaderships[0]).tick()
    (cycle,) = cycles(app)
    assert cycle.summary == ""
    assert (cycle.accepted, cycle.rejected) == (TASKS, REJECTED)


def test_a_cycle_that_a_former_leader_begins_is_tried_once_and_not_again(app: App) -> None:
    claimed: list[str] = []

    def clock() -> datetime:
        # Between its lead and its decision another process claims the next epoch.
        if not claimed:
            another = LeaderClaimed(epoch=2, holder="another")
            claimed.extend(Decisions(app).record({"claim": another}, "a test"))
        return utc_now()

    Leader(app, Fixed(), Leadership(app), clock).tick()
    assert claimed
    assert cycles(app) == []
    events = [decode(record) for record in app.spool.read("learning", 0, 0)]
    assert [event.data.TYPE for event in events].count(CycleStarted.TYPE) == 1


class Breaking(Fixed):
    """Meets code of somebody's environment that breaks, for one agent."""

    def write_directive(self, cycle: CycleRow) -> DirectiveWritten:
        """By an error that nobody foresaw."""
        if cycle.alias == "agent":
            raise ZeroDivisionError("in the environment's own code")
        return super().write_directive(cycle)

    def propose_tasks(self, cycle: CycleRow) -> Proposal:
        """Nothing: what the others write is not the matter."""
        return Proposal({}, "nothing is left to learn")


def test_what_breaks_for_one_agent_stops_no_other(tmp_path: Path, clean: Path) -> None:
    names = ("agent", "another", "zebra")
    settings = Settings(
        home=tmp_path / "home", log=Log(durability="process"), scheduler=SCHEDULER,
        agents=tuple(Agent(alias=name, environment="shop") for name in names),
    )  # fmt: skip
    with App(settings) as app:
        app.append(
            [
                ended(f"{name} {number}", at(number), alias=name)
                for name in names
                for number in (1, 2)
            ]
        )
        leads = leader(app, Breaking())
        led = leads.tick()
        assert led.failed == ["agents"]
        (trouble,) = led.troubles
        assert trouble.startswith("agent agent broke off: ZeroDivisionError")
        found = {cycle.alias: cycle.directive is not None for cycle in cycles(app)}
        assert found == {"agent": False, "another": True, "zebra": True}
        assert leads.tick().failed == ["agents"], "tried again"


def test_rounds_go_on_where_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, looks = threading.Event(), list[float]()

    def look() -> None:
        looks.append(time.monotonic())
        # An hour back, and a look that takes longer than a round.
        monkeypatch.setattr("time.time", lambda: 1.7e9 - 3600 * len(looks))
        time.sleep(0.05)
        if len(looks) == 5:
            stop.set()

    repeat(look, 0.02, stop)
    assert len(looks) == 5


def test_the_gates_reason_stays_the_cycles_where_the_leader_looks_late(app: App) -> None:
    """The adapter is unloaded, for a reason of its own, before the leader looks."""
    leads = leader(app)
    leads.tick()
    (cycle,) = cycles(app)
    came = produced("made").model_copy(update={"job": cycle.job})
    said = [
        job_over(), came, staged("made"), evaluated("made"), decided("made", "REJECT"),
        moved("made", "unloaded"), moved("made", "collected"),
    ]  # fmt: skip
    for number, data in enumerate(said):
        Decisions(app).take(data, f"step {number}", "job")
    leads.tick()
    (cycle,) = cycles(app)
    assert (cycle.outcome, cycle.ended_because) == ("rejected", "gate REJECT: every check passed")
