"""An operator's folder of BFCL in small, of our own making: one case per category."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from envs.bfcl.cases import SPLITS
from envs.bfcl.classes import MODULES

Json = dict[str, Any]

LOOK: Final = "What is on the desk?"
MOVE: Final = "Put the notes into the old things. What is the mean of 2 and 4?"
WHICH: Final = "I mean notes.txt."

GOLD: Final = ["mv('notes.txt', destination='old')", "mean(numbers=[2, 4])"]

CONFIG: Final = {
    "GorillaFileSystem": {
        "root": {
            "desk": {
                "type": "directory",
                "contents": {
                    "notes.txt": {"type": "file", "content": "tea and bread"},
                    "old": {"type": "directory", "contents": {}},
                },
            }
        }
    }
}

CONVERSATIONS: Final[dict[str, list[tuple[str | None, list[str]]]]] = {
    "base": [(LOOK, ["ls()"]), (MOVE, GOLD)],
    "miss_func": [(LOOK, ["ls()"]), (MOVE, []), (None, GOLD)],
    "miss_param": [(LOOK, ["ls()"]), (MOVE, []), (WHICH, GOLD)],
    "long_context": [(LOOK, ["ls()"]), (MOVE, GOLD)],
}


def function(name: str, required: Iterable[str] = (), **properties: Json) -> Json:
    """A function's documentation as the file has it."""
    return {
        "name": name,
        "description": f"The tool {name}.",
        "parameters": {"type": "dict", "properties": properties, "required": list(required)},
        "response": {"type": "dict", "properties": {}},
    }


TEXT: Final = {"type": "string", "description": "A name."}

FUNCTIONS: Final = {
    "GorillaFileSystem": [
        function("ls", a={"type": "boolean", "default": False}),
        function("mv", ["source", "destination"], source=TEXT, destination=TEXT),
        function("touch", ["file_name"], file_name=TEXT),
    ],
    "MathAPI": [
        function("mean", ["numbers"], numbers={"type": "array", "items": {"type": "float"}}),
    ],
}


def case(split: str) -> Json:
    """The one case of a category."""
    row = {
        "id": f"multi_turn_{split}_7",
        "question": [
            [] if says is None else [{"role": "user", "content": says}]
            for says, _ in CONVERSATIONS[split]
        ],
        "initial_config": CONFIG,
        "path": [],
        "involved_classes": ["GorillaFileSystem", "MathAPI"],
        "excluded_function": ["touch"],
    }
    return {**row, "missed_function": {"2": ["mv"]}} if split == "miss_func" else row


def answer(split: str) -> Json:
    """Its gold calls."""
    return {
        "id": f"multi_turn_{split}_7",
        "ground_truth": [gold for _, gold in CONVERSATIONS[split]],
    }


def write_folder(benchmarks: Path) -> Path:
    """All files below `benchmarks`, which is given back."""
    for split in SPLITS:
        write_rows(cases_of(benchmarks, split), [case(split)])
        write_rows(answers_of(benchmarks, split), [answer(split)])
    for name, module in MODULES.items():
        path = benchmarks / "bfcl" / "multi_turn_func_doc" / f"{module}.json"
        write_rows(path, FUNCTIONS.get(name, []))
    return benchmarks


def cases_of(benchmarks: Path, split: str) -> Path:
    """The file of a category's cases."""
    return benchmarks / "bfcl" / f"BFCL_v4_multi_turn_{split}.json"


def answers_of(benchmarks: Path, split: str) -> Path:
    """The file of its gold calls."""
    return benchmarks / "bfcl" / "possible_answer" / f"BFCL_v4_multi_turn_{split}.json"


def write_rows(path: Path, rows: Iterable[Json]) -> None:
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
