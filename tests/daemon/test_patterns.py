"""`kintsugi patterns`: an operator forces a pattern, silences it, and leaves it to its numbers."""

from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import load
from daemon.core.app import App
from tests.daemon.commands import spawn, write_examples
from tests.daemon.conftest import Kintsugi
from tests.daemon.repair.shop import SHOP, failure
from tests.daemon.repair.test_background import record


@pytest.fixture
def pattern(imported: Path, kintsugi: Kintsugi) -> str:
    """The name of a pattern of the examples."""
    line: dict[str, Any] = kintsugi("patterns", "--json").json[0]
    assert (line["operator"], line["reason"]) == (None, None)
    return str(line["pattern"])


def test_a_muted_pattern_is_shown_with_its_reason_and_has_no_priority(
    kintsugi: Kintsugi, pattern: str
) -> None:
    muted = kintsugi("patterns", "mute", pattern, "--reason", "the shop is closed", "--json").json
    assert [line["pattern"] for line in muted["patterns"]] == [pattern]
    lines = {line["pattern"]: line for line in kintsugi("patterns", "--json").json}
    line = lines[pattern]
    assert (line["operator"], line["reason"]) == ("muted", "the shop is closed")
    assert line["priority"] == 0
    assert "muted" in kintsugi("patterns").out
    assert "muted: the shop is closed" in kintsugi("explain", pattern).out
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_a_pinned_pattern_stands_first_until_it_is_released(
    kintsugi: Kintsugi, pattern: str
) -> None:
    before = kintsugi("patterns", "--json").json
    last = before[-1]["pattern"]
    pinned = kintsugi("patterns", "pin", last, "--alias", "agent", "--reason", "a customer asks")
    assert (pinned.code, pinned.err) == (0, "")
    assert f"{last} of agent on small is pinned" in pinned.out
    assert kintsugi("patterns", "--json").json[0]["pattern"] == last
    assert kintsugi("patterns", "release", last).code == 0
    assert kintsugi("patterns", "--json").json == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("pin", "tool_loop|fly", "--reason", "why"), "tool_loop|fly"),
        (("mute", "{pattern}", "--alias", "nobody", "--reason", "why"), "nobody"),
        (("mute", "{pattern}", "--reason", " "), "--reason"),
        (("--alias", "agent", "mute", "{pattern}", "--reason", "why"), "--alias"),
    ],
)
def test_a_wrong_name_or_a_missing_reason_is_wrong_usage(
    kintsugi: Kintsugi, pattern: str, arguments: tuple[str, ...], named: str
) -> None:
    result = kintsugi("patterns", *(part.format(pattern=pattern) for part in arguments))
    assert (result.code, result.out) == (2, "")
    assert named in result.err
    assert kintsugi("patterns", "--json").json[0]["operator"] is None


def test_an_unknown_pattern_is_answered_with_those_that_exist(
    kintsugi: Kintsugi, pattern: str
) -> None:
    assert pattern in kintsugi("patterns", "pin", "nothing", "--reason", "why").err


def test_a_pattern_is_also_named_as_the_table_shows_it(kintsugi: Kintsugi, pattern: str) -> None:
    category, pivot = pattern.split("|")
    shown = f"{category} at {pivot}"
    assert shown in kintsugi("patterns").out
    muted = kintsugi("patterns", "mute", shown, "--reason", "why", "--json").json
    assert [line["pattern"] for line in muted["patterns"]] == [pattern]


def test_a_pattern_of_several_agents_needs_its_agent(
    kintsugi: Kintsugi, pattern: str, tmp_path: Path
) -> None:
    kintsugi("import", write_examples(tmp_path / "more.jsonl"), "--alias", "other")
    result = kintsugi("patterns", "mute", pattern, "--reason", "why")
    assert result.code == 2
    assert "agent, other have" in result.err
    assert kintsugi("patterns", "mute", pattern, "--alias", "other", "--reason", "why").code == 0
    words = {line["alias"]: line["operator"] for line in kintsugi("patterns", "--json").json
             if line["pattern"] == pattern}  # fmt: skip
    assert words == {"agent": None, "other": "muted"}


def test_common_options_count_before_and_behind_a_command(
    imported: Path, pattern: str, tmp_path: Path
) -> None:
    home = {"KINTSUGI_HOME": str(imported)}
    before = spawn(["patterns", "--json", "release", pattern], tmp_path, home)
    assert before.json["patterns"][0]["pattern"] == pattern


def test_patterns_that_newer_rules_end_are_told_by_status_and_older_verdicts_are_marked(
    home: Path, kintsugi: Kintsugi
) -> None:
    for rules in (1, 2):
        with App(load(home=home)) as app:
            tasks = [SHOP.task(f"shop/two_writes/{seed}") for seed in range(2)]
            names = [f"{rules} of {task.id}" for task in tasks]
            record(
                app,
                *(
                    failure(task, [], rollout=name, grader=f"shop/{rules}")
                    for task, name in zip(tasks, names, strict=True)
                ),
            )
        assert kintsugi("diagnose").code == 0
    line = "re-baselined: rules shop/1 -> shop/2, in round 1"
    assert line in kintsugi("status").out
    (change,) = kintsugi("status", "--json").json["rule_changes"]
    assert (change["alias"], change["says"], change["kinds"]) == (
        "agent",
        line,
        ["shop/two_writes"],
    )
    names = [line["rollout"] for line in kintsugi("rollouts", "ls", "--json").json]
    shown = [kintsugi("rollouts", "show", name, "--json").json for name in names]
    marks = {document["grader"]: document["has_older_rules"] for document in shown}
    assert marks == {"shop/1": True, "shop/2": False}
    older = next(item["rollout"] for item in shown if item["has_older_rules"])
    assert "shop/1, older rules than" in kintsugi("rollouts", "show", older).out
    assert kintsugi("rebuild", "--json").json["equal"] is True
