"""Compute the logits of a router's labels for training.

The beginning that all prompts of a batch share is read once; its keys and values precede every row,
and gradients flow through them. It needs a causal transformers model with a key-value cache.
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
    """Return the (N, K) logits of K label tokens after N prompts, at least in float32, with a
    gradient if it is enabled. Raise ValueError if there is no prompt, or an empty one."""
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
    # Rows are padded on the right; a causal model reads no later token.
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
    """Yield indices of prompts of similar length in batches of at most `budget` padded tokens."""
    batch: list[int] = []
    for place in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
        if batch and len(prompts[place]) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
