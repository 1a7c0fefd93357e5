"""A real Prometheus with the shipped files, beside a daemon that runs."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from daemon.core.app import App
from daemon.engine.reference.weights import CHECKPOINT
from daemon.metrics.exposition import ROLES, port_of
from ops.processes import find_ports
from ops.prometheus.server import Prometheus, PrometheusUnavailable, program
from tests.conftest import missing
from tests.daemon.commands import start
from tests.daemon.gateway.receiver import receiving
from tests.daemon.metrics.scene import once_round, serve_panel, settings_of

pytestmark = pytest.mark.prometheus

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "ops/prometheus"
BOARDS = sorted((ROOT / "ops/grafana/dashboards").glob("*.json"))
PATIENCE = 150.0

VARIABLES = {"$alias": ".*"}

WITHOUT_DATA = {
    "loop: Gate: pass^1 after an error", "loop: Gate: token growth",
    "loop: Lift since the first promotion", "loop: Success of held-out sessions and of the others",
}  # fmt: skip
"""Panels about what the scene has none of: gates of candidates that learnt from lessons
(tests/daemon/evaluation/test_after_error.py has their values) and judged sessions that were held
out (tests/daemon/status/test_lift.py). Their queries have to parse."""

Panels = dict[str, list[str]]


@pytest.fixture
def promtool() -> str:
    try:
        return program("promtool")
    except PrometheusUnavailable as error:
        missing(str(error))
        raise


def test_configuration_and_rules_are_as_promtool_wants_them(promtool: str) -> None:
    for arguments in (["check", "config", "prometheus.yml"], ["test", "rules", "rules_test.yml"]):
        done = subprocess.run(
            [promtool, *arguments], cwd=SHIPPED, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def daemon(home: Path, gateway: int, engine: int, metrics: int, spans: str) -> Iterator[str]:
    """`kintsugi up` over a home whose loop has been round once and whose canary was promoted, so
    that the leader ends the cycle, which sends its spans to a receiver, and then a panel of it; the
    gateway's URL."""
    with App(settings_of(home)) as app:
        once_round(app)
        serve_panel(app)
    config = home / "kintsugi.toml"
    config.write_text(
        f'[gateway]\nport = {gateway}\n[engine]\nport = {engine}\nthreads = 1\nname = "base"\n'
        f"[metrics]\nport = {metrics}\n[scheduler]\nmin_failures = 1000000\n"
        f'[tracing]\nendpoint = "{spans}"\n'
        f'[[agents]]\nalias = "agent"\nenvironment = "shop"\ncheckpoint = "{CHECKPOINT}"\n'
    )
    own = {"KINTSUGI_CONFIG": str(config), "KINTSUGI_HOME": str(home), "PYTHONPATH": str(ROOT)}
    with (home / "up.log").open("wb") as log:
        process = start(["up"], own | {"OMP_NUM_THREADS": "1"}, stdout=log, stderr=log, cwd=home)
    url = f"http://127.0.0.1:{gateway}"
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(f"{url}/readyz"):
            said = (home / "up.log").read_text()[-2000:]
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5, trust_env=False).is_success
    except httpx2.HTTPError:
        return False


def configured(folder: Path, gateway: int, metrics: int) -> Path:
    """The shipped configuration over these ports, asking each second."""
    config: dict[str, Any] = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(SHIPPED / name) for name in config["rule_files"]]
    shipped = settings_of(folder, port=9464)
    own = settings_of(folder, port=metrics)
    ports = {"127.0.0.1:8080": gateway}
    ports |= {f"127.0.0.1:{port_of(shipped, role)}": port_of(own, role) or 0 for role in ROLES}
    targets = config["scrape_configs"][0]["static_configs"]
    targets.append({"targets": ["127.0.0.1:9468"], "labels": {"role": "trace"}})
    for scraped in targets:
        scraped["targets"] = [f"127.0.0.1:{ports[one]}" for one in scraped["targets"]]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def answers(server: Prometheus, queries: list[str]) -> bool:
    """Whether any of them returns data; all of them are asked, so each must parse."""
    found = [server.ask(query) for query in queries]
    return any(found)


def panels() -> Panels:
    """Board and title -> queries, with every agent chosen."""
    found: Panels = {}
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            queries = [target["expr"] for target in panel["targets"]]
            for name, value in VARIABLES.items():
                queries = [query.replace(name, value) for query in queries]
            found[f"{path.stem}: {panel['title']}"] = queries
    return found


@pytest.mark.long
@pytest.mark.processes
def test_every_panel_of_a_running_loop_returns_data_and_every_rule_is_evaluated(
    tmp_path: Path, promtool: str
) -> None:
    gateway, engine, metrics, *_ = find_ports(2 + len(ROLES))
    with (
        receiving() as receiver,
        daemon(tmp_path / "home", gateway, engine, metrics, receiver.url) as url,
        Prometheus(tmp_path, configured(tmp_path, gateway, metrics)) as server,
    ):
        body = {"model": "agent", "messages": [{"role": "user", "content": "Hello"}]}
        known = panels()
        assert known.keys() >= WITHOUT_DATA
        for title in WITHOUT_DATA:
            assert not answers(server, known[title]), f"{title} has data: check it like the others"
        empty = {title: queries for title, queries in known.items() if title not in WITHOUT_DATA}
        deadline = time.monotonic() + PATIENCE
        while empty and time.monotonic() < deadline:
            httpx2.post(f"{url}/v1/chat/completions", json=body | {"max_tokens": 2}, timeout=60)
            httpx2.get(f"{url}/nowhere", timeout=60)
            # A query that does not parse is an error of the server, and fails the test here.
            empty = {
                title: queries for title, queries in empty.items() if not answers(server, queries)
            }
            time.sleep(1)
        assert not empty, empty
        rules = server.rules()
        assert {rule["health"] for rule in rules} == {"ok"}, rules
        assert {value for _, value in server.ask('up{job="kintsugi"}')} == {1.0}
        firing = {labels["alertname"] for labels, _ in server.ask('ALERTS{alertstate="firing"}')}
        assert not firing & {"ProjectionHalted", "Leaders", "RoleDown", "DeadLetters"}
