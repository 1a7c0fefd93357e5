"""Flags, environment, TOML and defaults: who wins, and what is refused."""

import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from daemon.config.settings import (
    Agent,
    ConfigurationError,
    KafkaSecurity,
    Settings,
    Upstream,
    config_file,
    load,
    names,
    origins,
)
from daemon.core.broker import client_security
from tests.daemon.conftest import Kintsugi


def test_defaults_are_enough() -> None:
    settings = load()
    assert settings.home == Path("~/.local/share/kintsugi").expanduser()
    assert settings.database == f"sqlite:///{settings.home}/kintsugi.db"
    assert settings.kafka_bootstrap_servers == ""
    assert settings.log.durability == "power"


def test_flags_win_over_environment_over_file_over_defaults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    (clean / "kintsugi.toml").write_text(
        f'home = "{tmp_path}/file"\n[kafka]\nreplication_factor = 3\nmin_insync_replicas = 2\n'
    )
    assert load().home == tmp_path / "file"
    monkeypatch.setenv("KINTSUGI_HOME", f"{tmp_path}/variable")
    monkeypatch.setenv("KINTSUGI_KAFKA__REPLICATION_FACTOR", "5")
    settings = load()
    assert settings.home == tmp_path / "variable"
    assert (settings.kafka.replication_factor, settings.kafka.min_insync_replicas) == (5, 2)
    assert load(home=f"{tmp_path}/flag").home == tmp_path / "flag"
    assert load(home=None).home == tmp_path / "variable"


def test_the_file_is_the_named_one_then_here_then_in_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert config_file(home) is None
    (home / "kintsugi.toml").write_text('log.durability = "process"\n')
    assert config_file(home) == home / "kintsugi.toml"
    assert load(home=home).log.durability == "process"
    monkeypatch.setenv("KINTSUGI_HOME", str(home))
    assert config_file() == home / "kintsugi.toml"
    (clean / "kintsugi.toml").write_text("")
    assert config_file() == clean / "kintsugi.toml"
    named = tmp_path / "named.toml"
    named.write_text("")
    monkeypatch.setenv("KINTSUGI_CONFIG", str(named))
    assert config_file() == named


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hoem = '/x'", "setting hoem is unknown; did you mean home?"),
        ("[kafka]\nreplication = 3", "did you mean kafka.replication_factor?"),
        ("[kafka.security]\npasswrod = 'hush'", "did you mean kafka.security.password?"),
        ("[kafka]\nreplication_factor = 0", "setting kafka.replication_factor: "),
        ("[log]\ndurability = 'none'", "(got 'none')"),
        ("home = ", "kintsugi.toml cannot be read as TOML"),
        ("home = 3", "setting home"),
        ("home = '/'", "root of the file system"),
    ],
)
def test_what_the_file_gets_wrong_is_named(clean: Path, text: str, said: str) -> None:
    (clean / "kintsugi.toml").write_text(text)
    with pytest.raises(ConfigurationError) as raised:
        load()
    assert said in str(raised.value)
    assert "hush" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_no_text_is_named(clean: Path) -> None:
    (clean / "kintsugi.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"kintsugi\.toml cannot be read"):
        load()


def test_an_unknown_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINTSUGI_LOG__DURABLITY", "process")
    with pytest.raises(ConfigurationError, match="did you mean KINTSUGI_LOG__DURABILITY"):
        load()


def test_what_kubernetes_adds_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "SERVICE_HOST",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_80_TCP_ADDR",
        "GW_SERVICE_PORT",
    ):
        monkeypatch.setenv(f"KINTSUGI_{name}", "tcp://10.0.0.1:80")
    load()


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "DATABASE_URL", "BENCHMARKS", "KAFKA_BOOTSTRAP_SERVERS"):
        monkeypatch.setenv(f"KINTSUGI_{name}", "")
    assert load() == load(home="~/.local/share/kintsugi")
    assert load().benchmarks is None


def test_an_empty_variable_switches_kafka_off(monkeypatch: pytest.MonkeyPatch, clean: Path) -> None:
    (clean / "kintsugi.toml").write_text('kafka_bootstrap_servers = "broker:9092"')
    assert load().kafka_bootstrap_servers == "broker:9092"
    monkeypatch.setenv("KINTSUGI_KAFKA_BOOTSTRAP_SERVERS", "")
    assert load().kafka_bootstrap_servers == ""


