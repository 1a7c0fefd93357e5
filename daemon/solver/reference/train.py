"""Train the reference policy from random weights.

    python -m daemon.solver.reference.train --out DIR --seed 0

Writes DIR/steps/N, a checkpoint for each tested step; DIR/checkpoint, the chosen one; and the
record DIR/training.json. Weights are a function of recipe, seed, number of threads and machine:
with one thread on one machine, two runs write the same bytes. A run takes about a quarter of an
hour. A method trains its own policy by `run`, with other examples mixed in. Muon trains the layers'
matrices, AdamW embeddings and norms; the loss is that of daemon/solver/sft.py.
"""

import argparse
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
import transformers
from torch import nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from daemon.engine.chat import Chat
from daemon.engine.reference import tokenizer
from daemon.engine.reference.recipe import RECIPE, WEAK, Phase, Recipe
from daemon.solver.batch import Row, micro_batches, pad
from daemon.solver.policy import score
from daemon.solver.reference.demonstrations import DEVELOPMENT, demonstrations, vocabulary
from daemon.solver.reference.evaluate import Figures, measure
from daemon.solver.trajectory import TokenSequence
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from events.messages import StrictModel

CONTEXT: Final = 1024
"""Number of positions of the model; the longest training conversation has about 250."""
INIT: Final = 0.02
"""Standard deviation of fresh weights."""
WEIGHTS: Final = "model.safetensors"

Mix = Callable[[Iterator[TokenSequence], Phase, int], Iterator[TokenSequence]]
"""Takes a phase's demonstrations, the phase and its index; returns them with others mixed in."""


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    phase: Phase
    last: bool
    loss: float
    """Loss in nats per token of the assistant, before the step."""
    tokens: int
    """Tokens read and written so far."""


class Test(StrictModel):
    """Figures of a checkpoint on tasks of development seeds."""

    step: int
    phase: str
    tokens: int
    kinds: Mapping[str, Figures]

    @property
    def merit(self) -> tuple[bool, int, float]:
        """Sort key to choose a checkpoint: competence, number of weak kinds to learn, mean."""
        plain = [self.kinds[kind].passed.value for kind in PLAIN]
        weak = sum(self.kinds[kind].weak for kind in WEAK)
        return min(plain) >= 0.96, weak, sum(plain)


def fresh_model(tokens: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Return a Qwen3 with 0.9 million random weights. Matrices that add to the residual stream
    begin smaller, divided by the root of the number of additions (Radford et al. 2019)."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(_config(tokens))
    depth = len(model.model.layers)
    for layer in model.model.layers:
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            nn.init.normal_(linear.weight, std=INIT / (2 * depth) ** 0.5)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    return model


def _config(tokens: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=INIT,
        eos_token_id=tokenizer.token_id(tokens, tokenizer.END),
        pad_token_id=tokenizer.token_id(tokens, tokenizer.PAD),
    )


def train(
    model: Qwen3ForCausalLM,
    tokens: PreTrainedTokenizerFast,
    recipe: Recipe,
    seed: int,
    mix: Mix | None = None,
) -> Iterator[Step]:
    """Train the model in place; yield each step. Each phase begins with new optimizers."""
    number = seen = 0
    for place, phase in enumerate(recipe.phases):
        optimizers = _optimizers(model, recipe)
        shown = demonstrations(Shop(), tokens, phase.shares, place, seed)
        examples = shown if mix is None else mix(shown, phase, place)
        batches = _batches(examples, recipe, Random(f"batches {seed} {place}"))
        for step, batch in enumerate(islice(batches, phase.steps)):
            pace = _pace(phase, step) * min(1.0, (step + 1) / recipe.warmup)
            loss = _update(model, optimizers, batch, pace)
            number, seen = number + 1, seen + sum(row.length for row in batch)
            yield Step(number, phase, step + 1 == phase.steps, loss, seen)


def _optimizers(model: nn.Module, recipe: Recipe) -> Mapping[Optimizer, float]:
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        in_layers = parameter.dim() == 2 and "embed_tokens" not in name
        (matrices if in_layers else rest).append(parameter)
    return {
        Muon(matrices, momentum=0.95, weight_decay=0.0): recipe.muon_rate,
        AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0): recipe.adamw_rate,
    }


