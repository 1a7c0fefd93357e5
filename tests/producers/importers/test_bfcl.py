"""BFCL results become rollouts; model text is parsed and never run."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.messages import Action, Message, executed_calls
from producers.importers.importer import Notes
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


def test_a_failure_without_its_answer_is_rejected_with_the_remedy(tmp_path: Path) -> None:
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


SCORED = {"model_name": "m", "test_category": "simple_python", "valid": False, "error": ["x"]}


def single_turn(folder: Path, category: str, results: list[Any], *scores: Any) -> Path:
    """Write a category's answers, numbered from 0, and the lines of its score file."""
    rows = [{"id": f"{category}_{number}", "result": item} for number, item in enumerate(results)]
    name = f"BFCL_v4_{category}_{{}}.json"
    write(folder / "result" / "m" / "live" / name.format("result"), *rows)
    if scores:
        write(folder / "score" / "m" / "live" / name.format("score"), *scores)
    return folder


def summarise(correct: int, total: int) -> dict[str, Any]:
    return {"accuracy": correct / total, "correct_count": correct, "total_count": total}


def fail(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, **SCORED, **more}


def import_notes(*paths: Path) -> tuple[list[Any], list[Any], Notes]:
    notes = Notes()
    return *read(*paths, notes=notes), notes


def message(path: Path) -> Message:
    content = only(path).data.content
    assert content is not None
    return content.messages[-1]