def test_every_origin_is_told_and_secrets_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path, kintsugi: Kintsugi
) -> None:
    file = clean / "kintsugi.toml"
    file.write_text("[kafka.security]\npassword = 'hush'\nusername = 'me'\n")
    monkeypatch.setenv("KINTSUGI_DATABASE_URL", "postgresql://u:hush@h/d")
    found = {one.setting: one for one in origins(home=f"{tmp_path}/flag")}
    assert found["home"].origin == "flag"
    assert found["database_url"].origin == "environment"
    assert found["kafka.security.username"].origin == str(file)
    assert found["log.durability"].origin == "default"
    shown = kintsugi("config", "show", "--origin", "--json")
    assert list(shown.json) == list(names())
    assert shown.json["kafka.security.username"] == {
        "value": "me", "origin": str(file), "variable": "KINTSUGI_KAFKA__SECURITY__USERNAME",
    }  # fmt: skip
    assert "hush" not in shown.out + kintsugi("config", "show").out
    assert kintsugi("config", "check", "--json").json == {"ok": True, "file": str(file)}


def test_files_of_secrets_come_after_variables_and_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clean: Path
) -> None:
    (clean / "kintsugi.toml").write_text(
        'database_url = "postgresql://file"\n[kafka.security]\nusername = "file"\n'
    )
    folder = tmp_path / "mounted"
    folder.mkdir()
    # As Kubernetes mounts a secret: files behind a link to a folder of their moment.
    (folder / "..now").mkdir()
    (folder / "..data").symlink_to("..now")
    for name, value in {
        "KINTSUGI_DATABASE_URL": "postgresql://secret\n",
        "KINTSUGI_KAFKA__SECURITY__PASSWORD": "hidden\n",
        "upstream": "of upstreams[].api_key_file",
    }.items():
        (folder / "..now" / name).write_text(value)
        (folder / name).symlink_to(f"..data/{name}")
    monkeypatch.setenv("KINTSUGI_SECRETS", str(folder))
    settings = load()
    assert settings.database == "postgresql://secret"
    assert settings.kafka.security.username == "file"
    assert settings.kafka.security.password == SecretStr("hidden")
    told = {one.setting: one for one in origins()}
    assert told["kafka.security.password"].origin == str(folder)
    assert told["kafka.security.password"].value == "**********"
    monkeypatch.setenv("KINTSUGI_DATABASE_URL", "postgresql://variable")
    assert load().database == "postgresql://variable"


def test_what_systemd_loaded_for_a_unit_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "KINTSUGI_DATABASE_URL").write_text("postgresql://credential")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert load().database == "postgresql://credential"


def test_a_folder_of_secrets_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KINTSUGI_SECRETS", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"none, which is no folder; unset it or mount"):
        load()
    (tmp_path / "KINTSUGI_DATABASE_URI").write_text("x")
    monkeypatch.setenv("KINTSUGI_SECRETS", str(tmp_path))
    with pytest.raises(ConfigurationError, match="URI is no setting; did you mean KINTSUGI_DATAB"):
        load()


def test_a_check_refuses_what_cannot_be_used(clean: Path, kintsugi: Kintsugi) -> None:
    (clean / "kintsugi.toml").write_text(
        "kafka_bootstrap_servers = 'b:1'\n[kafka.security]\nprotocol = 'SASL_SSL'\n"
    )
    result = kintsugi("config", "check")
    assert (result.code, result.out) == (2, "")
    assert "kafka.security.mechanism is not set" in result.err


