"""What answers is proven, on both engines: the right adapter passes, every planted fault is found.

The faults load without complaint, for their directories say nothing of themselves: the engine has
no means to know.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from daemon.adapters.fingerprint import EXACT, NotProven, OtherBase, distance
from daemon.serving.replica import Replica
from ops.random_adapters import Adapters
from ops.vllm.server import Vllm
from tests.daemon.serving.planted import FAULTS, Fault, load_adapter

BOTH = ["embedded", pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.timeout(900)])]


@pytest.fixture(params=BOTH)
def proving(request: pytest.FixtureRequest) -> Iterator[Replica]:
    """A replica of either engine; what a test loads is unloaded."""
    engine = request.getfixturevalue(request.param)
    url = engine.url if isinstance(engine, Vllm) else f"{engine.url}/v1"
    with Replica(url) as replica:
        yield replica
        for name in replica.list_models().adapters:
            replica.unload(name)


def test_every_version_is_proven_with_room_to_spare(proving: Replica, adapters: Adapters) -> None:
    proving.examine()
    assert proving.measure_tolerance(adapters.read_fingerprint("v1")) == EXACT
    for version, apart in (("v1", 0.1), ("v2", 0.1), ("v3", 0.1)):
        name = load_adapter(proving, adapters[version])
        proof = proving.prove(
            name, adapters.read_fingerprint(version), EXACT, adapters.others(version)
        )
        assert proof.distance < EXACT / 20
        assert proof.from_base > apart
    # The versions stand much nearer to each other than to their base.
    assert (
        distance(adapters.read_fingerprint("v1").adapter, adapters.read_fingerprint("v2").adapter)
        < 0.1
    )


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(proving: Replica, adapters: Adapters, plant: Fault) -> None:
    name, expected = plant(proving, adapters)
    with pytest.raises(NotProven, match=FAULTS[plant]):
        proving.prove(name, expected, EXACT, adapters.others("v2"))


def test_the_engine_of_another_base_is_found_before_anything_is_loaded(
    proving: Replica, adapters: Adapters
) -> None:
    with pytest.raises(OtherBase, match="serve the base that the adapter was trained on"):
        proving.measure_tolerance(adapters.read_fingerprint("strange"))


def test_a_fresh_adapter_cannot_be_told_from_its_base(proving: Replica, adapters: Adapters) -> None:
    name = load_adapter(proving, adapters["fresh"])
    with pytest.raises(NotProven, match="cannot be told from its base"):
        proving.prove(name, adapters.read_fingerprint("fresh"), EXACT)


@contextmanager
def busy(url: str, models: list[str], tokens: int = 64) -> Iterator[None]:
    """Clients that let each model write, one answer after the other."""
    stopping, begun = threading.Event(), threading.Barrier(len(models) + 1)

    def ask(client: httpx2.Client, model: str, number: int) -> None:
        body = {"model": model, "prompt": [300 + number] * 20, "max_tokens": tokens}
        client.post(f"{url}/completions", json=body | {"ignore_eos": True}).raise_for_status()

    def work(model: str, number: int) -> None:
        with httpx2.Client(timeout=300, trust_env=False) as client:
            ask(client, model, number)
            begun.wait()
            while not stopping.is_set():
                ask(client, model, number)

    threads = [threading.Thread(target=work, args=(one, n)) for n, one in enumerate(models)]
    for thread in threads:
        thread.start()
    begun.wait()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def test_a_proof_holds_while_others_are_answered(proving: Replica, adapters: Adapters) -> None:
    names = {version: load_adapter(proving, adapters[version]) for version in ("v1", "v2", "v3")}
    with busy(proving.url, [*names.values(), *names.values()]):
        for _ in range(3):
            for version, name in names.items():
                expected, others = adapters.read_fingerprint(version), adapters.others(version)
                proof = proving.prove(name, expected, EXACT, others)
                assert proof.distance < EXACT / 20
