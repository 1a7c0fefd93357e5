"""The kinds of task of shop: solvable, distinct, and not to be had for nothing."""

import math
from collections import Counter
from itertools import chain, islice

import pytest

from envs.agents import NullAgent, RandomAgent
from envs.environment import UnknownTask
from envs.shop.environment import Shop
from envs.shop.kinds import HARDER, KINDS, PLAIN
from envs.shop.policy import DONE, REFUSED, output
from envs.shop.tools import ShopTools
from envs.shop.vocabulary import POOLS
from envs.task import TaskDefinition
from tests.envs.shop.play import graded, played, verdict
from tests.envs.shop.tokens import count, tokens

SEEDS = 200


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


def tasks(shop: Shop, kind: str, seeds: int = SEEDS) -> list[TaskDefinition]:
    return [shop.generate(kind, seed) for seed in range(seeds)]


def test_there_are_plain_kinds_and_harder_ones() -> None:
    assert len(PLAIN) >= 6
    assert len(HARDER) >= 6
    assert list(Shop.capabilities) == list(KINDS) == [*PLAIN, *HARDER]


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_passes_in_80_to_200_tokens_without_an_error(shop: Shop, kind: str) -> None:
    for task in tasks(shop, kind):
        episode = played(shop, task, shop.oracle(task))
        assert verdict(episode).reward == 1.0, task.id
        assert (episode.errors, episode.defects) == (0, [])
        assert 80 <= len(count(episode.messages).tokens) <= 200, task.id


def test_the_tokens_of_all_kinds_are_few_and_none_is_a_piece_of_a_word(shop: Shop) -> None:
    seen: set[str] = set()
    for kind in KINDS:
        for task in tasks(shop, kind, 50):
            seen.update(count(played(shop, task, shop.oracle(task)).messages).tokens)
    assert len(seen) < 700
    assert {token for token in seen if len(token) == 1} <= set(" .,:;?!Ia")


@pytest.mark.parametrize("kind", KINDS)
def test_doing_nothing_earns_nothing_and_chance_next_to_nothing(shop: Shop, kind: str) -> None:
    chances = [
        graded(shop, task, RandomAgent(ShopTools.schemas(), seed)).reward or 0.0
        for seed, task in enumerate(tasks(shop, kind, 100))
    ]
    assert sum(chances) / len(chances) <= 0.05
    assert not any(graded(shop, task, NullAgent()).reward for task in tasks(shop, kind, 50))


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_is_a_function_of_its_kind_and_seed(shop: Shop, kind: str) -> None:
    again = Shop()
    for task in tasks(shop, kind, 50):
        assert again.task(task.id) == task
        assert again.pristine(task).digest() == shop.reset(task).digest()


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_make_distinct_scenarios(shop: Shop, kind: str) -> None:
    made = tasks(shop, kind)
    assert len({task.scenario.text() for task in made}) >= 0.95 * SEEDS
    assert len({task.seed for task in made}) == SEEDS


def test_kinds_with_one_seed_share_no_database(shop: Shop) -> None:
    for seed in range(20):
        assert len({shop.generate(kind, seed).seed for kind in KINDS}) == len(KINDS)


def test_the_database_hangs_on_the_seed_alone_and_not_on_the_label(shop: Shop) -> None:
    task = shop.generate("cancel", 4)
    renamed = task.model_copy(update={"capability": "return", "id": "shop/return/4"})
    assert shop.pristine(renamed).digest() == shop.pristine(task).digest()


def test_refunds_are_granted_and_refused(shop: Shop) -> None:
    closings = Counter(task.criteria.outputs for task in tasks(shop, "refund"))
    assert min(closings[(output(DONE),)], closings[(output(REFUSED),)]) > SEEDS / 4


@pytest.mark.parametrize("kind", ["cond_status", "handover", "compound", "one_order", "followup"])
def test_what_is_to_be_done_is_not_always_the_same(shop: Shop, kind: str) -> None:
    writes = Counter(
        tuple(action.name for action in task.criteria.gold_actions or ())
        for task in tasks(shop, kind)
    )
    assert max(writes.values()) < 0.9 * SEEDS


def test_an_unknown_kind_is_named_with_those_that_exist(shop: Shop) -> None:
    with pytest.raises(UnknownTask, match=r"'cancle'.*cancel, return"):
        shop.generate("cancle", 1)


def test_kinds_mix_in_any_share(shop: Shop) -> None:
    shares = {"cancel": 0.6, "two_writes": 0.3, "refund": 0.1, "address": 0.0}
    drawn = 2000
    stream = list(islice(shop.mixture(shares, seed=3, first_task=500), drawn))
    counts = Counter(task.capability for task in stream)
    assert counts["address"] == 0
    for kind, share in shares.items():
        spread = math.sqrt(drawn * share * (1 - share))
        assert abs(counts[kind] - drawn * share) <= 4 * spread, kind
    assert stream[:5] == list(islice(shop.mixture(shares, seed=3, first_task=500), 5))
    assert len({task.id for task in stream}) == drawn


def test_nothing_but_the_request_tells_the_kind(shop: Shop) -> None:
    drawn = [shop.generate(kind, seed) for kind in KINDS for seed in range(10)]
    assert len({shop.policy(task) for task in drawn}) == 1
    assert len({str(shop.schemas(task)) for task in drawn}) == 1
    labels = [kind for kind in KINDS if "_" in kind] + ["ineligible", "fallback", "compound"]
    for task in drawn:
        heard = f"{task.scenario.text()} {task.script}"
        assert not [label for label in labels if label in heard]


def test_siblings_with_opposite_answers_ask_in_the_same_words(shop: Shop) -> None:
    def wordings(*kinds: str) -> set[str]:
        return {
            _wording(task.scenario.reason_for_call)
            for kind in kinds
            for task in tasks(shop, kind, 2 * SEEDS)
        }

    plain = wordings("cancel", "return", "exchange", "payment", "address")
    assert wordings("unavailable") == wordings("exchange")
    assert wordings("ineligible") <= plain
    assert wordings("other_owner") <= plain


def _wording(request: str) -> str:
    """The request without its entities."""
    return "".join("*" if token in _ENTITIES else token for token in tokens(request))


_ENTITIES = frozenset(chain(*POOLS.values()))
