"""Real services for the roles of a place: Kafka, PostgreSQL with the current tables, and vLLM.

Each has its address from the place's configuration and keeps its data in the place's folder, so a
stopped place continues. All end with this process, also after SIGKILL.
"""

import tomllib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from events.errors import KintsugiError
from ops.demo.children import CROWD, Programs
from ops.demo.place import Place, PlaceConflict
from ops.isolated import InstallError
from ops.kafka.broker import Broker, BrokerError
from ops.kafka.jars import BrokerUnavailable
from ops.postgres.server import Postgres, PostgresError, PostgresUnavailable
from ops.processes import run_kintsugi
from ops.vllm.server import Vllm

BASE: Final = "reference"
LENGTH: Final = 1024
"""Context length in tokens: the reference policy's limit."""


ROLES: Final[Programs] = {
    "consume": ("daemon", "consume"),
    "ship": ("daemon", "ship"),
    "gateway": ("daemon", "gateway"),
    "schedule": ("daemon", "schedule"),
    "work": ("daemon", "work"),
    "crowd": CROWD,
}
"""Roles in starting order. They end in reverse: the gateway before its records' shipper."""


class ServiceError(KintsugiError):
    """A service is not installed or does not start."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the services of a home."""

    kafka: str
    database: str
    engine: str
    checkpoint: Path

    @classmethod
    def of(cls, place: Place) -> Self:
        """Read the addresses from a place's configuration. Raise PlaceConflict."""
        document: dict[str, Any] = tomllib.loads(place.config.read_text())
        if "kafka_bootstrap_servers" not in document:
            raise PlaceConflict(
                f"{place.home} is a home without services, as make demo has; name another with "
                "--home"
            )
        kafka, database = document["kafka_bootstrap_servers"], document["database_url"]
        (engine,) = document["upstreams"]
        return cls(kafka, database, engine["url"], Path(engine["checkpoint"]))


class Services:
    """Kafka, PostgreSQL and vLLM of one home; they run until the block ends."""

    def __init__(self, place: Place) -> None:
        """Prepare the services; start none. Raise PlaceConflict for a home without services."""
        self._place = place
        self._started = ExitStack()
        at = Addresses.of(place)
        # PostgreSQL refuses root, and its own user must be able to reach its data.
        self.broker = Broker(place.home / "kafka", port=_port(at.kafka))
        self.postgres = Postgres(place.home / "postgres", port=_port(at.database))
        self._database = urlsplit(at.database).path.removeprefix("/")
        self.engine = Vllm(
            at.checkpoint, BASE, place.home / "vllm", port=_port(at.engine),
            flags=(f"--max-model-len={LENGTH}",), mended=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        """Start the services one by one. Raise ServiceError."""
        with ExitStack() as started:
            try:
                started.enter_context(self.broker)
                started.enter_context(self.postgres)
                self.postgres.database(self._database)
                self._migrate()
                started.enter_context(self.engine)
            except (
                BrokerUnavailable, BrokerError, PostgresUnavailable, PostgresError, InstallError,
                OSError,
            ) as error:  # fmt: skip
                raise ServiceError(f"{error}") from error
            self._started = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._started.close()

    def _migrate(self) -> None:
        done = run_kintsugi(["db", "upgrade"], self._place.variables)
        if done.returncode != 0:
            raise ServiceError(done.stderr.strip())


def _port(address: str) -> int:
    port = urlsplit(address if "://" in address else f"//{address}").port
    assert port is not None, "the place was made with one"
    return port
