"""Scenarios of a file: loaded, played, scored; damaged lines are named and the others load."""

import json
from pathlib import Path
from typing import Any

import pytest

from envs.agents import Agent
from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.task import TaskDefinition
from envs.tau2.benchmark import InvalidBenchmark, NoBenchmark
from envs.toolsandbox import similarity
from envs.toolsandbox.environment import ToolSandbox
from envs.toolsandbox.scenarios import load
from events.messages import Message
from tests.envs.toolsandbox.files import (
    NOW,
    SETTING,
    impossible,
    scenario,
    write_file,
)


def loaded(path: Path) -> ToolSandbox:
    environment = ToolSandbox()
    environment.use_scenarios(path)
    return environment


def played(environment: ToolSandbox, task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    episode = play(Episode(environment, task), agent, environment.user(task))
    return episode, grade(environment, task, episode.messages, episode.termination)


def test_a_scenario_is_played_by_its_own_rules_and_its_gold_is_worth_1(tmp_path: Path) -> None:
    environment = loaded(write_file(tmp_path, scenario()))
    (task,) = environment.tasks("scenarios")
    assert (task.id, task.capability) == ("toolsandbox/scenarios/text_hugo", "state_dependency")
    assert environment.policy(task) == "Ask where you are not sure."
    names = [schema["function"]["name"] for schema in environment.schemas(task)]
    assert names == [
        "set_cellular_service_status",
        "search_contacts",
        "send_message_with_phone_number",
    ]
    assert environment.reset(task)["DEVICE"]["clock"]["now"] == NOW
    episode, verdict = played(environment, task, environment.oracle(task))
    assert (verdict.reward, verdict.success, verdict.violations) == (1.0, True, ())
    assert episode.messages[0].text == "Tell Hugo: Dinner at seven"
    assert environment.task(task.id) == task


def test_gold_actions_follow_from_the_milestones(tmp_path: Path) -> None:
    (task,) = loaded(write_file(tmp_path, scenario())).tasks("scenarios")
    assert [(a.name, a.arguments) for a in task.criteria.gold_actions or ()] == [
        ("set_cellular_service_status", {"on": True}),
        ("search_contacts", {"name": "Hugo Novak"}),
        (
            "send_message_with_phone_number",
            {"phone_number": "+12065550101", "content": "Dinner at seven"},
        ),
    ]


def test_an_answer_in_other_words_is_worth_less_and_no_success(tmp_path: Path) -> None:
    environment = loaded(write_file(tmp_path, scenario()))
    (task,) = environment.tasks("scenarios")

    class Reworded:
        oracle = environment.oracle(task)

        def reply(self, messages: Any) -> Message:
            message = self.oracle.reply(messages)
            return (
                message if message.tool_calls else Message(role="assistant", content="Hugo has it")
            )

    verdict = played(environment, task, Reworded())[1]
    # ROUGE-L of "hugo" in 7 words and in 3 is 2 / 10; its cube root is the row's similarity.
    assert verdict.reward == pytest.approx((3 + 0.2 ** (1 / 3)) / 4)
    assert verdict.success is False
    assert verdict.violations[0].startswith("milestone 3 was reached to 0.58")


def test_doing_nothing_is_right_where_nothing_can_be_done_and_worth_0_elsewhere(
    tmp_path: Path,
) -> None:
    environment = loaded(write_file(tmp_path, scenario(), impossible()))
    rewards = {
        environment.categories(task)[0]: played(environment, task, environment.idle_agent(task))[
            1
        ].reward
        for task in environment.tasks("scenarios")
    }
    assert rewards == {"state_dependency": 0.0, "insufficient_information": 1.0}


def test_a_guess_steps_on_the_minefield(tmp_path: Path) -> None:
    environment = loaded(write_file(tmp_path, impossible()))
    (task,) = environment.tasks("scenarios")
    source = loaded(write_file(tmp_path, scenario()))
    (other,) = source.tasks("scenarios")
    verdict = played(environment, task, source.oracle(other))[1]
    assert verdict.reward == 0.0
    assert verdict.violations[0].startswith("minefield 0 was matched")


def test_an_episode_that_is_cut_off_is_scored_as_it_stands(tmp_path: Path) -> None:
    environment = loaded(write_file(tmp_path, scenario()))
    (task,) = environment.tasks("scenarios")
    episode, _ = played(environment, task, environment.oracle(task))
    assert grade(environment, task, episode.messages[:5], "max_steps").reward == 0.5
    assert grade(environment, task, episode.messages[:5], "agent_error").reward == 0.0


def _without(key: str) -> dict[str, Any]:
    row = scenario("other")
    del row[key]
    return row


def _with_constraint(**changes: Any) -> dict[str, Any]:
    row = scenario("other")
    row["milestones"][0]["snapshot_constraints"][0].update(changes)
    return row


def _close(tolerance: Any) -> dict[str, Any]:
    return {"wifi": {"name": "column_close_similarity", "kwargs": {"atol_dict": tolerance}}}


def _traces(target: Any) -> dict[str, Any]:
    return {"database": "SANDBOX", "target_rows": [{"tool_trace": target}]}


def _with_state(**tables: Any) -> dict[str, Any]:
    row = scenario("other")
    row["starting_databases"].update(tables)
    return row


def _reminder(time: float) -> dict[str, Any]:
    return {"reminder_id": "r", "content": "x", "creation_timestamp": time}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("[" * 5_000, "Invalid JSON"),
        (_without("starting_messages"), "starting_messages: Field required"),
        (_without("starting_databases"), "starting_databases: Field required"),
        (scenario("other", starting_messages=[]), "no message from SYSTEM to USER; add it"),
        (scenario("a/b"), "name: String should match"),
        (scenario("other", tool_allow_list=["fly"]), "no tool 'fly'; correct tool_allow_list"),
        (scenario("other", milestone_edges=[[0, 9]]), "no milestone 9"),
        (scenario("other", milestone_edges=[[0, 2], [2, 0]]), "circle"),
        (_with_constraint(database="WEATHER"), "no table 'WEATHER'; use"),
        (_with_constraint(target_rows=[{"colour": 1}]), "no column 'colour'"),
        (_with_constraint(constraint={"name": "likeness"}), "no constraint 'likeness'; use one of"),
        (_with_constraint(column_similarity={"wifi": {"name": "guess"}}), "no measure 'guess'"),
        (_with_constraint(column_similarity=_close(3)), "atol_dict is 3; give an object"),
        (_with_constraint(**_traces("[]")), "tool_trace '[]' allows no call"),
        (_with_constraint(**_traces(7)), "tool_trace 7 allows no call"),
        (_with_state(SETTING=[{**SETTING, "latitude": 91}]), "latitude: Input should be less than"),
        (_with_state(REMINDER=[_reminder(1e300)]), "creation_timestamp: Input should be less"),
        (_with_state(REMINDER=[_reminder(float("nan"))]), "creation_timestamp: Input should be"),
        (scenario(), "is there twice; give each its own"),
    ],
)
def test_a_damaged_line_is_named_with_its_number_and_the_others_load(
    tmp_path: Path, line: Any, why: str
) -> None:
    path = write_file(tmp_path, scenario(), line, scenario("last"))
    file = load(path)
    assert list(file.scenarios) == ["text_hugo", "last"]
    (sentence,) = file.damaged
    assert sentence.startswith(f"{path}, line 2")
    assert why in sentence


