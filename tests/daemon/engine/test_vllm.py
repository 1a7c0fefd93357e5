"""A real vLLM over the reference policy: same prompts, log-probabilities, adapters and client."""

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from daemon.engine.cache import Cache
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from envs.endpoint import Endpoint, Sampling
from envs.evaluation import Setup, make_environment_user, play
from envs.players import ModelAgent
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from ops.vllm.server import Vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

NAME = "reference"
BOUND = 1e-3
"""Nats between vLLM's log-probability of a token and ours, both in float32: seen are 5e-6."""


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights that change every answer."""
    folder = tmp_path_factory.mktemp("adapter") / "random"
    with warnings.catch_warnings():
        # Of PEFT: about what transformers will do.
        warnings.simplefilter("ignore")
        base: Any = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
        torch.manual_seed(0)
        settings = LoraConfig(r=8, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
        model: Any = get_peft_model(base, settings)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(std=0.05)
        model.save_pretrained(folder)
    return folder


def opening(kind: str, seed: int) -> list[dict[str, Any]]:
    shop = Shop()
    task = shop.generate(kind, seed)
    assert task.script is not None
    return [
        {"role": "system", "content": shop.policy(task)},
        {"role": "user", "content": task.script.opening},
    ]


def asked(vllm: Vllm, model: str, messages: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    body = {
        "model": model,
        "messages": messages,
        "temperature": 2.0,
        "seed": seed,
        "logprobs": True,
        "return_token_ids": True,
        "max_tokens": 32,
    }
    answer = httpx2.post(f"{vllm.url}/chat/completions", json=body, timeout=300)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def gaps(
    policy: Policy, prompt: list[int], written: list[int], reported: list[float]
) -> list[float]:
    """Between reported log-probabilities at temperature 2 and ours."""
    cache = Cache(policy.weights, 1, 512)
    logits = cache.extend(policy.weights, [0], [0], [prompt])
    found = []
    for place, (token, logprob) in enumerate(zip(written, reported, strict=True), len(prompt)):
        own = float((logits / 2.0).log_softmax(-1)[0, token])
        found.append(abs(own - logprob))
        logits = cache.extend(policy.weights, [0], [place], [[token]])
    return found


def compared(vllm: Vllm, model: str, policy: Policy) -> list[float]:
    chat, found = Chat(CHECKPOINT), []
    for number, kind in enumerate(Shop.capabilities):
        messages = opening(kind, number)
        answer = asked(vllm, model, messages, number)
        choice = answer["choices"][0]
        reported = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert tuple(answer["prompt_token_ids"]) == chat.prompt(messages)
        found += gaps(policy, answer["prompt_token_ids"], choice["token_ids"], reported)
    return found


def test_log_probabilities_are_those_of_the_engine(vllm: Vllm, adapter: Path) -> None:
    base = Policy.load(CHECKPOINT, NAME)
    found = compared(vllm, NAME, base)
    assert len(found) > 100
    assert max(found) < BOUND
    loaded = {"lora_name": "random-1", "lora_path": str(adapter)}
    httpx2.post(f"{vllm.url}/load_lora_adapter", json=loaded, timeout=300).raise_for_status()
    with_adapter = compared(vllm, "random-1", base.with_adapter(adapter, "random-1"))
    assert max(with_adapter) < BOUND
    # The adapter does change what is answered, so that agreement means something.
    assert max(compared(vllm, "random-1", base)) > 100 * BOUND
    unloaded = {"lora_name": "random-1"}
    httpx2.post(f"{vllm.url}/unload_lora_adapter", json=unloaded).raise_for_status()


def test_the_policy_serves_its_plain_tasks(vllm: Vllm) -> None:
    """By the client of `kintsugi eval`, with tools and calls parsed by vLLM."""
    shop = Shop()
    tasks = [shop.generate(kind, seed) for kind in PLAIN for seed in range(5)]

    async def played() -> list[bool]:
        async with Endpoint(vllm.url, NAME, concurrency=8) as endpoint:
            setup = Setup(
                shop,
                lambda task, seed: ModelAgent(
                    endpoint, shop.schemas(task), seed, Sampling(temperature=0.0, max_tokens=64)
                ),
                make_environment_user(shop),
            )
            attempts = await asyncio.gather(*(play(setup, task, 0) for task in tasks))
        return [bool(attempt.success) for attempt in attempts]

    assert sum(asyncio.run(played())) >= len(tasks) - 2


def test_messages_are_parsed_as_the_engine_does(vllm: Vllm) -> None:
    chat = Chat(CHECKPOINT)
    shop = Shop()
    task = shop.generate("cancel", 1)
    body = {
        "model": NAME,
        "messages": opening("cancel", 1),
        "tools": shop.schemas(task),
        "temperature": 0.0,
        "return_token_ids": True,
    }
    answer = httpx2.post(f"{vllm.url}/chat/completions", json=body, timeout=300).json()
    choice = answer["choices"][0]
    own = chat.message(choice["token_ids"])
    assert choice["finish_reason"] == "tool_calls"
    theirs = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in choice["message"]["tool_calls"]
    ]
    assert theirs == [(call.name, call.arguments) for call in own.tool_calls]
