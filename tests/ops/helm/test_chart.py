"""The Helm chart: Helm renders it, Kubernetes' own schemas take what comes out, and the roles read
what they are given."""

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemon.config.settings import Settings, load
from daemon.metrics.exposition import ROLES, port_of
from ops.demo.place import ROOT
from ops.golang import ProgramUnavailable
from ops.helm.programs import checker
from tests.conftest import missing
from tests.daemon.commands import run_here

CHART = ROOT / "ops" / "helm" / "kintsugi"
KUBERNETES = "1.30"
EVERYTHING = (
    "monitoring.serviceMonitor.enabled=true", "monitoring.rules.enabled=true",
    "monitoring.dashboards.enabled=true", "jobs.runner=ray", "shared.className=nfs",
    "extraVolumes[0].name=models", "extraVolumes[0].emptyDir.medium=Memory",
    "extraVolumeMounts[0].name=models", "extraVolumeMounts[0].mountPath=/models",
    "trace.enabled=true", "trace.endpoint=http://otel:4318/v1/traces", "trace.content=true",
)  # fmt: skip
OPERATORS = {"ServiceMonitor", "PrometheusRule"}
"""Of the Prometheus operator, whose schemas kubectl-validate has not got."""

Manifests = list[dict[str, Any]]


def found(name: str) -> str:
    try:
        return str(checker(name))
    except ProgramUnavailable as error:
        missing(str(error))
        raise


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [found("helm"), *arguments], cwd=CHART.parent, capture_output=True, text=True, check=False
    )


def rendered(*values: str) -> Manifests:
    sets = [part for value in values for part in ("--set", value)]
    done = helm("template", "mine", CHART.name, "--kube-version", KUBERNETES, *sets)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_the_chart_is_of_this_version_and_its_links_lead_somewhere() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
    boards = {path.name for path in (CHART / "dashboards").glob("*.json")}
    assert boards == {path.name for path in (ROOT / "ops/grafana/dashboards").glob("*.json")}
    for name in ("alerts.yml", "recording.yml"):
        assert (CHART / "rules" / name).samefile(ROOT / "ops/prometheus" / name)


@pytest.fixture(scope="module")
def all_on() -> Manifests:
    return rendered(*EVERYTHING)


