"""Continuous batching: many requests share every forward of the model.

    engine = Engine(policy, slots=64)
    ticket = engine.submit(policy, Request(prompt, max_tokens=64, stop=frozenset({2})))
    while engine.busy:
        for emission in engine.tick():
            ...

A tick reads unread parts of prompts and writes one token per running request. A request that ends
frees its slot at once. A slot keeps what it has read: a prompt with the same first tokens is read
only from there on. One forward writes for all adapters of a base; each policy reads its prompts.

Tokens are drawn by inversion with the request's own random numbers. So, except for rounding, a seed
gives the same tokens beside any other requests. A log-probability is that of the distribution that
was drawn from, after temperature, top-k and top-p; at temperature 0, that of the plain softmax.

Use the engine in one thread; server.py shares it among clients. Guarantee: a fault of one request
ends no other. A batch that raises is computed again in halves until the request at fault is alone.
The engine fails only if its base cannot answer a plain request. No NaN of a slot is reused.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Final, Literal
from weakref import ref

import torch
from torch import Tensor

from daemon.engine.cache import Cache
from daemon.engine.policy import Policy
from daemon.engine.weights import Mixture, Weights
from events.errors import KintsugiError

PREFILL: Final = 512
"""Largest number of padded prompt tokens that a forward reads. So other answers wait little, and
the memory of attention (a number per head, token and position) stays small."""

_COLDEST: Final = 1e-20
"""Lowest temperature that is used; lower ones give the same tokens and would overflow logits."""

Finish = Literal["stop", "length"]


class BadRequest(KintsugiError):
    """A request that this engine cannot serve."""


class PromptTooLong(BadRequest):
    """The prompt leaves no room for an answer."""


class RequestFailure(KintsugiError):
    """A request that the engine accepted but could not answer; other requests continue."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and the settings by which the engine writes an answer to it."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    """Temperature of sampling; 0: always the likeliest token."""
    top_p: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens to draw from; 0: all tokens."""
    seed: int | None = None
    """Seed of the random numbers; None: random."""
    stop: frozenset[int] = frozenset()
    """Tokens that end the answer; such a token is the answer's last one."""
    top_logprobs: int = 0
    """Number of likeliest tokens to report with each written token."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens to report instead of the likeliest ones, after the written token itself."""

    @property
    def plain(self) -> bool:
        """Whether tokens are drawn from all tokens, without top-p and top-k."""
        return self.top_p >= 1.0 and self.top_k == 0


@dataclass(frozen=True, slots=True)
class Emission:
    """One token of an answer."""

    ticket: int
    token: int
    logprob: float
    """Log-probability of the token, in nats."""
    top: tuple[tuple[int, float], ...]
    """The likeliest (token, log-probability), best first, or `Request.logprob_token_ids`."""
    finish: Finish | None
    """Reason why the answer ends with this token; None if it continues."""


@dataclass(slots=True)
class _ActiveRequest:
    ticket: int
    policy: Policy
    request: Request
    chance: Random
    limit: int
    """Maximum tokens of prompt and answer together."""
    number: float
    """Random number in [0, 1) that decides the next token."""
    written: int = 0


@dataclass(slots=True)
class _Slot:
    number: int
    holds: "ref[Policy] | None" = None
    """Policy that computed the keys and values; weak, so that no idle slot keeps an unloaded
    policy."""
    ids: list[int] = field(default_factory=list)
    read: int = 0
    """Number of `ids` whose keys and values are in the cache."""
    running: _ActiveRequest | None = None
    used: int = 0
    """Tick in which the slot was last used."""
    is_sound: bool = True
    """Whether the slot's row has only numbers (no NaN), as far as drawn tokens show."""


