"""The multi-turn cases of the Berkeley Function-Calling Leaderboard, from the operator's folder.

    $KINTSUGI_BENCHMARKS/bfcl/BFCL_v4_multi_turn_<split>.json    JSON Lines: the cases
                             /possible_answer/<the same name>    JSON Lines: the gold calls
                             /multi_turn_func_doc/<module>.json  JSON Lines: a class's functions

Gold calls are Python text: they are parsed, never run, and only literals are arguments. Types dict
and float of the documentation become object and number.

Guarantee: a case is as in the folder, except for our sentence with which held-out functions come. A
missing or malformed file raises `NoBenchmark` or `InvalidBenchmark` with its path and line.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envs.bfcl.classes import MODULES
from envs.database import copy_json
from envs.tau2.benchmark import VARIABLE, InvalidBenchmark, NoBenchmark
from events.messages import Action

SPLITS: Final = ("base", "miss_func", "miss_param", "long_context")

LONG_CONTEXT: Final = "long_context"
"""The split in which tools give very long answers."""

MORE_TOOLS: Final = "There are more tools for you now. Please try again."
"""The user's message in a turn in which held-out functions become available."""

_JSON_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array"}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the user, and the gold calls for it."""

    says: str
    gold: tuple[Action, ...]
    """The gold calls; empty if the agent must call nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One multi-turn conversation of BFCL."""

    number: str
    """Number of the case in its split. Cases with equal numbers derive from the same scenario."""
    split: str
    turns: tuple[Turn, ...]
    config: Mapping[str, Mapping[str, Any]]
    """Class -> its initial state, for every class that provides tools."""
    schemas: tuple[Mapping[str, Any], ...]
    """Every function that the agent sees in some turn, in OpenAI's format."""
    held_out: Mapping[str, int]
    """Function -> the first turn, counted from 0, in which the agent sees it."""

    def select_schemas(self, turn: int) -> list[dict[str, Any]]:
        """Return the functions that the agent sees in a turn."""
        return [
            dict(schema)
            for schema in self.schemas
            if self.held_out.get(schema["function"]["name"], 0) <= turn
        ]


def folder(benchmarks: Path) -> Path:
    """Return the folder of BFCL's files."""
    return benchmarks / "bfcl"


def find_splits(benchmarks: Path) -> tuple[str, ...]:
    """Return the splits whose case files exist in the folder."""
    place = folder(benchmarks)
    return tuple(split for split in SPLITS if _locate_cases(place, split).is_file())


def load_functions(benchmarks: Path | None) -> dict[str, list[Row]]:
    """Return class -> its functions in OpenAI's format. Raise NoBenchmark or InvalidBenchmark."""
    place = _require_folder(benchmarks)
    return {name: _functions(place, module) for name, module in MODULES.items()}


def load(benchmarks: Path | None, splits: Sequence[str] = SPLITS) -> dict[str, list[Case]]:
    """Return split -> its cases in file order. Raise NoBenchmark or InvalidBenchmark."""
    functions = load_functions(benchmarks)
    place = _require_folder(benchmarks)
    return {split: list(_cases(place, split, functions)) for split in splits}


def _require_folder(benchmarks: Path | None) -> Path:
    if benchmarks is None:
        raise NoBenchmark(
            f"no folder of real bfcl tasks is named; set {VARIABLE} to the folder that holds bfcl"
        )
    return folder(benchmarks)


def _locate_cases(place: Path, split: str) -> Path:
    return place / f"BFCL_v4_multi_turn_{split}.json"


def _functions(place: Path, module: str) -> list[Row]:
    return [_function(row) for _, row in _rows(place / "multi_turn_func_doc" / f"{module}.json")]


def _function(row: Row) -> Row:
    shown = {key: row[key] for key in ("name", "description")}
    return {
        "type": "function",
        "function": {**shown, "parameters": json_schema(row["parameters"])},
    }


def json_schema(documented: Mapping[str, Any]) -> Row:
    """Convert BFCL's description of a value to JSON Schema; the type `any` is omitted."""
    schema = dict(documented)
    kind = schema.pop("type", "any")
    if kind != "any":
        schema["type"] = _JSON_TYPES.get(kind, kind)
    if "properties" in schema:
        schema["properties"] = {
            name: json_schema(value) for name, value in schema["properties"].items()
        }
    if "items" in schema:
        schema["items"] = json_schema(schema["items"])
    return schema


def _cases(place: Path, split: str, functions: Mapping[str, list[Row]]) -> Iterator[Case]:
    path = _locate_cases(place, split)
    answers = {row["id"]: row for _, row in _rows(place / "possible_answer" / path.name)}
    for line, row in _rows(path):
        try:
            yield _case(row, answers[row["id"]], split, functions)
        except (KeyError, IndexError, TypeError, ValueError, SyntaxError, AttributeError) as error:
            raise InvalidBenchmark(f"{path}, line {line}, is no such case: {error!r}") from error


def _case(row: Row, answer: Row, split: str, functions: Mapping[str, list[Row]]) -> Case:
    involved = [schema for name in row["involved_classes"] for schema in functions[name]]
    excluded = set(row.get("excluded_function", ()))
    parameters = {
        schema["function"]["name"]: list(schema["function"]["parameters"]["properties"])
        for schema in involved
    }
    held_out = {
        name: int(turn) for turn, names in row.get("missed_function", {}).items() for name in names
    }
    gold = [tuple(parse(text, parameters) for text in texts) for texts in answer["ground_truth"]]
    requests = [
        _read_user_text(messages, turn in held_out.values())
        for turn, messages in enumerate(row["question"])
    ]
    return Case(
        number=row["id"].rpartition("_")[2],
        split=split,
        turns=tuple(Turn(says, calls) for says, calls in zip(requests, gold, strict=True)),
        config={name: row["initial_config"].get(name, {}) for name in row["involved_classes"]},
        schemas=tuple(entry for entry in involved if entry["function"]["name"] not in excluded),
        held_out=held_out,
    )


def _read_user_text(messages: Sequence[Mapping[str, str]], functions_come: bool) -> str:
    """Return the user's message of a turn, or MORE_TOOLS if only functions come."""
    if functions_come and not messages:
        return MORE_TOOLS
    (message,) = messages
    if message["role"] != "user" or not message["content"]:
        raise ValueError(f"a turn begins with {message!r}, which is no message of a user")
    return message["content"]


def parse(text: str, parameters: Mapping[str, Sequence[str]]) -> Action:
    """Parse a gold call such as `tail('a.txt', lines=3)`; `parameters` names positional arguments.
    Raise ValueError, SyntaxError or KeyError for anything but a call with literals."""
    call = ast.parse(text, mode="eval").body
    match call:
        case ast.Call(func=ast.Name(id=function), args=placed, keywords=named):
            names = parameters[function]
        case _:
            raise ValueError(f"{text!r} is no call of a function")
    if len(placed) > len(names):
        raise ValueError(f"{text!r} has {len(placed)} arguments by position, not {len(names)}")
    nodes = dict(zip(names, placed, strict=False))
    nodes |= {str(keyword.arg): keyword.value for keyword in named}
    literals = {name: copy_json(ast.literal_eval(node)) for name, node in nodes.items()}
    return Action(name=function, arguments=literals)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NoBenchmark(
            f"{path} cannot be read ({error.strerror}); {VARIABLE} names the folder that holds bfcl"
        ) from error
    for line, written in enumerate(text.splitlines(), 1):
        try:
            row = json.loads(written)
        except ValueError as error:
            raise InvalidBenchmark(f"{path}, line {line}, is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise InvalidBenchmark(f"{path}, line {line}, is no object")
        yield line, row
