"""The same files through Kafka into PostgreSQL, and through the embedded log into SQLite."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.kafka.broker import Broker
from ops.kafka.jars import BrokerMissing
from tests.conftest import missing
from tests.daemon.commands import (
    Result,
    environment,
    run_here,
    unjudged_rollout,
    write_examples,
    write_lines,
)

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """The command line uses the topics' real names, so it shares a broker with nobody."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-cli-broker-") as folder:
        broker = Broker(Path(folder))
        try:
            broker.start()
        except BrokerMissing as error:
            missing(str(error))
        yield broker
        broker.kill()


def production(broker: Broker, url: str, home: Path) -> dict[str, str]:
    return {
        "KINTSUGI_HOME": str(home),
        "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KINTSUGI_DATABASE_URL": url,
    }


def test_both_ways_give_the_same_tables(
    own_broker: Broker, postgres_url: str, tmp_path: Path
) -> None:
    first = str(write_examples(tmp_path / "a.jsonl"))
    second = str(write_lines(tmp_path / "b.jsonl", unjudged_rollout("again")))
    there = production(own_broker, postgres_url, tmp_path / "there")
    here = {"KINTSUGI_HOME": str(tmp_path / "here")}

    outdated = run_here(["patterns"], there)
    assert (outdated.code, outdated.out) == (4, "")
    assert "kintsugi db upgrade" in outdated.err
    assert run_here(["db", "upgrade"], there).code == 0
    assert run_here(["db", "check", "--json"], there).json["ok"] is True

    for variables in (there, here):
        assert _run(variables, "import", first, "--json").json["imported"] == 5
        assert _run(variables, "import", second).code == 0
        again = _run(variables, "import", first, second, "--json")
        assert again.json == {"imported": 0, "duplicates": 6, "rejected": []}

    rebuilt = [_run(variables, "rebuild", "--json").json for variables in (there, here)]
    assert [one["equal"] for one in rebuilt] == [True, True]
    assert rebuilt[0]["hash"] == rebuilt[1]["hash"]
    for command in (["patterns", "--json"], ["rollouts", "ls", "--json"]):
        assert _run(there, *command).json == _run(here, *command).json

    _production_answers(there)
    _roles_do_the_work(there, tmp_path)
    _a_broker_that_is_away_is_said(own_broker, there)


def _production_answers(there: dict[str, str]) -> None:
    ids = [line["rollout"] for line in _run(there, "rollouts", "ls", "--json").json]
    shown = _run(there, "rollouts", "show", ids[0][:20], "--json").json
    assert shown["messages"]
    assert _run(there, "log", "verify", "--json").json == {
        "ok": True, "events": 8, "problems": [],
    }  # fmt: skip
    stats = _run(there, "log", "stats", "--json").json["streams"]
    assert (stats["rollouts"]["events"], stats["learning"]["events"]) == (6, 2)
    assert stats["rollouts"]["bytes"] > 0
    assert len(_run(there, "log", "cat", "rollouts").lines) == 6
    assert _run(there, "status", "--json").json["lag"] == {"rollouts": 0, "learning": 0}
    doctor = _run(there, "doctor", "--json").json
    assert doctor["ok"], doctor


def _roles_do_the_work(there: dict[str, str], folder: Path) -> None:
    """A shipper holds its lock, and an import shares its work."""
    roles = [_start(role, there) for role in ("ship", "consume")]
    try:
        more = str(write_lines(folder / "c.jsonl", unjudged_rollout("with roles")))
        assert _run(there, "import", more, "--no-wait").code == 0
        deadline = time.monotonic() + 30
        while len(_run(there, "rollouts", "ls", "--json").json) < 7:
            assert time.monotonic() < deadline, "nobody shipped and folded"
        another = str(write_lines(folder / "d.jsonl", unjudged_rollout("beside roles")))
        assert _run(there, "import", another, "--json").json["imported"] == 1
        assert len(_run(there, "rollouts", "ls", "--json").json) == 8
        for role in roles:
            role.send_signal(signal.SIGTERM)
        codes = [(role.communicate(timeout=30), role.returncode) for role in roles]
        assert [code for _, code in codes] == [0, 0], codes
    finally:
        for role in roles:
            role.kill()


def _a_broker_that_is_away_is_said(broker: Broker, there: dict[str, str]) -> None:
    broker.kill()
    assert len(_run(there, "rollouts", "ls", "--json").json) == 8
    for command in (["log", "stats"], ["diagnose"], ["log", "verify"]):
        result = run_here(command, there)
        assert (result.code, result.out) == (4, ""), command
        assert broker.bootstrap in result.err
    broker.start()
    assert _run(there, "diagnose").code == 0


def _run(variables: dict[str, str], *arguments: str) -> Result:
    result = run_here(arguments, variables)
    assert result.code == 0, f"{arguments}: {result.err}"
    return result


def _start(role: str, variables: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "daemon", role],
        env=environment(**variables),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
