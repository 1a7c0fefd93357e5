"""Telecom's folder of real tasks: what is read and refused, and what is played and replayed."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs.environment import UnknownTask
from envs.tau2.benchmark import InvalidBenchmark
from envs.tau2.gold import play_gold
from envs.tau2.golden import replay
from envs.telecom.environment import Telecom
from tests.envs.telecom.files import TASKS, TICKET, task, write_folder
from tests.envs.telecom.test_tools import LINE


@pytest.fixture
def telecom(tmp_path: Path) -> Telecom:
    return Telecom(write_folder(tmp_path))


def test_splits_stand_beside_those_for_an_agent_alone(telecom: Telecom) -> None:
    base = {name: size for name, size in telecom.splits.items() if name.startswith("base")}
    assert base == {"base": 2, "base-workflow": 2, "base-solo": 2, "base-workflow-solo": 2}
    assert not any(name.startswith("full") for name in telecom.splits), "full lacks a task"


def test_a_policy_has_the_manual_or_the_workflow(telecom: Telecom) -> None:
    for split, words in {
        "test": "Their manual.",
        "test-workflow": "Their workflow.",
        "test-workflow-solo": "Their workflow alone.",
    }.items():
        (only,) = telecom.tasks(split)
        assert words in telecom.policy(only)
        assert telecom.task(only.id) == only
    with pytest.raises(UnknownTask, match="no workflow"):
        telecom.task("telecom/no_service/1/workflow")


def test_a_task_has_its_first_state_its_assertions_and_its_intent(telecom: Telecom) -> None:
    first, second = telecom.tasks("base")
    assert [call.name for call in first.setup][-1] == "turn_airplane_mode_on"
    assert [item.name for item in first.criteria.assertions] == ["assert_mobile_data_status"]
    assert first.capability == "benchmark_mobile_data_issue"
    assert second.capability == "benchmark_several_changes"
    assert telecom.task(first.id) == first
    assert telecom.policy(first).startswith("<main_policy>\nTheir rules.\n</main_policy>")


def test_an_agent_alone_gets_ticket_rules_and_tools_of_its_own(telecom: Telecom) -> None:
    (solo,) = telecom.tasks("test-solo")
    assert (solo.id, solo.ticket) == ("telecom/b/solo", TICKET)
    assert telecom.task("telecom/b/solo") == solo
    assert "Their rules alone." in telecom.policy(solo)
    assert TICKET in telecom.policy(solo)
    assert len(telecom.schemas(solo)) == 2
    assert {action.requestor for action in solo.criteria.gold_actions or ()} == {"assistant"}


def test_a_task_without_a_ticket_is_for_nobody_alone(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path, **{"tasks.json": json.dumps([TASKS[0], task("b", ticket=None)])}
    )
    with pytest.raises(UnknownTask, match="no ticket"):
        Telecom(folder).task("telecom/b/solo")


@pytest.mark.parametrize("solo", [False, True])
def test_gold_is_played_with_the_steps_of_both_parties(telecom: Telecom, solo: bool) -> None:
    report = play_gold(telecom, solo=solo)
    assert (report.tasks, report.reward_one, report.failed) == (2, 2, [])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("db.toml", "[[plans", "db.toml is no TOML"),
        ("db.toml", "[[plans]]\nplan_id = 5\n", "db.toml is no such database"),
        ("db.toml", "[[phones]]\nid = 5\n", "'phones' is no table"),
        ("user_db.toml", "[device]\nbattery_level = 'full'\n", "no such database"),
        ("tasks.json", json.dumps([task("b", initial_state={"message_history": [1]})]),
         "has message_history"),
        ("tasks.json", json.dumps([task("b", initial_state={"initialization_actions": [{}]})]),
         "tasks.json, task at 0"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str, reason: str) -> None:
    splits = json.dumps({"base": ["b"]})
    files = {"split_tasks.json": splits, "tasks.json": json.dumps([task("b")]), name: content}
    with pytest.raises(InvalidBenchmark, match=reason):
        list(Telecom(write_folder(tmp_path, **files)).tasks("base"))


def test_a_setup_that_cannot_run_is_named_when_the_task_is_reset(tmp_path: Path) -> None:
    call = {"env_type": "user", "func_name": "melt", "arguments": {}}
    odd = task("b", initial_state={"initialization_actions": [call]})
    files = {"split_tasks.json": json.dumps({"base": ["b"]}), "tasks.json": json.dumps([odd])}
    telecom = Telecom(write_folder(tmp_path, **files))
    (only,) = telecom.tasks("base")
    with pytest.raises(UnknownTask, match="'melt'"):
        telecom.reset(only)


def recorded(telecom: Telecom) -> dict[str, Any]:
    """A row of calls of both parties, with the hashes of both sides."""
    first = next(iter(telecom.tasks("base")))
    database = telecom.reset(first)
    tools = telecom.open_tools(first, database)
    row: dict[str, Any] = {"task_id": first.id.partition("/")[2], "calls": []}
    row |= {f"initial_{name}": digest for name, digest in telecom.digests(database).items()}
    for name, arguments, requestor in (
        ("enable_roaming", LINE, "assistant"),
        ("toggle_airplane_mode", {}, "user"),
        ("toggle_airplane_mode", {}, "assistant"),
    ):
        result = tools.call(name, arguments, requestor)  # type: ignore[arg-type]
        row["calls"].append(
            {
                "name": name,
                "arguments": arguments,
                "requestor": requestor,
                "error": result.error,
                "output": result.content,
                **{f"{key}_after": value for key, value in telecom.digests(database).items()},
            }
        )
    return row


def test_recorded_calls_of_both_parties_are_replayed_from_the_task_s_state(
    telecom: Telecom,
) -> None:
    row = recorded(telecom)
    report = replay(telecom, [json.dumps(row)])
    assert (report.calls, report.equal, report.mismatches) == (3, 3, [])
    row["calls"][1]["requestor"] = "assistant"
    row["calls"][0]["user_db_hash_after"] = "0" * 16
    places = {(found.call, found.what) for found in replay(telecom, [json.dumps(row)]).mismatches}
    assert {(0, "user_db_hash_after"), (1, "output"), (1, "error")} <= places


def test_a_recorded_call_of_nobody_is_a_mismatch_and_none_of_the_agent_s(telecom: Telecom) -> None:
    row = recorded(telecom)
    row["calls"][0]["requestor"] = "elf"
    first = replay(telecom, [json.dumps(row)]).mismatches[0]
    assert (first.call, first.what) == (0, "call")
    assert "assistant or user" in first.expected
