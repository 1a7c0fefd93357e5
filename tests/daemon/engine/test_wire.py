"""Requests: what is taken, what is refused by name, what it means."""

import json
from typing import Any

import pytest

from daemon.engine.wire import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    LoadAdapter,
    TokenizeRequest,
    UnloadAdapter,
    Wire,
    parse_body,
)

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {}, "strict": False}
TOOL = {"type": "function", "function": FUNCTION}


def chat(**fields: Any) -> ChatRequest:
    return parse_body(ChatRequest, json.dumps(HELLO | fields).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse_body(CompletionRequest, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("repetition_penalty", 0),
        ("logit_bias", {"5": 10}),
        ("min_p", 0.1),
        ("min_tokens", 4),
        ("response_format", {"type": "json_object"}),
        ("parallel_tool_calls", False),
        ("add_generation_prompt", False),
        ("continue_final_message", True),
        ("echo", True),
        ("best_of", 2),
        ("guided_json", {"type": "object"}),
        ("structured_outputs", {"json": {}}),
        ("prompt_logprobs", 1),
        ("chat_template", "{{ messages }}"),
        ("include_stop_str_in_output", True),
        ("truncate_prompt_tokens", 5),
        ("thinking_token_budget", 0),
        ("do_sample", False),
        ("a_field_of_next_year", "on"),
    ],
)
def test_a_field_that_would_change_the_answer_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ApiError, match=f"{field} is not supported") as found:
        chat(**{field: value})
    assert found.value.status == 400


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": None, "min_p": 0},
        {"repetition_penalty": 1.0, "response_format": {"type": "text"}, "n": None},
        {"parallel_tool_calls": True, "add_generation_prompt": True, "stop": None},
        {"seed": None, "top_k": -1, "tools": [], "tool_choice": None, "stream_options": None},
        {"request_id": "r", "cache_salt": "s", "echo": False, "best_of": 1},
    ],
)
def test_fields_that_change_nothing_are_taken(fields: dict[str, Any]) -> None:
    request = chat(**fields)
    (one,) = request.requests((1, 2), 8, frozenset({3}))
    assert (one.max_tokens, one.temperature, one.top_p, one.top_k) == (8, 1.0, 1.0, 0)
    assert (one.seed, one.top_logprobs) == (None, 0)
    assert one.stop == {3}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "role"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n: "),
        ({"n": 10_000}, "n: "),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 1}, "needs logprobs"),
        ({"stream_options": {"include_usage": True}}, "needs stream"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "continuous"),
        ({"tool_choice": "auto"}, "there are no tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {}}]}, "name"),
        (
            {"tools": [{**TOOL, "function": FUNCTION | {"strict": True}}]},
            "leave strict out",
        ),
        ({"chat_template_kwargs": {"tools": []}}, "may not set tools"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError, match=said):
        chat(**fields)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ApiError, match="JSON"):
        parse_body(ChatRequest, b"{")


def test_images_are_refused_and_parts_of_text_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = chat(messages=[{"role": "user", "content": parts}])
    assert request.messages[0].for_template()["content"] == "ab"
    picture = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    with pytest.raises(ApiError, match="image_url"):
        chat(messages=[{"role": "user", "content": picture}]).messages[0].for_template()


