"""The operator's commands: dead letters, damage, halts, databases, doctor."""

import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from daemon.status.doctor.report import CHECKS
from events.codec import encode
from events.envelope import Envelope, new_id, to_headers
from events.log import Entry, now_ms
from events.rollouts import RolloutEnded
from tests.daemon.commands import (
    Result,
    environment,
    spawn,
    start,
    unjudged_rollout,
    write_lines,
)
from tests.daemon.conftest import Kintsugi

_DROP, _DAC_OVERRIDE = 24, 1
"""prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE): what lets root pass over permissions."""


def append_from_the_future() -> None:
    """An event of a version that this code does not know."""
    data = RolloutEnded(rollout="r", alias="a", base="b", policy="b", source="test")
    with App(load()) as app:
        app.append([encode(Envelope(new_id(), data.TYPE, 99, "r"), data, now_ms()).entry])


def append_raw(value: bytes) -> None:
    """An entry that no producer of ours would write."""
    envelope = Envelope(new_id(), "RolloutEnded", 1, "s")
    entry = Entry("rollouts", 3, "s", to_headers(envelope, "x"), value, now_ms())
    with App(load()) as app:
        app.append([entry])


def test_what_cannot_be_folded_is_a_dead_letter(imported: Path, kintsugi: Kintsugi) -> None:
    append_raw(b"garbage")
    assert kintsugi("diagnose").code == 0
    (letter,) = kintsugi("dlq", "list", "--json").json
    assert list(letter)[:3] == ["stream", "partition", "offset"]
    assert (letter["stream"], letter["partition"]) == ("rollouts", 3)
    assert "shorter than a frame" in letter["reason"]
    place = f"3:{letter['offset']}"
    shown = kintsugi("dlq", "show", "rollouts", place, "--json").json
    assert (shown["begins"], shown["event"]["data"]) == ("garbage", None)
    assert shown["event"]["error"] == letter["reason"]
    assert "garbage" in kintsugi("dlq", "show", "rollouts", place).out
    nowhere = kintsugi("dlq", "show", "rollouts", "0:99")
    assert (nowhere.code, nowhere.out) == (1, "")


def test_a_dead_letter_can_be_dropped_with_a_reason(imported: Path, kintsugi: Kintsugi) -> None:
    append_raw(b"garbage")
    append_raw(b"more garbage")
    kintsugi("diagnose")
    first, second = kintsugi("dlq", "list", "--json").json
    place = f"3:{first['offset']}"
    assert kintsugi("dlq", "drop", "rollouts", place, "--reason", " ").code == 2
    before = kintsugi("rebuild", "--json").json["hash"]
    dropped = kintsugi("dlq", "drop", "rollouts", place, "--reason", "of a stray client", "--json")
    assert dropped.json["sequence"] == first["sequence"]
    assert kintsugi("dlq", "list", "--json").json == [second]
    reasons = [one["dropped"] for one in kintsugi("dlq", "list", "--all", "--json").json]
    assert reasons == ["of a stray client", None]
    assert kintsugi("status", "--json").json["dead_letters"] == 1
    # It is in the tables as before, beside the word of the person who dropped it.
    rebuilt = kintsugi("rebuild", "--json").json
    assert rebuilt["equal"]
    assert rebuilt["hash"] != before


def test_malformed_events_are_printed_and_found(imported: Path, kintsugi: Kintsugi) -> None:
    append_raw(b"garbage")
    broken = [line for line in kintsugi("log", "cat", "rollouts").lines if "error" in line]
    assert [line["data"] for line in broken] == [None]
    verified = kintsugi("log", "verify", "--json")
    assert verified.code == 1
    assert [problem.startswith("rollouts/3@") for problem in verified.json["problems"]] == [True]
    assert kintsugi("log", "verify").code == 1


def test_trying_a_dead_letter_again_changes_nothing(imported: Path, kintsugi: Kintsugi) -> None:
    append_raw(b"garbage")
    kintsugi("diagnose")
    before = kintsugi("rebuild", "--json").json["hash"]
    result = kintsugi("dlq", "retry", "--json")
    assert result.code == 1
    (attempt,) = result.json
    assert (attempt["foldable"], attempt["stream"]) == (False, "rollouts")
    assert kintsugi("rebuild", "--json").json["hash"] == before


