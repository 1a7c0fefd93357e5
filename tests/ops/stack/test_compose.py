"""compose.yaml without Docker: what it starts exists, and what it says is what is read."""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from daemon.cli.root import app
from daemon.engine.reference.weights import CHECKPOINT
from daemon.settings import CONFIG_VARIABLE, load
from ops.demo.place import ROOT
from ops.stack.roles import ROLES
from ops.vllm import server

HERE = ROOT / "ops" / "stack"
COMPOSE: dict[str, Any] = yaml.safe_load((HERE / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"] == "kintsugi"}
COPIED = Path("/opt/kintsugi")
"""Where the images have the sources."""


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a role's container."""
    for name in [name for name in os.environ if name.startswith("KINTSUGI_")]:
        monkeypatch.delenv(name)
    (said,) = {json.dumps(one["environment"]) for one in OURS.values()}
    for name, value in json.loads(said).items():
        if name.startswith("KINTSUGI_"):
            monkeypatch.setenv(name, _without_operator(value))
    monkeypatch.setenv(CONFIG_VARIABLE, str(HERE / "compose.toml"))
    return iter([None])


def _without_operator(value: str) -> str:
    """What `${NAME:-DEFAULT}` is where nobody set it."""
    return value.partition(":-")[2].removesuffix("}") if value.startswith("${") else value


def test_every_role_is_a_container_and_every_command_exists() -> None:
    ours = {name for name, program in ROLES.items() if program[0] == "daemon"}
    assert set(OURS) == ours | {"migrate"}
    for name, one in OURS.items():
        done = CliRunner().invoke(app, [*one["command"], "--help"])
        assert done.exit_code == 0, (name, done.output)
        assert name == "migrate" or one["command"] == [name]


def test_what_the_roles_read_names_the_other_containers() -> None:
    settings = load()
    kafka, _, port = settings.kafka_bootstrap_servers.partition(":")
    assert f"PLAINTEXT://{kafka}:{port}" in SERVICES[kafka]["environment"].values()
    said = SERVICES["postgres"]["environment"]
    user, name = said["POSTGRES_USER"], said["POSTGRES_DB"]
    password = said["POSTGRES_PASSWORD"]
    assert settings.database.endswith(f"//{user}:{password}@postgres/{name}")
    (upstream,) = settings.upstreams
    assert upstream.url == "http://vllm:8000/v1"
    (agent,) = settings.agents
    for path in (upstream.checkpoint, agent.checkpoint):
        assert path is not None
        assert ROOT / path.relative_to(COPIED) == CHECKPOINT
    published = SERVICES["gateway"]["ports"]
    assert published == [f"127.0.0.1:{settings.gateway.port}:{settings.gateway.port}"]


def test_vllm_is_started_as_the_settings_say_and_sees_the_adapters() -> None:
    settings, vllm = load(), SERVICES["vllm"]
    (upstream,) = settings.upstreams
    asked = server.asked(vllm["command"])
    told = argparse.ArgumentParser()
    for flag in ("--max-loras", "--max-cpu-loras", "--max-lora-rank", "--port"):
        told.add_argument(flag, type=int)
    told.add_argument("--host")
    found, _ = told.parse_known_args(asked.command)
    said = {
        name: getattr(upstream, name) for name in ("max_loras", "max_cpu_loras", "max_lora_rank")
    }
    assert vars(found) == {**said, "port": 8000, "host": "0.0.0.0"}
    assert COPIED / asked.checkpoint == upstream.checkpoint
    assert asked.environment["PYTHONPATH"].endswith("ops/vllm/mend")
    home = {one["volumes"][0] for one in OURS.values()}
    assert home == {f"home:{settings.home}"}
    assert vllm["volumes"] == [f"home:{settings.home}:ro"]
    assert settings.adapters.is_relative_to(settings.home)


def test_what_is_built_and_mounted_is_there() -> None:
    stages = (HERE / "Dockerfile").read_text()
    for name in (*OURS, "vllm"):
        build = SERVICES[name]["build"]
        assert (HERE / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert f" AS {build['target']}\n" in stages
    for one in SERVICES.values():
        for volume in one.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (HERE / source).is_file()
        for awaited in one.get("depends_on", ()):
            assert awaited in SERVICES
