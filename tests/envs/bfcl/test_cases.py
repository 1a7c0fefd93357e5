"""What is read from the operator's folder, and files that are not what they should be."""

from pathlib import Path
from typing import Any

import pytest

from envs.bfcl.cases import MORE_TOOLS, json_schema, load, parse
from envs.tau2.benchmark import InvalidBenchmark, NoBenchmark
from events.messages import Action
from tests.envs.bfcl.files import (
    GOLD,
    LOOK,
    MOVE,
    answer,
    answers_of,
    case,
    cases_of,
    write_folder,
    write_rows,
)

PARAMETERS = {"tail": ["file_name", "lines"]}


def test_a_case_holds_what_is_said_and_what_is_called(tmp_path: Path) -> None:
    (read,) = load(write_folder(tmp_path))["base"]
    assert (read.number, read.split) == ("7", "base")
    assert [turn.says for turn in read.turns] == [LOOK, MOVE]
    assert read.turns[1].gold == (
        Action(name="mv", arguments={"source": "notes.txt", "destination": "old"}),
        Action(name="mean", arguments={"numbers": [2, 4]}),
    )


def test_excluded_functions_are_not_shown_and_held_out_ones_come_later(tmp_path: Path) -> None:
    (read,) = load(write_folder(tmp_path))["miss_func"]
    shown = [
        [schema["function"]["name"] for schema in read.select_schemas(turn)] for turn in range(3)
    ]
    assert shown == [["ls", "mean"], ["ls", "mean"], ["ls", "mv", "mean"]]
    assert read.turns[2].says == MORE_TOOLS


def test_documentation_becomes_json_schema() -> None:
    documented = {
        "type": "dict",
        "properties": {
            "price": {"type": "float", "description": "In euros.", "default": 1.5},
            "span": {"type": "tuple", "items": {"type": "float"}},
            "more": {"type": "dict", "properties": {"deep": {"type": "float"}}},
            "type": {"type": "any"},
            "name": {"type": "string"},
        },
        "required": ["price"],
    }
    assert json_schema(documented) == {
        "type": "object",
        "properties": {
            "price": {"type": "number", "description": "In euros.", "default": 1.5},
            "span": {"type": "array", "items": {"type": "number"}},
            "more": {"type": "object", "properties": {"deep": {"type": "number"}}},
            "type": {},
            "name": {"type": "string"},
        },
        "required": ["price"],
    }


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("tail('a.txt', lines=-3)", {"file_name": "a.txt", "lines": -3}),
        ("tail(lines=(1, [True, None]))", {"lines": [1, [True, None]]}),
        ("tail()", {}),
        ("tail(file_name='it\\'s')", {"file_name": "it's"}),
    ],
)
def test_a_gold_call_is_read(text: str, arguments: dict[str, Any]) -> None:
    assert parse(text, PARAMETERS) == Action(name="tail", arguments=arguments)


BROKEN = [
    "tail",
    "1 + 1",
    "tail(",
    "head('a.txt')",
    "files.tail('a.txt')",
    "tail(open('a.txt'))",
    "tail('a', 1, 2)",
    "tail(**{'lines': name})",
]


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_no_call_with_literals_is_refused_and_never_run(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError, KeyError)):
        parse(text, PARAMETERS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"question": [[{"role": "system", "content": "Hello."}], []]},
        {"question": [[], [{"role": "user", "content": "Hello."}]]},
        {"question": [[{"role": "user", "content": ""}], [{"role": "user", "content": "Hello."}]]},
        {"question": [[{"role": "user", "content": "one turn, two gold ones"}]]},
        {"question": 5},
        {"involved_classes": ["Unknown"]},
        {"id": "another"},
        {"missed_function": {"two": ["mv"]}},
    ],
)
def test_a_broken_case_is_named_by_file_and_line(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = cases_of(write_folder(tmp_path), "base")
    write_rows(path, [case("base"), {**case("base"), **wrong}])
    with pytest.raises(InvalidBenchmark, match=rf"{path}, line 2, is no such case"):
        load(tmp_path)


@pytest.mark.parametrize(
    "gold", [[["ls()"], ["rm('notes.txt')"]], [["ls()"], [GOLD]], [[], [], []]]
)
def test_broken_gold_is_named_with_its_case(tmp_path: Path, gold: list[Any]) -> None:
    path = answers_of(write_folder(tmp_path), "base")
    write_rows(path, [{**answer("base"), "ground_truth": gold}])
    with pytest.raises(InvalidBenchmark, match=r"line 1, is no such case"):
        load(tmp_path)


@pytest.mark.parametrize(("line", "what"), [("{", "is no JSON"), ("[1]", "is no object")])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str, what: str) -> None:
    path = answers_of(write_folder(tmp_path), "base")
    path.write_text(line)
    with pytest.raises(InvalidBenchmark, match=rf"{path}, line 1, {what}"):
        load(tmp_path)


def test_a_missing_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = answers_of(write_folder(tmp_path), "miss_param")
    path.unlink()
    with pytest.raises(NoBenchmark, match=rf"{path} cannot be read .* KINTSUGI_BENCHMARKS"):
        load(tmp_path)
