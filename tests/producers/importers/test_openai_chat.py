"""Anyone's chat logs become rollouts."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from consumers.diagnosis.labels import label_rollout
from events.json_text.guard import parse_arguments
from events.messages import Action
from events.rollouts import ToolRoles
from producers.importers.openai_chat import WireRollout
from tests.producers.samples import Json, only, openai_call, openai_record, places, read, write


def one(tmp_path: Path, **changes: Any) -> Any:
    return only(write(tmp_path / "a.jsonl", openai_record(**changes)))


def test_messages_are_enough(tmp_path: Path) -> None:
    data = one(tmp_path).data
    assert (data.source, data.base, data.success, data.grader) == ("openai", "unknown", None, None)
    assert data.task is None
    assert len(data.content.messages) == 4


def test_every_documented_field_is_read(tmp_path: Path) -> None:
    rollout = one(
        tmp_path,
        tools=[{"type": "function", "function": {"name": "get_order_details"}}, {"type": "web"}],
        task={
            "id": 3,
            "instruction": "Ask.",
            "capability": "orders",
            "outputs": ["x"],
            "reward_basis": ["DB"],
        },
        gold_actions=[{"name": "f", "arguments": '{"a": 1}', "compare": ["a"]}],
        environment="retail",
        reward=0.25,
        reward_parts={"DB": 0.5, "X": None},
        success=True,
        grader="me 1",
        base="model-b",
        policy="model-b-adapter-2",
        session="s1",
        trial=4,
        seed=9,
        time="2026-01-02T03:04:05Z",
        termination="hung up",
        simulator="people",
        write_tools=["cancel"],
        tool_roles={"writes": ["cancel"], "unordered": {"cancel": ["orders"]}},
    )
    data = rollout.data
    assert data.tool_roles == ToolRoles(writes=("cancel",), unordered={"cancel": ("orders",)})
    assert data.known_tools == ("get_order_details", "web")
    assert data.task.id == "retail/3"
    assert data.task.capability == "orders"
    assert data.task.gold_actions == (Action(name="f", arguments={"a": 1}, compare=("a",)),)
    assert (data.success, data.reward, data.reward_parts) == (True, 0.25, {"DB": 0.5, "X": None})
    assert (data.base, data.policy, data.grader) == ("model-b", "model-b-adapter-2", "me 1")
    assert (data.session, data.trial, data.seed) == ("s1", 4, 9)
    assert (data.termination, data.simulator, data.write_tools) == (
        "hung up",
        "people",
        ("cancel",),
    )
    assert rollout.envelope.subject == data.key() == "s1"
    assert rollout.envelope.time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "success"),
    [
        ({}, None),
        ({"reward": 1.0000001}, True),
        ({"reward": 1}, True),
        ({"reward": 0.9}, False),
        ({"reward": 1.0, "success": False}, False),
        ({"success": True}, True),
    ],
)
def test_success_is_what_was_said_else_a_reward_of_one(
    tmp_path: Path, given: Json, success: bool | None
) -> None:
    data = one(tmp_path, **given).data
    assert data.success is success
    assert data.reward == given.get("reward")


def test_unix_seconds_are_a_time(tmp_path: Path) -> None:
    assert one(tmp_path, time=1_700_000_000).envelope.time == datetime.fromtimestamp(
        1_700_000_000, UTC
    )


def test_the_environment_is_known_by_the_offered_tools(tmp_path: Path) -> None:
    tools = [
        {"type": "function", "function": {"name": name}}
        for name in ("get_order_details", "cancel_pending_order", "find_user_id_by_email")
    ]
    assert one(tmp_path, tools=tools, task_id="t").data.task.id == "retail/t"
    assert one(tmp_path, task_id="t").data.task.environment == "retail"


def test_the_roles_that_a_record_declares_of_its_tools_are_what_diagnosis_asks(
    tmp_path: Path,
) -> None:
    record: Json = {
        "messages": [
            {"role": "user", "content": "Please give me the slot at 8."},
            {"role": "assistant", "tool_calls": [openai_call("ring_doctor", "{}", "c1")]},
            {"role": "tool", "tool_call_id": "c1", "content": "ringing"},
        ],
        "task_id": "slot",
        "gold_actions": [{"name": "slot_take", "arguments": {"slot": "8"}}],
        "reward": 0.0,
    }
    roles = {"writes": ["slot_take"], "transfer": ["ring_doctor"], "user_record": ["who_rings"]}
    plain = only(write(tmp_path / "a.jsonl", record)).data
    declared = only(write(tmp_path / "b.jsonl", record | {"tool_roles": roles})).data
    assert label_rollout(plain).labels.categories == ("premature_termination",)
    # The agent handed the user over, so that it never asked for the record comes last.
    categories = label_rollout(declared).labels.categories
    assert (categories[0], categories[-1]) == ("over_cautious", "user_id_failure")


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        ('{"a": [1, 2.5, "x"]}', {"a": [1, 2.5, "x"]}),
        ({"a": 1}, {"a": 1}),
        (None, {}),
        ("", {}),
        ("{'a': 1}", "{'a': 1}"),
        ('{"a": 1', '{"a": 1'),
        ("[1]", "[1]"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1e999}', '{"a": 1e999}'),
        ('{"a": ' + "[" * 5_000, '{"a": ' + "[" * 5_000),
        ('{"a": ' + "[" * 150 + "]" * 150 + "}", '{"a": ' + "[" * 150 + "]" * 150 + "}"),
        ('{"a": ' + "9" * 5_000 + "}", '{"a": ' + "9" * 5_000 + "}"),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ([1], "[1]"),
    ],
)
def test_arguments_that_are_no_object_stay_the_text_they_were(raw: Any, parsed: Any) -> None:
    assert parse_arguments(raw) == parsed


@pytest.mark.parametrize("blank", ["", "  ", None, "null", {}])
def test_a_call_without_arguments_is_the_same_however_it_is_written(
    tmp_path: Path, blank: Any
) -> None:
    messages = [{"role": "assistant", "tool_calls": [openai_call("restart", blank)]}]
    rollout = one(tmp_path, messages=messages)
    assert rollout.data.content.messages[0].tool_calls[0].arguments == {}
    assert "the arguments of a call are no JSON object" not in rollout.warnings


@pytest.mark.parametrize(
    ("content", "text", "reasoning"),
    [
        ([{"type": "text", "text": "Hi"}, {"type": "output_text", "text": "."}], "Hi.", None),
        ([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hi"}], "Hi", "Hm."),
        ([{"type": "reasoning", "summary": [{"text": "Hm."}]}], None, "Hm."),
        ([{"type": "image_url"}], [{"type": "image_url"}], None),
        (
            [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "a", "cites": [1]}],
            [{"type": "text", "text": "a", "cites": [1]}],
            "Hm.",
        ),
        ([{"type": "thinking", "data": 7}], [{"type": "thinking", "data": 7}], None),
    ],
)
def test_parts_of_an_answer_are_text_and_reasoning(
    tmp_path: Path, content: Any, text: Any, reasoning: str | None
) -> None:
    (message,) = one(
        tmp_path, messages=[{"role": "assistant", "content": content}]
    ).data.content.messages
    assert (message.content, message.reasoning) == (text, reasoning)


def test_a_call_of_a_custom_tool_is_read(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    (read,) = one(tmp_path, messages=messages).data.content.messages[0].tool_calls
    assert (read.id, read.name, read.arguments) == ("c1", "shell", {"input": "ls"})


def test_the_older_function_call_and_its_role_are_read(tmp_path: Path) -> None:
    messages = [
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "1"},
    ]
    rollout = one(tmp_path, messages=messages)
    assert [message.role for message in rollout.data.content.messages] == ["assistant", "tool"]
    assert rollout.warnings == ()


def test_ids_that_disagree_are_warned_of_and_position_decides(tmp_path: Path) -> None:
    calls = [openai_call("f", "{}", "x"), openai_call("g", "{}", "x")]
    messages = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "y", "content": "1"},
        {"role": "tool", "tool_call_id": "x", "content": "2"},
        {"role": "tool", "tool_call_id": "x", "content": "3"},
    ]
    assert one(tmp_path, messages=messages, tools=[]).warnings == (
        "a tool result follows no call",
        "the id of a result is not the id of the call in its place",
        "two calls have the same id",
        "calls the unknown tool 'f'",
        "calls the unknown tool 'g'",
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "neither `function`"),
        ({"reward": "high"}, "reward"),
        ({"success": "yes"}, "success"),
        ({"time": "yesterday"}, "'yesterday' is neither"),
        ({"gold_actions": []}, "has no id"),
        ({"gold_actions": [{"name": "f", "arguments": "x"}], "task_id": 1}, "gold action f"),
        ({"base": "b" * 500}, "base"),
        ({"tool_roles": {"opens": ["door"]}}, "tool_roles.opens"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [openai_call("f", {"a": 1e999})]}]},
            "not finite",
        ),
    ],
)
def test_what_cannot_be_read_is_rejected_with_its_line(
    tmp_path: Path, changes: Json, reason: str
) -> None:
    records = [openai_record(), openai_record(**changes), openai_record(trial=1)]
    rollouts, rejections = read(write(tmp_path / "a.jsonl", *records))
    assert len(rollouts) == 2
    assert places(rejections) == ["line 2"]
    assert reason in rejections[0].reason


def test_an_array_and_a_printed_object_are_read_too(tmp_path: Path) -> None:
    array = write(tmp_path / "a.json", [openai_record(), openai_record(trial=1)])
    printed = tmp_path / "b.json"
    printed.write_text(json.dumps(openai_record(), indent=2))
    assert read(array)[0][0].envelope.id == only(printed).envelope.id


def test_the_documentation_names_every_field_and_its_example_is_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    section = text.split("## OpenAI chat")[1].split("\n## ")[0]
    for name in WireRollout.model_fields:
        assert f"`{name}`" in section, f"docs/formats.md does not name {name}"
    path = tmp_path / "a.jsonl"
    path.write_text(section.split("```json\n")[1].split("```")[0])
    assert only(path).data.success is True


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"session": "s" * 257}, "at most 256 characters"),
        ({"termination": "x" * 4_000_001}, "4,000,001 characters"),
        ({"task_id": 1, "task": {"instruction": "x" * 4_000_001}}, "4,000,001 characters"),
    ],
    ids=["session", "termination", "instruction"],
)
def test_what_no_table_holds_is_rejected_and_not_appended(
    tmp_path: Path, changes: Json, reason: str
) -> None:
    path = write(tmp_path / "a.jsonl", openai_record(), openai_record(**changes))
    rollouts, (rejected,) = read(path)
    assert rejected.position == "line 2"
    assert reason in rejected.reason
    assert len(rollouts) == 1
