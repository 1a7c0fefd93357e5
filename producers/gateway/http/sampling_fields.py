"""Classifies request fields by their effect on how an answer's tokens are drawn. Pure.

    prompt      The field changes the prompt alone. The engine tells the ids of the prompt.
    bend        The field changes the distribution. Processed log-probabilities are those of the
                changed distribution; each learner takes the bends that it can apply.
    rule        The field is a mask or a rule that cannot be applied again. Log-probabilities are
                taken behind a mask, whatever their mode is. The call trains nothing.

The field names are those of vLLM 0.32's three protocols, its older versions, OpenAI and Anthropic.
An unknown field counts as a rule. Guarantee: if a call has no rule, its recorded fields describe
the distribution from which it was drawn. Not covered: the engine's own defaults
(routing/engine_proof.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any, Final

from events.canonical import exact_json, sha256
from events.json_text.pieces import encode_in_pieces
from producers.storable import Unusable, check_storable, readable

Json = dict[str, Any]

_SILENT: Final = frozenset(
    {
        "cache_control", "cache_salt", "echo", "include_reasoning", "include_stop_str_in_output",
        "logprob_token_ids", "logprobs", "metadata", "mm_payload", "model", "priority",
        "prompt_cache_key", "prompt_cache_retention", "prompt_logprobs", "request_id",
        "return_mm_kwargs", "return_prompt_text", "return_token_ids", "return_token_offsets",
        "return_tokens_as_token_ids", "routed_experts_prompt_start", "safety_identifier",
        "service_tier", "session_id", "skip_special_tokens", "spaces_between_special_tokens",
        "store", "stream", "stream_interval", "stream_options", "tools", "top_logprobs", "user",
    }
)  # fmt: skip
"""Fields that do not affect the draw, and `tools`, which is read separately. Not recorded."""

_WORDS: Final[Mapping[str, frozenset[str]]] = {
    "chat": frozenset({"messages"}),
    "completions": frozenset({"prompt"}),
    "messages": frozenset({"messages", "system"}),
}
"""Endpoint, as in `wire.Endpoint` -> its fields that hold the conversation."""

_LIMITS: Final = frozenset(
    {
        "max_completion_tokens", "max_tokens", "n", "seed", "stop", "stop_sequences",
        "stop_token_ids",
    }
)  # fmt: skip
"""Fields for the answer's end, the number of choices, and the random seed."""

_PROMPT: Final = frozenset(
    {
        "add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs",
        "continue_final_message", "documents", "media_io_kwargs", "mm_processor_kwargs",
        "reasoning_effort", "truncate_prompt_tokens", "truncation_side",
    }
)  # fmt: skip

_BENDS: Final[Mapping[str, tuple[Any, ...]]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "frequency_penalty": (0,),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "temperature": (1,),
    "top_k": (0, -1),
    "top_p": (1,),
}
"""Field -> values with which it changes nothing; null changes nothing for every field."""

_RULES: Final[Mapping[str, tuple[Any, ...]]] = {
    "best_of": (1,),
    "early_stopping": (False,),
    "guided_choice": ([],),
    "guided_decoding_backend": (),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "guided_whitespace_pattern": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "output_config": (),
    "parallel_tool_calls": (True,),
    "prompt_embeds": (),
    "repetition_detection": (),
    "response_format": (),
    "structural_tag": (),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking": (),
    "thinking_token_budget": (-1,),
    "tool_choice": ("auto", "none"),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
}
"""Mask or rule -> values without effect. vLLM 0.32 makes a grammar for `parallel_tool_calls`."""

_CLASSED: Final = {
    name: place for place, name in enumerate((*sorted(_LIMITS | _PROMPT), *_BENDS, *_RULES))
}
"""Field of a known class -> its place in a fixed order."""

_FREE: Final[Mapping[str, tuple[Any, ...]]] = {
    "response_format": ("text",),
    "thinking": ("adaptive", "disabled"),
}
"""Rule whose value is an object -> its `type` values that mask nothing."""

_DEFAULTS: Final[Json] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Values for fields that a request lacks. The engine's probes verify that it uses them."""

STRICT_TOOLS: Final = "tools.strict"
"""Name under which tools with `strict: true` are recorded: vLLM 0.32 makes a grammar of them."""
MEDIA: Final = "media"
"""Label of message parts other than text; token ids only hold placeholders for them."""
UNKNOWN: Final = "unknown_field"

LABELS: Final = (*_RULES, STRICT_TOOLS, MEDIA, UNKNOWN)
"""Labels of all request features that make a call untrainable."""

_TEXT_PARTS: Final = frozenset(
    {"input_text", "output_text", "reasoning", "refusal", "text", "thinking"}
)

_LONGEST_VALUE: Final = 2000
"""Most characters of a recorded parameter's JSON; longer values are recorded as a hash."""
_LONGEST_NAME: Final = 64
_MOST_UNKNOWN: Final = 32
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Rule:
    """A feature of a request that makes its answer untrainable."""

    label: str
    """One of `LABELS`."""
    name: str
    """Name of the field, or type of the message part."""


