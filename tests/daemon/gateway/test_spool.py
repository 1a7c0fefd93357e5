"""`kintsugi spool`: what a home holds, and bringing it to a real broker."""

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from events.kafka.log import KafkaLog
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.kafka.broker import Broker
from producers.shipper import count_backlog
from tests.consumers.folding import ended
from tests.daemon.commands import run_here, spawn, start, write_examples
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.program import running
from tests.producers.test_shipper import entries, facts, records_on

NOWHERE = "127.0.0.1:1"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with five imported rollouts."""
    examples = str(write_examples(tmp_path / "examples.jsonl"))
    folder = tmp_path / "home"
    done = run_here(["import", "--no-wait", examples], {"KINTSUGI_HOME": str(folder)})
    assert done.code == 0
    return folder


def on(bootstrap: str, home: Path) -> dict[str, str]:
    """Settings of a home that ships."""
    return {"KINTSUGI_HOME": str(home), "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": bootstrap}


@contextmanager
def talking(url: str, stop: threading.Event) -> Iterator[list[str]]:
    """Clients that ask until `stop`, and the calls that were answered so far."""
    answered: list[str] = []

    def ask() -> None:
        with httpx2.Client(timeout=60) as client:
            while not stop.is_set():
                answer = client.post(url, json={"messages": HELLO, "max_tokens": 2})
                assert answer.headers["x-kintsugi-recorded"] == "yes"
                answered.append(answer.headers["x-kintsugi-call"])

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            yield answered
        finally:
            stop.set()
            for one in asking:
                one.result()


def test_a_home_that_ships_nothing_says_so(home: Path) -> None:
    alone = {"KINTSUGI_HOME": str(home)}
    found = run_here(["spool", "status", "--json"], alone).json
    assert (found["ships"], found["path"]) == (False, str(home / "log.db"))
    assert found["free_bytes"] > 0
    rollouts = found["streams"]["rollouts"]
    assert rollouts["events"] == 5
    assert rollouts["bytes"] > 0
    for name in ("shipped", "unshipped", "oldest_unshipped_seconds"):
        assert rollouts[name] is None
    drained = run_here(["spool", "drain", "--json"], alone)
    assert drained.code == 0
    assert drained.json == {"ships": False, "drained": 0, "left": 0}
    assert "kafka_bootstrap_servers is empty" in run_here(["spool", "drain"], alone).out


def test_what_waits_is_seen_without_a_broker(home: Path) -> None:
    variables = on(NOWHERE, home)
    streams = run_here(["spool", "status", "--json"], variables).json["streams"]
    assert streams["rollouts"]["unshipped"] == 5
    assert streams["rollouts"]["shipped"] == [0] * 8
    assert 0 <= streams["rollouts"]["oldest_unshipped_seconds"] < 3600
    assert streams["learning"]["unshipped"] == 0
    assert streams["learning"]["oldest_unshipped_seconds"] is None
    with closing(SqliteLog(home / "log.db")) as log:
        for partition, end in enumerate(log.end("rollouts")):
            log.store_ship_offset("rollouts", partition, end)
    shipped = run_here(["spool", "status", "--json"], variables).json["streams"]["rollouts"]
    assert (shipped["unshipped"], shipped["oldest_unshipped_seconds"]) == (0, None)
    assert sum(shipped["shipped"]) == 5


@pytest.mark.kafka
def test_it_is_drained_while_a_gateway_writes(broker: Broker, live: Live, tmp_path: Path) -> None:
    broker.start()
    home = tmp_path / "home"
    variables = on(broker.bootstrap, home)
    stop = threading.Event()
    with running(home, [f"{live.url}/v1"], variables=variables) as program:
        with talking(f"{program.url}/v1/chat/completions", stop) as answered:
            for _ in range(2):
                already = len(answered)
                while len(answered) < already + 5:
                    threading.Event().wait(0.05)
                with closing(SqliteLog(home / "log.db", read_only=True)) as log:
                    ends = {stream: log.end(stream) for stream in STREAMS}
                    done = spawn(["spool", "drain", "--json"], tmp_path, variables)
                    assert done.code == 0, done.err
                    assert done.json["drained"] > 0
                    assert done.json["left"] == 0
                    assert count_backlog(log, ends) == 0
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0
    assert run_here(["spool", "drain", "--json"], variables).code == 0
    again = run_here(["spool", "drain", "--json"], variables).json
    assert again == {"ships": True, "drained": 0, "left": 0}
    with (
        closing(KafkaLog(broker.bootstrap, replication=1)) as copied,
        closing(SqliteLog(home / "log.db")) as own,
    ):
        there = {
            at: [one for one in records if one[0] == own.source]
            for at, records in facts(copied).items()
        }
        assert there == facts(own)
        assert sum(len(records) for records in there.values()) >= 2 * len(answered)


@pytest.mark.long
@pytest.mark.kafka
def test_who_is_killed_while_all_is_shipped_again_is_gone_on_for(
    broker: Broker, tmp_path: Path
) -> None:
    broker.start()
    home, count = tmp_path / "home", 10_000
    variables = on(broker.bootstrap, home)
    home.mkdir()
    with closing(SqliteLog(home / "log.db", durability="process")) as own:
        own.append(entries(0, count))
        assert run_here(["spool", "drain", "--json"], variables).json["drained"] == count
        killed = start(["spool", "drain", "--again"], variables)
        # Of one stream, which is read at once: between two, everything may be marked as unshipped.
        whole = sum(own.end("rollouts"))
        while not 0 < sum(own.read_ship_offsets("rollouts")) < whole:
            assert killed.poll() is None, "it ended before it was seen half-way"
        killed.kill()
        killed.wait()
        goal = {stream: own.end(stream) for stream in STREAMS}
        left = count_backlog(own, goal)
        assert 0 < left < count
        assert run_here(["spool", "drain", "--json"], variables).json["drained"] == left
        with closing(KafkaLog(broker.bootstrap, replication=1)) as copied:
            there = {
                at: [one for one in records if one[0] == own.source]
                for at, records in facts(copied).items()
            }
            assert there == facts(own)
            assert records_on(copied) >= 2 * count


def test_nothing_is_marked_as_unshipped_where_nothing_ships(home: Path) -> None:
    with closing(SqliteLog(home / "log.db")) as log:
        ends = log.end("rollouts")
        for partition, end in enumerate(ends):
            log.store_ship_offset("rollouts", partition, end)
        drained = run_here(["spool", "drain", "--again", "--json"], {"KINTSUGI_HOME": str(home)})
        assert drained.json == {"ships": False, "drained": 0, "left": 0}
        assert log.read_ship_offsets("rollouts") == ends
        away = run_here(["spool", "drain", "--again", "--within", "0"], on(NOWHERE, home))
        assert (away.code, "5 of the events" in away.err) == (4, True)
        assert log.read_ship_offsets("rollouts") == (0,) * 8


@pytest.mark.long
@pytest.mark.kafka
def test_a_broker_that_comes_back_is_waited_for(broker: Broker, home: Path) -> None:
    broker.start()
    broker.stop()
    drain = ["spool", "drain", "--json", "--within", "45"]
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(spawn, drain, home, on(broker.bootstrap, home))
        try:
            with pytest.raises(TimeoutError):
                draining.result(timeout=3)
        finally:
            broker.start()
        done = draining.result()
    assert done.code == 0, done.err
    assert done.json == {"ships": True, "drained": 5, "left": 0}


def test_a_gateway_that_is_killed_leaves_word_of_what_it_recorded(
    live: Live, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    variables = on(NOWHERE, home)

    def told() -> int:
        return sum(one["unfolded"] for one in run_here(["spool", "ls", "--json"], variables).json)

    with running(home, [f"{live.url}/v1"], variables=variables) as program:
        body = {"messages": HELLO, "max_tokens": 2}
        answer = httpx2.post(f"{program.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.headers["x-kintsugi-recorded"] == "yes"
        deadline = time.monotonic() + 60
        while told() < 2:
            assert time.monotonic() < deadline, "".join(program.said)
            time.sleep(0.2)
        program.process.kill()
        program.process.wait()
    (line,) = run_here(["spool", "ls", "--json"], variables).json
    assert (line["path"], line["unfolded"]) == (str(home / "log.db"), 2)
    assert line["state"] == "live", "it is not silent yet"


@pytest.mark.kafka
def test_a_spool_that_was_restored_from_before_is_not_shipped_until_it_is_renewed(
    broker: Broker, home: Path
) -> None:
    broker.start()
    given = on(broker.bootstrap, home)
    assert run_here(["spool", "drain"], given).code == 0
    with closing(SqliteLog(home / "log.db")) as log:
        log.append([ended("before", session="s")])
    shutil.copy(home / "log.db", home / "copy.db")
    with closing(SqliteLog(home / "log.db")) as log:
        log.append([ended(f"lost{number}", session="s") for number in range(3)])
    assert run_here(["diagnose"], given).code == 0
    (home / "copy.db").replace(home / "log.db")
    with closing(SqliteLog(home / "log.db")) as log:
        log.append([ended(f"since{number}", session="s") for number in range(9)])
    for command in (["ship"], ["spool", "drain"], ["diagnose"]):
        refused = run_here(command, given)
        assert (refused.code, "kintsugi spool renew" in refused.err) == (4, True), command
    away = run_here(["ship"], on(NOWHERE, home))
    assert (away.code, "kintsugi spool renew" in away.err) == (4, True), "the tables tell it first"
    renewed = run_here(["spool", "renew", "--json"], given).json
    assert renewed["events"] == 10, "one of them was shipped after the copy"
    assert run_here(["diagnose"], given).code == 0
    names = {one["rollout"] for one in run_here(["rollouts", "ls", "--json"], given).json}
    assert {"before", "lost2", "since0", "since8"} <= names
    assert run_here(["rebuild", "--json"], given).json["equal"] is True
