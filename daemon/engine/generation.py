"""Continuous batching: many requests share every forward of the model.

    engine = Engine(policy, slots=64)
    ticket = engine.submit(policy, Request(prompt, max_tokens=64, stop=frozenset({2})))
    while engine.busy:
        for emission in engine.tick():
            ...

`tick` reads what is new of prompts and writes one token for every request that runs; a request that
ends leaves its slot to the next one in the middle of everything else. A slot keeps what it has
read: the next prompt that begins like it, as the next turn of the same conversation does, is read
from there on. Each tick runs one forward per policy version among the requests.

Tokens are drawn with the request's own random numbers, by inversion: a request with a seed gets the
same tokens beside any other requests, but for rounding. The log-probability of a token is that of
the distribution it was drawn from, after temperature, top-k and top-p; at temperature 0, which
takes the likeliest, that of the plain softmax.

One thread; the server (server.py) is what makes it many clients'.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal
from weakref import ref

import torch
from torch import Tensor

from daemon.engine.cache import Cache
from daemon.engine.policy import Policy
from events.errors import KintsugiError

PREFILL: Final = 512
"""Padded prompt tokens that one tick reads: long prompts do not stop everybody's answers, and what
attention holds meanwhile (a number per head, token and position) stays small. The heap keeps the
most that it ever held."""

Finish = Literal["stop", "length"]


class BadRequest(KintsugiError):
    """A request that this engine cannot serve."""


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to write after which tokens."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """0: the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    seed: int | None = None
    """None: random."""
    stop: frozenset[int] = frozenset()
    """Tokens that end the answer; the one that does is its last."""
    top_logprobs: int = 0
    """How many of the likeliest tokens to report with each."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens to report with each in place of the likeliest: itself, then these."""

    @property
    def plain(self) -> bool:
        """Whether tokens come from the whole softmax."""
        return self.top_p >= 1.0 and self.top_k == 0


@dataclass(frozen=True, slots=True)
class Emission:
    """One token of an answer."""

    ticket: int
    token: int
    logprob: float
    """Nats."""
    top: tuple[tuple[int, float], ...]
    """The tokens that were asked for with their log-probabilities: the likeliest, best first; or
    those of `Request.logprob_token_ids`, after the token itself."""
    finish: Finish | None
    """Why the answer ends with it."""


@dataclass(slots=True)
class _ActiveRequest:
    """A request in a slot."""

    ticket: int
    policy: Policy
    request: Request
    chance: Random
    limit: int
    """Tokens of prompt and answer together."""
    written: int = 0


@dataclass(slots=True)
class _Slot:
    """One row of the cache."""

    number: int
    holds: "ref[Policy] | None" = None
    """Policy whose keys and values these are; they are of no use to another. A weak reference: an
    idle slot must not keep an unloaded policy's weights in memory."""
    ids: list[int] = field(default_factory=list)
    """Prompt and answer of what runs or ran here."""
    read: int = 0
    """How many of them are in the cache."""
    running: _ActiveRequest | None = None
    used: int = 0
    """Tick in which it last ran."""


