"""The embedded engine on a device: a base, one adapter, and several at once; beside transformers'
own `generate` with the same batch, PEFT's mixed batches included."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any, Final

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from daemon.engine.cache import Cache
from daemon.engine.generation import Engine, Request
from daemon.engine.policy import Policy
from daemon.engine.weights import Mixture, Weights
from events.errors import KintsugiError
from ops.bench.gpu.models import (
    Shape,
    add_adapters,
    make_model,
    read_memory,
    read_peak,
    release,
    synchronize,
)

EXACT: Final = 1e-3
"""The most that a log-probability in float32 may differ between two ways to compute it, in nats."""
_PROBE: Final = 32
"""Tokens of a prompt on which joint and separate forwards are compared."""


class Disagreement(KintsugiError):
    """Two ways to compute the same are too far apart."""


def measure_engine(
    shape: Shape, device: torch.device, dtype: torch.dtype, adapters: int, rounds: int
) -> dict[str, Any]:
    """Return the tokens per second of each side, medians of rounds in which the sides take turns,
    and the engine's memory."""
    model = make_model(shape, device, dtype)
    policies, adapted, names = load_policies(model, adapters)
    loaded = read_memory(device)
    joint = compare_forwards([policy.weights for policy in policies[1:]])
    engine = Engine(policies[0], shape.requests, shape.prompt + shape.answer + 1)
    sides = {"base": policies[:1], "one": policies[1:2], "all": policies[1:]}
    players = {side: partial(play, engine, of, shape, device) for side, of in sides.items()}
    release(device)
    ours = _take_turns(players, rounds)
    memory = {"loaded_gib": loaded, "peak_gib": read_peak(device)}
    # Of their memory, the peer's cache takes the place.
    del policies, engine, sides, players
    release(device)
    chosen = {"base": [], "one": names[:1], "all": names}
    peers = {side: partial(generate, adapted, of, shape, device) for side, of in chosen.items()}
    peer = _take_turns(peers, rounds)
    return {
        "adapters": adapters,
        "requests": shape.requests,
        "ours": ours,
        "ratio": round(ours["all"]["tokens_per_second"] / ours["one"]["tokens_per_second"], 3),
        "peer": peer,
        "peer_ratio": {
            side: round(ours[side]["tokens_per_second"] / peer[side]["tokens_per_second"], 3)
            for side in ours
        },
        "memory": memory,
        "joint": joint,
    }


def check_forwards(shape: Shape, device: torch.device, adapters: int) -> dict[str, Any]:
    """Return how far joint and separate forwards are apart in float32. Raises Disagreement above
    `EXACT`."""
    policies, _, _ = load_policies(make_model(shape, device, torch.float32), adapters)
    figures = compare_forwards([policy.weights for policy in policies[1:]])
    if not figures["largest"] <= EXACT:
        raise Disagreement(
            f"joint and separate forwards differ by {figures['largest']:g} nats, above {EXACT:g}"
        )
    return figures


def load_policies(
    model: PreTrainedModel, adapters: int
) -> tuple[list[Policy], PeftModel, list[str]]:
    """Return the policies of a model, the base first, and the model with the adapters on it by
    their names."""
    base = Policy.of(model, "base")
    adapted, names = add_adapters(model, adapters)
    policies = [base]
    for name in names:
        adapted.set_adapter(name)
        policies.append(Policy(name, base.weights.with_adapters(model)))
    return policies, adapted, names


def compare_forwards(members: Sequence[Weights]) -> dict[str, Any]:
    """Return the largest and the mean difference of log-probabilities, in nats, between adapters
    that answer in one forward and each by its merged weights; and how far they are from their
    base."""
    chance = Random("joint")
    size = members[0].shape.vocabulary
    rows = [[chance.randrange(size) for _ in range(_PROBE + 1)] for _ in members]
    apart = _read(members, rows)
    base = members[0].base
    assert base is not None, "adapters have a base"
    joint = _read_jointly(Mixture(members), members, rows)
    gaps = (joint - apart).abs()
    return {
        "largest": float(gaps.max()),
        "mean": float(gaps.mean()),
        "from_base": float((apart - _read([base] * len(members), rows)).abs().max()),
    }


