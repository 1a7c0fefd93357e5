"""Print a base's and an adapter's answers to the probes of serving, as JSON.

    python -m daemon.engine.fingerprint BASE ADAPTER [--dtype float32]

This is `Provenance.fingerprint` (daemon/adapters/fingerprint.py) for a directory without one; the
learner writes its own. It comes from transformers' forward, and so is independent of both engines.
Exit codes are those of `kintsugi`: 0 done, 1 failed (one sentence on stderr), 2 wrong usage.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM

from daemon.adapters.directory import BadAdapter
from daemon.adapters.fingerprint import (
    LIKELIEST,
    TOKENS,
    Expectation,
    Fingerprint,
    Prompts,
    Step,
    prompts,
)
from daemon.engine.lora import attach, read_adapter
from daemon.engine.policy import silence_peft
from events.errors import KintsugiError

DONE, FAILED = 0, 1

_DECIMALS: Final = 6
"""Decimals kept of a log-probability; far finer than float32."""


def probe_model(model: PeftModel) -> Expectation:
    """Return a model's answers to the probes, with and without its one active adapter. It must be
    whole in this process, and stays as it was. Raise BadAdapter if it computes no numbers."""
    weights: Any = model.get_input_embeddings()
    asked = prompts(int(model.config.vocab_size))
    with model.disable_adapter():
        base = fingerprint(model, asked)
    return Expectation(
        prompts=asked,
        dtype=str(weights.weight.dtype).removeprefix("torch."),
        base=base,
        adapter=fingerprint(model, asked),
    )


def fingerprint(model: Any, asked: Prompts) -> Fingerprint:
    """Return a causal language model's answers as it is now. Raise BadAdapter."""
    training = model.training
    model.eval()
    try:
        return _answers(model, asked)
    finally:
        model.train(training)


@torch.no_grad()
def _answers(model: Any, asked: Prompts) -> Fingerprint:
    ids = torch.tensor(asked, device=model.get_input_embeddings().weight.device)
    answers: list[list[Step]] = [[] for _ in asked]
    for _ in range(TOKENS):
        logits = model(input_ids=ids, use_cache=False).logits[:, -1].float()
        chances, tokens = logits.log_softmax(-1).topk(LIKELIEST)
        if not chances.isfinite().all():
            raise BadAdapter("the model answers the probes with what is no number")
        for answer, values, names in zip(answers, chances.tolist(), tokens.tolist(), strict=True):
            pairs = zip(names, values, strict=True)
            answer.append(tuple((name, round(chance, _DECIMALS)) for name, chance in pairs))
        ids = torch.cat([ids, tokens[:, :1]], dim=1)
    return Fingerprint(answers=tuple(map(tuple, answers)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        print(probe_checkpoint(options.base, options.adapter, options.dtype).model_dump_json())
    except (KintsugiError, OSError, ValueError) as error:
        print(f"daemon.engine.fingerprint: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    return DONE


def probe_checkpoint(base: Path, adapter: Path, dtype: str = "float32") -> Expectation:
    """Return the answers of a checkpoint and its adapter. Raise BadAdapter, KintsugiError."""
    for folder, named in ((base, "checkpoint"), (adapter, "adapter")):
        if not folder.is_dir():
            raise KintsugiError(f"{folder} is no directory; name the folder of the {named}")
    if not (base / "config.json").is_file():
        raise KintsugiError(f"{base} holds no checkpoint: it has no config.json")
    with ExitStack() as quiet:
        _hush(quiet)
        loaded = AutoModelForCausalLM.from_pretrained(
            base, dtype=getattr(torch, dtype), local_files_only=True
        )
        return probe_model(attach(loaded, read_adapter(adapter, loaded)))


def _hush(quiet: ExitStack) -> None:
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    quiet.enter_context(silence_peft())


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m daemon.engine.fingerprint", description="What an adapter answers to probes."
    )
    add = parser.add_argument
    add("base", type=Path, metavar="BASE", help="a checkpoint of transformers")
    add("adapter", type=Path, metavar="ADAPTER", help="a LoRA directory of PEFT for it")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    return parser


if __name__ == "__main__":
    sys.exit(main())
