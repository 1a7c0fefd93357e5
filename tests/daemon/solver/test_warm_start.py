"""References are what the oracle does, as tokens that the policy could have written."""

from pathlib import Path

import pytest

from daemon.engine.chat import Chat
from daemon.solver.reference.demonstrations import demonstration, transcript, vocabulary
from daemon.solver.trajectory import ORACLE, sequences, untrainable
from daemon.solver.warm_start import examples, reference, references
from envs.registry import open_place
from envs.shop.environment import Shop
from tests.daemon.engine.random_model import checkpoint
from tests.daemon.solver import letters
from tests.daemon.solver.lessons import REFLECTION, write_lesson


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("model"), vocabulary(Shop()))


def test_every_kind_of_shop_is_shown_by_its_oracle(directory: Path) -> None:
    shop, chat = Shop(), Chat(directory)
    kinds = list(shop.capabilities)
    tasks = [f"shop/{kind}/{seed}" for kind in kinds for seed in range(3)]
    shown = list(references(lambda _: shop, chat, tasks, "j/0"))
    assert [one.rollout for one in shown] == [f"j/0/{n}" for n in range(len(tasks))]
    assert [one.task for one in shown] == tasks
    for one in shown:
        assert one.success, one.task
        assert one.policy == ORACLE
        assert untrainable(one, chat.ends) is None


def test_a_reference_is_the_very_tokens_of_a_demonstration(directory: Path) -> None:
    """Two ways to one conversation: turn by turn as prompts, and rendered at once."""
    shop, chat = Shop(), Chat(directory)
    for kind in shop.capabilities:
        task = shop.generate(kind, 7)
        (joined,) = sequences(reference(shop, chat, task, "r"))
        whole = demonstration(chat.tokenizer, transcript(shop, task))
        assert joined.ids == whole.ids
        assert joined.written == whole.written


def test_a_reference_of_a_lesson_reflects_once_and_then_goes_on(directory: Path) -> None:
    shop, chat = Shop(), Chat(directory)
    shown = reference(shop, chat, write_lesson("cancel", 3), "r")
    first, *rest = [chat.read_text(turn.completion_ids) for turn in shown.turns]
    assert first.startswith(f"<reflect>{REFLECTION}</reflect>\nConfirm:")
    assert rest
    assert not any("<reflect>" in text for text in rest)
    assert all(REFLECTION not in chat.text(turn.prompt_ids) for turn in shown.turns)
    assert shown.success


def test_what_the_oracle_does_not_pass_is_no_example(tmp_path: Path) -> None:
    chat = Chat(letters.checkpoint(tmp_path))
    environment = open_place(letters.ENVIRONMENT)
    tasks = [*letters.ids("half", 0, 3), *letters.ids("mute", 0, 2)]
    shown = list(references(lambda _: environment, chat, tasks, "r"))
    assert [one.success for one in shown] == [True, True, True, False, False]
    (half, *_) = found = examples(shown)
    assert len(found) == 3
    assert chat.text(i for i, w in zip(half.ids, half.written, strict=True) if w) == (
        chat.text(half.ids[4:5]) + "<end>"
    ), "it says the letter that it heard, and ends"
