"""What `kintsugi up` sees to before its roles run, over real sockets, files and a real database."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.database import DatabaseMismatch, open_database, read_revision
from consumers.tables import REVISION
from daemon.config.settings import ConfigurationError, KafkaSecurity, Settings
from daemon.config.settings import Kafka as KafkaSettings
from daemon.roles import startup
from daemon.roles.startup import prepare
from tests.daemon.commands import run_here

NOBODY = "127.0.0.1:9"
"""Where a connection is refused."""
DATABASE = f"postgresql://kintsugi@{NOBODY}/kintsugi"
UPSTREAM = '[{"url": "http://127.0.0.1:9/v1"}]'


@pytest.fixture
def silent() -> Iterator[str]:
    """Somebody who lets connect and never answers, as a machine in trouble."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def away(home: Path, **given: object) -> list[str]:
    return prepare(Settings(home=home, **given), threading.Event())  # type: ignore[arg-type]


def test_a_home_that_needs_nobody_is_made_whole(tmp_path: Path) -> None:
    assert away(tmp_path / "home") == []
    engine = open_database(f"sqlite:///{tmp_path / 'home' / 'kintsugi.db'}")
    assert read_revision(engine) == REVISION
    engine.dispose()
    assert (tmp_path / "home" / "log.db").exists()


def test_what_nobody_answers_at_is_named_and_the_home_is_made(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tables, broker = away(home, database_url=DATABASE, kafka_bootstrap_servers=NOBODY)
    assert f"{NOBODY}/kintsugi cannot be used now" in tables
    assert f"no broker listens at {NOBODY}" in broker
    assert (home / "log.db").exists()
    (alone,) = away(tmp_path / "other", kafka_bootstrap_servers=NOBODY)
    assert alone == broker


def test_who_never_answers_holds_up_nobody(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "PATIENCE_SECONDS", 0.2)
    url = f"postgresql://kintsugi@{silent}/kintsugi"
    assert away(tmp_path, database_url=url) == ["the tables did not answer within 0.2 s"]


def test_what_waiting_does_not_heal_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="database_url"):
        away(tmp_path, database_url="mysql://127.0.0.1/kintsugi")
    half = KafkaSettings(security=KafkaSecurity(protocol="SASL_SSL"))
    with pytest.raises(ConfigurationError, match=r"kafka\.security\.mechanism is not set"):
        away(tmp_path, kafka_bootstrap_servers=NOBODY, kafka=half)


@pytest.mark.postgres
def test_tables_of_no_version_are_raised_whatever_else_is_away(
    tmp_path: Path, postgres_url: str
) -> None:
    with pytest.raises(DatabaseMismatch, match="run kintsugi db upgrade"):
        away(tmp_path, database_url=postgres_url, kafka_bootstrap_servers=NOBODY)


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("there is no engine", {}),
        ("is not supported", {"UPSTREAMS": UPSTREAM, "DATABASE_URL": "mysql://127.0.0.1/x"}),
        (
            "kafka.security.username is set",
            {"UPSTREAMS": UPSTREAM, "KAFKA__SECURITY__USERNAME": "ada"},
        ),
    ],
)
def test_what_is_configured_wrongly_ends_up_with_its_own_code(
    tmp_path: Path, said: str, more: dict[str, str]
) -> None:
    variables = {f"KINTSUGI_{name}": value for name, value in more.items()}
    home = {"KINTSUGI_HOME": str(tmp_path), "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": NOBODY}
    result = run_here(["up"], home | variables)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
