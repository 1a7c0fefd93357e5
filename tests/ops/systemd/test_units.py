"""The units of systemd: its own tools read them, and they are of what there is."""

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from ops.demo.place import ROOT
from ops.stack.services import ROLES
from tests.conftest import missing
from tests.daemon.commands import run_here

UNITS = ROOT / "ops" / "systemd"
OF_THE_LOOP = {name for name, program in ROLES.items() if program[0] == "daemon"}
INSTANCES = sorted(OF_THE_LOOP | {"trace", "up"})
MOST_EXPOSED = 20
"""Tenths, as `systemd-analyze security` counts: below 2.0."""


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        missing("systemd-analyze is not on PATH; make components installs it")
    return str(found)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, over the program of this environment."""
    shutil.copytree(UNITS, tmp_path / "units")
    unit = tmp_path / "units" / "kintsugi@.service"
    here = str(Path(sys.executable).with_name("kintsugi"))
    unit.write_text(unit.read_text().replace("/opt/kintsugi/.venv/bin/kintsugi", here))
    work = tmp_path / "units" / "kintsugi@work.service.d"
    work.mkdir()
    shutil.move(tmp_path / "units" / "gpu.conf", work)
    return tmp_path / "units"


def asked(analyze: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.deployment
def test_systemd_reads_every_unit_without_a_word(analyze: str, installed: Path) -> None:
    units = [installed / f"kintsugi@{name}.service" for name in INSTANCES]
    done = asked(analyze, "verify", "--man=no", *units, installed / "kintsugi.target")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    unit = installed / "kintsugi@.service"
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=gently"))
    assert "gently" in asked(analyze, "verify", "--man=no", units[0]).stderr


@pytest.mark.deployment
def test_a_role_can_reach_little_of_its_machine(analyze: str, installed: Path) -> None:
    threshold = f"--threshold={MOST_EXPOSED}"
    unit = installed / "kintsugi@.service"
    done = asked(analyze, "security", "--offline=true", "--no-pager", threshold, unit)
    assert done.returncode == 0, done.stdout + done.stderr
    bare = installed / "bare.service"
    bare.write_text("[Service]\nExecStart=/bin/true\n")
    assert asked(analyze, "security", "--offline=true", threshold, bare).returncode != 0


def service() -> dict[str, str]:
    """The section of the template; of names that stand twice, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / "kintsugi@.service")
    return dict(parser["Service"])


def test_every_instance_is_a_command_that_stops_in_its_time() -> None:
    for name in INSTANCES:
        assert run_here([name, "--help"], {}).code == 0, name
    said = service()
    assert said["Type"] == "notify"
    grace = Settings.model_fields["gateway"].default.grace_seconds
    assert int(said["TimeoutStopSec"]) > grace + 10
    prefixed = re.search(
        r"^LoadCredential=(\w+):/", (UNITS / "kintsugi@.service").read_text(), re.M
    )
    assert prefixed is not None
    assert prefixed[1] == "KINTSUGI", "with systemd's underscore it is the prefix of variables"
