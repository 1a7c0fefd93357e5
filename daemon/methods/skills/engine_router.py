"""Ask a panel's router with a model in this process: prompts in, the scores of its labels out.

Prompts, scores and rule are the gateway's (producers/gateway/skills/label_router.py), so decisions
are equal up to an engine's rounding. Guarantee: the same prompts in the same order give the same
scores bit for bit, on one machine with one number of threads.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import torch

from daemon.engine.cache import Cache
from daemon.engine.chat import Chat
from daemon.engine.generation import PromptTooLong, Request
from daemon.engine.policy import Policy
from daemon.engine.thread import EngineFailure, EngineThread
from envs.endpoint import EndpointUnavailable
from events.jobs import PanelRouter
from producers.gateway.routing.token_scores import TEMPLATE_VARIABLES
from producers.gateway.skills.label_router import (
    RouterAnswer,
    build_prompts,
    decide,
    list_label_tokens,
    read_answer,
    read_scores,
)

_PADDED: Final = 8192
"""Most tokens of one forward pass with padding, without the common beginning of all prompts."""


def ask(
    policy: Policy,
    chat: Chat,
    router: PanelRouter,
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    tools: Sequence[Sequence[Mapping[str, Any]]] = (),
) -> list[RouterAnswer]:
    """Return the router's choice for each conversation, in a client's format; a too long one has
    the doubt `failed`. A router with a head reads `tools`, offered in each. Raise NoTemplate."""
    offered = tools or [()] * len(conversations)
    prompts = [
        render_router_prompts(chat, router, messages, own)
        for messages, own in zip(conversations, offered, strict=True)
    ]
    fits = [max(map(len, own)) <= policy.context for own in prompts]
    asked = [own for own, is_short in zip(prompts, fits, strict=True) if is_short]
    scores = iter(read_all_scores(policy, router, asked))
    return [
        decide(router, next(scores)) if is_short else RouterAnswer(None, "failed")
        for is_short in fits
    ]


async def ask_thread(
    thread: EngineThread,
    chat: Chat,
    policy: Policy,
    router: PanelRouter,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> RouterAnswer:
    """Return which member of a panel answers a conversation, computed on an engine's thread.
    Raise EndpointUnavailable, NoTemplate."""
    prompts = render_router_prompts(chat, router, messages, tools)
    tokens = tuple(list_label_tokens(router))
    requests = [Request(prompt, 1, temperature=0.0, logprob_token_ids=tokens) for prompt in prompts]
    try:
        call = await thread.submit(policy, requests)
        tops = {number: emission.top async for parts in call for number, emission in parts}
    except PromptTooLong:
        return RouterAnswer(None, "failed")
    except EngineFailure as error:
        raise EndpointUnavailable(f"{error}; run the same command to go on") from error
    return read_answer(router, [dict(tops[order]) for order in range(len(prompts))])


def render_router_prompts(
    chat: Chat,
    router: PanelRouter,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> list[tuple[int, ...]]:
    """Return the token ids of a router's prompts, one prompt for each order of its labels. A router
    with a head has the agent's own prompt. Raise NoTemplate."""
    prompts = build_prompts(router, messages)
    if router.form == "head":
        return [chat.prompt(prompt, tools) for prompt in prompts]
    return render_prompts(chat, prompts)


def render_prompts(
    chat: Chat, prompts: Sequence[Sequence[Mapping[str, Any]]]
) -> list[tuple[int, ...]]:
    """Return a router's prompts as token ids, rendered as for a gateway. Raise NoTemplate."""
    return [chat.prompt(prompt, **TEMPLATE_VARIABLES) for prompt in prompts]


def read_all_scores(
    policy: Policy, router: PanelRouter, prompts: Sequence[Sequence[Sequence[int]]]
) -> list[tuple[tuple[float, ...], ...]]:
    """Return each conversation's scores of the options in nats, a row per order of labels."""
    tokens = list_label_tokens(router)
    by_order = [
        score_tokens(policy, [own[order] for own in prompts], tokens)
        for order in range(router.orders)
    ]
    return [
        tuple(read_scores(router, order, rows[place]) for order, rows in enumerate(by_order))
        for place in range(len(prompts))
    ]


def score_tokens(
    policy: Policy, prompts: Sequence[Sequence[int]], tokens: Sequence[int]
) -> list[dict[int, float]]:
    """Return, for each prompt, token id -> log-probability in nats of that token as the next one.
    Raise ValueError for a prompt that is empty or longer than the model's context."""
    scores: list[dict[int, float]] = [{} for _ in prompts]
    wanted = torch.tensor(tokens, device=policy.device)
    for places in _batch(prompts):
        rows = [list(prompts[place]) for place in places]
        shared = count_common(rows)
        cache = Cache(policy.weights, len(rows), max(map(len, rows)))
        if shared:
            cache.extend(policy.weights, [0], [0], [rows[0][:shared]])
            cache.copy(0, shared)
        slots, starts = range(len(rows)), [shared] * len(rows)
        logits = cache.extend(policy.weights, slots, starts, [row[shared:] for row in rows])
        chosen = logits.float().log_softmax(-1)[:, wanted].tolist()
        for place, values in zip(places, chosen, strict=True):
            scores[place] = dict(zip(tokens, values, strict=True))
    return scores


def _batch(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    if not prompts:
        return
    shared, batch = count_common(prompts), list[int]()
    for place in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
        width = len(prompts[place]) - shared
        if batch and width * (len(batch) + 1) > _PADDED:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def count_common(prompts: Sequence[Sequence[int]]) -> int:
    """Count the common first tokens, without any prompt's last. Raise ValueError without tokens."""
    shortest = min(map(len, prompts), default=0)
    if not shortest:
        raise ValueError("a model needs a token to go on from, and there is no prompt, or no token")
    columns = zip(*(prompt[: shortest - 1] for prompt in prompts), strict=True)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
