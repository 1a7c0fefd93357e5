"""Continuous batching: every request gets what it would get alone."""

import gc
import math
import weakref
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine.cache import Cache
from daemon.engine.generation import (
    BadRequest,
    Emission,
    Engine,
    PromptTooLong,
    Request,
    compute_logprobs,
    draw,
    likeliest,
)
from daemon.engine.policy import Policy
from tests.daemon.engine.random_model import random_model
from tests.daemon.engine.test_policy import TARGETS, adapted

END = frozenset({1})


@pytest.fixture(scope="module")
def policy() -> Policy:
    return Policy.of(random_model(), "base")


@pytest.fixture(scope="module")
def other() -> Policy:
    return Policy.of(random_model(seed=9), "other")


def prompts(count: int) -> list[tuple[int, ...]]:
    chance = Random("prompts")
    return [
        tuple(chance.randrange(2, 64) for _ in range(chance.randrange(1, 40))) for _ in range(count)
    ]


def answers(engine: Engine) -> dict[int, list[Emission]]:
    """What every request that is open gets."""
    found: dict[int, list[Emission]] = {}
    while engine.busy:
        for emission in engine.tick():
            found.setdefault(emission.ticket, []).append(emission)
    return found


def alone(policy: Policy, request: Request) -> list[int]:
    engine = Engine(policy, slots=1)
    ticket = engine.submit(policy, request)
    return [emission.token for emission in answers(engine)[ticket]]


def test_requests_get_what_they_would_get_alone(policy: Policy, other: Policy) -> None:
    engine = Engine(policy, slots=5)
    asked = {}
    for place, prompt in enumerate(prompts(17)):
        whose = other if place % 3 == 0 else policy
        request = Request(
            prompt,
            max_tokens=5 + place,
            temperature=0.0 if place % 2 else 1.0,
            seed=place,
            stop=END,
        )
        asked[engine.submit(whose, request)] = (whose, request)
    found = answers(engine)
    assert found.keys() == asked.keys()
    for ticket, (whose, request) in asked.items():
        assert [emission.token for emission in found[ticket]] == alone(whose, request)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_of_one_base_answer_together_as_they_do_alone(tmp_path: Path) -> None:
    """Of other ranks and other matrices, beside their base, while they come and go."""
    random_model().save_pretrained(tmp_path / "base")
    base = Policy.load(tmp_path / "base", "base")
    policies = [base]
    for rank, targets in ((4, TARGETS), (7, ["v_proj", "down_proj"]), (2, ["o_proj"])):
        folder = tmp_path / f"rank-{rank}"
        adapted(random_model(), rank, targets, rank).save_pretrained(folder)
        policies.append(base.with_adapter(folder, folder.name))
    engine = Engine(base, slots=6)
    requests = [Request(p, 4 + n % 9, seed=n, stop=END) for n, p in enumerate(prompts(23))]
    tickets = [engine.submit(policies[n % 4], r) for n, r in enumerate(requests)]
    together = answers(engine)
    for n, (ticket, request) in enumerate(zip(tickets, requests, strict=True)):
        single = Engine(base, slots=1)
        single.submit(policies[n % 4], request)
        (expected,) = answers(single).values()
        assert [e.token for e in together[ticket]] == [e.token for e in expected]
        logprobs = [e.logprob for e in together[ticket]]
        assert logprobs == pytest.approx([e.logprob for e in expected], abs=1e-4)
    weights = weakref.ref(policies.pop().weights)
    del single
    gc.collect()
    assert weights() is None, "what they shared a forward with keeps no unloaded adapter"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_adapters_of_a_base_in_half_precision_answer_together(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path / "base")
    base = Policy.load(tmp_path / "base", "base", torch.bfloat16)
    folder = tmp_path / "adapter"
    adapted(random_model(), 5, TARGETS).save_pretrained(folder)
    policies = (base, base.with_adapter(folder, "adapter"))
    engine, request = Engine(base, slots=2), Request((3,), 1, temperature=0)
    tickets = [engine.submit(policy, request) for policy in policies]
    together = answers(engine)
    for policy, ticket in zip(policies, tickets, strict=True):
        single = Engine(base, slots=1)
        single.submit(policy, request)
        (expected,) = answers(single).values()
        (emission,) = together[ticket]
        assert emission.logprob == pytest.approx(expected[0].logprob, abs=0.2)


