"""Plain numbers tell Prometheus what the library's own metrics would, whoever asks meanwhile."""

import random
import threading
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics

from producers.gateway.metrics.counters import Count, Inside, Level, Spread

Encode = Callable[[CollectorRegistry], bytes]

BOUNDS = (0.0005, 0.01, 0.25, 1.0, 600.0)

disable_created_metrics()  # type: ignore[no-untyped-call]


def seconds() -> Iterator[float]:
    """Some within, some beyond, and each bound itself."""
    chance = random.Random(7)
    yield from BOUNDS
    yield from (0.0, 5e6)
    for _ in range(500):
        yield 10 ** chance.uniform(-5, 7)


@pytest.mark.parametrize("encode", [generate_latest, open_metrics])
def test_what_is_told_is_what_the_library_would_tell(encode: Encode) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    count = Count("calls", "Calls.", ("endpoint", "outcome"), ours)
    level = Level("at_seconds", "When.", ("stream",), ours)
    inside = Inside("in_flight", "Now.", ours)
    spread = Spread("took_seconds", "How long.", ("endpoint",), BOUNDS, ours)
    counter = Counter("calls", "Calls.", ("endpoint", "outcome"), registry=theirs)
    gauge = Gauge("at_seconds", "When.", ("stream",), registry=theirs)
    entered = Gauge("in_flight", "Now.", registry=theirs)
    histogram = Histogram(
        "took_seconds", "How long.", ("endpoint",), buckets=BOUNDS, registry=theirs
    )
    # Nothing was counted yet: the names are told all the same.
    assert encode(ours) == encode(theirs)
    for number, value in enumerate(seconds()):
        endpoint = ("chat", "messages")[number % 2]
        count.add(endpoint, "completed")
        counter.labels(endpoint, "completed").inc()
        level.say(value, "rollouts")
        gauge.labels("rollouts").set(value)
        spread.add(value, endpoint)
        histogram.labels(endpoint).observe(value)
    with inside, inside, entered.track_inprogress(), entered.track_inprogress():
        assert encode(ours) == encode(theirs)
    with pytest.raises(ValueError, match="left"), inside:
        raise ValueError("it is left however that comes about")
    assert ours.get_sample_value("in_flight") == 0


def test_who_asks_meanwhile_sees_it_grow_and_in_the_end_all() -> None:
    registry = CollectorRegistry()
    spread = Spread("took_seconds", "How long.", ("which",), BOUNDS, registry)
    count = Count("calls", "Calls.", ("which",), registry)
    times, new = 40_000, 20

    def add() -> None:
        for number in range(times):
            # Labels that nobody had before come up while somebody asks, too.
            which = str(number // new)
            spread.add(number / 1e4, which)
            count.add(which)

    thread = threading.Thread(target=add)
    thread.start()
    seen = [(0.0, 0.0)]
    while thread.is_alive():
        seen.append((total(spread, "took_seconds_count"), total(count, "calls_total")))
    thread.join()
    assert seen == sorted(seen)
    assert (total(spread, "took_seconds_count"), total(count, "calls_total")) == (times, times)


def total(tally: Count | Spread, name: str) -> float:
    """Of all labels."""
    (family,) = tally.collect()
    return sum(one.value for one in family.samples if one.name == name)
