"""The second checkpoint: that it is another one, what it says of itself, what it can do."""

import json
from hashlib import sha256
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference import tokenizer
from daemon.engine.reference.recipe import WEAK
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.lessons.reference.repairs import (
    RepairFigures,
    make_held_out_lessons,
    measure_repairs,
    tabulate_repairs,
)
from daemon.methods.lessons.reference.training import REFLECTING, REFLECTING_RECIPE
from daemon.solver.reference.demonstrations import DEVELOPMENT, HELD_OUT
from daemon.solver.reference.evaluate import COMPETENT, GROUP, Figures, table
from daemon.solver.sampling.local import Attempt, InProcess
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from envs.task import Operator

FIRST = "1f2cfe368895099351288695b43435262436097df43b73d3b01737524cd5f29d"


def read(name: str) -> Any:
    return json.loads((REFLECTING / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def reported() -> dict[str, Figures]:
    kinds = read("evaluation.json")["kinds"]
    return {kind: Figures.model_validate(row) for kind, row in kinds.items()}


@pytest.fixture(scope="module")
def repairs() -> dict[Operator, RepairFigures]:
    rows = read("repairs.json")["operators"]
    return {name: RepairFigures.model_validate(row) for name, row in rows.items()}


def test_the_first_checkpoint_is_as_it_was() -> None:
    """Adapters and reported figures stand on its bytes."""
    assert sha256((CHECKPOINT / "model.safetensors").read_bytes()).hexdigest() == FIRST


def test_it_is_small_and_the_one_that_training_wrote() -> None:
    weights = (REFLECTING / "model.safetensors").read_bytes()
    assert len(weights) < 4_000_000
    record = read("training.json")
    assert record["sha256"] == sha256(weights).hexdigest() != FIRST
    assert record["recipe"] == REFLECTING_RECIPE.model_dump(mode="json")


def test_its_tokenizer_is_what_shop_and_its_lessons_give(
    extended: PreTrainedTokenizerFast,
) -> None:
    shipped = tokenizer.load(REFLECTING)
    assert shipped.backend_tokenizer.to_str() == extended.backend_tokenizer.to_str()
    assert shipped.chat_template == tokenizer.TEMPLATE


def test_the_reported_figures_keep_the_protocol(reported: dict[str, Figures]) -> None:
    assert set(reported) == set(Shop.capabilities)
    assert {row.tasks for row in reported.values()} == {400}
    assert {reported[kind].trials for kind in (*PLAIN, *WEAK)} == {GROUP}
    for document in (read("evaluation.json"), read("repairs.json")):
        first, end = document["seeds"]
        assert set(range(first, end)) <= set(HELD_OUT)
    assert min(reported[kind].passed.low for kind in PLAIN) >= COMPETENT
    assert max(reported[kind].passed.high for kind in WEAK) < 0.6


def test_it_repairs_some_and_leaves_something_to_learn(
    repairs: dict[Operator, RepairFigures],
) -> None:
    practised: tuple[Operator, ...] = ("argument", "missing")
    for operator in practised:
        row = repairs[operator].repaired
        assert row.trials == GROUP
        assert row.passed.high < 0.7
        assert row.informative.value > 0.2
    assert all(row.reflected.low > 0 for row in repairs.values())


def test_the_card_holds_the_reported_figures(
    reported: dict[str, Figures], repairs: dict[Operator, RepairFigures]
) -> None:
    card = (REFLECTING / "README.md").read_text(encoding="utf-8")
    assert table(reported) in card
    assert tabulate_repairs(repairs) in card


@pytest.mark.long
def test_lessons_of_other_seeds_are_repaired_as_reported(
    repairs: dict[Operator, RepairFigures],
) -> None:
    lessons = make_held_out_lessons(Shop(), DEVELOPMENT[900_000:], 80)
    measured = measure_repairs(REFLECTING, lessons, 4)
    for operator, row in measured.items():
        assert row.repaired.passed.low <= repairs[operator].repaired.passed.high
        assert row.repaired.passed.high >= repairs[operator].repaired.passed.low


def test_the_first_policy_writes_no_reflection() -> None:
    lessons = make_held_out_lessons(Shop(), DEVELOPMENT[900_000:], 20)
    measured = measure_repairs(CHECKPOINT, lessons, 2)
    assert {row.reflected.value for row in measured.values()} == {0.0}


def test_the_policy_passes_plain_tasks_without_reflecting() -> None:
    shop = Shop()
    policy = Policy.load(REFLECTING, "reflecting")
    player = InProcess(Engine(policy, 32, 512), Chat(REFLECTING), temperature=1e-6, max_tokens=64)
    tasks = [shop.generate(kind, seed) for kind in PLAIN for seed in range(10)]
    rollouts = list(player.play(shop, (Attempt(t, t.id, 0, t.id) for t in tasks), policy))
    assert sum(bool(rollout.grade.success) for rollout in rollouts) >= 57
    reflecting = [m for r in rollouts for m in r.episode.messages if m.reflection is not None]
    assert len(reflecting) <= 1