def test_an_answer_ends_at_a_stop_token_or_a_limit(policy: Policy) -> None:
    engine = Engine(policy, slots=4)
    tickets = [
        engine.submit(policy, Request(prompt, max_tokens=60, seed=n, stop=END))
        for n, prompt in enumerate(prompts(20))
    ]
    ends = set()
    for ticket, written in answers(engine).items():
        assert ticket in tickets
        assert [emission.finish for emission in written[:-1]] == [None] * (len(written) - 1)
        stopped = written[-1].token == 1
        assert written[-1].finish == ("stop" if stopped else "length")
        assert len(written) == 60 or stopped
        assert not any(emission.token == 1 for emission in written[:-1])
        ends.add(written[-1].finish)
    assert ends == {"stop", "length"}


def test_an_answer_ends_where_the_cache_does(policy: Policy) -> None:
    engine = Engine(policy, slots=1, length=30)
    ticket = engine.submit(policy, Request(tuple(range(2, 22)), max_tokens=500, seed=1))
    written = answers(engine)[ticket]
    assert len(written) == 10
    assert written[-1].finish == "length"


def test_log_probabilities_are_the_models_own(policy: Policy) -> None:
    model = random_model()
    engine = Engine(policy, slots=3)
    asked = {}
    for place, prompt in enumerate(prompts(6)):
        temperature = (1.0, 0.7, 0.0)[place % 3]
        request = Request(prompt, max_tokens=20, temperature=temperature, seed=place)
        asked[engine.submit(policy, request)] = request
    for ticket, written in answers(engine).items():
        request = asked[ticket]
        ids = [*request.prompt, *(emission.token for emission in written)]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        right = (logits / (request.temperature or 1.0)).log_softmax(-1)
        for place, emission in enumerate(written, start=len(request.prompt) - 1):
            assert emission.logprob == pytest.approx(float(right[place, emission.token]), abs=1e-4)


class Reader(Cache):
    """Another view of a cache, which counts what is read into it."""

    def __init__(self, cache: Cache) -> None:
        self.__dict__.update(cache.__dict__)
        self.read: list[int] = []

    def extend(
        self, weights: Any, slots: Any, starts: Any, rows: Any, owners: Any = ()
    ) -> torch.Tensor:
        self.read += map(len, rows)
        return super().extend(weights, slots, starts, rows, owners)


def test_the_next_turn_reads_only_what_is_new(policy: Policy) -> None:
    engine = Engine(policy, slots=2)
    first = prompts(1)[0]
    ticket = engine.submit(policy, Request(first, max_tokens=8, temperature=0.0))
    answer = tuple(emission.token for emission in answers(engine)[ticket])
    longer = (*first, *answer, 5, 6, 7)
    engine.submit(policy, Request(longer, max_tokens=4, temperature=0.0))
    reader = Reader(engine.cache)
    engine.cache = reader
    again = [emission.token for emission in next(iter(answers(engine).values()))]
    # The last token of the answer was drawn and never read.
    assert reader.read[0] == 4
    assert again == alone(policy, Request(longer, max_tokens=4, temperature=0.0))


def test_another_policy_reads_everything_itself(policy: Policy, other: Policy) -> None:
    engine = Engine(policy, slots=1)
    request = Request(prompts(1)[0], max_tokens=6, temperature=0.0)
    engine.submit(policy, request)
    answers(engine)
    ticket = engine.submit(other, request)
    assert [e.token for e in answers(engine)[ticket]] == alone(other, request)


def test_a_policy_that_is_unloaded_leaves_no_weights_behind(policy: Policy) -> None:
    """A slot keeps what it read for the next turn: of a policy that nobody serves any more, for
    ever."""
    engine, gone = Engine(policy, slots=4), Policy.of(random_model(seed=7), "gone")
    for prompt in prompts(3):
        engine.submit(gone, Request(prompt, max_tokens=2))
        assert answers(engine)
    weights = weakref.ref(gone)
    del gone
    gc.collect()
    assert weights() is None
    engine.submit(policy, Request((3, 4), max_tokens=2))
    assert answers(engine)


@pytest.mark.long
def test_policies_that_come_and_go_take_the_same_row_of_the_cache(policy: Policy) -> None:
    """Each row is memory from when it is first written to, and a daemon trains for months."""
    engine = Engine(policy, slots=8)
    for seed in range(5):
        gone = Policy.of(random_model(seed=seed), f"gone {seed}")
        engine.submit(gone, Request((3, 4), max_tokens=2))
        assert answers(engine)
        del gone
        gc.collect()
    written = engine.cache.keys[0].flatten(1).any(1)
    assert written.nonzero().flatten().tolist() == [0]


