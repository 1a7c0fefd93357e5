"""`kintsugi bench reflection` against a real server: figures, refusals, going on after a kill."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from daemon.methods.lessons.reflection_benchmark import render
from events.messages import ToolCall
from tests.daemon.commands import Result, start, write_lines
from tests.daemon.conftest import Kintsugi
from tests.envs.model_server import Answering, Json, ModelServer, answer, called, refused, said
from tests.envs.reflection.test_parse import tagged

FLAT = tagged("cancel", order="#1")
NESTED = tagged("refund", items=["lamp", "desk"])
GOLD = {"argument": f"<reflect>It was null.</reflect>\n\n{FLAT}", "swap": NESTED}
Bench = Callable[..., Result]


def item(operator: str, number: int = 0) -> Json:
    messages = [
        {"role": "system", "content": "# Tools"},
        {"role": "user", "content": f"{operator} {number}"},
        {"role": "assistant", "content": tagged("cancel", order=None)},
        {"role": "user", "content": 'Tool response:\n[{"status": "error"}]'},
    ]
    return {"messages": messages, "ground_truth": GOLD[operator], "operator": operator}


@pytest.fixture
def bench(kintsugi: Kintsugi, home: Path, tmp_path: Path) -> Bench:
    def run(server: ModelServer | str, lines: list[Any], *arguments: str) -> Result:
        path = write_lines(tmp_path / "items.jsonl", *lines)
        url = server if isinstance(server, str) else server.url
        common = ["--base-url", url, "--model", "small", "--retries", "0"]
        return kintsugi("bench", "reflection", path, *common, *arguments)

    return run


def asked_for(body: Json) -> str:
    """The operator of the item that a request is about."""
    return str(body["messages"][1]["content"].split()[0])


def gold(body: Json) -> Json:
    return said(GOLD[asked_for(body)])


def sometimes(right: int, of: int) -> Answering:
    """Right in the first so many requests of each item, and then wrong for as long."""
    lock, asked = Lock(), Counter[str]()

    def answering(body: Json) -> Json:
        key = body["messages"][1]["content"]
        with lock:
            asked[key] += 1
            number = asked[key]
        return gold(body) if (number - 1) % of < right else said("No.")

    return answering


def test_gold_passes_and_the_official_rule_refuses_lists(bench: Bench) -> None:
    with ModelServer(gold) as server:
        result = bench(server, [item("argument"), item("swap")], "--json")
    assert result.code == 0, result.err
    found = result.json
    assert (found["n"], found["samples"], found["dialect"]) == (2, 8, "qwen")
    assert set(found["mended"]["repair_at"]) == {"1", "3", "5"}
    assert found["mended"]["repair_at"]["1"]["value"] == 1.0
    assert found["official"]["repair_at"]["5"]["value"] == 0.5
    assert found["gold"] == {"official": 0.5, "mended": 1.0}
    assert found["per_operator"]["argument"]["official"]["any_of"]["1"]["value"] == 1.0
    assert found["per_operator"]["swap"]["official"]["average"] == 0.0
    assert (found["unjudged"], found["failures"]) == (0, {})
    body = server.requests[0]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.7, 0.9, 1024)
    assert "tools" not in body
    assert len({body["seed"] for body in server.requests}) == 16


def test_repairs_are_estimated_from_all_samples_and_officially_from_the_first(
    bench: Bench,
) -> None:
    """3 of 8 right, the first three: 1 - C(5, k) / C(8, k), and 1 for any of the first k."""
    with ModelServer(sometimes(3, 8)) as server:
        found = bench(server, [item("argument")], "--concurrency", "1", "--json").json
    values = {k: entry["value"] for k, entry in found["mended"]["repair_at"].items()}
    assert values == pytest.approx({"1": 3 / 8, "3": 1 - 10 / 56, "5": 1 - 1 / 56})
    assert {k: entry["value"] for k, entry in found["mended"]["any_of"].items()} == {
        "1": 1.0, "3": 1.0, "5": 1.0,
    }  # fmt: skip
    assert found["official"]["average"] == 3 / 8
    interval = found["mended"]["repair_at"]["1"]
    assert interval["low"] < 3 / 8 < interval["high"]


def test_the_table_has_a_row_for_each_rule_and_operator(bench: Bench) -> None:
    with ModelServer(gold) as server:
        shown = bench(server, [item("argument"), item("swap")], "--samples", "3").out
    rows = [line.split()[:3] for line in shown.splitlines()]
    assert ["all", "official", "2"] in rows
    assert ["swap", "mended", "1"] in rows
    assert "Repair@3" in shown
    assert "Repair@5" not in shown
    assert "50.0% of the items" in shown


def test_calls_that_the_endpoint_took_out_of_the_text_count(bench: Bench) -> None:
    with ModelServer(lambda _: called("cancel", {"order": "#1"})) as server:
        found = bench(server, [item("argument")], "--samples", "1", "--json").json
    assert found["official"]["repair_at"]["1"]["value"] == 1.0
    call = ToolCall(name="f", arguments={"a": 1})
    assert render("So:", (call, call), "llama").startswith(
        'So:\n[{"name": "f", "parameters": {"a": 1}}, '
    )
    broken = ToolCall(name="f", arguments="{")
    assert (
        render("", (broken,), "qwen") == '<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>'
    )


def test_a_model_named_llama_is_read_in_its_own_form(bench: Bench) -> None:
    text = '[{"name": "f", "parameters": {"a": 1}}]'
    line = {**item("swap"), "ground_truth": {"content": text}}
    with ModelServer(lambda _: said(text)) as server:
        found = bench(server, [line], "--model", "Llama-3", "--samples", "1", "--json").json
        other = bench(server, [line], "--samples", "1", "--json").json
    assert (found["dialect"], found["official"]["repair_at"]["1"]["value"]) == ("llama", 1.0)
    assert (other["dialect"], other["mended"]["repair_at"]["1"]["value"]) == ("qwen", 1.0)


def test_a_sample_without_an_answer_is_wrong(bench: Bench) -> None:
    def overflow(_: Json) -> Any:
        return refused(400, "the prompt is too long for this context length")

    with ModelServer(overflow) as server:
        found = bench(server, [item("argument")], "--samples", "2", "--json").json
    assert found["failures"] == {"context_window_exceeded": 2}
    assert found["mended"]["repair_at"]["1"]["value"] == 0.0


def test_what_machines_spoil_is_unjudged_and_asked_for_again(bench: Bench) -> None:
    lock, left = Lock(), [2]

    def busy(body: Json) -> Any:
        with lock:
            left[0] -= 1
            spoilt = left[0] >= 0
        return refused(503, "busy") if spoilt else gold(body)

    lines = [item("argument", number) for number in range(3)]
    with ModelServer(busy) as server:
        first = bench(server, lines, "--samples", "2", "--concurrency", "1", "--json")
        second = bench(server, lines, "--samples", "2", "--json")
        asked = len(server.requests)
    assert (first.code, first.json["unjudged"]) == (3, 2)
    assert first.json["mended"]["repair_at"] == {}
    assert "line 1, sample 0" in first.err
    assert "HTTP 503" in first.err
    assert (second.code, second.json["unjudged"], asked) == (0, 0, 8)
    assert "4 answers of this run are in" in second.err


def test_a_complete_run_asks_for_nothing_unless_it_is_to_be_fresh(bench: Bench) -> None:
    with ModelServer(gold) as server:
        first = bench(server, [item("argument")], "--samples", "1", "--json").json
        again = bench(server, [item("argument")], "--samples", "1", "--json").json
        assert len(server.requests) == 1
        assert again == first
        bench(server, [item("argument")], "--samples", "2")
        assert len(server.requests) == 2
        bench(server, [item("argument")], "--samples", "2", "--temperature", "0")
        assert len(server.requests) == 4
        bench(server, [item("argument")], "--samples", "2", "--fresh")
        assert len(server.requests) == 6


def test_an_endpoint_that_is_away_is_unavailable(bench: Bench) -> None:
    result = bench("http://127.0.0.1:1/v1", [item("argument")])
    assert (result.code, result.out) == (4, "")
    assert "127.0.0.1:1" in result.err
    assert result.err.count("\n") == 1


def test_an_endpoint_that_only_fails_ends_the_run_and_not_its_answers(bench: Bench) -> None:
    lock, count = Lock(), [0]

    def dying(body: Json) -> Any:
        with lock:
            count[0] += 1
            alive = count[0] <= 3
        return gold(body) if alive else refused(500, "out of memory")

    lines = [item("argument", number) for number in range(20)]
    arguments = ["--samples", "1", "--concurrency", "1", "--json"]
    with ModelServer(dying) as server:
        result = bench(server, lines, *arguments)
        assert (result.code, result.out, len(server.requests)) == (4, "", 13)
        assert "10 requests in a row failed" in result.err
        count[0] = -1000
        again = bench(server, lines, *arguments)
    assert (again.code, again.json["n"], len(server.requests)) == (0, 20, 13 + 17)


def test_a_model_that_the_endpoint_does_not_know_is_wrong_usage(bench: Bench) -> None:
    with ModelServer(lambda _: refused(404, "no such model")) as server:
        result = bench(server, [item("argument")])
    assert result.code == 2
    assert "correct the base URL" in result.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--extra", '{"top_k": NaN}'),
        ("--extra", '{"top_k": 1e999}'),
        ("--extra", "[1]"),
        ("--extra", "[" * 10_000),
        ("--temperature", "nan"),
        ("--temperature", "-1"),
        ("--top-p", "2"),
        ("--samples", "0"),
        ("--dialect", "mistral"),
    ],
)
def test_an_option_that_cannot_be_meant_is_wrong_usage(
    bench: Bench, option: str, value: str
) -> None:
    with ModelServer(gold) as server:
        result = bench(server, [item("argument")], option, value)
    assert (result.code, result.out, server.requests) == (2, "", [])
    assert option in result.err


def test_a_home_that_cannot_be_made_is_unavailable(bench: Bench) -> None:
    with ModelServer(gold) as server:
        result = bench(server, [item("argument")], "--home", "/dev/null/home")
    assert (result.code, result.out, server.requests) == (4, "", [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("text", "is no JSON object"),
        ({"messages": []}, "has no text as ground_truth"),
        ({"messages": [], "ground_truth": ""}, "has no messages"),
        ({"messages": [{"role": "tool"}], "ground_truth": ""}, "whose role is none of"),
        ({"messages": [{"role": "user", "content": 1}], "ground_truth": ""}, "is no text"),
    ],
)
def test_a_damaged_line_is_named_and_left_out(bench: Bench, line: Any, reason: str) -> None:
    with ModelServer(gold) as server:
        result = bench(server, [item("argument"), line], "--samples", "1", "--json")
        alone = bench(server, [line])
    assert (result.code, result.json["n"]) == (3, 1)
    assert "items.jsonl, line 2" in result.err
    assert reason in result.err
    assert (alone.code, alone.out) == (2, "")
    assert reason in alone.err


def test_a_damaged_file_of_answers_is_named_with_the_remedy(bench: Bench, home: Path) -> None:
    with ModelServer(gold) as server:
        bench(server, [item("argument")], "--samples", "2")
        (path,) = (home / "evaluations").glob("reflection-*.jsonl")
        assert path.stat().st_mode & 0o077 == 0
        whole = path.read_bytes()
        path.write_bytes(whole[:-5])
        torn = bench(server, [item("argument")], "--samples", "2", "--json")
        assert (torn.code, len(server.requests)) == (0, 3)
        path.write_bytes(b"{}\n" + whole)
        result = bench(server, [item("argument")], "--samples", "2")
    assert (result.code, result.out) == (1, "")
    assert f"{path}, line 1" in result.err
    assert "remove the file" in result.err


@pytest.mark.faults
def test_a_run_goes_on_at_the_address_that_its_endpoint_moved_to(bench: Bench) -> None:
    lines = [item("argument", number) for number in range(4)]
    with ModelServer(gold) as first:
        assert bench(first, lines, "--samples", "1", "--json").code == 0
    with ModelServer(gold) as second:
        more = ["--samples", "2", "--moved-from", first.url, "--json"]
        assert bench(second, lines, *more).code == 0
    assert len(second.requests) == 4


def test_a_killed_run_goes_on_with_the_next_answer(
    bench: Bench, home: Path, tmp_path: Path
) -> None:
    lines = [item("argument", number) for number in range(10)]
    arguments = ["--samples", "2", "--concurrency", "2", "--json"]

    def slowly(body: Json) -> Any:
        time.sleep(0.05)
        return answer(gold(body))

    with ModelServer(slowly) as server:
        path = write_lines(tmp_path / "items.jsonl", *lines)
        command = ["bench", "reflection", str(path)]
        command += ["--base-url", server.url, "--model", "small", *arguments]
        with start(command, {"KINTSUGI_HOME": str(home)}, cwd=tmp_path) as process:
            deadline = time.monotonic() + 60
            while len(server.requests) < 8 and time.monotonic() < deadline:
                time.sleep(0.005)
            os.kill(process.pid, signal.SIGKILL)
        before = len(server.requests)
        (stored,) = (home / "evaluations").glob("reflection-*.jsonl")
        kept = sum(1 for line in stored.read_bytes().splitlines() if json.loads(line)["text"])
        result = bench(server, lines, *arguments)
        asked = len(server.requests) - before
    assert (result.code, result.json["n"], result.json["unjudged"]) == (0, 10, 0)
    assert kept >= 4
    assert asked == 20 - kept


@pytest.mark.benchmarks
def test_items_of_the_benchmark_itself_are_read(
    kintsugi: Kintsugi, home: Path, benchmarks: Path
) -> None:
    path = benchmarks / "tool_reflection_bench" / "sample_2_items.jsonl"
    golds = [json.loads(line) for line in path.read_text().splitlines()]
    by_request = {item["messages"][1]["content"]: item["ground_truth"] for item in golds}
    with ModelServer(lambda body: said(by_request[body["messages"][1]["content"]])) as server:
        common = ["--base-url", server.url, "--model", "qwen", "--samples", "1", "--json"]
        found = kintsugi("bench", "reflection", path, *common).json
    assert found["official"]["repair_at"]["1"]["value"] == 0.5
    assert found["mended"]["repair_at"]["1"]["value"] == 1.0
    assert (found["gold"], found["per_operator"]) == ({"official": 0.5, "mended": 1.0}, {})