def _batches(
    examples: Iterator[TokenSequence], recipe: Recipe, chance: Random
) -> Iterator[list[Row]]:
    while True:
        rows = [Row(e, 0.0, e.tokens) for e in islice(examples, recipe.pool)]
        batches = micro_batches(rows, recipe.batch_tokens)
        chance.shuffle(batches)
        yield from batches


def _pace(phase: Phase, step: int) -> float:
    first, last = phase.rates
    return first + (last - first) * step / phase.steps


def _update(
    model: nn.Module, optimizers: Mapping[Optimizer, float], batch: Sequence[Row], pace: float
) -> float:
    for optimizer, rate in optimizers.items():
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.param_groups:
            group["lr"] = rate * pace
    written = sum(row.sequence.tokens for row in batch)
    loss = -score(model, pad(batch)).logp.sum() / written
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def save(model: Qwen3ForCausalLM, tokens: PreTrainedTokenizerFast, directory: Path) -> str:
    """Write a checkpoint in the format of transformers; return the sha256 of its weights."""
    model.save_pretrained(directory)
    tokens.save_pretrained(directory)
    return sha256((directory / WEIGHTS).read_bytes()).hexdigest()


def test(checkpoint: Path, step: Step) -> Test:
    """Test a checkpoint on as many development seeds as the phase of its step asks for."""
    seeds = DEVELOPMENT[: step.phase.test_tasks]
    kinds = measure(checkpoint, (*PLAIN, *WEAK), seeds, step.phase.test_trials)
    return Test(step=step.number, phase=step.phase.name, tokens=step.tokens, kinds=kinds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, test, and choose a checkpoint; return the exit code."""
    options = build_parser("daemon.solver.reference.train").parse_args(arguments)
    return run(options, RECIPE, vocabulary(Shop()))


def run(
    options: argparse.Namespace,
    recipe: Recipe,
    tokens: PreTrainedTokenizerFast,
    make_mix: Callable[[Chat], Mix] | None = None,
) -> int:
    """Train, test, choose a checkpoint; return 0. `make_mix` gets the fresh checkpoint's chat."""
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.use_deterministic_algorithms(True)
    model = fresh_model(tokens, options.seed)
    save(model, tokens, options.out / "steps" / "0")
    mix = None if make_mix is None else make_mix(Chat(options.out / "steps" / "0"))
    tests, hashes = [], {}
    started = time.monotonic()
    for step in islice(train(model, tokens, recipe, options.seed, mix), options.steps):
        if step.number % 25 == 0:
            print(f"step {step.number} loss {step.loss:.4f} tokens {step.tokens:,}", flush=True)
        if step.last or step.number % step.phase.test_every == 0 or step.number == options.steps:
            directory = options.out / "steps" / str(step.number)
            hashes[step.number] = save(model, tokens, directory)
            tests.append(test(directory, step))
            print(_line(tests[-1]), f"after {time.monotonic() - started:.0f} s", flush=True)
    chosen = _choose(tests)
    shutil.copytree(
        options.out / "steps" / str(chosen.step), options.out / "checkpoint", dirs_exist_ok=True
    )
    record = _record(options, recipe, chosen, tests, hashes)
    text = json.dumps(record, indent=1) + "\n"
    (options.out / "training.json").write_text(text, encoding="utf-8")
    print(f"chose step {chosen.step}: {hashes[chosen.step]}")
    return 0


def _choose(tests: Sequence[Test]) -> Test:
    return max((t for t in tests if t.phase == tests[-1].phase), key=lambda t: t.merit)


def _line(result: Test) -> str:
    rates = (
        f"{kind} {row.passed.value:.2f}/{row.informative.value:.2f}"
        for kind, row in result.kinds.items()
    )
    return f"== {result.step} {result.phase} pass^1/informative: {', '.join(rates)}"


def _record(
    options: argparse.Namespace,
    recipe: Recipe,
    chosen: Test,
    tests: Sequence[Test],
    hashes: Mapping[int, str],
) -> dict[str, Any]:
    return {
        "recipe": recipe.model_dump(mode="json"),
        "seed": options.seed,
        "threads": options.threads,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "chosen": chosen.step,
        "sha256": hashes[chosen.step],
        "tests": [result.model_dump(mode="json") for result in tests],
    }


def build_parser(module: str) -> argparse.ArgumentParser:
    """Return the parser of the command that trains a policy."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is written")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="stop after so many (default: the recipe's)")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
