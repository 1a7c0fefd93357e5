"""The three classes of the fields that say how an answer is drawn."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.canonical import exact_json
from producers.gateway.http.sampling_fields import (
    LABELS,
    UNKNOWN,
    Rule,
    explain_rules,
    find_departures,
)
from producers.gateway.http.wire import Endpoint, ModelRequest, parse_request

Json = dict[str, Any]

FUNCTION: Json = {"name": "f", "parameters": {"type": "object"}}
TOOL: Json = {"type": "function", "function": FUNCTION}
PLAIN: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}


def ask(endpoint: Endpoint = "chat", /, **fields: Any) -> ModelRequest:
    words = {"prompt": [4, 5]} if endpoint == "completions" else PLAIN
    return parse_request(endpoint, json.dumps(words | fields).encode())


def explain(endpoint: Endpoint = "chat", /, **fields: Any) -> str | None:
    return explain_rules(ask(endpoint, **fields).find_rules())


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("guided_choice", ["a", "b"]),
        ("guided_grammar", "root ::= 'a'"),
        ("guided_json", {}),
        ("guided_regex", "a+"),
        ("logits_processors", ["a.b"]),
        ("parallel_tool_calls", False),
        ("prompt_embeds", "AAAA"),
        ("repetition_detection", {"max_pattern_size": 8}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("response_format", "json"),
        ("structured_outputs", {"regex": "a+"}),
        ("structured_outputs", {}),
        ("thinking_token_budget", 0),
        ("thinking_token_budget", 64),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {}}),
        ("use_beam_search", True),
        ("vllm_xargs", {"a": 1}),
        ("watermarking", True),
    ],
)
def test_a_mask_or_a_rule_is_untrainable_by_its_name(
    endpoint: Endpoint, field: str, value: Any
) -> None:
    request = ask(endpoint, **{field: value})
    assert request.find_rules() == [Rule(field, field)]
    assert explain(endpoint, **{field: value}) == (
        f"{field}: a mask or rule that cannot be applied again"
    )
    assert request.sampling[field] == value


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "tool_choice"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"output_config": {"effort": "low", "format": {"type": "json_schema"}}}, "output_config"),
        ({"tools": [{"name": "f", "input_schema": {}, "strict": True}]}, "tools.strict"),
    ],
)
def test_a_mask_of_anthropics_protocol_is_named(fields: Json, named: str) -> None:
    assert [rule.label for rule in ask("messages", **fields).find_rules()] == [named]


@pytest.mark.parametrize("strict", [True, 1, "true", "yes", {}])
def test_a_strict_tool_is_untrainable_however_it_says_so(strict: Any) -> None:
    tools = [TOOL, {**TOOL, "function": {**FUNCTION, "name": "g", "strict": strict}}]
    request = ask(tools=tools, tool_choice="auto")
    assert explain(tools=tools) == "tools.strict: a mask or rule that cannot be applied again"
    assert request.sampling["tools.strict"] == ["g"]


def test_a_custom_tool_with_a_grammar_is_untrainable() -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
    tools = [{"type": "custom", "custom": {"name": "g", "format": grammar}}]
    assert explain(tools=tools) == "tools.strict: a mask or rule that cannot be applied again"
    assert ask(tools=tools).sampling["tools.strict"] == ["g"]
    free = {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}}
    assert explain(tools=[free]) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL, {**TOOL, "function": {**FUNCTION, "strict": False}}]},
        {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [TOOL], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "structured_outputs": None},
        {"use_beam_search": False, "best_of": 1, "length_penalty": 1.0, "vllm_xargs": {}},
        {"thinking_token_budget": -1, "watermarking": False, "a_new_field": None},
        {"temperature": 0.2, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logit_bias": {"5": 9}},
        {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.2},
        {"allowed_token_ids": [5], "bad_words": ["no"], "min_tokens": 2, "ignore_eos": True},
        {"stop": ["x"], "seed": 1, "n": 2, "user": "u", "metadata": {}, "stream": True},
        {"logprobs": True, "top_logprobs": 5, "return_token_ids": True, "priority": 0},
    ],
)
def test_what_masks_nothing_stays_trainable(fields: Json) -> None:
    assert explain(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"truncate_prompt_tokens": 8},
        {"documents": [{"title": "a", "text": "b"}]},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "low"},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
)
def test_a_field_of_the_prompt_is_recorded_and_trainable_unless_there_are_images(
    fields: Json,
) -> None:
    request = ask(**fields)
    assert request.find_rules() == []
    assert fields.items() <= request.sampling.items()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    shown = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, image, image]}]
    assert explain(**fields, messages=shown) == (
        "image_url in the messages: token ids do not tell all of the prompt"
    )


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages"])
def test_a_field_of_a_new_sdk_is_recorded_by_name_and_untrainable(endpoint: Endpoint) -> None:
    request = ask(endpoint, verbosity_2027="low", do_sample=False)
    assert {"verbosity_2027": "low", "do_sample": False}.items() <= request.sampling.items()
    assert {rule.label for rule in request.find_rules()} == {UNKNOWN}
    assert explain(endpoint, verbosity_2027="low", do_sample=False) == (
        "unknown field verbosity_2027, do_sample: its effect on the distribution is not known"
    )


def test_many_unknown_fields_make_a_short_reason_and_a_short_record() -> None:
    fields = {f"field_{number}_{'x' * 500}": "y" * 5000 for number in range(10_000)}
    request = ask(**fields)
    reason = explain(**fields)
    assert reason is not None
    assert "and 9992 more: its effect" in reason
    assert len(reason) < 1000
    assert len(exact_json(request.sampling)) < 16_000


def test_several_reasons_are_all_told() -> None:
    image = [{"role": "user", "content": [{"type": "input_audio"}, {}, "text"]}]
    reason = explain(messages=image, tool_choice="required", new=1)
    assert reason == (
        "tool_choice: a mask or rule that cannot be applied again; "
        "input_audio, a part without a type in the messages: token ids do not tell all of the "
        "prompt; unknown field new: its effect on the distribution is not known"
    )


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.text(max_size=9),
    lambda items: (
        st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=9), items, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ("messages", "prompt", "tools", "tool_choice", "response_format", "thinking", "output_config",
     "temperature", "top_k", "logit_bias", "documents", "stop", "system", "tools.strict")
) | st.text(max_size=9)  # fmt: skip


@given(st.sampled_from(["chat", "completions", "messages"]), st.dictionaries(NAMES, VALUES))
def test_whatever_a_request_holds_has_classes_and_can_be_recorded(
    endpoint: Endpoint, document: Json
) -> None:
    request = ModelRequest(endpoint, document)
    rules = request.find_rules()
    assert {rule.label for rule in rules} <= set(LABELS)
    assert (explain_rules(rules) is None) == (not rules)
    exact_json(request.sampling).encode()
    # A call without a rule departs from the plain softmax by its bends alone.
    departures = find_departures(request.sampling)
    masks = [rule.name for rule in rules if rule.label not in (UNKNOWN, "media")]
    assert set(masks) <= set(departures)


@given(st.text(min_size=1, max_size=20), st.sampled_from([0, False, "", [], {}, "x"]))
def test_an_unknown_name_with_any_value_is_untrainable(name: str, value: Any) -> None:
    document = PLAIN | {f"new_{name}": value}
    (rule,) = ModelRequest("chat", document).find_rules()
    assert rule.label == UNKNOWN
    assert ModelRequest("chat", document).sampling[rule.name] == value
