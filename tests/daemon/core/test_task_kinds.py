"""Kinds of the agents' environments follow the files that define them."""

import logging
import os
from pathlib import Path

import pytest

from daemon.config.settings import Agent, Environments, Settings
from daemon.core.task_kinds import find_kinds, list_agent_kinds

DEFINITION = """
from pathlib import Path
from envs.shop.environment import Shop as Base

class Stall(Base):
    name = "stall"
    capabilities = dict.fromkeys(Path(__file__).with_name("kinds.txt").read_text().split(), "sells")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "stall.py"
    path.write_text(DEFINITION)
    return path


@pytest.fixture
def settings(tmp_path: Path, file: Path) -> Settings:
    agents = (Agent(alias="agent", environment="stall"), Agent(alias="plain"))
    return Settings(home=tmp_path / "home", environments=Environments(paths=(file,)), agents=agents)


def test_an_environment_that_cannot_be_opened_is_tried_again_and_named_once(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert find_kinds(settings, "stall") is None
        assert list_agent_kinds(settings) == {}
    assert len([text for text in caplog.messages if "stall cannot be opened" in text]) == 1
    (tmp_path / "kinds.txt").write_text("cancel")
    assert find_kinds(settings, "stall") == ("stall/=cancel", "stall/cancel")
    assert list_agent_kinds(settings) == {"agent": ("stall/=cancel", "stall/cancel")}


def test_an_environment_is_opened_again_when_its_file_has_changed(
    settings: Settings, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "kinds.txt").write_text("cancel")
    assert find_kinds(settings, "stall") == ("stall/=cancel", "stall/cancel")
    (tmp_path / "kinds.txt").write_text("give")
    os.utime(file, ns=(0, 0))
    assert find_kinds(settings, "stall") == ("stall/=give", "stall/give")


def test_kinds_of_constant_outcome_count_no_failure(tmp_path: Path) -> None:
    kinds = find_kinds(Settings(home=tmp_path), "toolsandbox")
    assert kinds is not None
    assert "toolsandbox/send_message" in kinds
    assert not {"toolsandbox/no_clock", "toolsandbox/=no_clock"} & set(kinds)
