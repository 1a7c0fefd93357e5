"""The page of the metrics, the dashboards and the rules say what the code tells, and all of it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry

from consumers.runner import Counters
from daemon.cli.methods import build_loop_metrics
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.core.leadership import Leadership
from daemon.metrics import jobs, log, loop
from daemon.metrics.exposition import ROLES, PortInUse, serve_metrics
from daemon.metrics.roles import (
    LeaderRounds,
    WorkerRounds,
    fold_metrics,
    ship_metrics,
    trace_metrics,
)
from daemon.tracing.exporter import Counters as Traced
from producers.gateway.metrics.registry import Metrics
from producers.shipper import ShipperCounters

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/monitoring.md"
GATEWAY = ROOT / "docs/gateway.md"
BOARDS = sorted((ROOT / "ops/grafana/dashboards").glob("*.json"))
RULES = [ROOT / "ops/prometheus" / name for name in ("recording.yml", "alerts.yml")]

_ROW = re.compile(r"^\| (`kintsugi_\w+`(?:, `kintsugi_\w+`)*) \|", re.MULTILINE)
_METRIC = re.compile(r"\bkintsugi_[a-z0-9_]+")
_OF_SPOOLS = {
    "kintsugi_spool_events", "kintsugi_spool_bytes", "kintsugi_spool_unshipped_events",
    "kintsugi_spool_oldest_unshipped_timestamp_seconds", "kintsugi_spool_readable",
    "kintsugi_spool_disk_free_bytes", "kintsugi_spool_disk_bytes",
    "kintsugi_upstream_well", "kintsugi_upstream_proven",
}  # fmt: skip
"""Made where there is a spool and an engine: test_metrics.py of the gateway asks for them."""


def documented(page: Path) -> set[str]:
    """The metrics of a page's table."""
    return {name for row in _ROW.findall(page.read_text()) for name in row.strip("`").split("`, `")}


def names_in(registry: CollectorRegistry) -> set[str]:
    """What is told, by the names that are asked for."""
    return {one.name + ("_total" if one.type == "counter" else "") for one in registry.collect()}


@pytest.fixture(scope="module")
def of_roles(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every metric of the roles other than the gateway."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    found: set[str] = set()
    with App(settings) as app:
        for role in ROLES:
            with serve_metrics(settings, role) as registry:
                match role:
                    case "consume":
                        registry.register(fold_metrics(Counters()))
                    case "ship":
                        registry.register(ship_metrics(ShipperCounters()))
                    case "trace":
                        registry.register(trace_metrics(Traced()))
                    case "schedule":
                        LeaderRounds(registry, Leadership(app))
                        methods = build_loop_metrics()
                        with loop.loop(settings, methods) as of_loop, log.log(settings) as of_log:
                            registry.register(of_loop)
                            registry.register(of_log)
                            found |= names_in(registry)
                        continue
                    case "work":
                        WorkerRounds(registry)
                        with jobs.jobs(settings) as of_jobs:
                            registry.register(of_jobs)
                            found |= names_in(registry)
                        continue
                found |= names_in(registry)
    return found


def test_the_page_names_every_metric_of_the_roles_and_no_other(of_roles: set[str]) -> None:
    assert documented(PAGE) == of_roles


def test_the_gateways_page_names_every_metric_of_it_and_no_other() -> None:
    told = names_in(Metrics().registry) | _OF_SPOOLS
    assert documented(GATEWAY) == told


def test_no_metric_is_told_by_two_pages_but_what_runs(of_roles: set[str]) -> None:
    assert of_roles & documented(GATEWAY) == {"kintsugi_build_info"}


def queries(value: Any) -> Iterator[str]:
    """Every PromQL expression of a board or a file of rules."""
    if isinstance(value, dict):
        for key, held in value.items():
            if key == "expr":
                yield held
            else:
                yield from queries(held)
    elif isinstance(value, list):
        for held in value:
            yield from queries(held)


@pytest.mark.parametrize("path", [*BOARDS, *RULES], ids=lambda path: path.name)
def test_whatever_is_asked_for_is_told(path: Path, of_roles: set[str]) -> None:
    known = of_roles | documented(GATEWAY)
    asked = [one for query in queries(yaml.safe_load(path.read_text())) for one in names(query)]
    assert asked
    for name in asked:
        assert re.sub(r"_(bucket|count|sum)$", "", name) in known, name


def names(query: str) -> list[str]:
    """The metrics of a query; recorded ones have a colon and are made by the rules."""
    return _METRIC.findall(re.sub(r"\bkintsugi:[\w:]+", "", query))


def test_recorded_series_are_recorded() -> None:
    made = {
        rule["record"]
        for group in yaml.safe_load(RULES[0].read_text())["groups"]
        for rule in group["rules"]
    }
    asked = {
        name
        for path in (*BOARDS, *RULES)
        for query in queries(yaml.safe_load(path.read_text()))
        for name in re.findall(r"\bkintsugi:[\w:]+", query)
    }
    assert asked <= made


def alerts() -> dict[str, dict[str, Any]]:
    """Every alert by its name."""
    return {
        rule["alert"]: rule
        for group in yaml.safe_load(RULES[1].read_text())["groups"]
        for rule in group["rules"]
    }


def test_every_alert_names_its_runbook_and_the_page_names_every_alert() -> None:
    page = PAGE.read_text()
    for name, rule in alerts().items():
        kebab = re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{kebab}.md"
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert f"| `{name}` |" in page, name


def test_every_alert_is_seen_to_fire_and_not_to_fire() -> None:
    tested = yaml.safe_load((ROOT / "ops/prometheus/rules_test.yml").read_text())["tests"]
    cases = [case for test in tested for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == set(alerts())
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == set(alerts())


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_board_can_be_provisioned(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == f"kintsugi-{path.stem}"
    assert board["templating"]["list"][0]["type"] == "datasource"
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in board["panels"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
    for x, _, w, _ in places:
        assert x + w <= 24
    for x, y, w, h in places:
        others = [one for one in places if one != (x, y, w, h)]
        assert not any(
            x < a + c and a < x + w and y < b + d and b < y + h for a, b, c, d in others
        ), "two panels lie on each other"


def unread(written: Any, read: Any, place: str = "") -> Iterator[str]:
    """Where a board says something that came back from Grafana's own types otherwise, or not."""
    match written, read:
        case dict(), dict():
            for key, held in written.items():
                yield from unread(held, read.get(key), f"{place}.{key}")
        case list(), list() if len(written) == len(read):
            for number, (one, other) in enumerate(zip(written, read, strict=True)):
                yield from unread(one, other, f"{place}[{number}]")
        case _ if written != read:
            yield place


def as_grafana_reads(board: dict[str, Any]) -> dict[str, Any]:
    """A board out of the types that Grafana publishes of its boards."""
    told = json.dumps(Dashboard.from_json(board), cls=JSONEncoder)
    found: dict[str, Any] = json.loads(told)
    return found


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_grafana_knows_whatever_a_board_says(path: Path) -> None:
    board = json.loads(path.read_text())
    left = set(unread(board, as_grafana_reads(board)))
    # A field of the data source's own, which the types of boards do not name.
    assert left == {".annotations.list[0].titleFormat"}
    board["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    left = set(unread(board, as_grafana_reads(board))) - left
    assert left == {".panels[1].fieldConfig.defaults.units"}, "it has no such field"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = Settings.model_validate(
            {"home": tmp_path, "metrics": {"port": min(port, 65531)}}
        )
        with (
            pytest.raises(PortInUse, match=f"port {port}.*set metrics.port"),
            serve_metrics(settings, "consume"),
        ):
            pass
