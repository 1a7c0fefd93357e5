"""The kinds of task of shop: solvable, distinct, and not to be had for nothing."""

from collections import Counter
from itertools import chain

import pytest

from envs.shop.environment import Shop
from envs.shop.kinds import KINDS
from envs.shop.policy import DONE, REFUSED, output
from envs.shop.vocabulary import POOLS
from envs.task import TaskDefinition
from tests.envs.shop.play import played, verdict
from tests.envs.shop.tokens import count, tokens

SEEDS = 200


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop()


def tasks(shop: Shop, kind: str, seeds: int = SEEDS) -> list[TaskDefinition]:
    return [shop.generate(kind, seed) for seed in range(seeds)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_passes_in_80_to_200_tokens_without_an_error(shop: Shop, kind: str) -> None:
    for task in tasks(shop, kind, 40):
        episode = played(shop, task, shop.oracle(task))
        assert verdict(episode).reward == 1.0, task.id
        assert (episode.errors, episode.defects) == (0, [])
        assert 80 <= len(count(episode.messages).tokens) <= 200, task.id


def test_the_tokens_of_all_kinds_are_few_and_none_is_a_piece_of_a_word(shop: Shop) -> None:
    seen: set[str] = set()
    for kind in KINDS:
        for task in tasks(shop, kind, 20):
            seen.update(count(played(shop, task, shop.oracle(task)).messages).tokens)
    assert len(seen) < 700
    assert {token for token in seen if len(token) == 1} <= set(" .,:;?!Ia")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_is_a_function_of_its_kind_and_seed(shop: Shop, kind: str) -> None:
    again = Shop()
    for task in tasks(shop, kind, 20):
        assert again.task(task.id) == task
        assert again.pristine(task).digest() == shop.reset(task).digest()


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_make_distinct_scenarios(shop: Shop, kind: str) -> None:
    made = tasks(shop, kind)
    assert len({task.scenario.text() for task in made}) >= 0.95 * SEEDS
    assert len({task.seed for task in made}) == SEEDS


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


def test_the_database_hangs_on_the_seed_alone_and_not_on_the_label(shop: Shop) -> None:
    task = shop.generate("cancel", 4)
    renamed = task.model_copy(update={"capability": "return", "id": "shop/return/4"})
    assert shop.pristine(renamed).digest() == shop.pristine(task).digest()