def test_what_can_be_folded_by_now_needs_a_rebuild(imported: Path, kintsugi: Kintsugi) -> None:
    # As if an earlier version had failed on an event that this one folds.
    with sqlite3.connect(imported / "kintsugi.db") as connection:
        row = connection.execute(
            "SELECT rollout, partition, event_source, sequence, offset FROM rollouts"
        ).fetchone()
        connection.execute("DELETE FROM rollouts WHERE rollout = ?", (row[0],))
        connection.execute(
            "INSERT INTO dead_letters (stream, partition, event_source, sequence, type, reason, "
            "offset) VALUES ('rollouts', ?, ?, ?, 'RolloutEnded', 'KeyError: x', ?)",
            row[1:],
        )
    connection.close()
    result = kintsugi("dlq", "retry", "--json")
    assert (result.code, result.json[0]["foldable"]) == (0, True)
    assert "kintsugi rebuild --yes" in result.err
    assert len(kintsugi("dlq", "list", "--json").json) == 1
    unequal = kintsugi("rebuild", "--json")
    assert (unequal.code, unequal.json["equal"], unequal.json["swapped"]) == (1, False, False)
    assert "first difference: rollouts" in unequal.err
    swapped = kintsugi("rebuild", "--yes", "--json")
    assert (swapped.code, swapped.json["swapped"]) == (0, True)
    assert kintsugi("dlq", "list", "--json").json == []
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_tables_of_another_fold_version_are_replaced_when_confirmed(
    imported: Path, kintsugi: Kintsugi
) -> None:
    with sqlite3.connect(imported / "kintsugi.db") as connection:
        connection.execute("UPDATE projection SET fold_version = 0")
    connection.close()
    halted = kintsugi("diagnose")
    assert halted.code == 4
    assert "kintsugi rebuild" in halted.err
    status = kintsugi("status", "--json").json
    assert status["projection"]["state"] == "halted"
    looked = kintsugi("rebuild", "--json")
    assert (looked.code, looked.json["equal"], looked.json["changed"]) == (0, None, {})
    assert kintsugi("rebuild", "--yes", "--json").json["swapped"] is True
    assert kintsugi("diagnose").code == 0


def test_without_dead_letters_it_is_said_how_much_was_folded(
    imported: Path, kintsugi: Kintsugi
) -> None:
    assert kintsugi("diagnose").code == 0
    assert "no dead letter: every event was folded" in kintsugi("dlq", "list").err
    append_from_the_future()
    assert kintsugi("diagnose").code == 4
    for command in (["dlq", "list"], ["dlq", "list", "--json"], ["dlq", "retry"]):
        listed = kintsugi(*command)
        assert listed.code == 0
        assert "every event was folded" not in listed.err
        (halt,) = [line for line in listed.err.splitlines() if "the fold is halted" in line]
        assert "rollouts/" in halt, "it says where"
        assert "RolloutEnded" in halt, "and why"
        assert "99" in halt
    assert kintsugi("dlq", "list", "--json").json == []


def test_events_that_wait_are_not_said_to_be_folded(imported: Path, kintsugi: Kintsugi) -> None:
    assert kintsugi("diagnose").code == 0
    append_raw(b"garbage")
    assert "no dead letter: 1 events are not folded yet" in kintsugi("dlq", "list").err


def test_an_event_from_the_future_halts_and_is_reported(imported: Path, kintsugi: Kintsugi) -> None:
    append_from_the_future()
    halted = kintsugi("diagnose")
    assert (halted.code, halted.out) == (4, "")
    assert "newer kintsugi" in halted.err
    status = kintsugi("status", "--json").json
    assert status["projection"]["state"] == "halted"
    assert "newer kintsugi" in status["projection"]["halted"][0]
    assert status["lag"]["rollouts"] == 1
    # What was folded is still there to be read.
    assert len(kintsugi("rollouts", "ls", "--json").json) == 5


