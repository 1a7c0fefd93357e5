"""tau-bench v1 trajectories become rollouts."""

from pathlib import Path

import pytest

from events.messages import Action, executed_calls
from tests.producers.samples import only, places, read, tau_bench_run, write


def test_a_run_becomes_a_rollout_with_its_task_and_its_verdict(tmp_path: Path) -> None:
    data = only(write(tmp_path / "a.json", [tau_bench_run()])).data
    assert (data.source, data.purpose, data.alias, data.base) == (
        "tau-bench",
        "import",
        "agent",
        "unknown",
    )
    assert (data.success, data.reward, data.grader, data.trial) == (True, 1.0, "tau-bench v1", 2)
    assert data.reward_parts == {"r_outputs": 1.0}
    assert data.termination == "user_stop"
    task = data.task
    assert task is not None
    assert (task.id, task.environment) == ("airline/7", "airline")
    assert task.gold_actions == (
        Action(name="cancel_reservation", arguments={"reservation_id": "R1"}),
    )
    assert (task.outputs, task.reward_basis) == (("12",), ("DB", "COMMUNICATE"))
    assert task.instruction == "You want to cancel R1."


def test_arguments_are_parsed_and_an_error_text_is_an_error(tmp_path: Path) -> None:
    data = only(write(tmp_path / "a.json", [tau_bench_run()])).data
    assert data.content is not None
    (call,) = executed_calls(data.content.messages)
    assert call.call.arguments == {"reservation_id": "R1"}
    assert call.failed


def test_a_run_that_was_never_graded_ran_out_of_turns_and_failed(tmp_path: Path) -> None:
    run = tau_bench_run(reward=0.0)
    run["info"]["reward_info"] = None
    data = only(write(tmp_path / "a.json", [run])).data
    assert (data.termination, data.success) == ("max_steps", False)


def test_an_error_of_the_runner_is_no_verdict_on_the_agent(tmp_path: Path) -> None:
    run = tau_bench_run(reward=0.0, traj=[], info={"error": "502", "traceback": "..."})
    rollout = only(write(tmp_path / "a.json", [run]))
    assert (rollout.data.success, rollout.data.reward, rollout.data.grader) == (None, 0.0, None)
    assert rollout.data.termination == "error"
    assert "the run ended with an error of the runner; it is not judged" in rollout.warnings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward": "1.0"}, "reward: Input should be a valid number"),
        ({"traj": None}, "traj: Input should be a valid list"),
        ({"traj": []}, "`traj` is empty"),
        ({"traj": [{"role": "robot"}]}, "messages.0.role"),
        ({"traj": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"task_id": None}, "task_id"),
        ({"trial": 2**70}, "trial"),
        ({"reward": float("nan")}, "reward: Input should be a finite number"),
    ],
)
def test_a_record_of_wrong_types_is_named(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    runs = [tau_bench_run(), tau_bench_run(**changes), tau_bench_run(trial=3)]
    rollouts, rejections = read(write(tmp_path / "a.json", runs))
    assert len(rollouts) == 2
    assert places(rejections) == ["[1]"]
    assert reason in rejections[0].reason


def test_facts_that_contradict_each_other_are_warned_of(tmp_path: Path) -> None:
    run = tau_bench_run()
    run["info"]["reward_info"] |= {"reward": 0.0, "info": {"r_actions": 0.0}}
    warnings = only(write(tmp_path / "a.json", [run])).warnings
    assert "`reward` is not the reward of `reward_info`" in warnings
    assert "the reward is 1 although one of its parts is 0" in warnings
    run["info"]["reward_info"]["info"] = {"r_outputs": 0.0}
    assert (
        "what the agent said does not give the recorded `r_outputs`"
        in only(write(tmp_path / "a.json", [run])).warnings
    )


def test_an_unknown_tool_and_a_missing_result_are_warned_of(tmp_path: Path) -> None:
    run = tau_bench_run()
    del run["traj"][3]
    run["traj"][2]["tool_calls"][0]["function"]["name"] = "make_coffee"
    warnings = only(write(tmp_path / "a.json", [run])).warnings
    assert "a tool call has no result" in warnings
    assert "calls the unknown tool 'make_coffee'" in warnings
