"""The loop on a real stack, from outside: Kafka, PostgreSQL, vLLM, and a process per role.

Small: it shows that customers' calls come through Kafka into PostgreSQL, that a cycle trains an
adapter on them and ends, and that nothing is left running; and not that anything is learnt.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from ops.demo.place import ROOT, Place
from ops.isolated import InstallError
from ops.kafka.jars import BrokerUnavailable, jars, java
from ops.postgres.server import PostgresUnavailable, binaries
from ops.stack.services import Addresses
from ops.vllm.environment import environment
from tests.conftest import missing

pytestmark = [
    pytest.mark.long,
    pytest.mark.kafka, pytest.mark.postgres, pytest.mark.vllm, pytest.mark.learning,
    pytest.mark.processes, pytest.mark.timeout(900),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Everything that it starts."""
    try:
        jars(), java(), binaries(), environment()
    except (BrokerUnavailable, PostgresUnavailable, InstallError) as error:
        missing(str(error))


def test_a_cycle_goes_through_kafka_postgresql_and_vllm_to_its_end() -> None:
    # Directly below the temporary folder: pytest's own folders are closed to the user postgres.
    with tempfile.TemporaryDirectory(prefix="kintsugi-stack-") as folder:
        os.chmod(folder, 0o755)
        home = Path(folder) / "home"
        process, told = _started(Path(folder), home)
        try:
            while "until you stop it" not in told.read_text():
                assert process.poll() is None, told.read_text() + _logs(home)
                time.sleep(0.5)
            _everything_came_through(home)
            process.terminate()
            code = process.wait(120)
        finally:
            process.kill()
        said = told.read_text()
        assert (code, "stopped;" in said) == (130, True), said
        assert "equal, row for row" in said
        _who_was_chosen_answers(said)
        _nothing_runs(home)


def _started(folder: Path, home: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    told = folder / "told"
    with told.open("wb") as output:
        command = [sys.executable, "-m", "ops.stack", "--small", "--keep", "--home", str(home)]
        return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output), told


def _everything_came_through(home: Path) -> None:
    """What customers were answered is in PostgreSQL, by Kafka, with vLLM's exact tokens."""
    done = subprocess.run(
        [sys.executable, "-m", "daemon", "status", "--json"],
        cwd=ROOT, env=Place(home).variables, capture_output=True, text=True, check=True,
    )  # fmt: skip
    status = json.loads(done.stdout)
    assert status["cycle"]["outcome"] is not None
    assert status["streams"]["rollouts"]["events"] > 0
    assert [one["state"] for one in status["adapters"]] != []
    with psycopg.connect(Addresses.of(Place(home)).database.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT outcome, trainable, count(*) FROM calls GROUP BY 1, 2")
        calls = {(outcome, trainable): count for outcome, trainable, count in found}
    assert calls.get(("completed", True), 0) > 100, calls


def _who_was_chosen_answers(said: str) -> None:
    # So little training may help or do harm: the gate says which, and both are an end.
    outcome = re.search(r"cycle +(promoted|rejected|rolled_back|inconclusive):", said)
    assert outcome is not None, said
    answers = re.findall(r"^  (\S+): (\d+) of (\d+) new sessions$", said, re.MULTILINE)
    if outcome[1] != "promoted":
        assert [name for name, _, _ in answers] == ["reference"]
        return
    ((adapter, count, whole),) = answers
    assert (adapter != "reference", count) == (True, whole)
    assert re.search(rf"{adapter} on vLLM: 0\.000\d+ nats", said), said


def _logs(home: Path) -> str:
    """The end of what every process said."""
    return "".join(
        f"\n--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
        for path in sorted((*home.glob("*.log"), home / "vllm" / "vllm.log"))
        if path.exists()
    )


def _nothing_runs(home: Path) -> None:
    """Neither a service, a role nor a job of this place."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = [(process / name).read_text(errors="replace") for name in ("cmdline", "environ")]
        except OSError:
            continue  # It ended meanwhile.
        assert str(home) not in "".join(said), said[0].replace("\0", " ")
