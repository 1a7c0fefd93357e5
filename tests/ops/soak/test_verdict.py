"""From samples to sentences: what is planted is named, and what grows on purpose is not."""

import io
import json
from random import Random

from rich.console import Console

from ops.soak.__main__ import show
from ops.soak.sampling import Process, Sample
from ops.soak.verdict import SoakVerdict, judge_samples

SECONDS = 7200.0
KILLED = 1200.0


def taken(
    *, leak: float = 0.0, handles: float = 0.0, lag: float = 0.0, wal: float = 64.0
) -> SoakVerdict:
    """Two hours of a gateway that is killed every twenty minutes, beside an engine that is not;
    what the gateway leaks, and what the folds fall behind, per hour; and how far the log's own
    log fills up."""
    chance, samples = Random(1), list[Sample]()
    for number in range(int(SECONDS / 10)):
        at = number * 10.0
        life, age = divmod(at, KILLED)
        gateway = Process(
            100 + int(life), age, 80 + leak * age / 3600 + chance.gauss(0, 0.3), 100.0,
            30 + int(handles * age / 3600), 8,
        )  # fmt: skip
        engine = Process(7, at, 560 + chance.gauss(0, 2), 900.0, 11, 4)
        events = 8 * at
        figures = {"log events": events, "log disk": events / 500, "fold lag": lag * at / 3600}
        figures["log WAL"] = min(wal, at / 20)
        samples.append(Sample(at, {"gateway": gateway, "engine": engine}, figures))
    return judge_samples(samples, SECONDS)


def test_a_stack_in_order_is_flat_and_its_log_grows_on_purpose() -> None:
    found = taken()
    assert found.grows == found.unknown == []
    assert found.roles["gateway"]["memory"].lives == 6
    assert found.growing["log disk"]["last third, per 1,000 events"] == 2.0


def test_each_planted_leak_is_named_with_its_role() -> None:
    (said,) = taken(leak=80.0).grows
    assert said.startswith("gateway: memory grows with its age by 8")
    (said,) = taken(handles=60.0).grows
    assert said.startswith("gateway: handles grows")


def test_what_fills_up_may_do_so_to_its_bound() -> None:
    assert taken(wal=100.0).grows == []
    assert taken(wal=130.0).grows == ["log WAL was 130, more than 128"]


def test_a_lag_may_not_grow_with_the_traffic() -> None:
    """The traffic is 28,800 events an hour."""
    assert taken(lag=100.0).grows == []
    (said,) = taken(lag=1000.0).grows
    assert said.startswith("fold lag grows with its age by 1")


def test_the_table_has_every_figure_and_says_what_grows() -> None:
    found = taken(leak=80.0)
    document = {**found.document(), "grows": found.grows, "wrong": ["a call is lost"]}
    written = Console(file=io.StringIO(), width=160)
    show(json.loads(json.dumps(document)), written)
    assert isinstance(written.file, io.StringIO)
    said = written.file.getvalue()
    for name in ("gateway: memory", "engine: handles", "fold lag", "log disk", "a call is lost"):
        assert name in said
    assert "grows (bound 40)" in said
    assert "gateway: memory grows with its age by" in said
