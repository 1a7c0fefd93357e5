"""Probes that show the meaning of an engine's token ids and log-probabilities.

A gateway probes each engine before its calls count as trainable (upstreams.py), and `kintsugi
doctor --upstream` reports the findings. Five tiny completions and a chat show that the engine

- sends token ids
- sends log-probabilities of the distribution that it draws from
- does not bend that distribution by its own defaults
- counts as many tokens as it sends ids, also where a stop string ends an answer
- makes no grammar of a chat's tools unless the request says so

Two probes are streams, one of them with usage (http/stream_usage.py). A finding is a sentence with
the remedy, or None. Not found: a default that does not change the most likely first tokens, such as
a repetition penalty, and a grammar that begins after thoughts. Streams or a chat that an engine
refuses, and missing counts, are no finding.

A grammar of tools masks no token before a tool call begins. So the probe chat asks for a grammar by
which every answer begins with a quotation mark. An engine that also makes a grammar of every tool
joins both, and then a call may begin with another token. vLLM 0.32 does this with
`--tool-strict-level`, and for tool parsers with such a level of their own.
"""

import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envs.answers.reader import list_objects, read_count
from events.rollouts import is_logprob
from producers.gateway.http import sse
from producers.gateway.http.stream_usage import StreamUsage, compare_streams
from producers.gateway.http.wire import Json

Complete = Callable[[Json], Awaitable[tuple[int, bytes]]]
"""Sends a completion request (with `messages`: a chat) to an engine; returns status and body."""

SECONDS: Final = 120.0
"""Seconds to wait for a probe's answer; an engine's first answer may take long."""

_PROMPTS: Final = ("a", "The", "1 + 1")
_EXACT: Final = 1e-4
"""Most difference from 0, in nats, of the log-probability of a token with probability 1."""
_CLOSE: Final = 0.05
"""Most difference, in nats, of a token's log-probability between two equal requests."""

_TOOL: Final[Json] = {
    "type": "function",
    "function": {"name": "kintsugi_probe", "parameters": {"type": "object", "properties": {}}},
}
_ONLY_ANSWER: Final = '"~"'
_GUIDED_CHAT: Final[Json] = {
    "messages": [{"role": "user", "content": "1 + 1"}],
    "tools": [_TOOL],
    "tool_choice": "auto",
    "structured_outputs": {"json": {"enum": [json.loads(_ONLY_ANSWER)]}},
    # With a reasoning parser, an engine's grammar would begin only after thoughts.
    "chat_template_kwargs": {"enable_thinking": False},
    "max_tokens": 1,
    "seed": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "logprobs": True,
    "top_logprobs": 20,
    "return_tokens_as_token_ids": False,
}