class Engine:
    """Answers requests in slots of one cache. All policies must have the first one's shape."""

    def __init__(self, policy: Policy, slots: int = 64, length: int | None = None) -> None:
        """Make `slots` slots, each for `length` tokens (default: the model's context)."""
        self.cache = Cache(policy.weights, slots, length or policy.context)
        self._slots = [_Slot(number) for number in range(slots)]
        self._waiting: deque[_ActiveRequest] = deque()
        self._mixture: Mixture | None = None
        self._tickets = 0
        self._ticks = 0

    @property
    def slots(self) -> int:
        """Number of requests that can run at once."""
        return len(self._slots)

    @property
    def length(self) -> int:
        """Largest number of tokens of a prompt and its answer together."""
        return self.cache.length

    @property
    def active_count(self) -> int:
        """Number of requests that have a slot."""
        return sum(slot.running is not None for slot in self._slots)

    @property
    def queue_size(self) -> int:
        """Number of requests that wait for a slot."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether any request runs or waits."""
        return bool(self._waiting) or any(slot.running for slot in self._slots)

    def submit(self, policy: Policy, request: Request) -> int:
        """Queue a request and return its ticket. Raise BadRequest, PromptTooLong."""
        self._check(policy, request)
        self._tickets += 1
        limit = min(len(request.prompt) + request.max_tokens, self.length)
        chance = Random(request.seed)
        self._waiting.append(
            _ActiveRequest(self._tickets, policy, request, chance, limit, chance.random())
        )
        return self._tickets

    def cancel(self, ticket: int) -> bool:
        """Drop a request; return False if it has already ended."""
        for waiting in self._waiting:
            if waiting.ticket == ticket:
                self._waiting.remove(waiting)
                return True
        for slot in self._slots:
            if slot.running is not None and slot.running.ticket == ticket:
                slot.running = None
                return True
        return False

    def tick(self, drop: "Callable[[int, Exception], None] | None" = None) -> list[Emission]:
        """Compute one step; return a token for each running request whose prompt is fully read. A
        request that fails ends: `drop` gets its ticket and error. Without `drop`, raise it."""
        self._ticks += 1
        self._admit()
        ahead = [slot for slot in self._slots if slot.running is not None]
        emitted: list[Emission] = []
        by_policy: dict[Policy, list[_Slot]] = {}
        by_base: dict[int, list[_Slot]] = {}
        for slot, active in ((slot, slot.running) for slot in ahead):
            assert active is not None, "idle slots are not ahead"
            by_policy.setdefault(active.policy, []).append(slot)
            if len(slot.ids) - slot.read == 1:
                weights = active.policy.weights
                by_base.setdefault(id(weights.base or weights), []).append(slot)
        for batch in by_base.values():
            emitted += self._forward(batch, drop or _raise)
        for own in by_policy.values():
            for batch in _reading(own):
                emitted += self._forward(batch, drop or _raise)
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
        free = [slot for slot in self._slots if slot.running is None]
        while free and self._waiting:
            begun = self._waiting.popleft()
            shared = [_prefix_overlap(slot, begun) for slot in free]
            best = max(shared)
            slot = free[shared.index(best)] if best else min(free, key=_eviction_key)
            free.remove(slot)
            if not slot.is_sound:
                self.cache.clear(slot.number)
                slot.is_sound = True
            slot.holds, slot.running, slot.read = ref(begun.policy), begun, best
            slot.ids = list(begun.request.prompt)

    def _forward(
        self, batch: Sequence[_Slot], drop: Callable[[int, Exception], None]
    ) -> list[Emission]:
        """Advance a batch, and drop each request that fails. Raise errors of the engine itself."""
        try:
            return self._advance(batch)
        # Any error may be one request's fault; that request is known when it fails alone.
        except Exception as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return self._forward(batch[:half], drop) + self._forward(batch[half:], drop)
            (slot,) = batch
            active, slot.running, slot.read = slot.running, None, 0
            assert active is not None, "only running requests are advanced"
            self._check_base(active.policy, slot)
            drop(active.ticket, error)
            return []

    def _check_base(self, policy: Policy, slot: _Slot) -> None:
        """Raise an error if the policy's base cannot answer a plain request. Overwrite the slot."""
        plain = [Request((0,), max_tokens=1)]
        base = policy.weights.base or policy.weights
        logits = self.cache.extend(base, [slot.number], [0], [plain[0].prompt])
        draw(compute_logprobs(logits, plain), plain, [0.5])

    def _advance(self, batch: Sequence[_Slot]) -> list[Emission]:
        """Read and write a batch's next tokens. Errors spoil only cache rows that are rewritten."""
        rows = [slot.ids[slot.read : slot.read + PREFILL] for slot in batch]
        model, owners = self._choose_model(batch)
        for slot in batch:
            slot.is_sound = False
        logits = self.cache.extend(
            model, [s.number for s in batch], [s.read for s in batch], rows, owners
        )
        pairs = zip(batch, rows, strict=True)
        done = [n for n, (slot, row) in enumerate(pairs) if slot.read + len(row) == len(slot.ids)]
        writing = [batch[number] for number in done]
        if len(done) < len(batch):
            logits = logits[done]
        drawn = _draw_all([slot.running for slot in writing if slot.running], logits)
        for slot, row in zip(batch, rows, strict=True):
            slot.read += len(row)
            slot.used = self._ticks
        return [self._write(slot, token) for slot, token in zip(writing, drawn, strict=True)]

    def _choose_model(self, batch: Sequence[_Slot]) -> tuple[Weights | Mixture, list[int]]:
        policies = [slot.running.policy.weights for slot in batch if slot.running is not None]
        if all(weights is policies[0] for weights in policies):
            return policies[0], []
        members: dict[int, Weights] = {id(weights): weights for weights in policies}
        # In a fixed order, so that one mixture serves as long as the same policies answer.
        ordered = [members[key] for key in sorted(members)]
        if self._mixture is None or not self._mixture.is_of(ordered):
            self._mixture = Mixture(ordered)
        places = {id(weights): place for place, weights in enumerate(ordered)}
        return self._mixture, [places[id(weights)] for weights in policies]

    def _write(self, slot: _Slot, drawn: "_Draw") -> Emission:
        active = slot.running
        assert active is not None, "only running requests are written"
        slot.ids.append(drawn.token)
        slot.is_sound = isfinite(drawn.logprob)
        active.written += 1
        active.number = active.chance.random()
        finish = _finish(active, drawn.token, len(slot.ids))
        if finish is not None:
            slot.running = None
        return Emission(active.ticket, drawn.token, drawn.logprob, drawn.top, finish)


