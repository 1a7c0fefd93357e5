"""The tokenizers that shop gives, built once."""

import pytest
from transformers import PreTrainedTokenizerFast

from daemon.methods.lessons.reference.training import (
    REFLECTING_RECIPE,
    extend_vocabulary,
    make_training_lessons,
)
from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop
from envs.task import TaskDefinition


@pytest.fixture(scope="session")
def tokens() -> PreTrainedTokenizerFast:
    return vocabulary(Shop())


@pytest.fixture(scope="session")
def lessons() -> tuple[TaskDefinition, ...]:
    """The lessons that the second policy is trained on."""
    return make_training_lessons(Shop(), REFLECTING_RECIPE.phases[0].shares, 0)


@pytest.fixture(scope="session")
def extended(lessons: tuple[TaskDefinition, ...]) -> PreTrainedTokenizerFast:
    """The tokenizer of the second policy."""
    return extend_vocabulary(Shop(), lessons)
