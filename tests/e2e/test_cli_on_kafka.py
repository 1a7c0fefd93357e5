"""The same files through Kafka into PostgreSQL, and through the embedded log into SQLite."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from ops.kafka.broker import Broker
from tests.daemon.commands import (
    failed_rollout,
    run_here,
    start,
    succeed,
    unjudged_rollout,
    write_examples,
    write_lines,
)

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]


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
        assert succeed(["import", first, "--json"], variables).json["imported"] == 5
        assert succeed(["import", second], variables).code == 0
        again = succeed(["import", first, second, "--json"], variables)
        assert again.json == {"imported": 0, "duplicates": 6, "rejected": []}

    rebuilt = [succeed(["rebuild", "--json"], variables).json for variables in (there, here)]
    assert [one["equal"] for one in rebuilt] == [True, True]
    assert rebuilt[0]["hash"] == rebuilt[1]["hash"]
    for command in (["patterns", "--json"], ["rollouts", "ls", "--json"]):
        assert succeed([*command], there).json == succeed([*command], here).json

    _production_answers(there)


def test_the_spool_of_one_who_never_returns_is_shipped_once(
    own_broker: Broker, tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    succeed(["import", _failures(tmp_path / "dead.jsonl", "dead")], {"KINTSUGI_HOME": str(dead)})
    there = {
        "KINTSUGI_HOME": str(tmp_path / "there"),
        "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": own_broker.bootstrap,
    }
    with App(load(home=dead)) as owner:
        source = owner.spool.source
        refused = run_here(["spool", "drain", "--spool", str(dead)], there)
        assert (refused.code, "stop the process first" in refused.err) == (4, True)
    assert succeed(["spool", "drain", "--spool", str(dead), "--json"], there).json["drained"] == 6
    assert succeed(["spool", "drain", "--spool", str(dead), "--json"], there).json["drained"] == 0
    assert _recorded(there, source) == 6
    folded = _rollouts_of(there, "dead-")
    assert len(folded) == 5

    # As for a broker that was restored from an older archive: all comes again, and counts once.
    again = ("spool", "drain", "--again", "--spool", str(dead), "--json")
    assert succeed([*again], there).json["drained"] == 6
    assert _recorded(there, source) == 12
    assert _rollouts_of(there, "dead-") == folded
    nowhere = run_here(["spool", "drain", "--spool", str(tmp_path)], there)
    assert (nowhere.code, "log.db" in nowhere.err) == (4, True)


def _recorded(variables: dict[str, str], source: str) -> int:
    """How many records of a source are in the topics."""
    lines = [
        line
        for name in ("rollouts", "learning")
        for line in succeed(["log", "cat", name], variables).lines
    ]
    return sum(line["source"] == source for line in lines)


def _rollouts_of(variables: dict[str, str], task: str) -> list[object]:
    assert succeed(["rebuild", "--json"], variables).json["equal"] is True
    lines = succeed(["rollouts", "ls", "--json"], variables).json
    return [line for line in lines if line["task"] and line["task"].startswith(task)]


def _failures(path: Path, task: str) -> str:
    """Five that no other test imports."""
    return str(write_lines(path, *(failed_rollout(f"{task}-{number}") for number in range(5))))


@pytest.mark.long
def test_a_topic_that_was_trimmed_is_rebuilt_from_its_archive_or_a_snapshot(
    own_broker: Broker, tmp_path: Path
) -> None:
    there = {
        "KINTSUGI_HOME": str(tmp_path / "there"),
        "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": own_broker.bootstrap,
    }
    succeed(["import", _failures(tmp_path / "a.jsonl", "trimmed")], there)
    live = succeed(["rebuild", "--json"], there).json
    archive, copy = str(tmp_path / "kept"), tmp_path / "copy.db"
    succeed(["log", "export", archive], there)
    replayed = succeed(["replay", "--into", str(copy), "--every", "2", "--json"], there).json
    assert replayed["hash"] == live["hash"]
    with App(load(home=tmp_path / "there", kafka_bootstrap_servers=own_broker.bootstrap)) as app:
        for partition, end in enumerate(app.kafka.end("rollouts")):
            app.kafka.trim("rollouts", partition, end)
    assert run_here(["rebuild"], there).code == 4
    again = succeed(["rebuild", "--archive", archive, "--json"], there).json
    assert (again["hash"], again["equal"], again["events"]) == (
        live["hash"], True, live["events"],
    )  # fmt: skip
    snapshot = sorted((tmp_path / "copy.db.snapshots").glob("*.db"))[-1]
    begun = succeed(["rebuild", "--snapshot", str(snapshot), "--json"], there).json
    assert (begun["hash"], begun["equal"]) == (live["hash"], True)
    assert begun["events"] < live["events"]


def _production_answers(there: dict[str, str]) -> None:
    ids = [line["rollout"] for line in succeed(["rollouts", "ls", "--json"], there).json]
    shown = succeed(["rollouts", "show", ids[0][:20], "--json"], there).json
    assert shown["messages"]
    assert succeed(["log", "verify", "--json"], there).json == {
        "ok": True, "events": 8, "problems": [],
    }  # fmt: skip
    stats = succeed(["log", "stats", "--json"], there).json["streams"]
    assert (stats["rollouts"]["events"], stats["learning"]["events"]) == (6, 2)
    assert stats["rollouts"]["bytes"] > 0
    assert len(succeed(["log", "cat", "rollouts"], there).lines) == 6
    assert succeed(["status", "--json"], there).json["lag"] == {"rollouts": 0, "learning": 0}
    doctor = succeed(["doctor", "--json"], there).json
    assert doctor["ok"], doctor


@pytest.mark.long
def test_a_shipper_holds_its_lock_and_an_import_shares_its_work(
    own_broker: Broker, postgres_url: str, tmp_path: Path
) -> None:
    there = production(own_broker, postgres_url, tmp_path / "there")
    succeed(["db", "upgrade"], there)
    succeed(["import", write_examples(tmp_path / "a.jsonl")], there)
    before = _count_rollouts(there)
    roles = [_start(role, there) for role in ("ship", "consume")]
    try:
        more = write_lines(tmp_path / "c.jsonl", unjudged_rollout("with roles"))
        succeed(["import", more, "--no-wait"], there)
        deadline = time.monotonic() + 30
        while _count_rollouts(there) < before + 1:
            assert time.monotonic() < deadline, "nobody shipped and folded"
        another = write_lines(tmp_path / "d.jsonl", unjudged_rollout("beside roles"))
        assert succeed(["import", another, "--json"], there).json["imported"] == 1
        assert _count_rollouts(there) == before + 2
        for role in roles:
            role.send_signal(signal.SIGTERM)
        codes = [(role.communicate(timeout=30), role.returncode) for role in roles]
        assert [code for _, code in codes] == [0, 0], codes
    finally:
        for role in roles:
            role.kill()


@pytest.mark.long
def test_a_broker_that_is_away_is_named_and_the_tables_are_read(
    own_broker: Broker, postgres_url: str, tmp_path: Path
) -> None:
    there = production(own_broker, postgres_url, tmp_path / "there")
    succeed(["db", "upgrade"], there)
    succeed(["import", write_examples(tmp_path / "a.jsonl")], there)
    before = _count_rollouts(there)
    own_broker.kill()
    assert _count_rollouts(there) == before
    for command in (["log", "stats"], ["diagnose"], ["log", "verify"]):
        result = run_here(command, there)
        assert (result.code, result.out) == (4, ""), command
        assert own_broker.bootstrap in result.err
    own_broker.start()
    assert succeed(["diagnose"], there).code == 0


def _count_rollouts(variables: dict[str, str]) -> int:
    return len(succeed(["rollouts", "ls", "--json"], variables).json)


def _start(role: str, variables: dict[str, str]) -> "subprocess.Popen[str]":
    return start([role], variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
