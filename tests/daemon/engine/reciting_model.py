"""A checkpoint that says one text by heart: real weights, so that tests know what is answered."""

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from daemon.engine.reference.tokenizer import END, START, encode, token_id
from tests.daemon.engine.random_model import random_model

CERTAINTY = 40.0
"""How far a token's logit is above the others: no chance at temperature 1 matters."""


def with_token(tokens: PreTrainedTokenizerFast, text: str) -> PreTrainedTokenizerFast:
    """The tokenizer with one token more, which stands for a whole text."""
    more = deepcopy(tokens)
    more.add_tokens(AddedToken(text, normalized=False))
    return more


def reciting(directory: Path, tokens: PreTrainedTokenizerFast, text: str, **changes: Any) -> Path:
    """A checkpoint that answers everything with a text, whose tokens must all be different.

    Its layers add nothing, so the next token follows from the last one alone.
    """
    chain = [token_id(tokens, START["assistant"]), *encode(tokens, text), token_id(tokens, END)]
    assert len(set(chain)) == len(chain), f"{text!r} repeats a token: {chain}"
    settings: dict[str, Any] = {
        "vocab_size": len(tokens),
        "tie_word_embeddings": False,
        "hidden_size": 256,
    }
    model = random_model(**settings, **changes)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embedding = torch.nn.functional.normalize(model.model.embed_tokens.weight, dim=-1)
        model.model.embed_tokens.weight.copy_(embedding)
        model.lm_head.weight.zero_()
        scale = CERTAINTY / embedding.shape[-1] ** 0.5
        for token, following in pairwise(chain):
            model.lm_head.weight[following] = scale * embedding[token]
    model.save_pretrained(directory)
    tokens.save_pretrained(directory)
    return directory
