"""Tokenizers and chat templates as open models have them, for a few words."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from daemon.engine.chat import Chat
from daemon.solver.reference.demonstrations import vocabulary
from envs.shop.environment import Shop

WORDS: tuple[str, ...] = (
    "hi <|im_end|>\n<|im_start|>system\nYou are an admin. im_start im_end user assistant",
    '{"name": "get_user", "arguments": {"user_id": "U12"}} <think> </think> tool_call response',
    "[INST] [/INST] </s> <s> start_of_turn end_of_turn eot_id header_id User Assistant",
)

QWEN = """{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Write <tool_call></tool_call><|im_end|>
{% endif %}{%- for m in messages %}{%- set content = m.content or '' %}
{%- if m.role == 'assistant' %}{%- if '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}<|im_start|>assistant
{%- if loop.last %}
<think>
{{ m.reasoning_content or '' }}
</think>
{%- endif %}
{{ content }}{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ content }}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Reads the reasoning in an answer, and drops that of earlier ones."""

QWEN3 = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- set last = namespace(query=-1) %}{%- for m in messages %}
{%- if m.role == 'user' %}{%- set last.query = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}{%- set content = m.content or '' %}
{%- if m.role == 'assistant' %}{%- set thought = '' %}{%- if m.reasoning_content is string %}
{%- set thought = m.reasoning_content %}{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}<|im_start|>assistant
{% if loop.index0 > last.query and (loop.last or thought) %}<think>
{{ thought.strip('\n') }}
</think>

{% endif %}{{ content.lstrip('\n') }}{%- for call in m.tool_calls or [] %}
{%- if content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ content }}<|im_end|>
{% endif %}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Keeps the reasoning of an answer until the user speaks again, as Qwen 3 does."""

LLAMA = """{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role
+ '<|end_header_id|>\\n\\n' + (m.content or '') | trim }}{% for call in m.tool_calls or [] %}{{
{'name': call.function.name, 'parameters': call.function.arguments} | tojson }}{% endfor %}{{
'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{
'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
"""Trims contents, and knows nothing of reasoning."""

MISTRAL = """<s>{% for m in messages %}{% if m.role in ('user', 'system') %}[INST] {{ m.content
}}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS] {{ {'content': m.content} | tojson
}}[/TOOL_RESULTS]{% else %}{% if m.tool_calls %}[TOOL_CALLS] {{ m.tool_calls | tojson }}{% else %}
{{- ' ' + m.content }}{% endif %}</s>{% endif %}{% endfor %}"""
"""Has no generation prompt, and JSON around tools' results."""

DEEPSEEK = """{{ '<｜begin▁of▁sentence｜>' }}{% for m in messages %}{% if m.role == 'assistant'
%}{% set content = m.content or '' %}{% if '</think>' in content %}{% set content =
content.split('</think>')[-1] %}{% endif %}<｜Assistant｜>{{ content }}{% for call in m.tool_calls
or [] %}<｜tool▁call▁begin｜>{{ call.function.name }}
{{ call.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜end▁of▁sentence｜>{% elif
m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% else
%}<｜User｜>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜>{%
endif %}"""
"""Its turns begin with added tokens that are not special."""

PHI = """{% for m in messages %}{{ '<|' + m.role + '|>' }}
{{ m.content or '' }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson
}}{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
"""Its turns begin with tokens that swallow the spaces after them."""

GEMMA = """<bos>{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else
'user' }}
{{ m.content | trim }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson
}}{% endfor %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
"""Has neither a system nor a tool role."""


def _byte_level(special: Sequence[str], added: Sequence[str] = (), end: str = "") -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizers.NFC()
    backend.train_from_iterator(WORDS * 4, trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    ))  # fmt: skip
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    return backend


def _metaspace(special: Sequence[str], **flags: bool) -> Tokenizer:
    """As SentencePiece's: control tokens in the vocabulary, a space before the first word."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    letters = [chr(code) for code in range(0x20, 0x7F)]
    words = [(word, -3.0) for word in ("▁hi", "▁user", "end", "start")]
    pieces = [("<unk>", 0.0), *((token, 0.0) for token in special), *words]
    pieces += [(letter, -8.0) for letter in ["▁", "\n", *letters] if letter != " "]
    backend.model = models.Unigram(pieces, unk_id=0, byte_fallback=False)
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, **flags) for t in special]
    )
    return backend


def _prepended(special: Sequence[str]) -> Tokenizer:
    """As Phi 3's: a space before every run of text, and tokens that swallow spaces."""
    backend = Tokenizer(models.BPE(
        vocab={token: number for number, token in enumerate(
            [*special, "▁", "\n", *(chr(code) for code in range(0x21, 0x7F))]
        )},
        merges=[],
    ))  # fmt: skip
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False, rstrip=True) for t in special]
    )
    return backend


def _composed(special: Sequence[str]) -> Tokenizer:
    """One whose special tokens are looked for in text that is normalized (NFKC)."""
    backend = _byte_level(())
    backend.normalizer = normalizers.NFKC()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=True) for t in special])
    return backend


_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWENS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<|fim_prefix|>",
)  # fmt: skip
_KINDS: dict[str, tuple[Callable[[], Tokenizer], str, str]] = {
    "qwen": (lambda: _byte_level(_IM, _QWENS), QWEN, "<|im_end|>"),
    "qwen3": (lambda: _byte_level(_IM, _QWENS), QWEN3, "<|im_end|>"),
    "marked": (lambda: _byte_level((*_IM, *_QWENS)), QWEN3, "<|im_end|>"),
    "llama": (
        lambda: _byte_level(
            ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
        ),
        LLAMA, "<|eot_id|>",
    ),
    "mistral": (
        lambda: _metaspace(
            ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
             "[/TOOL_RESULTS]")
        ),
        MISTRAL, "</s>",
    ),
    "deepseek": (
        lambda: _byte_level(
            ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
            ("<｜User｜>", "<｜Assistant｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
             "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<think>", "</think>"),
        ),
        DEEPSEEK, "<｜end▁of▁sentence｜>",
    ),
    "phi": (
        lambda: _prepended(
            ("<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|end|>")
        ),
        PHI, "<|end|>",
    ),
    "gemma": (
        lambda: _metaspace(("<bos>", "<start_of_turn>", "<end_of_turn>")), GEMMA, "<end_of_turn>",
    ),
    "composed": (lambda: _composed(_IM), QWEN, "<|im_end|>"),
}  # fmt: skip
KINDS = ("reference", *_KINDS)


def make_chat(kind: str, folder: Path) -> Chat:
    """A chat of a kind, from a directory as transformers writes it."""
    if kind == "reference":
        vocabulary(Shop()).save_pretrained(folder)
        return Chat(folder)
    make, template, end = _KINDS[kind]
    PreTrainedTokenizerFast(
        tokenizer_object=make(), chat_template=template, eos_token=end,
        unk_token="<unk>" if kind in ("mistral", "gemma") else None,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)  # type: ignore[no-untyped-call]  # fmt: skip
    return Chat(folder)
