"""The real services of the tests, and what happens where one is missing.

A broker and a PostgreSQL server are started once per session, by the first test that asks for one;
each process of pytest-xdist is a session of its own.
Without the component a test is skipped with the remedy as its reason; where CI=true it fails, so a
green run there means that everything ran.
"""

import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from sqlalchemy import Engine

from consumers.database import open_database
from events.streams import STREAMS
from migrations.upgrade import upgrade
from ops.isolated import InstallError
from ops.postgres.server import Postgres, PostgresUnavailable
from ops.ray.head import Head

with warnings.catch_warnings():
    # kafka-python reads its schemas with a deprecated function while it is imported, and our tests
    # turn warnings into errors.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from events.kafka.log import KafkaLog
    from ops.kafka.broker import Broker
    from ops.kafka.jars import BrokerUnavailable

pytest_plugins = ("ops.proofs.plugin", "tests.sharing")

# No test judges how long something takes: another program on the machine would decide.
hypothesis_settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("untimed")

BENCHMARKS = "KINTSUGI_BENCHMARKS"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background so, and every process of a test would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def missing(reason: str) -> None:
    """Skip for want of a component; fail where everything has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"with CI=true nothing may be skipped: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """The session's broker. A test that stops, kills or wipes it must start it again, and one
    that cannot promise that makes a Broker of its own."""
    with _running_broker() as started:
        yield started


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """A broker for a module whose programs use the topics' real names, and so share with nobody."""
    with _running_broker() as started:
        yield started


@contextmanager
def _running_broker() -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="kintsugi-broker-") as folder:
        started = Broker(Path(folder))
        try:
            started.start()
            yield started
        except BrokerUnavailable as error:
            missing(str(error))
        finally:
            # Also of a start that failed.
            started.kill()


@pytest.fixture
def kafka_topics() -> dict[str, str]:
    """Stream -> a topic name of this test's own, so that tests share no data."""
    suffix = uuid4().hex[:12]
    return {stream.name: f"{stream.topic}.{suffix}" for stream in STREAMS.values()}


@pytest.fixture
def kafka_log(broker: Broker, kafka_topics: dict[str, str]) -> Iterator[KafkaLog]:
    """A log on fresh topics of the session's broker."""
    broker.start()
    log = KafkaLog(broker.bootstrap, topics=kafka_topics, replication=1)
    log.ensure_topics()
    yield log
    log.close()


def _find_memory() -> str | None:
    """Return the folder of a file system in memory with 2 GiB free, or None.

    PostgreSQL copies a thousand files for each database.
    """
    memory = Path("/dev/shm")
    usable = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    return str(memory) if usable else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The session's server, without fsync; a test of faults makes a Postgres of its own."""
    # Directly below a shared folder: pytest's own folders are closed to the user postgres.
    with tempfile.TemporaryDirectory(prefix="kintsugi-postgres-", dir=_find_memory()) as folder:
        started = Postgres(Path(folder), fsync=False)
        try:
            started.start()
        except PostgresUnavailable as error:
            missing(str(error))
        yield started
        started.kill()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """SQLAlchemy URL of an empty database of this test's own."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def ray() -> Iterator[Head]:
    """The session's Ray cluster, which hands out two CPUs and one GPU that is none."""
    # Directly below the temporary folder, for the path of a socket.
    with tempfile.TemporaryDirectory(prefix="kintsugi-ray-") as folder:
        head = Head(Path(folder), cpus=2, gpus=1)
        try:
            head.start()
        except InstallError as error:
            missing(str(error))
        yield head
        head.stop()


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> str:
    """The name of a database that was brought to this version: a copy of it takes a sixth of the
    time of one."""
    name = "migrated"
    opened = open_database(postgres.create_database(name))
    upgrade(opened)
    # PostgreSQL copies no database to which somebody is connected.
    opened.dispose()
    return name


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty migrated projection database, once per kind."""
    if request.param == "sqlite":
        opened = open_database(f"sqlite:///{tmp_path / 'projection.db'}")
        upgrade(opened)
        yield opened
        opened.dispose()
    else:
        server: Postgres = request.getfixturevalue("postgres")
        template = request.getfixturevalue("migrated_postgres")
        url = server.create_database(template=template)
        opened = open_database(url)
        yield opened
        opened.dispose()
        server.drop_database(url)


@pytest.fixture(scope="session")
def benchmarks() -> Path:
    """The folder of real benchmark data. Tests that use it are marked `benchmarks`."""
    folder = os.environ.get(BENCHMARKS)
    if not folder:
        pytest.fail(f"a test that asks for benchmarks needs the mark, or {BENCHMARKS} set")
    if not Path(folder).is_dir():
        pytest.fail(f"{BENCHMARKS}={folder} is no folder", pytrace=False)
    return Path(folder)


DESELECTED = pytest.StashKey[int]()
_OUTPUT = "deselected"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("benchmarks")]
    if os.environ.get(BENCHMARKS) or not marked:
        return
    config.stash[DESELECTED] = len(marked)
    config.hook.pytest_deselected(items=marked)
    items[:] = [item for item in items if item not in marked]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_OUTPUT] = session.config.stash.get(DESELECTED, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every process of pytest-xdist leaves out the same; one that crashed leaves no word."""
    output = getattr(node, "workeroutput", None)
    if output is not None:
        node.config.stash[DESELECTED] = output[_OUTPUT]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With real data at hand a benchmark test may not skip: it would look like a pass."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and os.environ.get(BENCHMARKS) and item.get_closest_marker("benchmarks"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped although {BENCHMARKS} is set: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """The outermost wrapper writes last, below pytest's own list of skips."""
    yield
    deselected = config.stash.get(DESELECTED, 0)
    if deselected:
        terminalreporter.write_line(
            f"benchmark tests that did not run: {deselected} ({BENCHMARKS} is not set)"
        )
