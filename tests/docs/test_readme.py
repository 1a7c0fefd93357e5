"""What the README says works: commands, configuration, example, tree, targets."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config.settings import load
from ops.kafka.broker import Broker
from producers.importers.documents import shape_of
from producers.importers.records import RolloutImport, Source

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(name: str) -> str:
    """The fenced block below `<!-- tested: name -->`."""
    found = re.search(rf"<!-- tested: {name} -->\n```bash\n(.*?)^```", README, re.M | re.S)
    assert found, f"README has no block {name!r}"
    return found[1]


def fenced(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory in which `.venv/bin/kintsugi` is the one under test."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run(script: str, folder: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("KINTSUGI_")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=clean | {"KINTSUGI_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
        script = script.replace(port, str(free_port()))
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
    here = {checkpoint: str(ROOT / checkpoint), "8001": str(free_port())}
    for name in ("train", "serve"):
        script = block(name)
        for shown_there, used in here.items():
            script = script.replace(shown_there, used)
        shown = run(script, folder)
    base, better = re.findall(r"^two_writes +60 +([\d.]+)", shown, re.MULTILINE)
    assert float(better) > float(base) + 0.3
    script = block("adapters").replace("8080", str(free_port()))
    for shown_there, used in here.items():
        script = script.replace(shown_there, used)
    served = re.findall(r"^x-kintsugi-adapter: (\S+)", run(script, folder), re.MULTILINE)
    assert [name.partition("-")[0] for name in served] == ["two_writes", "reference"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


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


def test_the_configuration_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("KINTSUGI_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "kintsugi.toml"
    file.write_text(fenced("toml"))
    monkeypatch.setenv("KINTSUGI_CONFIG", str(file))
    settings = load()
    assert settings.kafka.security.username == "kintsugi"
    assert settings.log.durability == "power"


def test_the_importer_imports(tmp_path: Path) -> None:
    file = tmp_path / "tickets.jsonl"
    file.write_text(
        '{"ticket": "T1", "turns": [{"role": "user", "content": "Hello"}], "solved": false}\n'
        '{"ticket": "T2", "turns": "none"}\n'
    )
    module: dict[str, object] = {}
    exec(compile(fenced("python"), "README.md", "exec"), module)
    recognises, read = module["recognises"], module["read"]
    assert callable(recognises)
    assert callable(read)
    assert recognises("lines", frozenset({"ticket", "turns", "solved"}))
    first, second = read(Source(file), shape_of(file))
    assert isinstance(first, RolloutImport)
    assert first.data.success is False
    assert first.data.task is not None
    assert first.data.task.id == "T1"
    assert "turns" in second.reason


def test_every_path_of_the_tree_exists() -> None:
    found = re.search(r"<!-- tree -->\n```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found
    missing = []
    folder = ""
    for line in found[1].splitlines():
        names = re.findall(r"(?:^|\s{2,})([\w.]+(?:/|\.py|\.txt|file))(?=\s)", line)
        assert names, f"no path in {line!r}"
        if not line.startswith(" "):
            folder = names[0] if names[0].endswith("/") else ""
        below = names if line.startswith(" ") else []
        paths = [folder + name for name in below] if line.startswith(" ") else names
        missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


def test_every_folder_of_the_repository_is_in_the_tree() -> None:
    found = re.search(r"<!-- tree -->\n```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found
    named = set(re.findall(r"^(\w+)/", found[1], re.MULTILINE))
    present = {
        path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")
    }
    assert named == present - {"dist", "build"}


def test_every_make_target_that_documents_name_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"make ([a-z]+)`", pages)) | set(
        re.findall(r"^    make ([a-z]+)", pages, re.M)
    )
    assert named <= targets, named - targets


def test_ci_runs_exactly_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "`make test`" in README
    assert re.search(r"^make test$", script, re.MULTILINE)
