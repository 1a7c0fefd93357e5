"""Make a checkpoint with real weights that answers everything with one known text."""

from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import AddedToken
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from daemon.engine.reference.tokenizer import END, START, encode, token_id
from daemon.engine.reference.weights import CHECKPOINT

CERTAINTY: Final = 40.0
"""Distance of the chosen token's logit from others, so large that sampling is deterministic."""

HOSTILE_ARGUMENTS: Final = (
    r'{"a": "\ud800"}',
    r'{"\udfff": [1]}',
    '{"a": ' + "[" * 600 + "]" * 600 + "}",
    '{"a":' * 5_000 + "1" + "}" * 5_000,
    '{"a": NaN}',
    '{"a": [-Infinity]}',
    '{"a": 1e999}',
    '{"a": ' + "9" * 401 + "}",
    '{"a": ' + "9" * 5_000 + "}",
)
"""Arguments that no event, JSON document or parser can hold unchanged."""

HOSTILE_ANSWERS: Final = tuple(
    f'<tool_call>\n{{"name": "get_user", "arguments": {arguments}}}\n</tool_call>'
    for arguments in HOSTILE_ARGUMENTS
)


def with_token(tokens: PreTrainedTokenizerFast, text: str) -> PreTrainedTokenizerFast:
    """Return a copy of the tokenizer with one more token that stands for the whole of `text`."""
    more = deepcopy(tokens)
    more.add_tokens(AddedToken(text, normalized=False))
    return more


def reciting(directory: Path, tokens: PreTrainedTokenizerFast, text: str, **changes: Any) -> Path:
    """Write a checkpoint that answers everything with `text`, whose tokens must all differ. Its
    layers add nothing, so the last token alone determines the next one."""
    chain = [token_id(tokens, START["assistant"]), *encode(tokens, text), token_id(tokens, END)]
    assert len(set(chain)) == len(chain), f"{text!r} repeats a token: {chain}"
    config = AutoConfig.from_pretrained(CHECKPOINT)
    config.update({"vocab_size": len(tokens), "tie_word_embeddings": False, "hidden_size": 256})
    config.update(changes)
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
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