def test_security_is_passed_on_under_the_clients_names(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    security = KafkaSecurity(
        protocol="SASL_SSL", ca_file=ca, mechanism="SCRAM-SHA-512", username="me",
        password=SecretStr("hush"),
    )  # fmt: skip
    assert client_security(security) == {
        "security_protocol": "SASL_SSL", "ssl_cafile": str(ca), "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me", "sasl_plain_password": "hush",
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match="username is set and"):
        client_security(KafkaSecurity(username="me"))
    with pytest.raises(ConfigurationError, match="is no file"):
        client_security(KafkaSecurity(protocol="SSL", ca_file=tmp_path / "none.pem"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[models.analyzer]\nurl = 'ftp://x'\n", r"setting models\.analyzer\.url: "),
        ("[models.analyzer]\nurls = 'x'\n", r"models\.analyzer\.urls is unknown; did you"),
        ("[controller.analyzer]\nmodel = 'x'\n", r"setting controller is unknown"),
        ("models = 3\n", r"setting models: "),
        ("[models]\nanalyzer = 3\n", r"models\.analyzer: "),
        ("[models.user]\ncandidates = 0\n", r"models\.user\.candidates: .*greater than or equal"),
        ("[models.writer]\nurl = 'http://x/v1'\n", r"models\.writer is unknown"),
    ],
)
def test_what_is_wrong_with_a_model_is_named(clean: Path, text: str, problem: str) -> None:
    (clean / "kintsugi.toml").write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        load()


def test_the_next_times_of_the_schedule_are_printed(
    kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_SCHEDULER__CRON", "0 3 * * sun")
    document = kintsugi("config", "check", "--json").json
    times = [datetime.fromisoformat(time) for time in document["schedule"]["next"]]
    assert [(time.isoweekday(), time.hour, time.minute) for time in times] == [(7, 3, 0)] * 3
    assert "notice" not in document["schedule"]
    assert f"next Sun {times[0]:%Y-%m-%d} 03:00" in kintsugi("config", "check").out


def test_days_that_mean_another_now_are_named_until_they_are_confirmed(
    kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_SCHEDULER__CRON", "0 3 * * 0")
    result = kintsugi("config", "check", "--json")
    assert result.code == 0
    assert 'set scheduler.cron_days = "crontab"' in result.json["schedule"]["notice"]
    assert "it would run on Mon" in result.err
    (check,) = [
        item for item in kintsugi("doctor", "--json").json["checks"] if item["check"] == "schedule"
    ]
    assert (check["ok"], check["detail"]) == (False, result.json["schedule"]["notice"])
    monkeypatch.setenv("KINTSUGI_SCHEDULER__CRON_DAYS", "crontab")
    assert "notice" not in kintsugi("config", "check", "--json").json["schedule"]
    (check,) = [
        item for item in kintsugi("doctor", "--json").json["checks"] if item["check"] == "schedule"
    ]
    assert check["ok"]


def test_a_line_that_is_no_schedule_names_its_field(
    kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINTSUGI_SCHEDULER__CRON", "0 3 * * someday")
    result = kintsugi("config", "check")
    assert result.code == 2
    assert "in the field day of week" in result.err


LEAST: Final[dict[type[BaseModel], dict[str, Any]]] = {
    Upstream: {"url": "http://127.0.0.1:8000/v1"},
    Agent: {"alias": "agent"},
}
"""Group of settings -> the settings that it cannot do without."""


def list_numbers(
    model: type[BaseModel] = Settings,
) -> Iterator[tuple[type[BaseModel], str]]:
    """The groups of settings with the names of their numbers."""
    for name, field in model.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from list_numbers(part)
            elif part in (int, float):
                yield model, name


def refuses(section: type[BaseModel], name: str, value: float) -> bool:
    """Return whether a group of settings refuses a value of its number, and names the number."""
    try:
        section(**LEAST.get(section, {}), **{name: value})
    except ValidationError as error:
        return name in str(error)
    return False


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300, 10**400, 10**13, math.inf, math.nan])
def test_every_number_has_a_range(value: float) -> None:
    numbers = set(list_numbers())
    assert numbers
    unlimited = [
        f"{section.__name__}.{name}"
        for section, name in numbers
        if not refuses(section, name, value)
    ]
    assert not unlimited, f"these settings take {value}: {', '.join(sorted(unlimited))}"


def test_a_number_outside_its_range_is_named(clean: Path, kintsugi: Kintsugi) -> None:
    (clean / "kintsugi.toml").write_text(f"[scheduler]\nmin_rollouts = {10**400}\n")
    result = kintsugi("status")
    assert result.code == 2
    assert "min_rollouts is an integer of 1,329 bits, outside of its range" in result.err
    assert "report" not in result.err


def test_a_share_of_the_traffic_is_a_finite_number() -> None:
    with pytest.raises(ValidationError, match="traffic is inf"):
        Agent(alias="agent", traffic={"cancel": math.inf})
