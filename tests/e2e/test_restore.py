"""Backup and restore as docs/backup.md says it: its commands, on an empty machine."""

import random
import re
import shutil
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from consumers.tables import OLDEST_REVISION
from daemon.config.settings import Settings
from daemon.core.app import App
from migrations.upgrade import head
from tests.daemon.commands import Result, run_here, unjudged_rollout, write_lines
from tests.daemon.metrics.scene import once_round, settings_of

BODY = random.Random(1).randbytes(1_500_000).hex()
"""Too large for an event, also when it is packed."""

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"

pytestmark = pytest.mark.postgres

TARGETS = ["sqlite", pytest.param("postgres", marks=pytest.mark.long)]
"""The database of the home that is restored."""


def commands(heading: str) -> list[list[str]]:
    """What the first block below a heading runs, word by word."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1]
    lines = section.split("```bash\n")[1].split("```")[0].splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def run(line: list[str], folders: dict[str, Path], variables: dict[str, str]) -> Result | None:
    """One of them, over these folders: a command of ours, or a copy of a folder."""
    words = [
        re.sub(r"^(/var/lib/kintsugi|/backup)", lambda found: str(folders[found[1]]), word)
        for word in line
    ]
    if words[0] == "rsync":
        source, target = Path(words[-2]), Path(words[-1])
        shutil.copytree(source, target, dirs_exist_ok=True)
        return None
    assert words[0] == "kintsugi", line
    done = run_here(words[1:], variables)
    assert done.code == 0, (words, done.err)
    return done


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a home whose loop has been round once: routes, an adapter, a job; and a body too large for
    an event, in a blob."""
    made = settings_of(tmp_path / "lost")
    with App(made) as app:
        once_round(app)
    large = write_lines(tmp_path / "large.jsonl", unjudged_rollout(BODY))
    assert run_here(["import", str(large)], {"KINTSUGI_HOME": str(made.home)}).code == 0
    adapter = made.home / "adapters" / "agent-1"
    adapter.mkdir(parents=True)
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_backed_up_is_restored_on_an_empty_machine(
    settings: Settings, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    backup, found = tmp_path / "backup", tmp_path / "found"
    here = {"KINTSUGI_HOME": str(settings.home)}
    before = run_here(["rebuild", "--json"], here).json
    assert before["equal"] is True
    assert list((settings.home / "blobs").rglob("*")), "a body lies beside the log"
    for line in commands("Back up"):
        run(line, {"/var/lib/kintsugi": settings.home, "/backup": backup}, here)
    # The machine is gone, and all that is left is the backup.
    shutil.move(settings.home, tmp_path / "gone")
    there = {"KINTSUGI_HOME": str(found)}
    if target == "postgres":
        there["KINTSUGI_DATABASE_URL"] = request.getfixturevalue("postgres_url")
    for line in commands("Restore"):
        run(line, {"/var/lib/kintsugi": found, "/backup": backup}, there)
    after = run_here(["rebuild", "--json"], there).json
    assert (after["hash"], after["equal"], after["events"]) == (
        before["hash"], True, before["events"],
    )  # fmt: skip
    for command in (["route", "show"], ["adapters", "ls"], ["jobs", "ls"], ["rollouts", "ls"]):
        gone = {"KINTSUGI_HOME": str(tmp_path / "gone")}
        was = run_here([*command, "--json"], gone).json
        assert was
        assert run_here([*command, "--json"], there).json == was
    large = next(
        one["rollout"] for one in run_here(["rollouts", "ls", "--json"], there).json
        if one["success"] is None
    )  # fmt: skip
    assert BODY in run_here(["rollouts", "show", large, "--full", "--json"], there).out
    weights = found / "adapters" / "agent-1" / "adapter_model.safetensors"
    assert weights.read_bytes() == b"weights"


@pytest.mark.parametrize("target", TARGETS)
def test_tables_that_are_too_old_are_folded_anew_from_the_log(
    settings: Settings, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    here = {"KINTSUGI_HOME": str(settings.home)}
    url = f"sqlite:///{settings.home / 'kintsugi.db'}"
    if target == "postgres":
        url = request.getfixturevalue("postgres_url")
        here["KINTSUGI_DATABASE_URL"] = url
        assert run_here(["db", "upgrade"], here).code == 0
        assert run_here(["rebuild", "--yes"], here).code == 0
    before = run_here(["rebuild", "--json"], here).json
    at_revision(url, "0023").dispose()
    for line in (["status"], ["db", "upgrade"]):
        refused = run_here(line, here)
        assert (refused.code, refused.out) == (4, "")
        assert "is at revision 0023, which this version cannot upgrade" in refused.err
    assert run_here(["log", "export", str(tmp_path / "log")], here).code == 0
    there = {"KINTSUGI_HOME": str(tmp_path / "new")}
    for line in (["log", "import", str(tmp_path / "log")], ["rebuild", "--yes"]):
        done = run_here(line, there)
        assert done.code == 0, (line, done.err)
    after = run_here(["rebuild", "--json"], there).json
    assert (after["hash"], after["equal"]) == (before["hash"], True)


def at_revision(url: str, revision: str) -> Engine:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :at"), {"at": revision})
    return engine


def test_tables_of_another_version_are_refused_with_the_command(
    postgres_url: str, tmp_path: Path
) -> None:
    there = {"KINTSUGI_HOME": str(tmp_path / "home"), "KINTSUGI_DATABASE_URL": postgres_url}
    assert run_here(["db", "upgrade"], there).code == 0
    for command in (["status"], ["consume"], ["schedule", "--once"], ["work", "--once"]):
        at_revision(postgres_url, OLDEST_REVISION).dispose()
        older = run_here(command, there)
        assert (older.code, older.out) == (4, ""), command
        assert (
            f"is at revision {OLDEST_REVISION}, this version needs {head()}; run kintsugi db"
            in older.err
        )
        at_revision(postgres_url, "9999").dispose()
        newer = run_here(command, there)
        assert (newer.code, newer.out) == (4, ""), command
        assert "revision 9999, which this version does not know" in newer.err
    upgraded = run_here(["db", "upgrade"], there)
    assert upgraded.code == 4
    assert "run the newer kintsugi that made it" in upgraded.err
