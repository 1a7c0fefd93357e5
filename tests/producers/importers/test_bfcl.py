"""BFCL results become rollouts; model text is parsed and never run."""

from pathlib import Path
from typing import Any

import pytest

from events.messages import Action, executed_calls
from producers.importers.bfcl_conversation import parse_call, parse_calls
from tests.producers.samples import bfcl_result, only, read, without, write

SUMMARY = {"accuracy": 0.5, "correct_count": 1, "total_count": 2}
FAILURE = {
    "id": "multi_turn_base_3",
    "model_name": "model-c",
    "valid": False,
    "possible_answer": [["ls(a=True)"], ["sort('f', reverse=False)"]],
}


def test_a_result_alone_is_not_judged(tmp_path: Path) -> None:
    data = only(write(tmp_path / "BFCL_v4_multi_turn_base_result.json", bfcl_result())).data
    assert (data.source, data.base, data.success, data.grader) == ("bfcl", "unknown", None, None)
    assert data.task is not None
    assert (data.task.id, data.task.capability) == ("multi_turn_base_3", "multi_turn_base")
    assert data.task.instruction == "Sort f."
    assert data.content is not None
    assert [
        (call.call.name, call.call.arguments, call.failed)
        for call in executed_calls(data.content.messages)
    ] == [("ls", {}, True), ("sort", {"0": "f", "reverse": True}, False)]


@pytest.mark.parametrize("folders", [("result/m", "score/m"), ("x", "x")])
def test_the_score_file_judges_its_result_file(tmp_path: Path, folders: tuple[str, str]) -> None:
    name = "BFCL_v4_multi_turn_base_{}.json"
    results = [bfcl_result(), bfcl_result(id="multi_turn_base_4")]
    write(tmp_path / folders[0] / name.format("result"), *results)
    write(tmp_path / folders[1] / name.format("score"), SUMMARY, FAILURE)
    (failed, passed), rejections = read(tmp_path)
    assert not rejections
    assert (failed.data.success, passed.data.success) == (False, True)
    assert (failed.data.base, passed.data.base) == ("model-c", "model-c")
    assert failed.data.task is not None
    assert failed.data.task.gold_actions == (
        Action(name="ls", arguments={"a": True}),
        Action(name="sort", arguments={"0": "f", "reverse": False}, compare=("reverse",)),
    )


def test_who_was_not_judged_did_not_pass(tmp_path: Path) -> None:
    results = [bfcl_result(id=f"multi_turn_base_{number}") for number in (3, 4, 5)]
    write(tmp_path / "a_result.json", *results)
    write(tmp_path / "a_score.json", SUMMARY, FAILURE)
    rollouts, _ = read(tmp_path)
    assert [one.data.success for one in rollouts] == [False, None, None]


def test_a_score_file_that_was_cut_off_passes_nobody(tmp_path: Path) -> None:
    write(tmp_path / "a_result.json", bfcl_result(), bfcl_result(id="multi_turn_base_4"))
    write(tmp_path / "a_score.json", SUMMARY, None)
    rollouts, _ = read(tmp_path)
    assert [one.data.success for one in rollouts] == [None, None]


def test_a_score_file_by_itself_is_rejected_with_the_remedy(tmp_path: Path) -> None:
    rollouts, (rejection,) = read(write(tmp_path / "a_score.json", SUMMARY, FAILURE))
    assert not rollouts
    assert "holds only the failures" in rejection.reason


def test_without_a_log_the_calls_remain(tmp_path: Path) -> None:
    path = write(tmp_path / "a_result.json", without(bfcl_result(), "inference_log"))
    rollout = only(path)
    assert rollout.data.content is not None
    calls = [call.name for one in rollout.data.content.messages for call in one.tool_calls]
    assert calls == ["ls", "sort"]
    assert "a tool call has no result" in rollout.warnings


def test_a_failed_inference_is_no_verdict_on_the_model(tmp_path: Path) -> None:
    record = {"id": "simple_1", "result": "Error during inference: 502", "valid": False}
    data = only(write(tmp_path / "a_result.json", record)).data
    assert (data.termination, data.success) == ("error", None)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("cd(folder='a b')", "cd", {"folder": "a b"}),
        ("Files.cd(x=[1, {'k': None}], y=-2)", "Files.cd", {"x": [1, {"k": None}], "y": -2}),
        ("f(x=(1, 2))", "f", {"x": [1, 2]}),
        ("f(x=open('secret'))", "f", "x=open('secret')"),
        ("f(x={1, 2})", "f", "x={1, 2}"),
        ("f(**x)", "f", "**x"),
        ("ls<|channel|>commentary(a=False)", "ls<|channel|>commentary", "(a=False)"),
        ("", "", ""),
        ("(" * 5_000, "", "(" * 5_000),
        ("f('\\d')", "f", {"0": "\\d"}),
    ],
)
def test_calls_are_parsed_and_never_run(text: str, name: str, arguments: Any) -> None:
    call = parse_call(text)
    assert (call.name, call.arguments) == (name, arguments)


def test_text_that_is_no_list_of_calls_holds_none() -> None:
    assert [call.name for call in parse_calls("[f(), g(a=1)]")] == ["f", "g"]
    for text in ("I am done.", "[1, f()]", "f", "", "[]", "x" * 10):
        assert parse_calls(text) == []
