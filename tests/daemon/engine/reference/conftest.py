"""The tokenizer that shop gives, built once."""

import pytest
from transformers import PreTrainedTokenizerFast

from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop


@pytest.fixture(scope="session")
def tokens() -> PreTrainedTokenizerFast:
    return vocabulary(Shop())
