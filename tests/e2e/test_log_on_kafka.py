"""The broker's log of two homes: kept in an archive, brought back, and trimmed."""

import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.health import find_halts, read_fold_state
from daemon.sessions.closing import close_sessions
from events.archive.archive import MANIFEST
from events.envelope import utc_now
from events.streams import ROLLOUTS, STREAMS
from ops.kafka.broker import Broker
from ops.mix import PERIOD, mix
from tests.daemon.commands import (
    Result,
    failed_rollout,
    run_here,
    start,
    succeed,
    write_lines,
)

pytestmark = pytest.mark.kafka

SESSIONS = 3
CALLS = SESSIONS * len(PERIOD)
LATER = utc_now() + timedelta(days=1)
END = LATER.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def empty(own_broker: Broker) -> Broker:
    """The same broker, without a topic."""
    without_topics(own_broker)
    return own_broker


def without_topics(broker: Broker) -> None:
    """What a new cluster is, and takes a minute less on a machine that is busy."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        topics = {stream.topic for stream in STREAMS.values()}
        if there := sorted(topics & set(admin.list_topics())):
            admin.delete_topics(there, timeout_ms=30_000)
        deadline = time.monotonic() + 30
        while topics & set(admin.list_topics()):
            assert time.monotonic() < deadline, "the topics were not deleted"
            time.sleep(0.1)
    finally:
        admin.close()


def on(broker: Broker, home: Path, tables: Path) -> dict[str, str]:
    """The settings of a home that ships, and of the tables that all homes share."""
    return {
        "KINTSUGI_HOME": str(home),
        "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KINTSUGI_DATABASE_URL": f"sqlite:///{tables}",
        "KINTSUGI_LOG__DURABILITY": "process",
    }


def opened(variables: dict[str, str]) -> App:
    return App(
        load(
            home=variables["KINTSUGI_HOME"],
            kafka_bootstrap_servers=variables["KINTSUGI_KAFKA_BOOTSTRAP_SERVERS"],
            database_url=variables["KINTSUGI_DATABASE_URL"],
            log={"durability": "process"},
        )
    )


def run(variables: dict[str, str], *arguments: object) -> Result:
    return succeed(arguments, variables)


def rebuilt(variables: dict[str, str], *arguments: object) -> tuple[str, bool | None]:
    found = run(variables, "rebuild", "--json", *arguments).json
    return found["hash"], found["equal"]


def talked(one: dict[str, str], other: dict[str, str]) -> None:
    """Two gateways recorded sessions, and all of them became rollouts."""
    with opened(other) as app:
        app.append(list(mix(CALLS)))
        app.ship()
    with opened(one) as app:
        app.append(list(mix(CALLS, start=CALLS)))
        app.settle()
        assert close_sessions(app, LATER).rollouts == 2 * SESSIONS
        app.settle()


def test_the_log_of_two_gateways_comes_back_in_a_home_and_on_a_broker(
    empty: Broker, tmp_path: Path
) -> None:
    tables = tmp_path / "tables.db"
    one, other = (on(empty, tmp_path / name, tables) for name in ("one", "other"))
    talked(one, other)
    file = write_lines(tmp_path / "a.jsonl", *(failed_rollout(f"t{n}") for n in range(3)))
    run(other, "import", file)
    before, archive = rebuilt(one), tmp_path / "kept"
    head = run(one, "log", "export", archive, "--json").json["head"]
    assert before[1] is True

    here = {"KINTSUGI_HOME": str(tmp_path / "here")}
    assert run(here, "log", "import", archive, "--json").json["head"] == head
    # Not folded yet, and known all the same.
    assert run(here, "import", file, "--json").json["duplicates"] == 3
    assert rebuilt(here, "--yes")[0] == before[0]
    assert run(here, "log", "verify", "--json").json["problems"] == []
    _is_exported_as(archive, here, tmp_path / "from-home")
    trimmed = run(here, "log", "trim", "--archive", archive, "--before", END, "--json").json
    assert trimmed["dropped"] > CALLS
    assert rebuilt(here, "--archive", archive) == (before[0], True)

    without_topics(empty)
    there = on(empty, tmp_path / "there", tmp_path / "there.db")
    assert run(there, "log", "import", archive, "--json").json["head"] == head
    assert rebuilt(there, "--yes")[0] == before[0]
    _is_exported_as(archive, there, tmp_path / "from-broker")

    # One of the gateways comes back with its disk, and ships again what that holds.
    back = on(empty, tmp_path / "one", tmp_path / "there.db")
    with opened(back) as app:
        held = sum(sum(app.spool.end(stream)) for stream in STREAMS)
    assert run(back, "spool", "drain", "--json").json["drained"] == 0
    assert run(back, "spool", "drain", "--again", "--json").json["drained"] == held
    with opened(back) as app:
        app.append(list(mix(len(PERIOD), start=2 * CALLS)))
        runner = app.settle()
        assert runner.counters.folded == len(PERIOD)
        assert runner.counters.duplicates > 0
        assert runner.counters.gaps == 0
    assert rebuilt(back)[1] is True


def _is_exported_as(archive: Path, variables: dict[str, str], folder: Path) -> None:
    run(variables, "log", "export", folder)
    assert (folder / MANIFEST).read_bytes() == (archive / MANIFEST).read_bytes()


def test_topics_are_trimmed_as_far_as_an_archive_of_the_broker_holds_them(
    empty: Broker, tmp_path: Path
) -> None:
    tables = tmp_path / "tables.db"
    one, other = (on(empty, tmp_path / name, tables) for name in ("one", "other"))
    talked(one, other)
    archive, own = tmp_path / "kept", tmp_path / "own"
    run(one, "log", "export", archive)
    run(one | {"KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": ""}, "log", "export", own)
    behind = on(empty, tmp_path / "one", tmp_path / "behind.db")
    with opened(behind) as app:
        app.runner().catch_up(until={(ROLLOUTS.name, p): 3 for p in range(ROLLOUTS.partitions)})
    with opened(other) as app:
        app.append(list(mix(len(PERIOD), start=2 * CALLS)))  # a session that is open
        app.settle()
    order = ("log", "trim", "--archive", archive, "--before", END, "--json")
    planned = run(one, *order, "--dry-run").json
    done = run(one, *order).json
    assert done["dropped"] == planned["would_drop"] > CALLS
    assert "archive" in {part["kept_for"] for part in done["partitions"]}
    assert run(one, *order).json["dropped"] == 0
    with opened(other) as app:
        starts = app.kafka.start(ROLLOUTS.name)
        assert sum(starts) == done["dropped"]
        assert [app.spool.start(stream) for stream in STREAMS] == [(0,) * 8, (0,)]
        assert close_sessions(app, LATER).rollouts == 1
        app.settle()

    refused = run_here(["rebuild"], one)
    assert (refused.code, "trimmed" in refused.err) == (4, True)
    assert rebuilt(one, "--archive", archive)[1] is True
    halted = run_here(["consume"], behind)
    assert (halted.code, "were trimmed: restore them" in halted.err) == (4, True)
    with opened(behind) as app, app.reading() as connection:
        assert {halt.reason for halt in find_halts(app.log, read_fold_state(connection))} == {
            "truncated"
        }

    # The same command trims this home's spool by the archive of that.
    spooled = run(one, "log", "trim", "--archive", own, "--before", END, "--json").json
    assert spooled["dropped"] > 0
    foreign = run_here(["log", "trim", "--archive", str(own), "--before", END], other)
    assert (foreign.code, "is an archive of log" in foreign.err) == (4, True)
    with opened(one) as app:
        assert sum(app.spool.start(ROLLOUTS.name)) == spooled["dropped"]
        assert app.kafka.start(ROLLOUTS.name) == starts
    assert rebuilt(one, "--archive", archive)[1] is True


def test_a_supervisor_keeps_no_connection_to_the_broker(empty: Broker, tmp_path: Path) -> None:
    variables = on(empty, tmp_path / "one", tmp_path / "tables.db")
    upstream = '[{"url": "http://127.0.0.1:9/v1"}]'
    own = {"KINTSUGI_UPSTREAMS": upstream, "KINTSUGI_GATEWAY__PORT": "0"}
    process = start(["up"], {**variables, **own}, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no role was started"
            time.sleep(0.05)
        port = int(empty.bootstrap.rpartition(":")[2])
        assert _connections(process.pid, port) == 0
        assert "kafka-io" not in " ".join(_threads(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def _connections(pid: int, port: int) -> int:
    """How many sockets of a process are connected to a port of this machine."""
    held = set()
    for number in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held.add(os.readlink(number))
        except FileNotFoundError:
            continue  # closed meanwhile
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return sum(
        f"socket:[{line[9]}]" in held and int(line[2].rpartition(":")[2], 16) == port
        for line in lines
    )


def _threads(pid: int) -> list[str]:
    return [(one / "comm").read_text() for one in Path(f"/proc/{pid}/task").iterdir()]
