"""The measures of the code's structure count what they say, and a planted fault is found."""

from pathlib import Path

import pytest

from ops.house.__main__ import Measures, check_goals, measure
from ops.house.imports import import_circles
from ops.house.names import has_participle, split_words

ROOT = Path(__file__).parents[3]


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


def test_a_folder_may_hold_twenty_modules(tmp_path: Path) -> None:
    plant(tmp_path, **{f"events__m{number}": "" for number in range(21)})
    assert "most_modules_in_a_folder" in check_goals(measure(tmp_path)[0])


def test_names_of_event_types_are_promised_and_do_not_count(tmp_path: Path) -> None:
    plant(tmp_path, events__m="class CallEnded(EventData): ...\n")
    assert measure(tmp_path)[0].participles_percent == 0


def test_the_goals_hold_here() -> None:
    measures, _ = measure(ROOT)
    assert isinstance(measures, Measures)
    assert check_goals(measures) == {}