def test_a_wiped_log_is_noticed(imported: Path, kintsugi: Kintsugi) -> None:
    for path in imported.glob("log.db*"):
        path.unlink()
    verified = kintsugi("log", "verify", "--json")
    assert verified.code == 1
    assert any("wiped" in problem for problem in verified.json["problems"])
    assert kintsugi("status", "--json").json["projection"]["state"] == "halted"
    doctor = kintsugi("doctor", "--json")
    assert doctor.code == 1
    assert {c["check"] for c in doctor.json["checks"] if not c["ok"]} == {"fold"}


def test_a_damaged_log_is_unavailable(imported: Path, kintsugi: Kintsugi) -> None:
    for path in imported.glob("log.db-*"):
        path.unlink()
    (imported / "log.db").write_bytes(b"no database" * 1000)
    for command in (["log", "cat", "rollouts"], ["log", "stats"], ["diagnose"]):
        result = kintsugi(*command)
        assert (result.code, result.out) == (4, ""), command
        assert "log.db" in result.err
    # Reading what was folded needs no log.
    assert len(kintsugi("rollouts", "ls", "--json").json) == 5


def test_the_tables_can_be_thrown_away(imported: Path, kintsugi: Kintsugi) -> None:
    before = kintsugi("rebuild", "--json").json["hash"]
    for path in imported.glob("kintsugi.db*"):
        path.unlink()
    assert kintsugi("rebuild", "--json").json["hash"] == before
    assert kintsugi("patterns", "--json").json


def test_the_doctor_lists_its_checks(imported: Path, kintsugi: Kintsugi) -> None:
    result = kintsugi("doctor", "--json")
    assert (result.code, result.json["ok"]) == (0, True), result.out
    assert all(list(check) == ["check", "ok", "detail"] for check in result.json["checks"])
    names = [check["check"] for check in result.json["checks"]]
    assert names == list(CHECKS)