def test_a_file_without_one_scenario_and_a_missing_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidBenchmark, match="line 1, is no scenario"):
        load(write_file(tmp_path, "{}"))
    with pytest.raises(InvalidBenchmark, match="has no lines"):
        load(write_file(tmp_path))
    with pytest.raises(NoBenchmark, match="cannot be read"):
        load(tmp_path / "absent.jsonl")
    with pytest.raises(NoBenchmark, match="--scenarios FILE"):
        ToolSandbox().tasks("scenarios")
    (tmp_path / "tools.json").write_text("[1]")
    with pytest.raises(InvalidBenchmark, match=r"tools\.json is no list of schemas"):
        load(write_file(tmp_path, scenario()))
    (tmp_path / "tools.json").write_text("[" * 100_000)
    with pytest.raises(InvalidBenchmark, match=r"tools\.json is no JSON that can be read"):
        load(write_file(tmp_path, scenario()))


@pytest.mark.parametrize("time", [1e300, float("nan"), True, -1])
def test_a_time_of_export_that_no_tool_can_name_is_an_error(tmp_path: Path, time: float) -> None:
    with pytest.raises(InvalidBenchmark, match="no number exported_at_unix between"):
        load(write_file(tmp_path, scenario(), exported=time))


def test_several_target_rows_are_refused_before_an_episode_where_scipy_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = _with_constraint(target_rows=[{"wifi": True}, {"wifi": False}])
    assert not load(write_file(tmp_path, several)).damaged
    monkeypatch.setattr(similarity, "find_spec", lambda name: None)
    (sentence,) = load(write_file(tmp_path, several, scenario())).damaged
    assert "line 1" in sentence
    assert "pip install 'kintsugi[toolsandbox]'" in sentence


def test_without_a_time_of_export_the_clock_follows_the_newest_row(tmp_path: Path) -> None:
    row = scenario()
    reminder = {"reminder_id": "r", "content": "x", "creation_timestamp": 1_700_000_000.0}
    row["starting_databases"]["REMINDER"] = [reminder]
    environment = loaded(write_file(tmp_path, row, exported=None))
    (task,) = environment.tasks("scenarios")
    assert environment.reset(task)["DEVICE"]["clock"]["now"] == 1_700_000_060.0


def test_the_published_schemas_beside_the_file_are_those_that_the_agent_is_shown(
    tmp_path: Path,
) -> None:
    published = {"type": "function", "function": {"name": "search_contacts", "description": "Own"}}
    (tmp_path / "tools.json").write_text(json.dumps([published]))
    environment = loaded(write_file(tmp_path, scenario()))
    (task,) = environment.tasks("scenarios")
    assert published in environment.schemas(task)
