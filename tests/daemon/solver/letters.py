"""An environment that a random policy passes now and then, and a checkpoint for it.

The user says a letter. `half` wants an answer that begins with a letter of the same half of the
alphabet: a bandit. `spell` wants one word exactly, which nobody says by chance. `mute` says nothing
that can be answered rightly: its own oracle fails.
"""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from envs.agents import Agent
from envs.database import Database
from envs.environment import Environment
from envs.task import Criteria, Scenario, Script, TaskDefinition
from envs.tools import Toolset, read
from events.messages import Message

LETTERS: Final = "abcdefghijklmnop"
WORD: Final = "kabc"


class LetterTools(Toolset):
    """Nothing that anybody needs."""

    @read
    def alphabet(self) -> Any:
        """All letters."""
        return LETTERS


class Speller(Agent):
    """Says what is wanted."""

    def __init__(self, task: TaskDefinition) -> None:
        self.task = task

    def reply(self, messages: Sequence[Message]) -> Message:
        wanted = {"half": messages[-1].text, "spell": WORD, "mute": "p"}
        return Message(role="assistant", content=wanted[self.task.capability])


class Letters(Environment):
    """One letter, one answer."""

    name = "letters"
    toolset = LetterTools
    capabilities: ClassVar = {
        "half": "answers in the same half of the alphabet",
        "spell": "knows the word",
        "mute": "cannot be done",
    }

    def policy(self, task: TaskDefinition) -> str:
        return "a"

    def pristine(self, task: TaskDefinition) -> Database:
        return Database({"letters": {}})

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        letter = Random(f"{capability} {seed}").choice(LETTERS)
        return TaskDefinition(
            id=self.task_id(capability, seed),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(reason_for_call=letter),
            script=Script(opening=letter, ends=r"[\s\S]"),
            criteria=Criteria(gold_actions=(), reward_basis=("POLICY",)),
        )

    def oracle(self, task: TaskDefinition) -> Agent:
        return Speller(task)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        said = next((m.text for m in messages if m.role == "assistant"), "")
        asked = messages[0].text
        right = {
            "half": said[:1] in LETTERS and (said[:1] < "i") == (asked < "i"),
            "spell": said == WORD,
            "mute": False,
        }
        return () if right[task.capability] else (f"{said!r} is no answer to {asked!r}",)


ENVIRONMENT: Final = str(Path(__file__))

_SPECIAL: Final = ("<pad>", "<end>", "<system>", "<user>", "<assistant>")
_TEMPLATE: Final = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per letter."""
    vocabulary = {token: number for number, token in enumerate((*_SPECIAL, "?", *LETTERS))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in _SPECIAL])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token="<end>",
        pad_token="<pad>",
        unk_token="?",
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def checkpoint(directory: Path, seed: int = 0) -> Path:
    """A random policy that passes `half` three times in ten."""
    tokens = tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        initializer_range=0.3,
        eos_token_id=1,
        bos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(seed)
    model: Any = Qwen3ForCausalLM(config)
    model.save_pretrained(directory)
    tokens.save_pretrained(directory)
    return directory


def ids(kind: str, first: int, count: int) -> list[str]:
    """Of tasks."""
    return [f"letters/{kind}/{seed}" for seed in range(first, first + count)]


def spec(base: Path, **changes: Any) -> dict[str, Any]:
    """A job that learns `half` in eight batches, as JSON."""
    given: dict[str, Any] = {
        "job": "j",
        "base": "letters",
        "checkpoint": str(base),
        "environment": ENVIRONMENT,
        "pools": [
            {"name": "target", "tasks": ids("half", 0, 40)},
            {"name": "kept", "share": 0.5, "replay": True, "tasks": ids("half", 100, 40)},
        ],
        "seed": 3,
        "threads": 1,
        "sampler": {"groups": 4, "size": 4, "rollouts": 128, "max_tokens": 24},
        "optimizer": {"lr": 0.01},
        # A random policy that learns a bandit goes far from where it began.
        "limits": {"kl": None, "entropy_factor": None},
    }
    return given | changes
