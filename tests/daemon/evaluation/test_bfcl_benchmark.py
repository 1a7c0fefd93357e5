"""`kintsugi bench bfcl` against a real server: figures by either verdict, what a folder lacks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.bfcl.classes import NoBfclClasses, require
from tests.conftest import missing
from tests.daemon.commands import Result
from tests.daemon.conftest import Kintsugi
from tests.envs.bfcl.files import LOOK, MOVE, answers_of, cases_of, write_folder
from tests.envs.model_server import Answering, Json, ModelServer, refused, said


@pytest.fixture(autouse=True)
def classes() -> None:
    """BFCL's classes, which `make components` installs."""
    try:
        require()
    except NoBfclClasses as error:
        missing(str(error))


@pytest.fixture
def benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one case of each category."""
    folder = write_folder(tmp_path / "benchmarks")
    monkeypatch.setenv("KINTSUGI_BENCHMARKS", str(folder))
    return folder


class Bench:
    """Runs the command against a server of its own."""

    def __init__(self, kintsugi: Kintsugi) -> None:
        self.kintsugi = kintsugi
        self.requests: list[Json] = []
        """What the last server was asked."""

    def __call__(self, answering: Answering, *arguments: str) -> Result:
        with ModelServer(answering) as server:
            result = self.kintsugi(
                "bench", "bfcl", "--base-url", server.url, "--model", "small", "--retries", "0",
                *arguments, "--json",
            )  # fmt: skip
        self.requests = server.requests
        return result


@pytest.fixture
def bench(kintsugi: Kintsugi, home: Path, benchmarks: Path) -> Bench:
    """The command with a home and a folder of its own."""
    return Bench(kintsugi)


def calling(*calls: tuple[str, Json]) -> Json:
    """A message with these calls."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (name, arguments) in enumerate(calls)
        ],
    }


GOLD = calling(("mv", {"source": "notes.txt", "destination": "old"}), ("mean", {"numbers": [2, 4]}))


def eager(body: Json) -> Json:
    """Right in every turn, but makes the calls as soon as it has the tools: too early where a
    parameter is missing."""
    messages = body["messages"]
    if messages[-1]["role"] == "tool":
        return said("That is done.")
    if messages[-1]["content"] == LOOK:
        return calling(("ls", {}))
    if "mv" not in [tool["function"]["name"] for tool in body["tools"]]:
        return said("I have no tool for that.")
    before = [call for message in messages for call in message.get("tool_calls") or ()]
    done = "mv" in [call["function"]["name"] for call in before]
    return calling(("ls", {})) if done else GOLD


def idle(_: Json) -> Json:
    return said("I do nothing.")


def values(result: Any, rule: str) -> dict[str, float]:
    """Category -> pass^1 by a rule, and overall."""
    groups = {**result["per_category"], "overall": result}
    return {name: group[rule]["1"]["value"] for name, group in groups.items()}


def test_the_rows_are_the_categories_by_the_official_verdict_and_the_strict_one(
    bench: Bench,
) -> None:
    result = bench(eager)
    assert result.code == 0, result.err
    right = {"base": 1.0, "miss_func": 1.0, "miss_param": 1.0, "long_context": 1.0}
    assert values(result.json, "official") == {**right, "overall": 1.0}
    assert values(result.json, "strict") == {**right, "miss_param": 0.0, "overall": 0.75}
    assert (result.json["tasks"], result.json["trials"], result.json["missing"]) == (4, 1, {})
    assert result.json["do_nothing"]["official"]["value"] == 0.0


def test_it_samples_as_bfcl_does_and_sends_no_system_prompt(bench: Bench) -> None:
    bench(eager)
    sampled = {(body["temperature"], body["max_tokens"]) for body in bench.requests}
    assert sampled == {(0.001, 4096)}
    assert {body["messages"][0]["role"] for body in bench.requests} == {"user"}


def test_doing_nothing_is_worth_nothing(bench: Bench) -> None:
    result = bench(idle, "--trials", "2")
    assert set(values(result.json, "official").values()) == {0.0}
    assert set(result.json["official"]) == {"1", "2"}


def test_a_case_that_is_cut_off_in_its_last_turn_is_judged_by_what_was_done(
    bench: Bench,
) -> None:
    def restless(body: Json) -> Json:
        answer = eager(body)
        last_turn = any(message["content"] == MOVE for message in body["messages"])
        return calling(("ls", {})) if last_turn and not answer.get("tool_calls") else answer

    result = bench(restless, "--category", "base")
    assert result.json["terminations"] == {"max_steps": 1}
    assert values(result.json, "official") == {"base": 1.0, "overall": 1.0}
    assert values(result.json, "strict") == {"base": 0.0, "overall": 0.0}


@pytest.mark.parametrize("locate", [cases_of, answers_of])
def test_a_category_that_the_folder_lacks_is_named_and_the_others_are_played(
    bench: Bench, benchmarks: Path, locate: Callable[[Path, str], Path]
) -> None:
    locate(benchmarks, "long_context").unlink()
    result = bench(eager)
    assert result.code == 3
    assert "the category long_context is left out" in result.err
    assert list(result.json["missing"]) == ["long_context"]
    assert set(result.json["per_category"]) == {"base", "miss_func", "miss_param"}
    assert values(result.json, "official")["overall"] == 1.0


def test_a_folder_without_any_category_fails(bench: Bench, benchmarks: Path) -> None:
    for path in (benchmarks / "bfcl").glob("BFCL_*"):
        path.unlink()
    result = bench(eager)
    assert (result.code, result.out) == (1, "")
    assert "KINTSUGI_BENCHMARKS" in result.err


def test_the_same_command_plays_what_is_missing_and_nothing_again(bench: Bench) -> None:
    dead = iter(range(1_000_000))

    def dying(body: Json) -> Any:
        return eager(body) if next(dead) < 6 else refused(500, "out of memory")

    first = bench(dying, "--concurrency", "1")
    assert first.code == 3
    assert first.json["unjudged"] > 0
    again = bench(eager, "--concurrency", "1")
    assert (again.code, again.json["unjudged"]) == (0, 0)
    assert values(again.json, "official")["overall"] == 1.0


def test_an_unknown_category_is_wrong_usage(bench: Bench) -> None:
    result = bench(eager, "--category", "composite")
    assert result.code == 2
    assert "composite" in result.err
