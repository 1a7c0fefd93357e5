"""What a gateway says of itself: counted from real calls, and bounded whatever clients send."""

from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.conftest import Front, Fronted, fronting, post

HELLO = [{"role": "user", "content": "Hello"}]


def samples(front: Fronted) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What GET /metrics says, parsed by Prometheus' own parser."""
    answer = httpx2.get(f"{front.url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    found: list[Sample] = [
        sample
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    ]
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for one in found}


def labelled(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A series."""
    return name, tuple(sorted(labels.items()))


def test_what_happened_is_counted(front: Fronted, live: Live) -> None:
    post(front.url, messages=HELLO, max_tokens=2)
    post(front.url, messages=HELLO, max_tokens=2, stream=True)
    post(front.url, "/v1/completions", prompt="Hello", max_tokens=2)
    post(front.url, messages="none")
    httpx2.post(f"{front.url}/v1/chat/completions", content=b"{")
    httpx2.get(f"{front.url}/nowhere")
    post(front.url, "/v1/feedback", session="s", score=1)
    found = samples(front)
    calls = "kintsugi_gateway_calls_total"
    chat = {"endpoint": "chat", "recorded": "yes"}
    assert found[labelled(calls, outcome="completed", **chat)] == 2
    assert found[labelled(calls, outcome="failed", **chat)] == 1
    completions = {"endpoint": "completions", "outcome": "completed", "recorded": "yes"}
    assert found[labelled(calls, **completions)] == 1
    assert found[labelled("kintsugi_gateway_unattributed_calls_total")] == 4
    assert found[labelled("kintsugi_gateway_feedback_total")] == 1
    assert found[labelled("kintsugi_capture_rejected_total", status="400")] == 1
    assert found[labelled("kintsugi_capture_rejected_total", status="404")] == 1
    assert found[labelled("kintsugi_capture_dropped_total")] == 0
    assert found[labelled("kintsugi_capture_state", state="recording")] == 1
    assert found[labelled("kintsugi_gateway_calls_in_flight")] == 0
    for name in ("call_duration", "first_byte"):
        assert found[labelled(f"kintsugi_gateway_{name}_seconds_count", endpoint="chat")] == 3
    # What failed has no engine's part to subtract.
    overhead, took = (f"kintsugi_gateway_{name}_seconds" for name in ("overhead", "call_duration"))
    assert found[labelled(f"{overhead}_count", endpoint="chat")] == 2
    assert found[labelled(f"{overhead}_sum", endpoint="chat")] > 0
    ends = labelled(f"{overhead}_sum", endpoint="completions")
    assert found[ends] < found[labelled(f"{took}_sum", endpoint="completions")]
    assert found[labelled("kintsugi_log_last_append_timestamp_seconds", stream="rollouts")] > 1e9
    free, disk = (labelled(f"kintsugi_spool_disk_{name}bytes") for name in ("free_", ""))
    assert 0 < found[free] <= found[disk]
    for event in ("CallStarted", "CallEnded"):
        series = "kintsugi_log_append_duration_seconds_count"
        assert found[labelled(series, stream="rollouts", type=event)] == 4
    for name in ("well", "proven"):
        assert found[labelled(f"kintsugi_upstream_{name}", upstream=f"{live.url}/v1")] == 1
    assert found[labelled("kintsugi_spool_events", stream="rollouts")] == len(front.records())


@pytest.mark.long
def test_clients_cannot_make_it_grow(live: Live, front_over: Front) -> None:
    front = front_over(live.url)

    def ask(number: int) -> None:
        headers = {f"x-kintsugi-{field}": f"{field}-{number}" for field in ("session", "user")} | {
            "authorization": f"Bearer key-{number}~talk-{number}"
        }
        body = {"messages": HELLO, "model": f"model-{number}", "max_tokens": 1}
        httpx2.post(f"{front.url}/v1/chat/completions", json=body, headers=headers)
        httpx2.get(f"{front.url}/nowhere-{number}", headers=headers)

    ask(0)
    before = samples(front)
    for number in range(1, 500):
        ask(number)
    after = samples(front)
    assert after.keys() == before.keys()
    assert not any("-499" in repr(key) or "model-" in repr(key) for key in after)
    unknown = labelled(
        "kintsugi_gateway_calls_total", endpoint="chat", outcome="failed", recorded="yes"
    )
    assert after[unknown] == 500


@pytest.mark.parametrize("ships", [False, True])
def test_what_waits_for_kafka_is_said_where_kafka_gets_it(
    live: Live, tmp_path: Path, ships: bool
) -> None:
    with fronting(tmp_path, [live.url], ships=ships) as front:
        post(front.url, messages=HELLO, max_tokens=2)
        found = samples(front)
        assert found[labelled("kintsugi_spool_events", stream="rollouts")] == 2
        waiting = labelled("kintsugi_spool_unshipped_events", stream="rollouts")
        oldest = labelled("kintsugi_spool_oldest_unshipped_timestamp_seconds", stream="rollouts")
        assert (waiting in found, oldest in found) == (ships, ships)
        if not ships:
            return
        assert found[waiting] == 2
        recorded = min(record.recorded_ms for record in front.records())
        assert found[oldest] == recorded / 1000
        for partition, end in enumerate(front.log.end(ROLLOUTS.name)):
            front.log.store_ship_offset(ROLLOUTS.name, partition, end)
        shipped = samples(front)
        assert shipped[waiting] == 0
        assert oldest not in shipped


def test_a_log_that_refuses_is_seen(live: Live, tmp_path: Path) -> None:
    log = SqliteLog(tmp_path / "log.db")
    with fronting(tmp_path, [live.url], log=log) as front:
        log.close()
        post(front.url, messages=HELLO, max_tokens=2)
        found = samples(front)
        assert found[labelled("kintsugi_spool_readable")] == 0
        assert found[labelled("kintsugi_capture_state", state="refused")] == 1
        assert found[labelled("kintsugi_capture_state", state="recording")] == 0
        assert found[labelled("kintsugi_capture_dropped_total")] == 1
        dropped = {"endpoint": "chat", "outcome": "completed", "recorded": "no"}
        assert found[labelled("kintsugi_gateway_calls_total", **dropped)] == 1