def test_an_answer_is_taken_back_with_all_that_was_in_it() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}, "index": 1}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
    request = chat(messages=[said | {"audio": None, "annotations": [], "reasoning_content": "so"}])
    template = request.messages[0].for_template()
    assert template["content"] == ""
    assert template["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert template["reasoning"] == template["reasoning_content"] == "so"


def test_tools_reach_the_template_as_they_were_sent() -> None:
    assert chat(tools=[TOOL]).schemas() == [TOOL]


def test_calls_are_read_where_there_are_tools_and_they_are_not_switched_off() -> None:
    assert chat(tools=[TOOL]).reads_calls
    assert not chat(tools=[TOOL], tool_choice="none").reads_calls
    assert not chat().reads_calls


def test_choices_have_seeds_that_count_up() -> None:
    requests = chat(n=3, seed=7).requests((1,), 4, frozenset())
    assert [one.seed for one in requests] == [7, 8, 9]


def test_stop_tokens_join_the_models_own_or_replace_them() -> None:
    (one,) = chat(stop_token_ids=[5]).requests((1,), 4, frozenset({3}))
    assert one.stop == {3, 5}
    (one,) = chat(stop_token_ids=[5], ignore_eos=True).requests((1,), 4, frozenset({3}))
    assert one.stop == {5}


def test_an_answer_may_have_what_was_asked_for_as_far_as_there_is_room() -> None:
    request = chat(max_tokens=10, max_completion_tokens=9)
    assert request.requests((1, 2), 9, frozenset())[0].max_tokens == 9
    assert request.requests((1, 2), 8, frozenset())[0].max_tokens == 8


def test_more_tokens_than_ever_fit_are_the_settings_fault() -> None:
    with pytest.raises(ApiError, match="max_tokens=11 cannot be greater than max_model_len=10"):
        chat(max_tokens=11).requests((1, 2), 8, frozenset())


def test_prompts_are_text_or_ids_one_or_many() -> None:
    assert completion(prompt="a").prompts() == ["a"]
    assert completion(prompt=["a", "b"]).prompts() == ["a", "b"]
    assert completion(prompt=[1, 2]).prompts() == [[1, 2]]
    assert completion(prompt=[[1], [2, 3]]).prompts() == [[1], [2, 3]]
    assert completion(prompt="a").token_limit == 16
    for bad in ([], ["a"] * 1025):
        with pytest.raises(ApiError, match="prompt"):
            completion(prompt=bad).prompts()


def test_an_adapter_is_never_replaced_in_place() -> None:
    with pytest.raises(ApiError, match="load_inplace"):
        parse_body(LoadAdapter, b'{"lora_name": "a", "lora_path": "b", "load_inplace": true}')


BODIES: dict[type[Wire], Any] = {
    ChatRequest: HELLO | {"logprobs": True},
    CompletionRequest: {"prompt": "Hi"},
    TokenizeRequest: {"prompt": "Hi", "add_special_tokens": False},
    LoadAdapter: {"lora_name": "a", "lora_path": "b"},
    UnloadAdapter: {"lora_name": "a"},
}
BEYOND = ("9223372036854775808", "-9223372036854775809", "1" + "0" * 400, "-" + "1" * 401)


def schema(model: type[Wire]) -> dict[str, Any]:
    """The fields of a request as JSON Schema, references left out."""
    found: dict[str, Any] = model.model_json_schema()["properties"]
    return found


def numbers(field: Any) -> list[dict[str, Any]]:
    """The schemas of numbers in the schema of a field, at any depth."""
    if isinstance(field, list):
        return [found for part in field for found in numbers(part)]
    if not isinstance(field, dict):
        return []
    own = [field] if field.get("type") in ("integer", "number") else []
    return own + [found for part in field.values() for found in numbers(part)]


@pytest.mark.parametrize("model", BODIES)
def test_every_number_has_a_range_of_its_type(model: type[Wire]) -> None:
    for name, field in schema(model).items():
        for number in numbers(field):
            least = number.get("minimum", number.get("exclusiveMinimum"))
            most = number.get("maximum", number.get("exclusiveMaximum"))
            assert least is not None, name
            assert most is not None, name
            assert -(2**63) <= least < most <= 2**63, name


@pytest.mark.parametrize("model", [model for model in BODIES if numbers([*schema(model).values()])])
@pytest.mark.parametrize("value", [*BEYOND, "1e999", "NaN", "-Infinity", "true", '"1"'])
def test_a_number_beyond_its_range_is_refused_by_name(model: type[Wire], value: str) -> None:
    for name in [name for name, field in schema(model).items() if numbers(field)]:
        if value == '"1"' and name in ("prompt", "stop"):
            continue  # a text
        for written in (value, f"[{value}]", f"[[{value}]]"):
            members = {n: json.dumps(v) for n, v in BODIES[model].items()} | {name: written}
            body = ", ".join(f'"{n}": {v}' for n, v in members.items())
            with pytest.raises(ApiError, match=name) as refused:
                parse_body(model, f"{{{body}}}".encode())
            assert (refused.value.status, refused.value.param) == (400, name)
            assert "Input should be" in str(refused.value)
            assert "(got " in str(refused.value)


def test_what_is_nearest_to_a_right_prompt_says_what_is_wrong_with_it() -> None:
    for prompt, why in (
        ([[1, "a"]], r"0\.1: Input should be a valid integer \(got 'a'\)"),
        ([1, -5], r"1: Input should be greater than or equal to 0 \(got '-5'\)"),
        ([True], r"valid integer \(got 'True'\)"),
    ):
        with pytest.raises(ApiError, match=why):
            completion(prompt=prompt)


def test_whole_numbers_may_be_written_with_a_fraction_of_nothing() -> None:
    assert chat(max_tokens=16.0, top_k=5.0).max_tokens == 16


@pytest.mark.parametrize(
    "name", ["../x", "a/../b", "a/./b", "a//b", "/a", "a/", "a\nb", "a\x00", "\u202e", "a" * 257]
)
def test_a_name_that_means_something_elsewhere_is_none_of_an_adapter(name: str) -> None:
    with pytest.raises(ApiError, match="lora_name is"):
        parse_body(LoadAdapter, json.dumps({"lora_name": name, "lora_path": "b"}).encode())


def test_names_as_engines_know_them_are_taken() -> None:
    for name in ("a", "org/model-1.5_b", "agent@3", "étude:2", "x y"):
        assert parse_body(LoadAdapter, json.dumps({"lora_name": name}).encode()).lora_name == name