def read_sampling(document: Mapping[str, Any], endpoint: str) -> Json:
    """Return the fields that affect the draw, as recorded, with the protocol's defaults."""
    values = {name: document[name] for name in _list_known(document)}
    unknown = islice(_list_unknown(document, endpoint), _MOST_UNKNOWN)
    values |= {_shorten_name(name): document[name] for name in unknown}
    if strict := _list_strict_tools(document):
        values[STRICT_TOOLS] = strict
    return _DEFAULTS | {name: _shorten(value) for name, value in values.items()}


def find_rules(document: Mapping[str, Any], endpoint: str, messages: Iterable[Any]) -> list[Rule]:
    """Return the rules of a request, each once; `messages` are in OpenAI's form."""
    fields = [Rule(name, name) for name in _list_known(document) if _is_rule(name, document[name])]
    strict = [Rule(STRICT_TOOLS, STRICT_TOOLS)] if _list_strict_tools(document) else []
    media = [Rule(MEDIA, kind) for kind in _list_media(messages)]
    unknown = [Rule(UNKNOWN, _shorten_name(name)) for name in _list_unknown(document, endpoint)]
    return [*fields, *strict, *media, *unknown]


def explain_rules(rules: Sequence[Rule]) -> str | None:
    """Return why answers under these rules are untrainable; None without rules."""
    fields = _join(rule.name for rule in rules if rule.label not in (MEDIA, UNKNOWN))
    media = _join(rule.name for rule in rules if rule.label == MEDIA)
    unknown = _join(rule.name for rule in rules if rule.label == UNKNOWN)
    reasons = [
        fields and f"{fields}: a mask or rule that cannot be applied again",
        media and f"{media} in the messages: token ids do not tell all of the prompt",
        unknown and f"unknown field {unknown}: its effect on the distribution is not known",
    ]
    return "; ".join(filter(None, reasons)) or None


def find_departures(sampling: Mapping[str, Any]) -> list[str]:
    """Return the recorded parameters that change the distribution from softmax at temperature 1."""
    return [
        name
        for name, value in sampling.items()
        if name not in _LIMITS and name not in _PROMPT and not _is_neutral(name, value)
    ]


def _list_known(document: Mapping[str, Any]) -> list[str]:
    known = [name for name, value in document.items() if value is not None and name in _CLASSED]
    return sorted(known, key=_CLASSED.__getitem__)


def _list_unknown(document: Mapping[str, Any], endpoint: str) -> Iterator[str]:
    for name, value in document.items():
        known = name in _CLASSED or name in _SILENT or name in _WORDS[endpoint]
        if value is not None and not known:
            yield name


def _is_rule(name: str, value: Any) -> bool:
    return name in _RULES and not _is_neutral(name, value)


def _is_neutral(name: str, value: Any) -> bool:
    """Return whether a field with this value leaves the distribution unchanged."""
    if value is None:
        return True
    if name == "tool_choice" and isinstance(value, dict):
        alone = value.get("disable_parallel_tool_use") in (None, False)
        return value.get("type") in ("auto", "none") and alone
    if name in ("response_format", "thinking") and isinstance(value, dict):
        # A thinking budget forces an end of thoughts; other types only change the prompt.
        return value.get("type") in _FREE[name]
    if name == "output_config" and isinstance(value, dict):
        return all(item is None for key, item in value.items() if key != "effort")
    neutral = _BENDS.get(name) or _RULES.get(name) or ()
    return value in neutral


def _list_strict_tools(document: Mapping[str, Any]) -> list[str]:
    """Return the names of strict tools; only null and false turn `strict` off."""
    tools = document.get("tools")
    strict = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        function = tool.get("function")
        holders = [tool, function] if isinstance(function, dict) else [tool]
        custom = tool.get("custom")
        if isinstance(custom, dict):
            holders.append(custom)
        if any(_binds(holder) for holder in holders):
            name = holders[-1].get("name")
            strict.append(name if isinstance(name, str) else "a tool without a name")
    return strict


def _binds(holder: Mapping[str, Any]) -> bool:
    """Return whether a tool constrains tokens, by a strict schema or a custom grammar."""
    form = holder.get("format")
    has_grammar = isinstance(form, dict) and form.get("type") not in (None, "text")
    return has_grammar or holder.get("strict") not in (None, False)


def _list_media(messages: Iterable[Any]) -> list[str]:
    kinds: dict[str, None] = {}
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else "text"
            kind = kind if isinstance(kind, str) else "a part without a type"
            if kind not in _TEXT_PARTS:
                kinds[_shorten_name(kind)] = None
    return [*kinds]


def _join(names: Iterable[str]) -> str:
    listed = [*names]
    more = len(listed) - _MOST_NAMED
    return ", ".join(listed[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shorten_name(name: str) -> str:
    """Return the beginning of a field's name, with U+FFFD for unprintable characters."""
    marks = (mark if mark.isprintable() else "\ufffd" for mark in name[:_LONGEST_NAME])
    return "".join(marks) or "(empty)"


def _shorten(value: Any) -> Any:
    if isinstance(value, float) and isfinite(value):
        return value
    try:
        check_storable([value], "a parameter")
        text = encode_in_pieces(readable(value), exact_json, sort_keys=True)
    except (Unusable, RecursionError):
        return {"unreadable": type(value).__name__}
    if len(text) <= _LONGEST_VALUE:
        return readable(value)
    return {"sha256": sha256(text), "characters": len(text)}
