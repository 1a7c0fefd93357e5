"""What docs/environments.md says is so: the worked example, the tables, the formula."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from envs.environment import Limits
from envs.episode import REGULAR, Termination
from envs.evaluation import UNJUDGED
from envs.registry import environments
from envs.reward import Shaping
from envs.task import Basis
from tests.daemon.commands import environment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environments.md").read_text()


def marked(mark: str, language: str) -> list[str]:
    """The fenced blocks below `<!-- mark -->`."""
    blocks = re.findall(
        rf"<!-- {re.escape(mark)} -->\n```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    assert blocks, f"no block is marked {mark!r}"
    return blocks


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, its own header left out."""
    section = PAGE.split(f"\n{heading}\n")[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


class Desk:
    """An empty folder with the program on its search path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str) -> None:
        (text,) = marked(f"file: {name}", "python")
        (self.folder / name).write_text(text)

    def run(self, *command: str) -> str:
        program = str(Path(sys.executable).parent)
        variables = environment(
            PATH=f"{program}{os.pathsep}{os.environ['PATH']}",
            KINTSUGI_HOME=str(self.folder / "home"),
        )
        done = subprocess.run(
            command, cwd=self.folder, env=variables,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def example(self, name: str) -> str:
        """Run a block of commands; it must show what the page says that it shows."""
        (script,) = marked(f"tested: {name}", "bash")
        return self.run("bash", "-euo", "pipefail", "-c", script)


@pytest.mark.processes
def test_the_worked_example_shows_what_it_says(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    shown = desk.example("new")
    for block in marked("shown: new", "text"):
        assert block in shown
    desk.write("library.py")
    shown = desk.example("grow")
    for block in marked("shown: grow", "text"):
        assert block in shown
    desk.write("episode.py")
    assert [desk.run(sys.executable, "episode.py")] == marked("shown: episode", "text")
    shown = desk.example("name")
    assert re.search(r"^library +generated +64 +4 +.*library\.py$", shown, re.MULTILINE)
    assert shown.endswith("no problems\n")


@pytest.mark.processes
def test_the_example_and_the_skeleton_keep_our_own_rules(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.run("kintsugi", "env", "new", "lending_desk")
    desk.write("library.py")
    desk.write("episode.py")
    settings = ["--config", str(ROOT / "pyproject.toml")]
    tools = [sys.executable, "-m"]
    desk.run(*tools, "ruff", "check", *settings, ".")
    desk.run(*tools, "ruff", "format", "--check", *settings, ".")
    for name in ("library.py", "lending_desk.py"):
        path = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "c")]
        desk.run("env", f"MYPYPATH={ROOT}", *tools, "mypy", *path, str(tmp_path / name))


@pytest.mark.parametrize("name", ["shop", "retail", "airline", "telecom", "toolsandbox"])
def test_the_kinds_of_a_built_in_environment_are_listed_as_they_are(name: str) -> None:
    (place,) = [item for item in environments() if item.name == name]
    section = PAGE.split(f"\n### {name}\n")[1].split("\n#")[0]
    (kinds,) = re.findall(r"Kinds:\n\n([^.]+)\.", section)
    assert re.findall(r"`(\w+)`", kinds) == list(place.load().capabilities)


def test_every_termination_is_described_with_its_worth() -> None:
    worth = {name: reward for name, _, reward in rows("## How an episode runs")}
    assert set(worth) == set(Termination)
    assert {name for name in worth if worth[name] == "graded"} == REGULAR
    assert {name for name in worth if worth[name] == "not judged"} == UNJUDGED


def test_every_part_of_a_reward_is_described() -> None:
    assert {name for name, _ in rows("## Grading")} == set(get_args(Basis))


def test_the_limits_are_the_codes_own() -> None:
    found = re.search(r"(\d+) steps, (\d+) calls that failed, (\d+) calls in one message", PAGE)
    assert found
    limits = Limits()
    assert [int(number) for number in found.groups()] == [
        limits.max_steps, limits.max_errors, limits.max_calls,
    ]  # fmt: skip


def test_the_formula_of_shaping_has_the_codes_own_numbers() -> None:
    formula = PAGE.split("R = R_task")[1].split("\n\n")[0]
    numbers = [float(number) for number in re.findall(r"\d*\.?\d+", formula)]
    default = Shaping()
    assert numbers == [
        default.authentication, default.format, default.format_cap, default.repetition,
        default.repetition_cap, default.length, 0, default.length_budget, default.length_cap,
        -default.floor,
    ]  # fmt: skip
