"""Tokenizer and chat template of the reference policy, in the format of transformers.

A token is an entity of shop, a piece of JSON between two values, a piece of the chat template,
shop's whole policy, or a word with the space before it. Other text is split into characters and, at
last, bytes. In an extended tokenizer the tags of asides (envs/asides.py) are tokens too. A space
before an entity is a separate token, so that an entity is the same token in a sentence and in JSON:
a small model can copy tokens but cannot spell.

Guarantees: decoding gives back any text, special tokens included. The ids of a conversation up to
an answer, with the generation prompt, are a prefix of those with the answer. The vocabulary does
not depend on the order of the conversations. An extended tokenizer keeps the ids of its base. Not
covered: a request's tools are not rendered (the policy learned shop's). `encode` is for shop's own
texts: a spelled special token becomes one. daemon/engine/chat.py keeps it as text for agents.
"""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from envs.asides import CLOSING, OPENING
from envs.shop.policy import POLICY
from envs.shop.tools import ShopTools
from envs.shop.vocabulary import POOLS
from events.messages import Message, ToolCall

END: Final = "<|im_end|>"
"""Token that ends every message; the policy writes it at the end of an answer."""
PAD: Final = "<|endoftext|>"
START: Final = {role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")}
"""Role -> token that begins its messages; the assistant's is the generation prompt."""
SPECIAL: Final = (PAD, END, *START.values())

TEMPLATE: Final = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
"""Qwen's chat template, without the tools and without a line break between messages."""

_ENTITY: Final = rf"(?:{'|'.join(chain(*POOLS.values()))})(?!\w)"
_KEY: Final = rf'"(?!{_ENTITY})\w+": [\[{{]*"'
_PIECES: Final = "|".join(
    (
        *map(re.escape, SPECIAL),
        re.escape(POLICY),
        r'<tool_call>\n\{"name": "',
        r"<tool_response>\n",
        r"\n</tool_response>",
        *map(re.escape, sorted(ShopTools.tools(), key=len, reverse=True)),
        rf'", "arguments": \{{{_KEY}',
        rf"\{{{_KEY}",
        _ENTITY,
        rf'"[\]}}]*, {_KEY}',
        '"[:,] "',
        r'"[\]}]*(?:\n</tool_call>)?',
        rf" (?={_ENTITY})",
        " ?[A-Za-z]+",
        r"[\s\S]",
    )
)
"""Pattern of a text's pieces. A piece of JSON lies between two values and includes the keys."""
_REFLECTING: Final = f"{OPENING}|{CLOSING}|{_PIECES}"
_CHARACTERS: Final = ("\n", *map(chr, range(0x20, 0x7F)))
_BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))


def build(conversations: Iterable[Sequence[Message]]) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are shop's entities and all pieces of `conversations`."""
    bare = _assemble(())
    cut = bare.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    texts = (render(bare, messages) for messages in conversations)
    pieces = {piece for text in texts for piece, _ in cut(text)}
    known = chain(*POOLS.values(), ShopTools.tools(), _CHARACTERS, (POLICY,))
    return _assemble(sorted(pieces.union(known).difference(SPECIAL)))


def extend(base: PreTrainedTokenizerFast, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return `base` with tokens added after its own: the tags of asides and all pieces of texts."""
    known = base.get_vocab()
    words = sorted(known, key=known.__getitem__)[len(SPECIAL) + len(_BYTES) :]
    bare = _assemble((), _REFLECTING)
    cut = bare.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    pieces = {piece for text in texts for piece, _ in cut(text)}
    added = (OPENING, CLOSING, *sorted(pieces.difference(known, (OPENING, CLOSING))))
    return _assemble((*words, *added), _REFLECTING)


def load(directory: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer of the checkpoint in `directory`."""
    return cast(PreTrainedTokenizerFast, AutoTokenizer.from_pretrained(directory))


def chat(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format, as chat templates read them."""
    return [_chat_message(message) for message in messages]


def render(
    tokenizer: PreTrainedTokenizerFast, messages: Iterable[Message], *, prompt: bool = False
) -> str:
    """Return a conversation as text; `prompt` adds the beginning of the next answer."""
    text = tokenizer.apply_chat_template(
        chat(messages), tokenize=False, add_generation_prompt=prompt
    )
    return cast(str, text)


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Return a text's ids. Special tokens that it spells are encoded as such; none are added."""
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return a token's id. Raise KeyError when it has none."""
    return tokenizer.get_vocab()[token]


def _assemble(words: Sequence[str], cut_into: str = _PIECES) -> PreTrainedTokenizerFast:
    """Build a tokenizer. `words` get ids in their order, after special tokens and bytes."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *_BYTES, *words))}
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, ignore_merges=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(cut_into), behavior="isolated")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _chat_message(message: Message) -> dict[str, Any]:
    document: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        document["tool_calls"] = [_chat_call(call) for call in message.tool_calls]
    return document


def _chat_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"type": "function", "function": {"name": call.name, "arguments": arguments}}
