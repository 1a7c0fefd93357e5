"""The measures of the code's structure count what they say, and a planted fault is found."""

import ast
from pathlib import Path

import pytest

from ops.house.__main__ import check_goals, measure
from ops.house.imports import import_circles
from ops.house.names import has_participle, split_words
from ops.house.prose import MOST_WORDS, find_hard_prose
from ops.house.rooms import count_imports, is_wiring, list_entries, list_mentions


def plant(root: Path, **modules: str) -> None:
    for name, text in modules.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "is_participle"),
    [
        ("told", True),
        ("_asked_tokens", True),
        ("NameTaken", True),
        ("opening", True),
        ("training_runs", False),
        ("embedding", False),
        ("seed", False),
        ("string", False),
        ("encode", False),
        ("HTTPReply", False),
    ],
)
def test_participles_are_told_from_terms(name: str, is_participle: bool) -> None:
    assert has_participle(name) == is_participle


def test_words_are_split_at_underscores_and_capitals() -> None:
    assert split_words("_asHTTPReply_of2") == ["as", "http", "reply", "of2"]


def test_two_folders_that_need_each_other_are_a_circle(tmp_path: Path) -> None:
    plant(
        tmp_path,
        daemon__a__x="from daemon.b import y\n",
        daemon__b__y="def later():\n    from daemon.a.z import Z\n",
        daemon__a__z="class Z: ...\n",
        daemon__c__w="from daemon.a import x\n",
    )
    assert import_circles(tmp_path, ["daemon"]) == [["daemon.a", "daemon.b"]]


def test_what_the_core_imports_of_a_room_makes_no_circle(tmp_path: Path) -> None:
    plant(
        tmp_path,
        daemon__cycle__leader="from daemon.methods.skills import choice\n",
        daemon__methods__skills__choice="from daemon.cycle import plan\n",
        daemon__cycle__plan="",
    )
    circle = ["daemon.cycle", "daemon.methods"]
    assert import_circles(tmp_path, ["daemon"]) == [circle]
    assert import_circles(tmp_path, ["daemon"], is_wiring) == []


def test_planted_faults_are_measured_and_miss_the_goals(tmp_path: Path) -> None:
    body = "\n".join(f"    x{number} = {number}" for number in range(70))
    plant(
        tmp_path,
        events__m=f"class Kept: ...\n\ndef fine(one):\n    found = one\n\ndef long():\n{body}\n",
    )
    measures, findings = measure(tmp_path)
    assert measures.definitions == 4
    assert measures.participles_percent == 25
    vague = {finding.name for finding in findings if finding.measure == "vague"}
    assert vague == {"found", "one"}
    assert measures.longest_function_lines == 70
    assert set(check_goals(measures)) == {
        "participles_percent",
        "vague_locals_percent",
        "longest_function_lines",
    }


def test_a_file_names_a_method_in_its_code_and_outside_of_rooms(tmp_path: Path) -> None:
    plant(
        tmp_path,
        daemon__docs='"""A panel and a lesson."""\nx = 1  # a panel\n"""A skill."""\n',
        daemon__code="def choose(panel): return panel\n",
        daemon__cls="class RouterHead: ...\n",
        daemon__other="RouteRow = rich_help_panel = 1\n",
        daemon__skills__inner="def choose(panel): return panel\n",
        envs__tasks="WORDS = {'lesson': 1}\n",
        envs__late="def load():\n    from daemon.methods.synthesis.users import x\n",
    )
    assert list_mentions(tmp_path) == {
        "skills": ["daemon/cls.py", "daemon/code.py"],
        "lessons": ["envs/tasks.py"],
        "synthesis": ["envs/late.py"],
    }


def test_a_homonym_is_no_name_and_a_name_beside_it_is(tmp_path: Path) -> None:
    plant(
        tmp_path,
        envs__telecom__records="DEVICES = ['phone', 'router']\n",
        producers__gateway__server="application.router.x = 1\nrouter = 2\n",
        producers__gateway__call="attribution = 'header'\n",
        daemon__review="from envs.attribution import tasks\n",
        daemon__check="from envs import attribution, task\n",
    )
    assert list_mentions(tmp_path) == {
        "skills": ["producers/gateway/server.py"],
        "lessons": [],
        "synthesis": ["daemon/check.py", "daemon/review.py"],
    }


def test_imports_into_rooms_are_listed_and_late_ones_too(tmp_path: Path) -> None:
    plant(
        tmp_path,
        daemon__core="from daemon.skills import panel\n",
        daemon__wiring="def load():\n    from daemon.skills.panel import Panel\n",
        daemon__skills__panel="from daemon.skills import other\nclass Panel: ...\n",
        daemon__skills__other="",
    )
    inner = ["daemon.skills.panel"]
    assert list_entries(tmp_path) == {"daemon/core.py": inner, "daemon/wiring.py": inner}


def test_only_what_is_imported_at_the_start_counts(tmp_path: Path) -> None:
    plant(
        tmp_path,
        events__a="from events import b\nimport json\n",
        events__b="try:\n    from events import c\nexcept ImportError:\n    pass\n",
        events__c="def late():\n    from events import d\n",
        events__d="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from events import a\n",
    )
    counts = count_imports(tmp_path, ["events"])
    assert counts == {"events.a": 2, "events.b": 1, "events.c": 0, "events.d": 0}


def test_lines_and_statements_are_counted_without_docstrings(tmp_path: Path) -> None:
    plant(tmp_path, events__m='"""A text."""\n\nx = 1\n', ops__n="def f():\n    return 1\n")
    measures, _ = measure(tmp_path)
    assert (measures.lines, measures.ops_lines, measures.statements) == (5, 2, 3)


def test_names_of_event_types_are_promised_and_do_not_count(tmp_path: Path) -> None:
    plant(tmp_path, events__m="class CallEnded(EventData): ...\n")
    assert measure(tmp_path)[0].participles_percent == 0


def test_hard_openings_and_overlong_sentences_of_docstrings_are_listed() -> None:
    module = f"""{'"' * 3}Read a file. {"Word " * (MOST_WORDS + 1)}.{'"' * 3}


def fine():
    {'"' * 3}Return a sum:

        x    {"word " * (MOST_WORDS + 1)}
    {'"' * 3}


class Sample:
    size: int
    {'"' * 3}Of all files.{'"' * 3}
    text = "Of all files."
"""
    hard = list(find_hard_prose(ast.parse(module), "events/m.py"))
    assert [line for line, _ in hard] == [1, 13]
    assert hard[1][1] == "Of all files."


def test_a_sentence_at_the_limit_is_not_hard() -> None:
    text = " ".join(["word"] * MOST_WORDS)
    assert not list(find_hard_prose(ast.parse(f"'''{text}.'''"), "events/m.py"))