def test_the_doctor_examines_the_broker(
    imported: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    result = kintsugi("doctor", "--json")
    assert result.code == 1
    found = {check["check"]: check for check in result.json["checks"]}
    assert found["crc32c"]["ok"] is True
    assert found["kafka"]["ok"] is False
    assert "127.0.0.1:1" in found["kafka"]["detail"]


def test_the_database_is_upgraded_and_checked(home: Path, kintsugi: Kintsugi) -> None:
    first = kintsugi("db", "upgrade", "--json").json
    assert first["before"] is None
    assert kintsugi("db", "upgrade", "--json").json["before"] == first["revision"]
    check = kintsugi("db", "check", "--json").json
    assert check == {
        "ok": True, "revision": first["revision"], "head": first["revision"], "differences": [],
    }  # fmt: skip
    with sqlite3.connect(home / "kintsugi.db") as connection:
        connection.execute("DROP TABLE feedback")
    connection.close()
    damaged = kintsugi("db", "check", "--json")
    assert (damaged.code, damaged.json["ok"]) == (1, False)
    assert "feedback" in damaged.json["differences"][0]


def test_reading_needs_no_broker(
    imported: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert len(kintsugi("rollouts", "ls", "--json").json) == 5
    assert kintsugi("patterns", "--json").json
    status = kintsugi("status", "--json")
    assert status.code == 4
    assert (status.json["streams"], status.json["lag"]) == (None, None)
    assert status.json["rollouts"] == 5
    assert "127.0.0.1:1" in status.json["log"]["error"]


def test_an_import_is_kept_while_the_broker_is_away(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "more.jsonl", unjudged_rollout("one more"))
    with monkeypatch.context() as during:
        during.setenv("KINTSUGI_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
        assert kintsugi("import", path, "--no-wait", "--json").json["imported"] == 1
        waited = kintsugi("import", path, "--json")
        assert (waited.code, waited.json["duplicates"]) == (4, 1)
        assert "127.0.0.1:1" in waited.err
    assert kintsugi("import", path, "--json").json["duplicates"] == 1
    assert len(kintsugi("rollouts", "ls", "--json").json) == 6


def test_shipping_without_a_broker_is_wrong_usage(home: Path, kintsugi: Kintsugi) -> None:
    result = kintsugi("ship")
    assert result.code == 2
    assert "kafka_bootstrap_servers" in result.err


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_consume_folds_until_it_is_told_to_stop(
    imported: Path, kintsugi: Kintsugi, tmp_path: Path, number: signal.Signals
) -> None:
    more = write_lines(tmp_path / "more.jsonl", unjudged_rollout("one more"))
    kintsugi("import", more, "--no-wait")
    process = _start("consume", imported)
    try:
        _wait_until(lambda: len(kintsugi("rollouts", "ls", "--json").json) == 6)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "stopped" in err


@pytest.mark.processes
def test_a_leader_that_is_told_to_stop_lets_the_next_one_begin(
    imported: Path, kintsugi: Kintsugi
) -> None:
    def claims() -> int:
        lines = kintsugi("log", "cat", "learning").lines
        return sum(line["type"] == "LeaderClaimed" for line in lines)

    process = _start("schedule", imported)
    try:
        _wait_until(lambda: claims() == 1)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert kintsugi("schedule", "--once").json["epoch"] == 2, "it did not wait for a lease to end"


@pytest.mark.processes
def test_following_prints_what_comes(imported: Path, kintsugi: Kintsugi, tmp_path: Path) -> None:
    with start(
        ["log", "tail", "rollouts", "-n", "1", "-f", "--json"], {"KINTSUGI_HOME": str(imported)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["type"] == "RolloutEnded"
            kintsugi("import", write_lines(tmp_path / "b.jsonl", unjudged_rollout("it came")))
            came = json.loads(process.stdout.readline())
            assert came["data"]["messages"][0]["content"] == "it came"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "")


@pytest.mark.processes
def test_consume_says_why_it_halted(
    imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_HOME", str(imported))
    append_from_the_future()
    result = spawn(["consume", "--quiet"], tmp_path, {"KINTSUGI_HOME": str(imported)})
    assert (result.code, result.out) == (4, "")
    (line,) = result.err.splitlines()
    assert line.startswith("kintsugi: the fold halted: ")


@pytest.mark.long
@pytest.mark.processes
def test_a_home_without_permission_to_write_is_unavailable(imported: Path, tmp_path: Path) -> None:
    """SQLite in WAL mode writes beside its file even to read it (a read-only file system is
    another matter: nobody can write there, so nothing has to be shared)."""
    for path in [imported, *imported.iterdir()]:
        path.chmod(path.stat().st_mode & 0o555)
    for command in (
        ["log", "cat", "rollouts"],
        ["rollouts", "ls", "--json"],
        ["import", str(tmp_path / "examples.jsonl")],
        ["status", "--home", str(imported / "new")],
    ):
        done = _without_override(command, tmp_path, {"KINTSUGI_HOME": str(imported)})
        assert (done.code, done.out) == (4, ""), f"{command}: {done.err}"
        assert len(done.err.splitlines()) == 1
        assert str(imported) in done.err
    doctor = _without_override(["doctor", "--json"], tmp_path, {"KINTSUGI_HOME": str(imported)})
    assert doctor.code == 1
    assert {"home", "log"} <= {check["check"] for check in doctor.json["checks"] if not check["ok"]}


def _without_override(command: list[str], folder: Path, variables: dict[str, str]) -> Result:
    """A process for which permissions hold even where it is root's."""

    def drop() -> None:
        if os.geteuid() == 0 and ctypes.CDLL(None).prctl(_DROP, _DAC_OVERRIDE, 0, 0, 0):
            os._exit(99)

    done = subprocess.run(
        [sys.executable, "-m", "daemon", *command],
        cwd=folder, env=environment(**variables), preexec_fn=drop, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


def _start(role: str, home: Path) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return start([role], {"KINTSUGI_HOME": str(home)}, **pipes)


def _wait_until(condition: object, seconds: float = 30.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