@dataclass(frozen=True, slots=True)
class _Draw:
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def _draw_all(active: Sequence[_ActiveRequest], logits: Tensor) -> list[_Draw]:
    if not active:
        return []
    requests = [own.request for own in active]
    logprobs = compute_logprobs(logits, requests)
    tokens = draw(logprobs, requests, [own.number for own in active])
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0].tolist()
    tops = likeliest(logprobs, max(request.top_logprobs for request in requests))
    return [
        _Draw(token, logprob, _choose_reported(request, token, row, top))
        for request, token, logprob, row, top in zip(
            requests, tokens.tolist(), chosen, logprobs, tops, strict=True
        )
    ]


def _choose_reported(
    request: Request, token: int, logprobs: Tensor, top: tuple[tuple[int, float], ...]
) -> tuple[tuple[int, float], ...]:
    if not request.logprob_token_ids:
        return top[: request.top_logprobs]
    ids = tuple(dict.fromkeys((token, *request.logprob_token_ids)))
    values = logprobs[torch.tensor(ids, device=logprobs.device)]
    return tuple(zip(ids, values.tolist(), strict=True))


def _raise(_: int, error: Exception) -> None:
    raise error


def _eviction_key(slot: _Slot) -> tuple[int, int]:
    """Return the sort key of idle slots to reuse: first those of an unloaded policy, then the least
    recently used, then low numbers (rows of the cache that were never written take no memory)."""
    is_of_use = slot.holds is not None and slot.holds() is not None
    return slot.used if is_of_use else 0, slot.number


def _finish(active: _ActiveRequest, token: int, length: int) -> Finish | None:
    if token in active.request.stop:
        return "stop"
    return "length" if length >= active.limit else None


def _prefix_overlap(slot: _Slot, begun: _ActiveRequest) -> int:
    """Return how many first tokens of the prompt the slot holds; the last token never counts."""
    if not slot.is_sound or slot.holds is None or slot.holds() is not begun.policy:
        return 0
    prompt = begun.request.prompt
    most = min(slot.read, len(prompt) - 1)
    held = slot.ids[:most]
    if held == list(prompt[:most]):
        return most
    return next(n for n, (a, b) in enumerate(zip(held, prompt, strict=False)) if a != b)


def _reading(slots: Sequence[_Slot]) -> Iterator[list[_Slot]]:
    """Yield at most one batch of slots with several unread tokens, shortest first, in `PREFILL`."""
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
    """Return (B, V) log-probabilities of the distributions to draw from. In vLLM's order, apply
    temperature, keep the top_k likeliest tokens, and of these the fewest with mass top_p."""
    scales = [max(own.temperature, _COLDEST) if own.temperature else 1.0 for own in requests]
    if any(scale != 1.0 for scale in scales):
        logits = logits / torch.tensor(scales, dtype=logits.dtype, device=logits.device)[:, None]
    if not all(request.plain for request in requests):
        logits = _filter_logits(logits, requests)
    return logits.log_softmax(-1)


def _filter_logits(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    count, device = logits.shape[-1], logits.device
    ordered, order = logits.sort(dim=-1, descending=True)
    ranks = torch.arange(count, device=device)
    most = torch.tensor([min(r.top_k or count, count) for r in requests], device=device)[:, None]
    ordered = ordered.masked_fill(ranks >= most, float("-inf"))
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares
    mass = torch.tensor([r.top_p for r in requests], dtype=shares.dtype, device=device)[:, None]
    # The likeliest token always stays.
    dropped = (before >= mass) & (ranks > 0)
    return torch.empty_like(logits).scatter_(-1, order, ordered.masked_fill(dropped, float("-inf")))


def draw(logprobs: Tensor, requests: Sequence[Request], chances: Sequence[float]) -> Tensor:
    """Return (B,) token ids: the likeliest at temperature 0, else by inversion at `chances`."""
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
    """Return each row's `count` likeliest tokens with log-probabilities, best first."""
    if not count:
        return [()] * len(logprobs)
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    return [
        tuple(zip(row, chances, strict=True))
        for row, chances in zip(ids.tolist(), values.tolist(), strict=True)
    ]
