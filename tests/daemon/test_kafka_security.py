"""The log over TLS and SASL on a real broker, and what a client is told that is not let in."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme
from sqlalchemy import Engine

from consumers.runner import Runner
from daemon.config.settings import KafkaSecurity
from daemon.core.broker import client_security
from events.errors import KintsugiError, LogReadOnly, LogUnavailable
from events.kafka.log import KafkaLog
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.kafka.broker import Broker
from ops.kafka.jars import BrokerUnavailable
from ops.kafka.security import SecureListeners
from ops.mix import mix
from producers.shipper import Shipper
from tests.conftest import missing
from tests.daemon.conftest import Kintsugi

pytestmark = pytest.mark.kafka

SECONDS = 30.0
"""Limit of a wait, and of a request by a client that is let in."""
REFUSED_SECONDS = 3.0
"""Limit of a request by a client that is refused."""
EVENTS = 60


@pytest.fixture(scope="module")
def listener() -> Iterator[SecureListeners]:
    """Of a broker whose topics have their real names, so it is shared with nobody."""
    with tempfile.TemporaryDirectory(prefix="kintsugi-secured-") as folder:
        broker = Broker(Path(folder), secured=True)
        try:
            broker.start()
        except BrokerUnavailable as error:
            missing(str(error))
        assert broker.secured is not None
        yield broker.secured
        broker.kill()


@pytest.fixture(params=["password", "certificate"])
def log(
    request: pytest.FixtureRequest, listener: SecureListeners, kafka_topics: dict[str, str]
) -> Iterator[KafkaLog]:
    if request.param == "password":
        made = connected(listener.bootstrap, listener.client, kafka_topics)
    else:
        made = connected(listener.mutual, listener.certificate_client, kafka_topics)
    made.ensure_topics()
    yield made
    made.close()


def connected(
    bootstrap: str,
    security: KafkaSecurity,
    topics: dict[str, str] | None = None,
    timeout_seconds: float = SECONDS,
) -> KafkaLog:
    return KafkaLog(
        bootstrap, security=client_security(security), topics=topics, replication=1,
        timeout_seconds=timeout_seconds,
    )  # fmt: skip


def test_what_is_appended_is_read_waited_for_and_trimmed(log: KafkaLog) -> None:
    entries = [one for one in mix(EVENTS) if one.stream == "rollouts"]
    places = log.append(entries)
    read = {
        (one.partition, one.offset): one.value
        for partition, start in enumerate(log.start("rollouts"))
        for one in log.read("rollouts", partition, start)
    }
    assert read == {
        (place.partition, place.offset): entry.value
        for place, entry in zip(places, entries, strict=True)
    }
    at = places[0].partition
    end = log.end("rollouts")[at]
    appending = threading.Timer(0.1, log.append, ([entries[0]],))
    appending.start()
    assert log.wait({("rollouts", at): end}, SECONDS)
    appending.join()
    log.trim("rollouts", at, end)
    assert log.start("rollouts")[at] == end


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_a_spool_is_shipped_and_folded(log: KafkaLog, engine: Engine, tmp_path: Path) -> None:
    with closing(SqliteLog(tmp_path / "log.db", durability="process")) as spool:
        spool.append(list(mix(EVENTS)))
        assert Shipper(spool, log.sender).ship_once(SECONDS) == EVENTS
    assert sum(sum(log.end(stream)) for stream in STREAMS) == EVENTS
    runner = Runner(log, engine)
    runner.catch_up()
    assert runner.counters.folded == EVENTS


def changed(listener: SecureListeners, **given: object) -> KafkaSecurity:
    return KafkaSecurity.model_validate(listener.client.model_dump() | given)


def refused(bootstrap: str, security: KafkaSecurity) -> KintsugiError:
    log = connected(bootstrap, security, timeout_seconds=REFUSED_SECONDS)
    try:
        with pytest.raises((LogReadOnly, LogUnavailable)) as caught:
            log.ensure_topics()
    finally:
        log.close()
    return caught.value


def test_credentials_that_are_refused_are_named(listener: SecureListeners) -> None:
    wrong = refused(listener.bootstrap, changed(listener, password="wrong"))
    assert isinstance(wrong, LogReadOnly)
    assert "refuses user 'kintsugi' by SCRAM-SHA-512 (Authentication failed" in str(wrong)
    assert "correct kafka.security.username and kafka.security.password" in str(wrong)
    other = refused(listener.bootstrap, changed(listener, mechanism="PLAIN"))
    assert isinstance(other, LogReadOnly)
    assert "mechanism PLAIN, but SCRAM-SHA-512; set kafka.security.mechanism" in str(other)


def test_a_certificate_of_another_authority_is_not_trusted(
    listener: SecureListeners, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    for ca_file in (tmp_path / "other.pem", None):
        found = refused(listener.bootstrap, changed(listener, ca_file=ca_file))
        assert isinstance(found, LogUnavailable)
        assert "cannot be trusted" in str(found)
        assert "kafka.security.ca_file" in str(found)


def test_a_client_is_told_what_the_listener_wants(listener: SecureListeners) -> None:
    plain = refused(listener.bootstrap, KafkaSecurity())
    assert "it wants TLS, and kafka.security.protocol is PLAINTEXT; set it to" in str(plain)
    without = KafkaSecurity(protocol="SSL", ca_file=listener.client.ca_file)
    for bootstrap in (listener.bootstrap, listener.mutual):
        found = str(refused(bootstrap, without))
        assert "does not let this client in" in found
        assert "kafka.security.certificate_file" in found
        assert "kafka.security.protocol to SASL_SSL" in found


def test_the_command_line_is_let_in_by_its_settings_and_says_what_they_lack(
    listener: SecureListeners, home: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    security = listener.client
    assert security.password is not None
    monkeypatch.setenv("KINTSUGI_KAFKA_BOOTSTRAP_SERVERS", listener.bootstrap)
    for name, value in security.model_dump(mode="json", exclude_none=True).items():
        monkeypatch.setenv(f"KINTSUGI_KAFKA__SECURITY__{name.upper()}", value)
    monkeypatch.setenv("KINTSUGI_KAFKA__SECURITY__PASSWORD", "wrong")
    result = kintsugi("log", "stats")
    assert (result.code, result.out) == (4, "")
    assert "correct kafka.security.username" in result.err
    assert "wrong" not in result.err
    password = security.password.get_secret_value()
    monkeypatch.setenv("KINTSUGI_KAFKA__SECURITY__PASSWORD", password)
    assert kintsugi("diagnose").code == 0
    assert kintsugi("log", "stats", "--json").code == 0
    examined = kintsugi("doctor", "--json")
    (kafka,) = [one for one in examined.json["checks"] if one["check"] == "kafka"]
    assert kafka["ok"], kafka
