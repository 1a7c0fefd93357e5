"""Runbooks: one for each alert, whose commands exist and whose checks the doctor makes."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from daemon.cli.root import app
from daemon.status.doctor.report import CHECKS, ON_KAFKA

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs/runbooks"
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page.name != "README.md")
COMMAND = re.compile(r"`(kintsugi [^`]+)`")


def alerts() -> list[dict[str, Any]]:
    """The alerts that are shipped."""
    groups = yaml.safe_load((ROOT / "ops/prometheus/alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def kebab(name: str) -> str:
    """The file's name of an alert."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


def refusal(line: str) -> str | None:
    """Why a command line is none that the program has; None where it is."""
    words = shlex.split(line)[1:]
    at: Any = typer.main.get_command(app)
    while words and hasattr(at, "commands"):
        found = at.commands.get(words.pop(0))
        if found is None:
            return f"{line}: no such command"
        at = found
    options = {name for one in at.params for name in one.opts}
    unknown = [word for word in words if word.startswith("--") and word not in options]
    return f"{line}: no such option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_leads_to_its_page(alert: dict[str, Any]) -> None:
    name = kebab(alert["alert"])
    page = RUNBOOKS / f"{name}.md"
    assert alert["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
    assert f"# {alert['alert']}" in page.read_text().splitlines()
    assert f"[{alert['alert']}]({name}.md)" in (RUNBOOKS / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_a_command_and_asks_what_the_doctor_checks(page: Path) -> None:
    text = page.read_text()
    assert COMMAND.fullmatch(text.splitlines()[0]), "the first line is the command"
    asked = re.search(r"Doctor: ([^.]+)\.", text)
    assert asked is not None
    checks = set(re.findall(r"`([^`]+)`", asked[1]))
    assert checks
    assert checks <= set(CHECKS) | set(ON_KAFKA)
    refused = [why for line in COMMAND.findall(text) if (why := refusal(line)) is not None]
    assert not refused


def test_every_page_is_in_the_list() -> None:
    listed = re.findall(r"\]\(([a-z-]+\.md)\)", (RUNBOOKS / "README.md").read_text())
    assert sorted(listed) == [page.name for page in PAGES]


def test_a_command_is_run_with_what_the_unit_has() -> None:
    unit = (ROOT / "ops/systemd/kintsugi@.service").read_text().splitlines()
    given = dict(line.split("=", 1) for line in unit if line.startswith(("User=", "LoadCred")))
    variables = [line.removeprefix("Environment=") for line in unit if "=KINTSUGI_" in line]
    wanted = [f"--property={name}={value}" for name, value in given.items()]
    wanted += [f"--setenv={one}" for one in variables if one.startswith("KINTSUGI_")]
    assert len(wanted) == 4
    for page in (RUNBOOKS / "README.md", ROOT / "docs/deployment.md"):
        words = page.read_text().split()
        assert not [one for one in wanted if one not in words], page


def test_what_no_program_has_is_refused() -> None:
    assert refusal("kintsugi doctor --upstream URL") is None
    assert refusal("kintsugi dlq forget") is not None
    assert refusal("kintsugi rebuild --by-magic") is not None