@dataclass(frozen=True, slots=True)
class Probes:
    """An engine's answers to the probes; lists of choices have one per prompt."""

    certain: Sequence[Json]
    """Choices with top_k=1, where the most likely token has probability 1."""
    plain: Sequence[Json]
    named: Sequence[Json]
    counts: Sequence["Counts"] = ()
    usage: StreamUsage | None = None
    """How streams change with usage; None if the probes did not show it."""
    masks_tools: bool | None = None
    """Whether the engine makes a grammar of every chat's tools; None if not shown."""

    def unproven(self) -> str | None:
        """Return the first finding, which makes answers untrainable; None without findings."""
        return (
            self.check_token_ids()
            or self.check_logprobs()
            or self.check_defaults()
            or self.check_counts()
            or self.check_tools()
        )

    def check_token_ids(self) -> str | None:
        """Return a finding if token ids are missing, else None."""
        if all(isinstance(choice.get("token_ids"), list) for choice in self.certain):
            return None
        return "the engine gives no token ids; it needs return_token_ids"

    def check_logprobs(self) -> str | None:
        """Return a finding if log-probabilities are not those of the draw, else None."""
        return check_logprobs(self.certain, self.plain)

    def check_defaults(self) -> str | None:
        """Return a finding if the engine's defaults differ from the protocol's, else None."""
        if all(_alike(choice, other) for choice, other in zip(self.plain, self.named, strict=True)):
            return None
        return (
            "the engine samples with defaults of its own; start vLLM with --generation-config vllm"
        )

    def check_counts(self) -> str | None:
        """Return a finding if the engine's counts differ from the number of ids, else None."""
        wrong = next((counts for counts in self.counts if counts.differ), None)
        if wrong is None:
            return None
        return (
            f"the engine gives {wrong.ids} token ids and counts {wrong.told} completion tokens; "
            "update it, or switch off what hides tokens, such as a parser"
        )

    def check_tools(self) -> str | None:
        """Return a finding if tools mask tokens of every chat, else None."""
        if not self.masks_tools:
            return None
        return (
            "the engine makes a grammar of the tools of every chat; start vLLM without "
            "--tool-strict-level, or with VLLM_ENFORCE_STRICT_TOOL_CALLING=0 where its tool parser "
            "has such a level of its own"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of an answer's tokens, by ids and as counted by the engine."""

    ids: int | None
    """Number of token ids; None if a choice has no ids."""
    told: int | None
    """The engine's count; None if it reports none."""

    @property
    def differ(self) -> bool:
        """Return whether both numbers are known and differ."""
        return self.ids is not None and self.told is not None and self.ids != self.told


async def run_probes(complete: Complete) -> Probes | str:
    """Run the probes. Return a finding if one is refused. Raises the errors of `complete`."""
    asked: tuple[Json, ...] = (
        {"top_k": 1, "temperature": 1.0, "logprobs": 0},
        {"logprobs": 5},
        {"logprobs": 5, "temperature": 1.0, "top_p": 1.0, "top_k": 0},
    )
    answers: list[list[Json]] = []
    counts: list[Counts] = []
    for fields in asked:
        document = await _complete(complete, fields)
        if isinstance(document, str):
            return document
        answers.append(list_objects(document["choices"]))
        counts.append(_count([document]))
    plain, with_usage = await _stream(complete, answers[0])
    counts.append(_count(with_usage))
    masks_tools = _read_masks(*await complete(_GUIDED_CHAT))
    certain, drawn, named = answers
    return Probes(certain, drawn, named, counts, compare_streams(plain, with_usage), masks_tools)


def _read_masks(status: int, raw: bytes) -> bool | None:
    """Return whether the chat with a grammar could begin with a token that the grammar forbids.
    None if it is refused, or if its log-probabilities show no mask."""
    document = parse_json(raw)
    choices = list_objects(document.get("choices")) if isinstance(document, dict) else []
    scores = choices[0].get("logprobs") if status == 200 and choices else None
    tokens = list_objects(scores.get("content")) if isinstance(scores, dict) else []
    likeliest = list_objects(tokens[0].get("top_logprobs")) if tokens else []
    allowed = [
        str(token.get("token")).strip()
        for token in likeliest
        if isinstance(logprob := token.get("logprob"), int | float) and is_logprob(logprob)
    ]
    if not allowed or len(allowed) == len(likeliest):
        return None
    return not all(_ONLY_ANSWER.startswith(token) for token in allowed)


async def _complete(complete: Complete, fields: Json) -> Json | str:
    body: Json = {"prompt": list(_PROMPTS), "max_tokens": 1, "seed": 1, "return_token_ids": True}
    status, raw = await complete(body | fields)
    document = parse_json(raw)
    choices = document.get("choices") if isinstance(document, dict) else None
    if status != 200 or not isinstance(choices, list):
        return f"the engine refuses a probe with status {status}"
    whole = len(list_objects(choices)) == len(_PROMPTS)
    return document if whole else "the engine answers some probes only"


async def _stream(complete: Complete, certain: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """Return the chunks of two streams of a completion that a stop string ends: without, and with
    usage and token ids. The stop string is a first token of `certain`."""
    first = [(prompt, choice.get("text")) for prompt, choice in zip(_PROMPTS, certain, strict=True)]
    prompt, stop = next((pair for pair in first if pair[1]), (_PROMPTS[0], None))
    body: Json = {"prompt": [prompt], "max_tokens": 4, "seed": 1, "top_k": 1, "temperature": 1.0}
    body |= {"stream": True} | ({"stop": [stop]} if isinstance(stop, str) else {})
    asked: Json = {"return_token_ids": True, "logprobs": 0}
    asked |= {"stream_options": {"include_usage": True}}
    return await _read_chunks(complete, body), await _read_chunks(complete, body | asked)


async def _read_chunks(complete: Complete, body: Json) -> list[Json]:
    """Request a stream and return its chunks; [] if it is refused."""
    status, raw = await complete(body)
    if status != 200:
        return []
    events = (parse_json(sse.data(event) or b"") for event in sse.Splitter().feed(raw))
    return [chunk for chunk in events if isinstance(chunk, dict)]


def _count(documents: Sequence[Json]) -> Counts:
    usages = [usage for document in documents if isinstance(usage := document.get("usage"), dict)]
    choices = [choice for document in documents for choice in list_objects(document.get("choices"))]
    ids = [choice["token_ids"] for choice in choices if isinstance(choice.get("token_ids"), list)]
    told = read_count(usages[-1], "completion_tokens") if usages else None
    return Counts(sum(map(len, ids)) if ids else None, told)


def parse_json(raw: bytes) -> Any:
    """Return a document; None for invalid JSON."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _alike(left: Json, right: Json) -> bool:
    """Return whether two choices' first tokens were drawn from the same distribution."""
    first, second = (_likeliest(choice) for choice in (left, right))
    shared = first.keys() & second.keys()
    return bool(shared) and all(
        math.isclose(first[token], second[token], abs_tol=_CLOSE) for token in shared
    )


def check_logprobs(certain: Sequence[Json], plain: Sequence[Json]) -> str | None:
    """Return why log-probabilities are not proven to be those of the draw; None if they are.
    `certain` are answers with top_k=1, `plain` without parameters. With top_k=1 the likeliest token
    has all the probability, so a log-probability other than 0 was taken before the sampling
    parameters, unless other tokens are as likely."""
    shown = False
    for choice, other in zip(certain, plain, strict=True):
        (drawn, *_) = (choice.get("logprobs") or {}).get("token_logprobs") or [None]
        first, second, *_ = [
            *sorted(_likeliest(other).values(), reverse=True),
            -math.inf,
            -math.inf,
        ]
        if drawn is None or first == -math.inf:
            return "the engine gives no log-probabilities"
        if abs(drawn) <= _EXACT:
            shown = shown or first < -10 * _EXACT
        elif first - second > _CLOSE:
            return (
                "the engine's log-probabilities are not of the distribution that it draws from; "
                "start vLLM with --logprobs-mode processed_logprobs"
            )
    return None if shown else "the probes show nothing: this model is certain, or wavers, of each"


def _likeliest(choice: Json) -> dict[str, float]:
    top = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
    return top[0] or {}