def of(manifests: Manifests, kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def pods(manifests: Manifests) -> dict[str, dict[str, Any]]:
    """Name of what starts it -> its specification."""
    kinds = ("StatefulSet", "Deployment", "Job")
    return {
        name: one["spec"]["template"]["spec"]
        for kind in kinds
        for name, one in of(manifests, kind).items()
    }


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


@pytest.mark.long
def test_helm_finds_nothing_wrong_and_refuses_values_that_mean_nothing() -> None:
    done = helm("lint", "--strict", CHART.name)
    assert done.returncode == 0, done.stdout + done.stderr
    for value in ("jobs.runner=kubernetes", "gateway.replicas=0", "gatway.replicas=2",
                  "existingSecret=", "kafka.bootstrapServers=kafka", "trace.enabled=true",
                  "trace.endpoint=otel:4317", "trace.replicas=2"):  # fmt: skip
        refused = helm("template", "mine", CHART.name, "--kube-version", KUBERNETES, "--set", value)
        assert refused.returncode != 0, value
        assert "schema" in refused.stderr, refused.stderr


@pytest.mark.long
@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_takes_every_manifest(values: tuple[str, ...], tmp_path: Path) -> None:
    whole = [one for one in rendered(*values) if one["kind"] not in OPERATORS]
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump_all(whole))
    command = [found("kubectl-validate"), "--version", KUBERNETES]
    done = subprocess.run(
        [*command, str(tmp_path / "whole.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # And it would not take anything.
    whole[-1]["spec"] = {"replicas": "many", "nothing": 1}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump_all(whole))
    refused = subprocess.run([*command, str(tmp_path / "wrong.yaml")], capture_output=True)
    assert refused.returncode != 0


@pytest.mark.long
def test_every_container_runs_a_command_with_settings_that_can_be_used(
    all_on: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (config,) = [one for one in of(all_on, "ConfigMap").values() if "kintsugi.toml" in one["data"]]
    (tmp_path / "kintsugi.toml").write_text(config["data"]["kintsugi.toml"])
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "KINTSUGI_DATABASE_URL").write_text("postgresql://kintsugi@db/kintsugi")
    (secrets / "KINTSUGI_JOBS__RAY__TOKEN").write_text("token")
    (secrets / "KINTSUGI_TRACING__HEADERS").write_text('{"x-key": "of the receiver"}')
    mounted = {"/etc/kintsugi": str(tmp_path), "/run/secrets/kintsugi": str(secrets)}
    for name, pod in pods(all_on).items():
        for one in containers(pod):
            done = run_here([*one["args"], "--help"], {})
            assert done.code == 0, (name, one["name"])
            with monkeypatch.context() as inside:
                for variable in one["env"]:
                    value = str(variable["value"])
                    for there, here in mounted.items():
                        value = value.replace(there, here)
                    inside.setenv(variable["name"], value)
                settings = load()
            assert settings.database.endswith("@db/kintsugi")
            if name.endswith("migrate"):
                continue
            _fits(one, settings)
            assert (settings.jobs.runner, settings.jobs.ray.gpus) == ("ray", 1.0)
            assert settings.tracing.endpoint == "http://otel:4318/v1/traces"
            assert settings.tracing.content is True
            assert settings.tracing.headers["x-key"].get_secret_value() == "of the receiver"


def _fits(one: dict[str, Any], settings: Settings) -> None:
    """Ports are where the role listens, and what it keeps is on a volume."""
    port = settings.gateway.port
    if one["name"] in ROLES:
        port = port_of(settings, one["name"]) or 0
    assert [opened["containerPort"] for opened in one["ports"]] == [port]
    at = {mount["mountPath"]: mount for mount in one["volumeMounts"]}
    assert at["/models"]["name"] == "models"
    assert at[str(settings.home)]["name"] == "home"
    if one["name"] in ("schedule", "work"):
        assert at[str(settings.adapters)] == {
            "name": "shared", "mountPath": str(settings.adapters), "subPath": "adapters"
        }  # fmt: skip


@pytest.mark.long
def test_the_values_of_the_page_are_taken_and_its_settings_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(example)
    done = helm(
        "template", "mine", CHART.name, "--kube-version", KUBERNETES,
        "--values", str(tmp_path / "mine.yaml"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (tmp_path / "kintsugi.toml").write_text(yaml.safe_load(example)["config"])
    for name in [name for name in os.environ if name.startswith("KINTSUGI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("KINTSUGI_CONFIG", str(tmp_path / "kintsugi.toml"))
    settings = load()
    assert settings.kafka.replication_factor == 3
    assert [str(one.checkpoint) for one in settings.agents] == ["/models/base"]


@pytest.mark.long
def test_who_owns_a_spool_has_a_volume_of_its_own_that_is_shipped(all_on: Manifests) -> None:
    spools = of(all_on, "StatefulSet")
    assert {name.removeprefix("mine-kintsugi-") for name in spools} == {
        "gateway", "schedule", "work"
    }  # fmt: skip
    for one in spools.values():
        (claim,) = one["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
        kept = one["spec"]["persistentVolumeClaimRetentionPolicy"]
        assert set(kept.values()) == {"Retain"}
        (ship,) = one["spec"]["template"]["spec"]["initContainers"]
        assert (ship["args"], ship["restartPolicy"]) == (["ship"], "Always")
        assert "readinessProbe" not in ship
        assert "startupProbe" not in ship
    consume = of(all_on, "Deployment")["mine-kintsugi-consume"]
    assert "emptyDir" in consume["spec"]["template"]["spec"]["volumes"][-1]
    (schedule,) = [one for name, one in spools.items() if name.endswith("schedule")]
    assert schedule["spec"]["replicas"] == 1
    grace = Settings.model_fields["gateway"].default.grace_seconds
    for pod in pods(all_on).values():
        assert pod.get("terminationGracePeriodSeconds", 60) > grace + 10


@pytest.mark.long
def test_spans_are_sent_by_one_that_remembers_how_far_it_came(all_on: Manifests) -> None:
    assert not [name for name in pods(rendered()) if name.endswith("trace")]
    trace = of(all_on, "Deployment")["mine-kintsugi-trace"]["spec"]
    assert (trace["replicas"], trace["strategy"]) == (1, {"type": "Recreate"})
    pod = trace["template"]["spec"]
    (home,) = [volume for volume in pod["volumes"] if volume["name"] == "home"]
    claim = of(all_on, "PersistentVolumeClaim")[home["persistentVolumeClaim"]["claimName"]]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    # What was said in a long call lies in a blob.
    (container,) = pod["containers"]
    assert "/var/lib/kintsugi/blobs" in [one["mountPath"] for one in container["volumeMounts"]]


@pytest.mark.long
def test_tables_are_there_before_roles_and_secrets_are_only_named(all_on: Manifests) -> None:
    (job,) = of(all_on, "Job").values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["db", "upgrade"]
    assert not of(all_on, "Secret")
    for pod in pods(all_on).values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {"secretName": "kintsugi"} in [volume.get("secret") for volume in pod["volumes"]]
        for one in containers(pod):
            assert one["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.long
def test_services_and_monitors_lead_to_ports_that_there_are(all_on: Manifests) -> None:
    owners = [one for one in all_on if one["kind"] in ("StatefulSet", "Deployment")]
    (monitor,) = of(all_on, "ServiceMonitor").values()
    (chosen,) = monitor["spec"]["selector"]["matchExpressions"]
    watched: set[tuple[str, str]] = set()
    for service in of(all_on, "Service").values():
        wanted = service["spec"]["selector"].items()
        (owner,) = [
            one for one in owners
            if wanted <= one["spec"]["template"]["metadata"]["labels"].items()
        ]  # fmt: skip
        opened = {
            port["name"]
            for container in containers(owner["spec"]["template"]["spec"])
            for port in container.get("ports", ())
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= opened
        labels = service["metadata"]["labels"]
        if labels[chosen["key"]] in chosen["values"]:
            watched |= {(labels[chosen["key"]], port["name"]) for port in service["spec"]["ports"]}
    asked = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    assert {port for _, port in watched} <= asked
    assert {role for role, _ in watched} == {"gateway", "consume", "schedule", "work", "trace"}
    (budget,) = of(all_on, "PodDisruptionBudget").values()
    gateway = budget["spec"]["selector"]["matchLabels"].items()
    assert [one for one in owners if gateway <= one["metadata"]["labels"].items()]


@pytest.mark.long
def test_boards_and_rules_are_the_shipped_ones(all_on: Manifests) -> None:
    held = {
        name: json.loads(text)
        for one in of(all_on, "ConfigMap").values()
        for name, text in one["data"].items()
        if name.endswith(".json")
    }
    boards = ROOT / "ops/grafana/dashboards"
    assert held == {path.name: json.loads(path.read_text()) for path in boards.glob("*.json")}
    (rules,) = of(all_on, "PrometheusRule").values()
    shipped = [
        group
        for name in ("alerts.yml", "recording.yml")
        for group in yaml.safe_load((ROOT / "ops/prometheus" / name).read_text())["groups"]
    ]
    assert rules["spec"]["groups"] == shipped