def test_a_prompt_is_read_in_parts_while_others_are_answered(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tuple(Random(1).randrange(2, 64) for _ in range(50))
    right = alone(policy, Request(prompt, max_tokens=3, temperature=0.0))
    monkeypatch.setattr("daemon.engine.generation.PREFILL", 20)
    engine = Engine(policy, slots=2)
    short = engine.submit(policy, Request((3, 4), max_tokens=6, temperature=0.0))
    long = engine.submit(policy, Request(prompt, max_tokens=3, temperature=0.0))
    emitted: list[Emission] = []
    while engine.busy:
        emitted += engine.tick()
    assert [e.ticket for e in emitted[:3]] == [short] * 3
    assert [e.token for e in emitted if e.ticket == long] == right


def test_a_cancelled_request_says_no_more(policy: Policy) -> None:
    engine = Engine(policy, slots=1)
    running = engine.submit(policy, Request((5, 6), max_tokens=50))
    waiting = engine.submit(policy, Request((5, 7), max_tokens=50))
    engine.tick()
    assert (engine.active_count, engine.queue_size) == (1, 1)
    assert engine.cancel(waiting)
    assert engine.cancel(running)
    assert not engine.cancel(running)
    assert not engine.busy
    assert engine.tick() == []


def test_seeds_repeat_and_differ(policy: Policy) -> None:
    request = Request((9, 8, 7), max_tokens=30)
    one = alone(policy, replace(request, seed=1))
    assert one == alone(policy, replace(request, seed=1))
    assert one != alone(policy, replace(request, seed=2))


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Request((), 5), "prompt is empty"),
        (Request((3,), 0), "max_tokens is 0"),
        (Request((3, 64), 5), "token id 64 is not among the model's 64"),
        (Request((3, -1), 5), "token id -1"),
    ],
)
def test_what_cannot_be_served_is_refused(policy: Policy, request_: Request, told: str) -> None:
    engine = Engine(policy, slots=1)
    with pytest.raises(BadRequest, match=told):
        engine.submit(policy, request_)
    assert not engine.busy


def test_a_prompt_without_room_for_an_answer_is_refused(policy: Policy) -> None:
    with pytest.raises(PromptTooLong, match=r"maximum context length is 20 tokens, .* has 20"):
        Engine(policy, slots=1, length=20).submit(policy, Request((3,) * 20, max_tokens=1))


def test_a_policy_of_another_shape_is_refused(policy: Policy) -> None:
    wider = Policy.of(random_model(num_hidden_layers=2), "wider")
    with pytest.raises(BadRequest, match="policy wider has another shape"):
        Engine(policy, slots=1).submit(wider, Request((3,), 1))


def test_top_k_and_top_p_leave_out_the_rest() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]] * 5)
    requests = [
        Request((0,), 1),
        Request((0,), 1, top_k=2),
        Request((0,), 1, top_p=0.7),
        Request((0,), 1, top_p=1e-9),
        Request((0,), 1, top_k=3, top_p=0.9, temperature=2.0),
    ]
    found = compute_logprobs(logits, requests)
    torch.testing.assert_close(found[0], logits[0].log_softmax(-1))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(5))
    assert [[math.isinf(x) for x in row] for row in found.tolist()] == [
        [False] * 4,
        [False, False, True, True],
        [False, False, True, True],
        [False, True, True, True],
        [False, False, False, True],
    ]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    count = 20_000
    logprobs = torch.tensor([0.5, 0.25, 0.0, 0.25]).log().expand(count, 4)
    chance = Random(3)
    drawn = draw(logprobs, [Request((0,), 1)] * count, [chance.random() for _ in range(count)])
    shares = torch.bincount(drawn, minlength=4) / count
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.25, 0.0, 0.25]), atol=0.02, rtol=0)


def test_the_edges_of_chance_never_draw_what_is_impossible() -> None:
    logprobs = torch.tensor([[-math.inf, 0.0, -math.inf]]).expand(2, 3)
    assert draw(logprobs, [Request((0,), 1)] * 2, [0.0, 1 - 2**-53]).tolist() == [1, 1]


