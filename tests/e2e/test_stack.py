"""The loop on a real stack, from outside: Kafka, PostgreSQL, vLLM, and a process per role.

Small: it shows that customers' calls come through Kafka into PostgreSQL, that a cycle trains an
adapter on them and ends, and that nothing is left running; and not that anything is learnt.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from ops.demo.place import ROOT
from ops.isolated import NotInstalled
from ops.kafka.jars import BrokerMissing, jars, java
from ops.postgres.server import PostgresMissing, binaries
from ops.vllm.environment import environment
from tests.conftest import missing

pytestmark = [
    pytest.mark.kafka, pytest.mark.postgres, pytest.mark.vllm, pytest.mark.learning,
    pytest.mark.processes, pytest.mark.timeout(900),
]  # fmt: skip

PATIENCE: Final = 840.0


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Everything that it starts."""
    try:
        jars(), java(), binaries(), environment()
    except (BrokerMissing, PostgresMissing, NotInstalled) as error:
        missing(str(error))


def test_a_cycle_goes_through_kafka_postgresql_and_vllm_to_its_end() -> None:
    # Directly below the temporary folder: pytest's own folders are closed to the user postgres.
    with tempfile.TemporaryDirectory(prefix="kintsugi-stack-") as folder:
        os.chmod(folder, 0o755)
        home = Path(folder) / "home"
        done = subprocess.run(
            [sys.executable, "-m", "ops.stack", "--small", "--home", str(home)],
            cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr + _logs(home)
        # So little training may help or do harm: the gate says which, and both are an end.
        assert done.returncode in (0, 3), said
        assert "equal, row for row" in done.stdout, said
        outcome = re.search(r"cycle +(promoted|rejected|rolled_back|inconclusive):", done.stdout)
        assert outcome is not None, said
        assert "trained:" in done.stdout, said
        answers = re.findall(r"^  (\S+): (\d+) of (\d+) new sessions$", done.stdout, re.MULTILINE)
        if outcome[1] == "promoted":
            ((adapter, count, whole),) = answers
            assert (adapter != "reference", count) == (True, whole)
            assert re.search(rf"{adapter} on vLLM: 0\.000\d+ nats", done.stdout), said
        else:
            assert [name for name, _, _ in answers] == ["reference"]
        _nothing_runs(home)


def _logs(home: Path) -> str:
    """The end of what every process said."""
    return "".join(
        f"\n--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
        for path in sorted(home.glob("**/*.log"))
    )


def _nothing_runs(home: Path) -> None:
    """Neither a service, a role nor a job of this place."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = [(process / name).read_bytes().decode() for name in ("cmdline", "environ")]
        except OSError:
            continue  # It ended meanwhile.
        assert str(home) not in "".join(said), said[0].replace("\0", " ")