class Engine:
    """Requests, slots and the cache. Every policy it serves has the shape of the first."""

    def __init__(self, policy: Policy, slots: int = 64, length: int | None = None) -> None:
        """`length` tokens of prompt and answer fit a slot (default: the model's context)."""
        self.cache = Cache(policy.weights, slots, length or policy.context)
        self._slots = [_Slot(number) for number in range(slots)]
        self._waiting: deque[_ActiveRequest] = deque()
        self._tickets = 0
        self._ticks = 0

    @property
    def slots(self) -> int:
        """Requests that run at once."""
        return len(self._slots)

    @property
    def length(self) -> int:
        """Tokens of prompt and answer that fit."""
        return self.cache.length

    @property
    def active_count(self) -> int:
        """Requests in slots."""
        return sum(slot.running is not None for slot in self._slots)

    @property
    def queue_size(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a tick would do anything."""
        return bool(self._waiting) or any(slot.running for slot in self._slots)

    def submit(self, policy: Policy, request: Request) -> int:
        """Queue a request; returns its ticket. Raises BadRequest, PromptTooLong."""
        self._check(policy, request)
        self._tickets += 1
        limit = min(len(request.prompt) + request.max_tokens, self.length)
        running = _ActiveRequest(self._tickets, policy, request, Random(request.seed), limit)
        self._waiting.append(running)
        return self._tickets

    def cancel(self, ticket: int) -> bool:
        """Forget a request; False for one that has ended."""
        for waiting in self._waiting:
            if waiting.ticket == ticket:
                self._waiting.remove(waiting)
                return True
        for slot in self._slots:
            if slot.running is not None and slot.running.ticket == ticket:
                slot.running = None
                return True
        return False

    def tick(self) -> list[Emission]:
        """One token for every request that runs and is read; nothing for what is being read."""
        self._ticks += 1
        self._admit()
        ahead = [slot for slot in self._slots if slot.running is not None]
        emitted: list[Emission] = []
        running = [slot.running for slot in ahead if slot.running is not None]
        for policy in dict.fromkeys(active.policy for active in running):
            own = [
                slot for slot, active in zip(ahead, running, strict=True) if active.policy is policy
            ]
            emitted += self._forward(policy, [s for s in own if len(s.ids) - s.read == 1])
            for batch in _reading(own):
                emitted += self._forward(policy, batch)
        return emitted

    def _check(self, policy: Policy, request: Request) -> None:
        if policy.weights.shape != self.cache.shape:
            raise BadRequest(f"policy {policy.name} has another shape than this engine's base")
        if not request.prompt:
            raise BadRequest("the prompt is empty; a model needs at least one token to go on from")
        if request.max_tokens < 1:
            raise BadRequest(f"max_tokens is {request.max_tokens}; ask for at least 1")
        if not 0 <= min(request.prompt) <= max(request.prompt) < policy.vocabulary:
            wrong = next(i for i in request.prompt if not 0 <= i < policy.vocabulary)
            raise BadRequest(f"token id {wrong} is not among the model's {policy.vocabulary}")
        if unknown := [i for i in request.logprob_token_ids if not 0 <= i < policy.vocabulary]:
            raise BadRequest(
                f"logprob_token_ids holds {unknown[0]}, which is not among the model's "
                f"{policy.vocabulary} tokens"
            )
        if len(request.prompt) >= self.length:
            raise PromptTooLong(
                f"This model's maximum context length is {self.length} tokens, and the prompt has "
                f"{len(request.prompt)}; shorten it"
            )

    def _admit(self) -> None:
        """Waiting requests into free slots, each where most of its prompt is read already."""
        free = [slot for slot in self._slots if slot.running is None]
        while free and self._waiting:
            begun = self._waiting.popleft()
            shared = [_prefix_overlap(slot, begun) for slot in free]
            best = max(shared)
            slot = free[shared.index(best)] if best else min(free, key=_eviction_key)
            free.remove(slot)
            slot.holds, slot.running, slot.read = ref(begun.policy), begun, best
            slot.ids = list(begun.request.prompt)

    def _forward(self, policy: Policy, batch: Sequence[_Slot]) -> Iterator[Emission]:
        if not batch:
            return
        rows = [slot.ids[slot.read : slot.read + PREFILL] for slot in batch]
        logits = self.cache.extend(
            policy.weights, [s.number for s in batch], [s.read for s in batch], rows
        )
        for slot, row in zip(batch, rows, strict=True):
            slot.read += len(row)
            slot.used = self._ticks
        done = [place for place, slot in enumerate(batch) if slot.read == len(slot.ids)]
        if len(done) < len(batch):
            batch, logits = [batch[place] for place in done], logits[done]
        yield from self._write(batch, logits)

    def _write(self, batch: Sequence[_Slot], logits: Tensor) -> Iterator[Emission]:
        """Draw a token for each slot whose prompt is read."""
        begun = [slot.running for slot in batch if slot.running is not None]
        requests = [active.request for active in begun]
        if not requests:
            return
        logprobs = compute_logprobs(logits, requests)
        tokens = draw(logprobs, requests, [active.chance.random() for active in begun])
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
        tops = likeliest(logprobs, max(request.top_logprobs for request in requests))
        for place, (slot, active, token, logprob, top) in enumerate(
            zip(batch, begun, tokens.tolist(), chosen, tops, strict=True)
        ):
            slot.ids.append(token)
            active.written += 1
            finish = _finish(active, token, len(slot.ids))
            if finish is not None:
                slot.running = None
            reported = top[: active.request.top_logprobs]
            if active.request.logprob_token_ids:
                ids = tuple(dict.fromkeys((token, *active.request.logprob_token_ids)))
                values = logprobs[place, torch.tensor(ids, device=logprobs.device)]
                reported = tuple(zip(ids, values.tolist(), strict=True))
            yield Emission(active.ticket, token, logprob, reported, finish)


def _eviction_key(slot: _Slot) -> tuple[int, int]:
    """Return the key by which idle slots are reused, lowest first: 0 for what an unloaded policy
    left, else the tick of the last use; then the row. Low rows first keep the batch dense, and rows
    that were never written to take no memory."""
    is_of_use = slot.holds is not None and slot.holds() is not None
    return slot.used if is_of_use else 0, slot.number


def _finish(active: _ActiveRequest, token: int, length: int) -> Finish | None:
    if token in active.request.stop:
        return "stop"
    return "length" if length >= active.limit else None


def _prefix_overlap(slot: _Slot, begun: _ActiveRequest) -> int:
    """How many of a prompt's first tokens a slot has read, the last one not counted."""
    if slot.holds is None or slot.holds() is not begun.policy:
        return 0
    prompt = begun.request.prompt
    most = min(slot.read, len(prompt) - 1)
    held = slot.ids[:most]
    if held == list(prompt[:most]):
        return most
    return next(n for n, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b)


def _reading(slots: Sequence[_Slot]) -> Iterator[list[_Slot]]:
    """Slots with more than one token to read, those of similar length together, up to a budget."""
    ahead = sorted(
        (slot for slot in slots if len(slot.ids) - slot.read > 1),
        key=lambda slot: len(slot.ids) - slot.read,
    )
    batch: list[_Slot] = []
    budget = PREFILL
    for slot in ahead:
        width = min(len(slot.ids) - slot.read, PREFILL)
        if batch and width * (len(batch) + 1) > budget:
            yield batch
            return
        batch.append(slot)
    if batch:
        yield batch


def compute_logprobs(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """(B, V) log-probabilities of the distributions that (B, V) logits are drawn from.

    Temperature first, then the k likeliest, then the fewest of these that hold top_p; the order
    and the rules of vLLM.
    """
    scales = [request.temperature or 1.0 for request in requests]
    if any(scale != 1.0 for scale in scales):
        logits = logits / torch.tensor(scales, dtype=logits.dtype, device=logits.device)[:, None]
    if not all(request.plain for request in requests):
        logits = _filter_logits(logits, requests)
    return logits.log_softmax(-1)


def _filter_logits(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """Logits with -inf for what top-k and top-p leave out."""
    count, device = logits.shape[-1], logits.device
    ordered, order = logits.sort(dim=-1, descending=True)
    ranks = torch.arange(count, device=device)
    most = torch.tensor([r.top_k or count for r in requests], device=device)[:, None]
    ordered = ordered.masked_fill(ranks >= most, float("-inf"))
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares
    mass = torch.tensor([r.top_p for r in requests], dtype=shares.dtype, device=device)[:, None]
    # The likeliest token always stays.
    dropped = (before >= mass) & (ranks > 0)
    return torch.empty_like(logits).scatter_(-1, order, ordered.masked_fill(dropped, float("-inf")))


def draw(logprobs: Tensor, requests: Sequence[Request], chances: Sequence[float]) -> Tensor:
    """(B,) token ids, by inversion of each row's distribution at its number in [0, 1)."""
    sums = logprobs.exp().cumsum(-1, dtype=torch.float64)
    at = torch.tensor(chances, dtype=torch.float64, device=sums.device)[:, None] * sums[:, -1:]
    tokens = torch.searchsorted(sums, at, right=True)[:, 0].clamp(max=logprobs.shape[-1] - 1)
    greedy = [request.temperature == 0 for request in requests]
    if any(greedy):
        tokens = torch.where(
            torch.tensor(greedy, device=tokens.device), logprobs.argmax(-1), tokens
        )
    return tokens


def likeliest(logprobs: Tensor, count: int) -> list[tuple[tuple[int, float], ...]]:
    """The `count` likeliest tokens of each row with their log-probabilities, best first."""
    if not count:
        return [()] * len(logprobs)
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    return [
        tuple(zip(row, chances, strict=True))
        for row, chances in zip(ids.tolist(), values.tolist(), strict=True)
    ]
