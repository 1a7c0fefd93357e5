"""compose.yaml without an engine: docker-compose reads it, what it starts exists, and what it says
is what is read."""

import argparse
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemon.config.settings import CONFIG_VARIABLE, load
from daemon.metrics.exposition import ROLES as SCRAPED
from daemon.metrics.exposition import port_of
from ops.demo import __main__ as demo
from ops.demo.place import ROOT
from ops.prometheus.server import PrometheusUnavailable, program
from ops.stack.services import ROLES
from ops.vllm import server
from tests.conftest import missing
from tests.daemon.commands import run_here

HERE = ROOT / "ops" / "stack"
TEXT = (HERE / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
PROFILES = ("core", "gpu", "observe", "trace", "demo")
AWAITED = {"migrate": "service_completed_successfully", "kafka": "service_started"}
"""How a service is waited for, where not until it is well: roles wait for a slow broker."""
EXAMPLE = dict(
    line.split("=", 1)
    for line in (HERE / ".env.example").read_text().splitlines()
    if line and not line.startswith("#")
)
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("kintsugi:")}
COMMANDED = {name: one for name, one in OURS.items() if "command" in one}
VLLM = SERVICES["vllm"], SERVICES["vllm-gpu"]


def filled(text: str) -> str:
    """What `${NAME:-DEFAULT}` is where nobody set it."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.fixture(autouse=True)
def inside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a role's container."""
    for name in [name for name in os.environ if name.startswith("KINTSUGI_")]:
        monkeypatch.delenv(name)
    for name, value in SERVICES["consume"]["environment"].items():
        if name.startswith("KINTSUGI_"):
            monkeypatch.setenv(name, filled(value))
    monkeypatch.setenv(CONFIG_VARIABLE, str(HERE / "compose.toml"))
    return iter([None])


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, dict[str, str]], Any]:
    """compose.yaml as docker-compose understands it, by variables."""
    compose = shutil.which("docker-compose")
    if compose is None:
        missing("docker-compose is not on PATH; make components installs it")
    outside = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def run(profile: str, variables: dict[str, str]) -> Any:
        done = subprocess.run(
            [str(compose), "--file", str(HERE / "compose.yaml"), "--profile", profile, "config"],
            env=outside | variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(done.stdout)

    return run


@pytest.mark.long
@pytest.mark.deployment
def test_docker_compose_reads_every_profile_and_the_example_says_its_defaults(read: Any) -> None:
    found = {profile: read(profile, {}) for profile in PROFILES}
    assert all(set(one["services"]) == set(SERVICES) for one in found.values())
    assert all(set(one["volumes"]) == set(COMPOSE["volumes"]) for one in found.values())
    assert read("core", EXAMPLE) == found["core"]
    other = read("core", EXAMPLE | {"GATEWAY_PORT": "1234", "POSTGRES_PASSWORD": "other"})
    assert other["services"]["gateway"]["ports"] == ["127.0.0.1:1234:8080/tcp"]
    url = other["services"]["work"]["environment"]["KINTSUGI_DATABASE_URL"]
    assert url.endswith(":other@postgres/kintsugi")


def test_the_example_has_every_variable_and_no_other() -> None:
    # COMPOSE_PROJECT_NAME is read by docker compose itself.
    assert set(re.findall(r"\$\{(\w+)", TEXT)) == set(EXAMPLE) - {"COMPOSE_PROJECT_NAME"}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert EXAMPLE["IMAGE_TAG"] == version


def test_every_role_is_a_container_of_core_and_gpu_and_every_command_exists() -> None:
    ours = {name for name, program in ROLES.items() if program[0] == "daemon"}
    for profile in ("core", "gpu"):
        of = [one for one in COMMANDED.values() if profile in one["profiles"]]
        assert {" ".join(one["command"]) for one in of} == ours | {"db upgrade"}
    for name, one in COMMANDED.items():
        done = run_here([*one["command"], "--help"], {})
        assert done.code == 0, (name, done.err)


def test_nothing_waits_for_what_its_profile_has_not_and_what_stays_says_how_it_is() -> None:
    assert {profile for one in SERVICES.values() for profile in one["profiles"]} == set(PROFILES)
    for name, one in SERVICES.items():
        for awaited, how in one.get("depends_on", {}).items():
            assert set(one["profiles"]) <= set(SERVICES[awaited]["profiles"]), (name, awaited)
            assert how == {"condition": AWAITED.get(awaited, "service_healthy")}
        if name not in ("migrate", "demo"):
            assert "healthcheck" in one, name
    assert SERVICES["gateway"]["depends_on"] == {}, "serving needs nobody"


def test_images_are_pinned_and_ports_are_of_this_machine() -> None:
    for name, one in SERVICES.items():
        _, _, tag = filled(one["image"]).partition(":")
        assert re.search(r"\d+\.\d+", tag), name
        for port in one.get("ports", ()):
            assert port.startswith("127.0.0.1:"), name


def test_what_the_roles_read_names_the_other_containers() -> None:
    settings = load()
    kafka, _, port = settings.kafka_bootstrap_servers.partition(":")
    assert f"PLAINTEXT://{kafka}:{port}" in SERVICES[kafka]["environment"].values()
    said = SERVICES["postgres"]["environment"]
    user, name = said["POSTGRES_USER"], said["POSTGRES_DB"]
    password = filled(said["POSTGRES_PASSWORD"])
    assert settings.database.endswith(f"//{user}:{password}@postgres/{name}")
    (upstream,) = settings.upstreams
    assert upstream.url == "http://vllm:8000/v1"
    assert SERVICES["vllm-gpu"]["networks"]["default"]["aliases"] == ["vllm"]
    (agent,) = settings.agents
    assert str(upstream.checkpoint) == str(agent.checkpoint) == "/models/base"
    (published,) = SERVICES["gateway"]["ports"]
    assert filled(published) == f"127.0.0.1:8080:{settings.gateway.port}"


def test_each_vllm_is_started_as_the_settings_say_and_sees_the_adapters() -> None:
    settings = load()
    (upstream,) = settings.upstreams
    said = {
        name: getattr(upstream, name) for name in ("max_loras", "max_cpu_loras", "max_lora_rank")
    }
    on_cpu, on_gpu = ([filled(word) for word in one["command"]] for one in VLLM)
    asked = server.parse_server(on_cpu)
    assert asked.checkpoint == upstream.checkpoint
    assert asked.environment["PYTHONPATH"].endswith("ops/vllm/mend")
    told = argparse.ArgumentParser()
    for flag in ("--max-loras", "--max-cpu-loras", "--max-lora-rank", "--port"):
        told.add_argument(flag, type=int)
    for flag in ("--host", "--served-model-name"):
        told.add_argument(flag)
    for command in (asked.command, on_gpu):
        found, _ = told.parse_known_args(command)
        assert vars(found) == {
            **said, "port": 8000, "host": "0.0.0.0", "served_model_name": "reference"
        }  # fmt: skip
    for one in VLLM:
        assert f"adapters:{settings.adapters}:ro" in one["volumes"]
    for name, one in COMMANDED.items():
        assert {f"home:{settings.home}", f"adapters:{settings.adapters}"} <= set(one["volumes"])
        # Same place, also for the folder that vLLM reads.
        assert one["volumes"][2] == VLLM[0]["volumes"][1], name


def test_what_is_built_and_mounted_is_there() -> None:
    stages = (HERE / "Dockerfile").read_text()
    for name in (*OURS, "vllm"):
        build = SERVICES[name]["build"]
        assert (HERE / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert f" AS {build['target']}\n" in stages
    for one in SERVICES.values():
        for volume in one.get("volumes", ()):
            source = filled(volume).partition(":")[0]
            assert source in COMPOSE["volumes"] or (HERE / source).exists(), volume


def test_prometheus_asks_every_role_where_it_answers() -> None:
    settings = load()
    asked = yaml.safe_load((HERE / "prometheus.yml").read_text())["scrape_configs"]
    found = {
        target: group["labels"]["role"]
        for group in asked[0]["static_configs"]
        for target in group["targets"]
    }
    ports = {role: port_of(settings, role) for role in SCRAPED} | {"gateway": settings.gateway.port}
    # Who sends no spans has no such container, and it would be missed.
    always = {role: port for role, port in ports.items() if role != "trace"}
    assert found == {f"{role}:{port}": role for role, port in always.items()}
    assert settings.metrics.host == "0.0.0.0"
    for role, port in ports.items():
        url = SERVICES[role]["healthcheck"]["test"][-1]
        assert url.startswith(f"http://127.0.0.1:{port}/"), role


@pytest.mark.prometheus
def test_promtool_reads_the_configuration_as_it_is_mounted(tmp_path: Path) -> None:
    for volume in SERVICES["prometheus"]["volumes"][:3]:
        source, inside, _ = volume.split(":")
        shutil.copy(HERE / source, tmp_path / Path(inside).name)
    try:
        promtool = program("promtool")
    except PrometheusUnavailable as error:
        missing(str(error))
        raise
    done = subprocess.run(
        [promtool, "check", "config", "prometheus.yml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_demo_needs_no_network_and_its_command_line_is_one() -> None:
    one = SERVICES["demo"]
    assert one["network_mode"] == "none"
    assert one["entrypoint"][:3] == ["python", "-m", "ops.demo"]
    given = demo._parser().parse_args(one["entrypoint"][3:])
    assert one["volumes"] == [f"demo:{given.out}"]
    assert given.home.is_relative_to(given.out)


def test_health_is_what_the_url_answers() -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        """200 for /readyz, 503 for all else."""

        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/readyz" else 503)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{listening.server_port}"
        codes = [_asked(f"{url}/readyz"), _asked(f"{url}/other")]
        listening.shutdown()
    assert [*codes, _asked(f"{url}/readyz")] == [0, 1, 1]


def _asked(url: str) -> int:
    variables = {name: value for name, value in os.environ.items() if name != "http_proxy"}
    done = subprocess.run(
        [sys.executable, "-m", "ops.stack.answers", url],
        cwd=ROOT, env=variables | {"http_proxy": "http://127.0.0.1:9"}, check=False,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode


def test_a_key_is_written_as_the_example_shows() -> None:
    minted = run_here(["key", "me", "--json"], {}).json
    shown = set(re.findall(r'"(\w+)":', (HERE / ".env.example").read_text()))
    assert shown == set(minted) - {"key"}
