"""The commands of docs/quickstart.md run, and show what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ops.kafka.broker import Broker
from ops.processes import find_ports
from tests.daemon.commands import environment

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).read_text()
PAGE = (ROOT / "docs" / "quickstart.md").read_text()


def block(name: str) -> str:
    """The fenced block below `<!-- tested: name -->`."""
    found = re.search(rf"<!-- tested: {name} -->\n```bash\n(.*?)^```", PAGE, re.M | re.S)
    assert found, f"the page has no block {name!r}"
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory in which `.venv/bin/kintsugi` is the one under test."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(script: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(KINTSUGI_HOME=str(folder / "home")),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_block_of_commands_is_run_here() -> None:
    marked = re.findall(r"^<!-- tested: (\w+) -->\n```bash$", PAGE, re.MULTILINE)
    assert len(marked) == len(re.findall(r"^```bash$", PAGE, re.MULTILINE)), "a block has no mark"
    run_here = re.findall(r'block\("(\w+)"\)|for name in \("(\w+)", "(\w+)"\)', SOURCE)
    assert {name for names in run_here for name in names if name} == set(marked)


@pytest.mark.processes
def test_the_quickstart_shows_what_it_says(folder: Path) -> None:
    shown = run(block("import"), folder)
    assert "imported 3, duplicates 0, rejected 0" in shown
    assert "wrong_entity" in shown
    assert "over_cautious" in shown
    assert "imported 0, duplicates 3" in run(block("import"), folder)
    assert "cancel_order" in run(block("show"), folder)
    assert "equal" in run(block("rebuild"), folder)


@pytest.mark.processes
def test_an_environment_is_written_and_proven(folder: Path) -> None:
    shown = run(block("environment"), folder)
    assert "no problems" in shown
    assert all(name in shown for name in ("shop", "retail", "airline"))


@pytest.mark.processes
def test_a_live_agent_is_recorded_with_its_tokens(folder: Path) -> None:
    checkpoint = "daemon/engine/reference/checkpoint"
    script = block("gateway").replace(checkpoint, str(ROOT / checkpoint))
    for port in ("8001", "8080"):
        script = script.replace(port, str(find_ports(1)[0]))
    shown = run(script, folder)
    calls = re.search(r"^(\d+)$", shown, re.MULTILINE)
    assert calls is not None
    assert int(calls[1]) >= 10
    assert "ok  logprobs-mode" in shown


@pytest.mark.learning
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_an_adapter_is_trained_is_better_serves_and_is_taken_back(folder: Path) -> None:
    checkpoint = "daemon/engine/reference/checkpoint"
    here = {checkpoint: str(ROOT / checkpoint), "8001": str(find_ports(1)[0])}
    for name in ("train", "serve"):
        script = block(name)
        for shown_there, used in here.items():
            script = script.replace(shown_there, used)
        shown = run(script, folder)
    base, better = re.findall(r"^two_writes +60 +([\d.]+)", shown, re.MULTILINE)
    assert float(better) > float(base) + 0.3
    script = block("adapters").replace("8080", str(find_ports(1)[0]))
    for shown_there, used in here.items():
        script = script.replace(shown_there, used)
    served = re.findall(r"^x-kintsugi-adapter: (\S+)", run(script, folder), re.MULTILINE)
    assert [name.partition("-")[0] for name in served] == ["two_writes", "reference"]


@pytest.mark.kafka
@pytest.mark.postgres
def test_the_same_commands_run_on_kafka_and_postgresql(
    folder: Path, broker: Broker, postgres_url: str
) -> None:
    broker.start()
    run(block("import"), folder)
    production = block("production")
    here = {
        "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
        "KINTSUGI_DATABASE_URL": postgres_url,
    }
    for name, value in here.items():
        production, replaced = re.subn(
            rf"(?m)^export {name}=.*$", f"export {name}={value}", production
        )
        assert replaced == 1
    shown = run(production, folder)
    assert "wrong_entity" in shown
    assert "over_cautious" in shown
