"""At most one process leads, and what a former one still says counts for nothing."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from consumers import database, leases
from consumers.reads import learning
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.core.leadership import LEASE, Leadership, LeaseTimes
from events.codec import decode
from events.learning import CycleStarted, LeaderClaimed
from tests.daemon.contender import start

ROOT = Path(__file__).parents[3]


class Clock:
    """A monotonic clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def apps(engine: Engine, tmp_path: Path) -> Iterator[tuple[App, App]]:
    """Two applications over one home and one database."""
    url = engine.url.render_as_string(hide_password=False)
    settings = Settings(home=tmp_path / "home", database_url=url)
    with App(settings) as one, App(settings) as other:
        yield one, other


def shift(engine: Engine, seconds: float) -> None:
    """What a clock of the database that is set forward by so many seconds does to its leases."""
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE leases SET expires = expires - :s"), {"s": seconds})


def leader(app: App) -> learning.LeaderRow:
    app.settle()
    with app.reading() as connection:
        found = learning.leader(connection)
    assert found is not None
    return found


def cycles(app: App) -> dict[str, str]:
    """Alias -> the reason of its one cycle."""
    app.settle()
    with app.reading() as connection:
        return {row.alias: row.reason for row in learning.cycles(connection)}


def test_one_leads_and_the_other_waits_until_it_resigns(apps: tuple[App, App]) -> None:
    one, other = Leadership(apps[0], "one"), Leadership(apps[1], "other")
    assert (one.lead(), other.lead(), one.lead()) == (1, None, 1)
    assert (one.holds(), other.holds()) == (True, False)
    one.resign()
    assert not one.holds()
    assert (other.lead(), one.lead()) == (2, None)
    assert leader(apps[0]).holder == "other"


def test_a_leader_renews_when_it_is_due_and_not_at_every_tick(
    apps: tuple[App, App], engine: Engine
) -> None:
    clock = Clock()
    one = Leadership(apps[0], "one", clock)
    assert one.lead() == 1
    shift(engine, 4)
    clock.now += 4.9
    assert one.lead() == 1
    assert _held(engine).seconds < 11.1
    clock.now += 0.2
    assert one.lead() == 1
    assert _held(engine).seconds > 11.1
    assert (_held(engine).holder, _held(engine).epoch) == ("one", 1)


def test_before_the_lease_ends_its_holder_stops_and_then_claims_anew(
    apps: tuple[App, App],
) -> None:
    clock = Clock()
    one = Leadership(apps[0], "one", clock)
    assert one.lead() == 1
    clock.now += 9.9
    assert one.holds()
    clock.now += 0.2
    assert not one.holds()
    assert one.lead() == 2, "nobody knows what happened meanwhile"


def test_a_lease_that_ran_out_is_taken_and_its_former_holder_finds_out(
    apps: tuple[App, App], engine: Engine
) -> None:
    one, other = Leadership(apps[0], "one"), Leadership(apps[1], "other")
    assert one.lead() == 1
    shift(engine, 16)
    assert other.lead() == 2
    assert one.holds(), "by its own clock nothing has happened"
    start(apps[0], "agent", 1, "one")
    start(apps[1], "agent", 2, "other")
    assert cycles(apps[0]) == {"agent": "other"}
    assert one.lead() is None
    assert not one.holds()


def test_a_lease_whose_clock_was_set_back_does_not_last(
    apps: tuple[App, App], engine: Engine
) -> None:
    one, other = Leadership(apps[0], "one"), Leadership(apps[1], "other")
    assert one.lead() == 1
    shift(engine, -86400)
    assert other.lead() == 2


def test_a_renewal_tells_a_holder_that_its_lease_is_gone(
    apps: tuple[App, App], engine: Engine
) -> None:
    clock = Clock()
    one = Leadership(apps[0], "one", clock)
    assert one.lead() == 1
    with database.write_transaction(engine) as connection:
        leases.give_back(connection, LEASE, "another")
        leases.give_back(connection, LEASE, "one")
    clock.now += 6
    assert one.lead() == 2, "whoever had it meanwhile may have decided"


