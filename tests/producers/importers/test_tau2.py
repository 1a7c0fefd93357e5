"""tau2 results become rollouts, from one file and from a folder."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from events.messages import Action, executed_calls
from producers.importers.importer import RolloutImport
from tests.producers.samples import (
    only,
    places,
    read,
    tau2_results,
    tau2_simulation,
    tau2_task,
    without,
    write,
)


def one(tmp_path: Path, **changes: Any) -> RolloutImport:
    """The rollout of a simulation with these changes."""
    results = tau2_results(simulations=[tau2_simulation(**changes)])
    return only(write(tmp_path / "a.json", results))


def test_the_gold_of_a_run_without_a_user_is_all_the_agent_s(tmp_path: Path) -> None:
    results = tau2_results()
    results["info"]["user_info"] = {"implementation": "dummy_user"}
    task = only(write(tmp_path / "a.json", results)).data.task
    assert task is not None
    assert {action.requestor for action in task.gold_actions or ()} == {"assistant"}


def test_a_simulation_becomes_a_rollout_with_its_embedded_task(tmp_path: Path) -> None:
    rollout = one(tmp_path)
    data = rollout.data
    assert (data.source, data.base, data.policy) == ("tau2", "model-a", "model-a")
    assert (data.success, data.reward, data.grader) == (True, 1.0, "tau2 0123456789ab")
    assert data.reward_parts == {"ENV_ASSERTION": 1.0, "ACTION": 1.0}
    assert (data.trial, data.seed, data.simulator) == (1, 300, "model-u")
    assert data.termination == "user_stop"
    task = data.task
    assert task is not None
    assert (task.id, task.environment) == ("telecom/[mobile]data_off", "telecom")
    assert task.gold_actions == (
        Action(name="enable_roaming", arguments={"line_id": "L1"}),
        Action(name="toggle_data", arguments={"on": True}, requestor="user", compare=()),
    )
    assert task.outputs == ("done",)
    assert task.reward_basis == ("ENV_ASSERTION", "ACTION")
    assert task.instruction == "Persona: Hurried\nReason for call: No data."
    assert rollout.warnings == ()


def test_results_are_paired_by_position_and_keep_who_asked(tmp_path: Path) -> None:
    data = one(tmp_path).data
    assert data.content is not None
    assert [
        (one.requestor, one.call.name, one.result and one.result.text, one.failed)
        for one in executed_calls(data.content.messages)
    ] == [
        ("assistant", "enable_roaming", "ok", False),
        ("assistant", "get_data_usage", "Error: no", True),
        ("user", "toggle_data", "on", False),
    ]


def test_only_the_injected_greeting_is_marked_as_not_sampled(tmp_path: Path) -> None:
    data = one(tmp_path).data
    assert data.content is not None
    assert [message.sampled for message in data.content.messages] == [False] + [None] * 7


def test_a_first_message_that_used_tokens_was_sampled(tmp_path: Path) -> None:
    simulation = tau2_simulation()
    simulation["messages"][0]["usage"] = {"completion_tokens": 2}
    data = only(write(tmp_path / "a.json", tau2_results(simulations=[simulation]))).data
    assert data.content is not None
    assert data.content.messages[0].sampled is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, datetime(2025, 8, 1, 10, 1, tzinfo=UTC)),
        ({"end_time": "2025-08-01T12:00:00+02:00"}, datetime(2025, 8, 1, 10, tzinfo=UTC)),
        ({"end_time": None}, datetime(2025, 8, 1, 10, 0, 0, 500_000, tzinfo=UTC)),
        ({"end_time": "soon", "start_time": "later"}, None),
    ],
)
def test_the_time_is_the_records_own_and_utc_where_it_has_no_offset(
    tmp_path: Path, changes: dict[str, Any], expected: datetime | None
) -> None:
    rollout = one(tmp_path, **changes)
    assert rollout.envelope.time == expected
    assert ("a time is not ISO 8601" in rollout.warnings) is (expected is None)


@pytest.mark.parametrize(
    "changes",
    [
        {"termination_reason": "infrastructure_error", "reward_info": {"reward": 0.0}},
        {"termination_reason": "infrastructure_error", "messages": []},
        {"reward_info": None},
        {"reward_info": {"reward": None}},
    ],
)
def test_an_infrastructure_error_or_a_missing_reward_is_no_verdict(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    data = one(tmp_path, **changes).data
    assert (data.success, data.grader) == (None, None)


def test_action_checks_of_another_task_are_warned_of(tmp_path: Path) -> None:
    simulation = tau2_simulation()
    simulation["reward_info"]["action_checks"] = [{"action": {"name": "refuel_data"}}]
    rollout = only(write(tmp_path / "a.json", tau2_results(simulations=[simulation])))
    (warning,) = rollout.warnings
    assert "not the gold actions of its task" in warning


@pytest.mark.parametrize(("told", "warned"), [(1.0, True), (0.0, False)])
def test_a_recorded_communicate_part_is_checked(tmp_path: Path, told: float, warned: bool) -> None:
    parts = {"COMMUNICATE": told}
    rollout = one(tmp_path, reward_info={"reward": told, "reward_breakdown": parts})
    assert any("COMMUNICATE" in warning for warning in rollout.warnings) is warned


def test_an_undeclared_domain_still_keeps_its_tasks_apart(tmp_path: Path) -> None:
    results = tau2_results()
    results["info"]["environment_info"]["domain_name"] = "banking"
    for actions in (results["tasks"][0]["evaluation_criteria"]["actions"],):
        for action in actions:
            action["name"] = "pay_" + action["name"]
    simulation = tau2_simulation(messages=[{"role": "user", "content": "Hi"}], reward_info=None)
    data = only(write(tmp_path / "a.json", results | {"simulations": [simulation]})).data
    assert data.task is not None
    assert (data.task.id, data.task.environment) == ("banking/[mobile]data_off", None)


def test_a_simulation_whose_task_is_not_embedded_is_rejected(tmp_path: Path) -> None:
    results = tau2_results(simulations=[tau2_simulation(), tau2_simulation(task_id="other")])
    rollouts, rejections = read(write(tmp_path / "a.json", results))
    assert len(rollouts) == 1
    assert places(rejections) == ["simulations[1]"]
    assert "'other' is not among" in rejections[0].reason


@pytest.mark.parametrize("member", ["info", "tasks"])
def test_damage_before_the_simulations_does_not_hide_them(tmp_path: Path, member: str) -> None:
    results = tau2_results(tasks=[tau2_task(), tau2_task(id="torn")])
    text = json.dumps(results)
    torn = text.index('"torn"') if member == "tasks" else text.index('"agent_info"')
    path = tmp_path / "a.json"
    path.write_text(text[:torn] + "," + text[torn:])
    rollouts, rejections = read(path)
    assert [one.data.task and one.data.task.id for one in rollouts] == ["telecom/[mobile]data_off"]
    assert places(rejections)[0].startswith(member)


def test_members_may_stand_in_any_order(tmp_path: Path) -> None:
    results = tau2_results()
    turned = {key: results[key] for key in reversed(results)}
    first = only(write(tmp_path / "a.json", results))
    assert only(write(tmp_path / "b.json", turned)).envelope.id == first.envelope.id


def test_a_folder_gives_the_same_rollout_as_a_file(tmp_path: Path) -> None:
    whole = only(write(tmp_path / "a.json", tau2_results()))
    folder = tmp_path / "run"
    head = without(tau2_results(), "simulations") | {"simulation_index": [{"id": "sim-1"}]}
    write(folder / "results.json", head)
    write(folder / "simulations" / "sim-1.json", tau2_simulation())
    by_folder = only(folder)
    assert by_folder.envelope == whole.envelope
    assert by_folder.file.endswith("sim-1.json")
    assert only(folder / "results.json").envelope == whole.envelope


def test_a_folder_names_damaged_and_missing_simulations(tmp_path: Path) -> None:
    index = [{"id": "sim-1"}, {"id": "sim-2"}, {"id": "sim-3"}]
    write(
        tmp_path / "results.json",
        tau2_results(simulations=[]) | {"simulation_index": index},
    )
    write(tmp_path / "simulations" / "sim-1.json", tau2_simulation())
    (tmp_path / "simulations" / "sim-2.json").write_text('{"task_id": "x", "mess')
    rollouts, rejections = read(tmp_path)
    assert len(rollouts) == 1
    assert [(Path(one.file).name, one.position) for one in rejections] == [
        ("sim-2.json", "file"),
        ("results.json", "simulation_index[2]"),
    ]


def test_a_simulation_out_of_its_folder_is_rejected_with_the_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "simulations" / "sim-1.json", tau2_simulation())
    rollouts, (rejection,) = read(path)
    assert not rollouts
    assert "results.json" in rejection.reason