def _read(members: Sequence[Weights], rows: Sequence[Sequence[int]]) -> Tensor:
    """Return (2 B, V) log-probabilities after a prompt and after one token more, row by row."""
    cache = Cache(members[0], len(members), _PROBE + 1)
    logits = []
    for start, stop in ((0, _PROBE), (_PROBE, _PROBE + 1)):
        for slot, (member, row) in enumerate(zip(members, rows, strict=True)):
            logits.append(cache.extend(member, [slot], [start], [row[start:stop]]))
    return torch.cat(logits).log_softmax(-1)


def _read_jointly(
    mixture: Mixture, members: Sequence[Weights], rows: Sequence[Sequence[int]]
) -> Tensor:
    """Return the same of all members in one forward."""
    slots = list(range(len(members)))
    cache = Cache(members[0], len(members), _PROBE + 1)
    logits = [
        cache.extend(
            mixture, slots, [start] * len(members), [row[start:stop] for row in rows], slots
        )
        for start, stop in ((0, _PROBE), (_PROBE, _PROBE + 1))
    ]
    return torch.cat(logits).log_softmax(-1)


def play(
    engine: Engine, policies: Sequence[Policy], shape: Shape, device: torch.device, seed: int
) -> tuple[int, float]:
    """Answer the requests of a seed, in turn with each policy; return tokens and seconds."""
    for number, prompt in enumerate(_draw_prompts(shape, seed)):
        request = Request(tuple(prompt), max_tokens=shape.answer, seed=number)
        engine.submit(policies[number % len(policies)], request)
    synchronize(device)
    start, tokens = time.perf_counter(), 0
    while engine.busy:
        tokens += len(engine.tick())
    synchronize(device)
    return tokens, time.perf_counter() - start


def generate(
    model: PeftModel, names: Sequence[str], shape: Shape, device: torch.device, seed: int
) -> tuple[int, float]:
    """Answer the same requests with `generate`: with the base for no names, with an adapter for
    one of them, with a mixed batch for several; return tokens and seconds."""
    ids = torch.tensor(_draw_prompts(shape, seed), device=device)
    options: dict[str, Any] = {}
    if len(names) > 1:
        options["adapter_names"] = [names[place % len(names)] for place in range(len(ids))]
    elif names:
        model.set_adapter(names[0])
    synchronize(device)
    start = time.perf_counter()
    with nullcontext() if names else model.disable_adapter(), torch.inference_mode():
        answers: Tensor = model.generate(  # type: ignore[no-untyped-call]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=shape.answer,
            do_sample=True,
            top_k=0,
            top_p=1.0,
            pad_token_id=0,
            **options,
        )
    synchronize(device)
    return int(answers[:, ids.shape[1] :].numel()), time.perf_counter() - start


def _draw_prompts(shape: Shape, seed: int) -> list[list[int]]:
    """Return prompts that share no beginning with those of another seed."""
    chance = Random(f"gpu {seed}")
    return [
        [chance.randrange(shape.vocabulary) for _ in range(shape.prompt)]
        for _ in range(shape.requests)
    ]


def _take_turns(
    players: Mapping[str, Callable[..., tuple[int, float]]], rounds: int
) -> dict[str, dict[str, Any]]:
    """Return side -> median tokens per second of rounds in which the sides take turns, after one
    that does not count."""
    speeds: dict[str, list[float]] = {side: [] for side in players}
    for number in range(rounds + 1):
        for side, player in players.items():
            tokens, seconds = player(seed=number)
            if number:
                speeds[side].append(round(tokens / seconds, 1))
    return {
        side: {"tokens_per_second": statistics.median(each), "rounds": each}
        for side, each in speeds.items()
    }