def test_single_turn_files_give_the_rates_that_their_score_files_name(tmp_path: Path) -> None:
    answer = [{"area_of": {"side": [5], "unit": ["cm", ""], "at": [{"x": [1], "y": [2]}]}}]
    single_turn(
        tmp_path, "simple_python",
        [[{"area_of": '{"side": 3}'}], [{"area_of": '{"side": 4}'}]],
        summarise(1, 2), fail("simple_python_1", possible_answer=answer),
    )  # fmt: skip
    single_turn(
        tmp_path, "irrelevance", [[], [{"area_of": '{"side": 4}'}]],
        summarise(1, 2), fail("irrelevance_1"),
    )  # fmt: skip
    rollouts, rejections, notes = import_notes(tmp_path)
    assert (rejections, notes) == ([], Notes())
    assert [one.data.success for one in rollouts] == [True, False, True, False]
    assert rollouts[3].data.task.gold_actions == (
        Action(
            name="area_of", arguments={"side": 5, "unit": "cm", "at": {"x": 1, "y": 2}},
            compare=("side",),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    "answer", [["Michael"], [{"f": {}, "g": {}}], [{"f": 1}], [], {"f": 1}, [["f()"], 2], [[3]]]
)
def test_an_expected_answer_without_calls_gives_no_gold(tmp_path: Path, answer: Any) -> None:
    single_turn(tmp_path, "web", [""], summarise(0, 1), fail("web_0", possible_answer=answer))
    (rollout,), rejections, _ = import_notes(tmp_path)
    assert not rejections
    assert rollout.data.task.gold_actions is None


def test_a_rate_that_differs_from_the_score_file_is_a_warning(tmp_path: Path) -> None:
    broken = "Error during inference: 502"
    single_turn(tmp_path, "irrelevance", ["No.", "No.", broken], summarise(3, 3))
    rollouts, _, notes = import_notes(tmp_path)
    assert [one.data.success for one in rollouts] == [True, True, None]
    (warning,) = notes.warnings
    assert "the pass rate is 1 (2 of 2 judged), and the score file says 1.0 (3 of 3)" in (
        warning.warning
    )
    assert warning.file.endswith("BFCL_v4_irrelevance_result.json")


def test_an_accuracy_that_its_own_counts_contradict_is_a_warning(tmp_path: Path) -> None:
    single_turn(tmp_path, "irrelevance", ["No.", "No."], summarise(2, 2) | {"accuracy": 0.52})
    _, _, notes = import_notes(tmp_path)
    assert "says 0.52 (2 of 2)" in notes.warnings[0].warning


def test_a_score_file_by_itself_gives_its_failures_and_says_so(tmp_path: Path) -> None:
    failures = [
        fail("simple_python_0", model_result_raw="[f(a=1)]"),
        fail("irrelevance_0", model_result=[{"f": "{}"}], inference_log=""),
    ]
    path = write(tmp_path / "a_score.json", summarise(8, 10), *failures)
    rollouts, rejections, notes = import_notes(path)
    assert [(one.data.success, one.data.base) for one in rollouts] == [(False, "m")] * 2
    assert not rejections
    assert "the 8 answers that passed are in the result file" in notes.warnings[0].warning


def test_a_score_file_of_failures_alone_judges_what_it_names(tmp_path: Path) -> None:
    results = ["[f()]"] * 2
    failure = fail("simple_1", model_result_raw="[f()]")
    path = single_turn(tmp_path, "simple", results, failure)
    rollouts, rejections, notes = import_notes(path)
    assert not rejections
    assert [rollout.data.success for rollout in rollouts] == [None, False]
    (warning,) = notes.warnings
    assert "which has no summary" in warning.warning
    score = write(tmp_path / "alone" / "BFCL_v3_simple_score.json", failure)
    (rollout,), rejections, notes = import_notes(score)
    assert (rollout.data.success, rejections) == (False, [])
    assert "the answers that passed are in the result file" in notes.warnings[0].warning


@pytest.mark.parametrize("shape", ["lines", "array"])
def test_a_failure_that_is_numbered_is_known_by_its_prompt(tmp_path: Path, shape: str) -> None:
    results = ["[f()]"] * 4
    failure = fail("simple_2") | {"id": 3, "prompt": {"id": "simple_2"}}
    path = single_turn(tmp_path, "simple", results, summarise(3, 4), failure)
    if shape == "array":
        (score,) = tmp_path.rglob("*_score.json")
        rows = score.read_text().splitlines()
        score.write_text(f"[\n{', '.join(rows)}\n]")
    rollouts, rejections, notes = import_notes(path)
    assert not rejections
    assert [rollout.data.success for rollout in rollouts] == [True, True, False, True]
    assert not notes.warnings


def test_answers_that_nobody_judged_and_a_summary_alone_are_named(tmp_path: Path) -> None:
    write(tmp_path / "BFCL_v3_simple_result.json", {"id": "simple_0", "result": "[f()]"})
    write(tmp_path / "overall.json", summarise(1, 2))
    (rollout,), rejections, notes = import_notes(tmp_path)
    assert (rollout.data.success, rejections) == (None, [])
    assert "has no score file" in notes.warnings[0].warning
    assert ["holds a summary and no answers" in skip.reason for skip in notes.skips] == [True]


def test_a_score_file_whose_result_file_is_not_imported_names_it(tmp_path: Path) -> None:
    single_turn(tmp_path, "parallel", ["f()"], summarise(0, 1), fail("parallel_0"))
    rollouts, rejections, notes = import_notes(tmp_path / "score")
    assert (rollouts, rejections) == ([], [])
    assert "result.json; import that file" in notes.skips[0].reason


@pytest.mark.parametrize(
    ("answer", "text"),
    [([], ""), ("", ""), (None, ""), ([[]], ""), (["I can", "not."], "I can\nnot.")],
)
def test_an_answer_without_calls_is_what_the_model_said(
    tmp_path: Path, answer: Any, text: str
) -> None:
    path = write(tmp_path / "a_result.json", {"id": "irrelevance_0", "result": answer})
    assert (message(path).text, message(path).tool_calls) == (text, ())


@pytest.mark.parametrize("answer", [{"accuracy": 0.5}, 3, True])
def test_what_no_model_answers_is_rejected(tmp_path: Path, answer: Any) -> None:
    path = write(tmp_path / "a_result.json", {"id": "simple_0", "result": answer})
    _, (rejection,) = read(path)
    assert "no answer of a model" in rejection.reason


@pytest.mark.parametrize("category", ["simple_java", "simple_javascript", "java"])
def test_arguments_in_java_and_javascript_are_no_malformed_ones(
    tmp_path: Path, category: str
) -> None:
    text = '[Geo.create(map=mapArea, at={x: 1}, n=5, l=new List<>(of("a","b")), s=\'q\', t=true)]'
    path = write(tmp_path / "a_result.json", {"id": f"{category}_0", "result": text})
    (call,) = message(path).tool_calls
    assert (call.name, call.arguments) == (
        "Geo.create",
        {"map": "mapArea", "at": "{x: 1}", "n": 5, "l": 'new List<>(of("a","b"))', "s": "q",
         "t": True},
    )  # fmt: skip


def test_a_comma_between_the_types_of_java_ends_no_argument(tmp_path: Path) -> None:
    text = "[f(m=new HashMap<String, Object>() {{ put(1, 2); }}, b=true)]"
    path = write(tmp_path / "a_result.json", {"id": "java_0", "result": text})
    (call,) = message(path).tool_calls
    assert call.arguments == {"m": "new HashMap<String, Object>() {{ put(1, 2); }}", "b": True}


def test_a_call_that_the_handler_could_not_decode_is_malformed(tmp_path: Path) -> None:
    steps = [
        {"role": "assistant", "content": '<tool_call>\n{"name": "ls", "argu'},
        {"role": "handler_log", "content": "decoded", "model_response_decoded": []},
    ]
    record = bfcl_result(inference_log=[{"begin_of_turn_query": [], "step_0": steps}])
    (call,) = message(write(tmp_path / "a_result.json", record)).tool_calls
    assert (call.name, call.arguments) == ("ls", '{"name": "ls", "argu')


def test_ids_of_rollouts_stay_what_they_were(tmp_path: Path) -> None:
    results = [bfcl_result(), bfcl_result(id="multi_turn_base_4")]
    write(tmp_path / "a_result.json", *results)
    write(tmp_path / "a_score.json", SUMMARY, FAILURE)
    rollouts, _ = read(tmp_path)
    assert [one.envelope.id for one in rollouts] == [
        "34191059-5eb3-5d1f-807e-5fb4676ca7b2",
        "54862845-0564-5058-9df2-82d1b46cf908",
    ]


MUTANTS: list[Any] = [
    None, True, -1, 2.5, "", "x", [], [[]], {}, {"a": None}, [["f("]], [{"f": "{"}], ["ab", 1],
    "[f(a=", "<tool_call>{", "\ud800", [{"f": {"a": [{"b": [1, ""]}]}}], {"accuracy": 1},
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_stands_in_two_files_each_row_ends_in_one_way(data: st.DataObject) -> None:
    results = [{"id": f"simple_python_{n}", "result": [{"f": '{"a": 1}'}]} for n in range(3)]
    scores = [
        summarise(2, 3),
        fail("simple_python_1", possible_answer=[{"f": {"a": [1]}}], model_result_raw="[f(a=2)]"),
    ]
    for row in data.draw(st.lists(st.sampled_from([*results, *scores]), max_size=3)):
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(st.sampled_from(MUTANTS))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "a_result.json"), *results)
        write(Path(folder, "a_score.json"), *scores)
        rollouts, rejections, notes = import_notes(Path(folder))
    skipped = [item.file for item in notes.skips]
    rows = 0 if any(file.endswith("a_result.json") for file in skipped) else len(results)
    of_results = [one for one in [*rollouts, *rejections] if one.file.endswith("a_result.json")]
    assert len(of_results) == rows
    assert all(one.reason for one in [*rejections, *notes.skips])
