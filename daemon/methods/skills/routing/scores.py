"""The logits of a router's labels behind prompts that begin alike, for training.

    logits = compute_logits(model, prompts, labels)      (N, K), with gradient where that is enabled

A router's prompts begin with the same options, and only the conversation behind them differs. What
all of a batch begin with is read once, and its keys and values stand before every row; gradients
flow through them. Any causal model of transformers with a cache of keys and values will do.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from daemon.methods.skills.engine_router import count_common
from daemon.solver.policy import parts


def compute_logits(
    model: nn.Module, prompts: Sequence[Sequence[int]], labels: Sequence[int]
) -> Tensor:
    """Return the (N, K) logits of K label tokens as the next token of N prompts, in float32 at
    least. Raises ValueError for no prompts, or an empty one."""
    body, head = parts(model)
    weight = head.weight
    assert isinstance(weight, Tensor), "a head is a matrix"
    shared = count_common(prompts)
    rows = [torch.tensor(prompt[shared:], device=weight.device) for prompt in prompts]
    past: Any = None
    if shared:
        beginning = torch.tensor([prompts[0][:shared]], device=weight.device)
        past = body(input_ids=beginning, use_cache=True).past_key_values
        past.batch_repeat_interleave(len(rows))
    # Rows are padded on the right, which a causal model never sees from the left.
    ids = pad_sequence(rows, batch_first=True)
    states = body(input_ids=ids, past_key_values=past, use_cache=past is not None)
    last = torch.tensor([len(row) - 1 for row in rows], device=weight.device)
    hidden = states.last_hidden_state[torch.arange(len(rows), device=weight.device), last]
    logits = hidden @ weight[torch.tensor(labels, device=weight.device)].T
    bias = getattr(head, "bias", None)
    if bias is not None:
        logits = logits + bias[torch.tensor(labels, device=weight.device)]
    result: Tensor = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return result


def cut_batches(prompts: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Yield the places of prompts of similar length, of at most `budget` padded tokens together."""
    batch: list[int] = []
    for place in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
        if batch and len(prompts[place]) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
