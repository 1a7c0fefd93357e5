"""The reference policy behind both engines, and homes over them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.serving.replica import Replica
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.serving.homes import Home, Restartable

MakeHome = Callable[..., Home]


@pytest.fixture(scope="module")
def embedded() -> Iterator[Live]:
    """The embedded engine over the reference policy."""
    policy = Policy.load(CHECKPOINT, "reference")
    with listening(policy, Chat(CHECKPOINT), slots=24) as live:
        yield live


@pytest.fixture
def replica(embedded: Live) -> Iterator[Replica]:
    """That engine as a replica; what a test loads it need not unload."""
    with Replica(f"{embedded.url}/v1") as replica:
        yield replica
        for name in replica.list_models().adapters:
            replica.unload(name)


@pytest.fixture(scope="session")
def reference() -> tuple[Policy, Chat]:
    """The reference policy and its tokenizer, for engines that come and go."""
    return Policy.load(CHECKPOINT, "reference"), Chat(CHECKPOINT)


@pytest.fixture
def make_home(tmp_path: Path, reference: tuple[Policy, Chat]) -> Iterator[MakeHome]:
    """Make a home over so many embedded engines."""
    with ExitStack() as stack:

        def make(engines: int = 1, folder: str = "home", **settings: Any) -> Home:
            started = [Restartable(*reference) for _ in range(engines)]
            for one in started:
                stack.callback(one.stop)
            home = Home(tmp_path / folder, started, **settings)
            stack.callback(home.close)
            return home

        yield make
