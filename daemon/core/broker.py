"""Kafka by the settings: opens its log and ships a spool to it. Apart from app.py, because
kafka-python is slow to import and most commands need no broker."""

import time
from typing import Final

from daemon.config.settings import ConfigurationError, KafkaSecurity, Settings
from events.errors import LogError, LogUnavailable
from events.kafka.log import KafkaLog
from events.kafka.topics import administration
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from producers.shipper import Ends, Shipper, count_backlog

PATIENCE_SECONDS: Final = 60.0
"""How long a command waits for its events to be acknowledged by the broker."""

_LOOK_SECONDS: Final = 0.1


def open_kafka(settings: Settings) -> KafkaLog:
    """Return the broker's log with its topics ensured. Raises LogUnavailable without a broker."""
    log = connect(settings)
    try:
        log.ensure_topics()
    except BaseException:
        log.close()
        raise
    return log


def connect(settings: Settings) -> KafkaLog:
    """Return the broker's log; send no request to the broker."""
    return KafkaLog(
        settings.kafka_bootstrap_servers,
        security=client_security(settings.kafka.security),
        replication=settings.kafka.replication_factor,
        min_insync=settings.kafka.min_insync_replicas,
    )


def client_security(security: KafkaSecurity) -> dict[str, str]:
    """Return the security settings under the names that kafka-python uses."""
    _check(security)
    password = security.password.get_secret_value() if security.password else None
    named = {
        "security_protocol": security.protocol,
        "ssl_cafile": security.ca_file,
        "ssl_certfile": security.certificate_file,
        "ssl_keyfile": security.key_file,
        "sasl_mechanism": security.mechanism,
        "sasl_plain_username": security.username,
        "sasl_plain_password": password,
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def _check(security: KafkaSecurity) -> None:
    """Refuse settings that kafka-python would find wrong late in a handshake, or not at all."""
    sasl = security.protocol.startswith("SASL")
    for name in ("mechanism", "username", "password"):
        if sasl and getattr(security, name) is None:
            raise ConfigurationError(
                f"kafka.security.protocol is {security.protocol} and kafka.security.{name} is not "
                "set; set it"
            )
        if not sasl and getattr(security, name) is not None:
            raise ConfigurationError(
                f"kafka.security.{name} is set and kafka.security.protocol is "
                f"{security.protocol}; use SASL_SSL or SASL_PLAINTEXT, or unset it"
            )
    for name in ("ca_file", "certificate_file", "key_file"):
        path = getattr(security, name)
        if path is not None and not path.is_file():
            raise ConfigurationError(
                f"kafka.security.{name} names {path}, which is no file; correct or unset it"
            )


def ship(spool: SqliteLog, log: KafkaLog, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """Copy the spool to Kafka, or wait for another process that does so. Raises LogUnavailable."""
    goal = {stream: spool.end(stream) for stream in STREAMS}
    if count_backlog(spool, goal) == 0:
        return
    try:
        Shipper(spool, log.sender).ship_once(patience_seconds)
    except LogError as error:
        # Only the shipper's lock fails like this: another process does the work.
        if not isinstance(error.__cause__, BlockingIOError):
            raise
        _wait_for_other(spool, goal, patience_seconds, error)


def _wait_for_other(spool: SqliteLog, goal: Ends, patience_seconds: float, error: LogError) -> None:
    deadline = time.monotonic() + patience_seconds
    while behind := count_backlog(spool, goal):
        if time.monotonic() > deadline:
            raise LogUnavailable(
                f"{behind:,} events of {spool.path} did not reach Kafka in {patience_seconds:g} s, "
                "and another process holds its shipper; look at that process's log, then try again"
            ) from error
        time.sleep(_LOOK_SECONDS)


def partitions(settings: Settings) -> dict[str, tuple[int, int | None]]:
    """Return topic -> (partitions needed, partitions present or None without the topic)."""
    log = connect(settings)
    try:
        wanted = {log.connection.topic(name): stream for name, stream in STREAMS.items()}
        with administration(log.connection, "looking at the topics") as admin:
            described = admin.describe_topics(list(wanted))
        counts = {
            topic["name"]: None if topic["error_code"] else len(topic["partitions"])
            for topic in described
        }
    finally:
        log.close()
    return {topic: (stream.partitions, counts.get(topic)) for topic, stream in wanted.items()}


def count_stream_bytes(log: KafkaLog) -> dict[str, int]:
    """Return stream -> bytes of its files on the brokers, with each partition counted once."""
    largest: dict[tuple[str, int], int] = {}
    with administration(log.connection, "asking for the size of the topics") as admin:
        folders = [folder for broker in admin.describe_log_dirs() for folder in broker["log_dirs"]]
    for folder in folders:
        if folder["error_code"]:
            raise LogUnavailable(
                f"the broker cannot read its folder {folder['log_dir']} (error "
                f"{folder['error_code']}); look at the broker's log"
            )
    for topic in (topic for folder in folders for topic in folder["topics"]):
        for partition in topic["partitions"]:
            at = (topic["name"], partition["partition_index"])
            largest[at] = max(largest.get(at, 0), partition["partition_size"])
    return {
        name: sum(
            size for (topic, _), size in largest.items() if topic == log.connection.topic(name)
        )
        for name in STREAMS
    }
