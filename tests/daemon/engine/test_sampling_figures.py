"""Engines report the bent distribution: each field's figures are those of the model's own logits,
bent here as vLLM documents it. What an engine reports so is what a learner may apply again."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import httpx2
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from ops.vllm.server import Vllm
from tests.daemon.engine.conftest import listening

Json = dict[str, Any]

NAME = "reference"
BOUND = 1e-3
"""Nats between a reported log-probability and ours, both in float32."""
HOT: Json = {"temperature": 2.0}
"""A low one would leave nothing that the other fields could change."""

PROMPT: Final = [*range(300, 324)]
"""Words in no order, after which the policy is not certain of any."""

SERVED: list[Json] = [
    HOT,
    HOT | {"top_p": 0.6},
    HOT | {"top_k": 3},
    HOT | {"top_k": 200, "top_p": 0.9},
    HOT | {"ignore_eos": True},
]
"""Fields that both engines serve."""
OF_VLLM: list[Json] = [
    HOT | {"min_p": 0.1},
    HOT | {"presence_penalty": 1.5},
    HOT | {"frequency_penalty": 1.5},
    HOT | {"repetition_penalty": 1.5},
    HOT | {"logit_bias": {"7": 6.0, "31": -4.0}},
    HOT | {"allowed_token_ids": [1, *range(300, 340)]},
    HOT | {"bad_words": ["order", *"0123456789abcdefghijklmnoprstuwy.,"]},
    HOT | {"min_tokens": 16},
]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    with listening(Policy.load(CHECKPOINT, NAME), Chat(CHECKPOINT)) as live:
        yield f"{live.url}/v1"


def bend(logits: Tensor, fields: Json, prompt: Sequence[int], written: Sequence[int]) -> Tensor:
    """The logits of the next token after `prompt` and `written`, as the fields bend them."""
    logits = mask(logits.clone(), fields, written)
    for token, bias in fields.get("logit_bias", {}).items():
        logits[int(token)] += bias
    factor = fields.get("repetition_penalty", 1.0)
    for token in {*prompt, *written}:
        logits[token] *= 1 / factor if logits[token] > 0 else factor
    for token, count in Counter(written).items():
        logits[token] -= fields.get("presence_penalty", 0)
        logits[token] -= fields.get("frequency_penalty", 0) * count
    return cut(logits / fields.get("temperature", 1.0), fields)


def mask(logits: Tensor, fields: Json, written: Sequence[int]) -> Tensor:
    """The logits without tokens that the fields forbid at this place."""
    if allowed := fields.get("allowed_token_ids"):
        kept = torch.full_like(logits, -torch.inf)
        kept[allowed] = logits[allowed]
        logits = kept
    tokens = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    for word in fields.get("bad_words", ()):
        *before, last = tokens.encode(word, add_special_tokens=False)
        # Behind a space, a word is forbidden as well where it has as many tokens there.
        *spaced, other = tokens.encode(f" {word}", add_special_tokens=False)
        if [*written[len(written) - len(before) :]] == before:
            logits[last] = -torch.inf
        if len(spaced) == len(before) == 0:
            logits[other] = -torch.inf
    if len(written) < fields.get("min_tokens", 0):
        logits[tokens.eos_token_id] = -torch.inf
    return logits


def cut(logits: Tensor, fields: Json) -> Tensor:
    """The logits of the tokens that min_p, top_k and top_p leave."""
    least = fields.get("min_p", 0.0) * logits.softmax(-1).max()
    logits = logits.masked_fill(logits.softmax(-1) < least, -torch.inf)
    if count := fields.get("top_k", 0):
        logits = logits.masked_fill(logits < logits.topk(count).values[-1], -torch.inf)
    values, order = logits.softmax(-1).sort(descending=True)
    beyond = values.cumsum(-1) - values >= fields.get("top_p", 1.0)
    logits[order[beyond & (torch.arange(len(values)) > 0)]] = -torch.inf
    return logits


def read_gaps(url: str, model: Any, fields: Json) -> tuple[float, float]:
    """The largest gap between reported figures and those of the bent logits, and the largest one
    between reported figures and those that the engine would report without the field."""
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 16, "n": 4, "seed": 1, "logprobs": 0}
    answer = httpx2.post(
        f"{url}/completions", json=body | {"return_token_ids": True} | fields, timeout=300
    )
    assert answer.status_code == 200, answer.text
    # To go on after the end changes no probability.
    others = HOT if fields.keys() - HOT.keys() - {"ignore_eos"} else {}
    bent, plain = 0.0, 0.0
    for choice in answer.json()["choices"]:
        ids, reported = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 :]
        for place, (token, logprob) in enumerate(zip(ids, reported, strict=True)):
            with_field, without = (
                float(bend(logits[place], bends, PROMPT, ids[:place]).log_softmax(-1)[token])
                for bends in (fields, others)
            )
            bent = max(bent, abs(with_field - logprob))
            plain = max(plain, abs(without - logprob))
    return bent, plain


def name(fields: Json) -> str:
    return " ".join(field for field in fields if fields == HOT or field not in HOT) or "temperature"


@pytest.mark.parametrize("fields", SERVED, ids=name)
def test_the_embedded_engine_reports_the_bent_distribution(
    embedded: str, model: Any, fields: Json
) -> None:
    bent, plain = read_gaps(embedded, model, fields)
    assert bent < BOUND
    assert plain > 10 * BOUND, "the field changes what is reported"


@pytest.mark.vllm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fields", [*SERVED, *OF_VLLM], ids=name)
def test_vllm_reports_the_bent_distribution(vllm: Vllm, model: Any, fields: Json) -> None:
    bent, plain = read_gaps(vllm.url, model, fields)
    assert bent < BOUND
    assert plain > 10 * BOUND, "the field changes what is reported"


@pytest.mark.parametrize("fields", OF_VLLM, ids=name)
def test_the_embedded_engine_refuses_a_bend_that_it_does_not_serve(
    embedded: str, fields: Json
) -> None:
    answer = httpx2.post(
        f"{embedded}/completions", json={"model": NAME, "prompt": PROMPT, **fields}, timeout=60
    )
    assert answer.status_code == 400
    (field,) = fields.keys() - HOT.keys()
    assert f"{field} is not supported" in answer.json()["error"]["message"]