def test_the_likeliest_come_first() -> None:
    logprobs = torch.tensor([[0.1, 0.6, 0.3]]).log()
    assert [token for token, _ in likeliest(logprobs, 2)[0]] == [1, 2]
    assert likeliest(logprobs, 0) == [()]
    assert len(likeliest(logprobs, 20)[0]) == 3


HOSTILE = [Request((5, 6, 7), 4, temperature=10**400), Request((5, 6, 7), 4, top_p=-(10**400))]
"""What no reader lets through: a fault on the way, as far as the engine can tell."""


@pytest.mark.parametrize("hostile", HOSTILE, ids=["temperature", "top_p"])
def test_a_request_that_cannot_be_computed_ends_alone(policy: Policy, hostile: Request) -> None:
    engine = Engine(policy, slots=6)
    asked = {}
    for place, prompt in enumerate(prompts(11)):
        request = Request(prompt, 6, seed=place, stop=END)
        asked[engine.submit(policy, request)] = request
        if place == 4:
            faulty = engine.submit(policy, hostile)
    dropped: list[int] = []
    tokens: dict[int, list[int]] = {}
    while engine.busy:
        for emission in engine.tick(lambda ticket, error: dropped.append(ticket)):
            tokens.setdefault(emission.ticket, []).append(emission.token)
    assert dropped == [faulty]
    assert tokens == {ticket: alone(policy, request) for ticket, request in asked.items()}


def test_without_somebody_to_tell_a_fault_is_raised(policy: Policy) -> None:
    engine = Engine(policy, slots=2)
    engine.submit(policy, HOSTILE[0])
    with pytest.raises(OverflowError):
        engine.tick()
    assert not engine.busy


def test_an_engine_that_answers_nobody_drops_no_request(policy: Policy) -> None:
    engine = Engine(policy, slots=2)
    engine.submit(policy, Request((1, 2), 2))
    engine.cache.keys.clear()
    dropped: list[int] = []
    with pytest.raises(ValueError, match="zip"):
        engine.tick(lambda ticket, error: dropped.append(ticket))
    assert not dropped


@pytest.mark.parametrize("cancelled", [False, True], ids=["read whole", "cancelled half read"])
def test_numbers_that_are_none_spoil_no_later_request(cancelled: bool) -> None:
    """A short prompt in the slot where a spoiled policy read a long one, beside another long one:
    then the batch looks at columns that are hidden from the short one."""
    policy = Policy.of(random_model(max_position_embeddings=1024), "long")
    spoiled = Policy.of(random_model(max_position_embeddings=1024), "spoiled")
    spoiled.weights.layers[0].down.fill_(math.inf)
    engine = Engine(policy, slots=2)
    ticket = engine.submit(spoiled, Request(tuple(range(2, 40)) * 15, 1))
    engine.tick()
    if cancelled:
        engine.cancel(ticket)
    while engine.busy:
        engine.tick()
    # The first gets the slot that was never used.
    requests = [Request(tuple(range(2, 50)), 4, seed=2), Request((5, 6), 4, seed=1)]
    tickets = [engine.submit(policy, request) for request in requests]
    found = answers(engine)
    for ticket, request in zip(tickets, requests, strict=True):
        assert all(math.isfinite(emission.logprob) for emission in found[ticket])
        assert [emission.token for emission in found[ticket]] == alone(policy, request)


@given(
    st.builds(
        Request,
        prompt=st.just((1,)),
        max_tokens=st.integers(1, 2**31 - 1),
        temperature=st.floats(0, 100),
        top_p=st.floats(0, 1, exclude_min=True),
        top_k=st.integers(0, 2**31 - 1),
        top_logprobs=st.integers(0, 20),
    ),
    st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
)
def test_whatever_the_settings_a_token_is_drawn_with_a_log_probability(
    request: Request, spread: float
) -> None:
    logits = spread * torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    logprobs = compute_logprobs(logits, [request])
    (token,) = draw(logprobs, [request], [0.7]).tolist()
    assert math.isfinite(logprobs[0, token])
    assert not logprobs.isnan().any()
    assert len(likeliest(logprobs, request.top_logprobs)[0]) == request.top_logprobs


def test_next_to_no_temperature_is_none(policy: Policy) -> None:
    asked = [
        Request((5, 6, 7), 12, temperature=t, seed=3) for t in (0.0, 5e-324, 1e-300, 1e-38, 1e-9)
    ]
    cold, *others = [alone(policy, request) for request in asked]
    assert others == [cold] * 4
