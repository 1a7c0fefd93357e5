"""Every file of a home is on the page about backups: as precious, or as made again."""

import re
from pathlib import Path

import pytest

from daemon.config.adapter_paths import FOLDER
from daemon.config.settings import load
from daemon.core.app import App
from daemon.core.own_engine import LOCK
from daemon.jobs.runner_factory import jobs_of, trials_of
from daemon.methods.synthesis.users.worker import user_trials_of
from daemon.roles.gateway import salt
from daemon.roles.supervisor import alone
from daemon.tracing.exporter import POSITION
from tests.daemon.metrics.scene import once_round, settings_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "backup.md").read_text()
TABLE = "\n".join(line for line in PAGE.splitlines() if line.startswith("| "))
NAMED = set(re.findall(r"`([a-z-]+(?:\.[a-z.]+)?)/?`", TABLE))


def plain(name: str) -> str:
    """The name of a file, without what SQLite and a rename in between put behind it."""
    return re.sub(r"-(wal|shm|journal)$", "", name)


def test_what_is_precious_is_in_the_steps_too() -> None:
    for heading in ("Back up", "Restore"):
        section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
        for name in ("keys.db", "salt", "adapters/", "/backup/log"):
            assert name in "".join(re.findall(r"```(?:sh|bash)\n.*?```", section, re.DOTALL)), name


def test_every_file_that_a_home_gets_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with App(settings_of(home)) as app, alone(app.home, "http://127.0.0.1:8001/v1"):
        once_round(app)
        app.keys.of("rosa")
        app.blobs.put(b"a body")
        salt(app.home)
        with app.lock_import():
            pass
    names = {plain(path.name) for path in home.iterdir()}
    assert names >= {"log.db", "kintsugi.db", "keys.db", "salt", "blobs", "up.lock"}
    assert names <= NAMED, names - NAMED


def test_every_file_that_the_code_names_in_a_home_is_named(tmp_path: Path) -> None:
    settings = load(home=tmp_path)
    folders = [runner.folder("j").parent.name for runner in (
        jobs_of(settings), trials_of(settings), user_trials_of(settings)
    )]  # fmt: skip
    code = "".join(
        path.read_text() for package in ("daemon", "producers", "consumers")
        for path in (ROOT / package).rglob("*.py")
    )  # fmt: skip
    literal = set(re.findall(r'\bhome / "([^"]+)"', code))
    assert literal >= {"log.db", "blobs", "keys.db", "salt", "routes.json"}
    assert {*folders, *literal, FOLDER, LOCK, POSITION} <= NAMED


@pytest.mark.parametrize("name", ["kintsugi.toml", "calibrations.json"])
def test_what_lies_elsewhere_or_deeper_is_named_as_well(name: str) -> None:
    assert name in TABLE