def test_a_thread_renews_while_the_leader_is_busy(apps: tuple[App, App], engine: Engine) -> None:
    brief = LeaseTimes(lease=60.0, renewal=0.02, margin=5.0)
    one, other = (Leadership(app, timing=brief) for app in apps)
    assert one.lead() == 1
    before = _held(engine)
    shift(engine, 30)
    with one.keep_lease():
        while _held(engine).seconds < before.seconds - 15:
            time.sleep(0.01)
    assert _held(engine).holder == one.holder
    assert other.lead() is None
    assert one.lead() == 1


def _held(engine: Engine) -> leases.LeaseState:
    with database.read_transaction(engine) as connection:
        found = leases.read_lease(connection, LEASE)
    assert found is not None
    return found


def test_without_any_lease_the_epoch_alone_keeps_them_apart(apps: tuple[App, App]) -> None:
    """Both take the lease whenever they want: it ends at once, and each believes in it."""
    useless = LeaseTimes(lease=1e-6, renewal=1e9, margin=-1e9)
    epochs: dict[str, list[int]] = {"one": [], "other": []}
    begun = threading.Barrier(2)

    def contend(app: App, holder: str) -> None:
        leadership = Leadership(app, holder, timing=useless)
        begun.wait()
        for _ in range(6):
            epoch = leadership.lead()
            if epoch is not None:
                epochs[holder].append(epoch)
                start(app, f"agent-{epoch}", epoch, holder)

    contenders = [
        threading.Thread(target=contend, args=(app, holder))
        for app, holder in zip(apps, epochs, strict=True)
    ]
    for one in contenders:
        one.start()
    for one in contenders:
        one.join()
    assert not set(epochs["one"]) & set(epochs["other"])
    said = [decode(record) for record in apps[0].spool.read("learning", 0, 0)]
    current = 0
    expected: dict[str, str] = {}
    for event in said:
        if isinstance(event.data, LeaderClaimed) and event.data.epoch == current + 1:
            current = event.data.epoch
        elif isinstance(event.data, CycleStarted) and event.envelope.epoch == current:
            expected.setdefault(event.data.alias, event.data.reason)
    assert current == max(epochs["one"] + epochs["other"])
    assert cycles(apps[0]) == expected


class Process:
    """A contender in a process of its own (contender.py)."""

    def __init__(self, home: Path, holder: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tests.daemon.contender", str(home), holder],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self, command: str) -> None:
        assert self.popen.stdin is not None
        print(command, file=self.popen.stdin, flush=True)

    def heard(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.heard()

    def lead(self) -> int:
        """Try until it leads; its epoch."""
        while (answer := self.ask("lead")) == "None":
            time.sleep(0.05)
        return int(answer)

    def stop(self) -> None:
        self.popen.kill()
        self.popen.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    with App(Settings(home=tmp_path)) as app:
        app.settle()
    both = Process(tmp_path, "one"), Process(tmp_path, "other")
    yield both
    for one in both:
        one.stop()


def test_a_process_that_was_paused_is_followed_and_then_speaks_to_nobody(
    processes: tuple[Process, Process], tmp_path: Path
) -> None:
    one, other = processes
    first = one.lead()
    one.popen.send_signal(signal.SIGSTOP)
    one.tell("start late")
    second = other.lead()
    other.ask("renewing")
    assert second > first
    one.popen.send_signal(signal.SIGCONT)
    assert one.heard() == "done"
    assert one.ask("holds") == "False"
    assert other.ask("start agent") == "done"
    with App(Settings(home=tmp_path)) as app:
        said = [decode(record).data for record in app.spool.read("learning", 0, 0)]
        assert [data.alias for data in said if isinstance(data, CycleStarted)] == ["late", "agent"]
        assert cycles(app) == {"agent": "other"}


def test_a_process_that_was_killed_is_followed(
    processes: tuple[Process, Process], tmp_path: Path
) -> None:
    one, other = processes
    first = one.lead()
    one.popen.kill()
    assert other.lead() > first
    with App(Settings(home=tmp_path)) as app:
        assert leader(app).holder == "other"
