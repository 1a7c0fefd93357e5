"""Learner and engine on a GPU, beside plain PyTorch, PEFT and transformers there.

    python -m ops.bench.gpu [--shape 0.6b 4b] [--device cuda] [--parts reference learner ...]
                            [--dtype bfloat16] [--steps 3] [--rounds 2] [--adapters 8]
                            [--out FILE]

Method. Models have the shapes of Qwen3-0.6B and Qwen3-4B and random weights of a fixed seed, made
on the device; nothing is downloaded. Token ids are those of shop, spread over the vocabulary.

    reference   the reference policy on the device and on a CPU, float32: answers of base and
                adapter, through transformers and through the engine; two steps of the learner
    joint       adapters in one forward against each by its merged weights, float32 (0.6b alone)
    learner     steps on 32 rows of about 900 tokens, LoRA of rank 16 on all linear layers:
                written tokens per second and peak memory. Ours with the largest micro-batch that
                fits, the learner's default first. The peer is the plainest step of PyTorch and PEFT
                without gradient checkpointing, its fastest micro-batch of those that fit
    engine      64 requests of 200 tokens with 64 tokens of answer: tokens per second of the base,
                of one adapter and of eight at once. The peer is transformers' `generate`
                with the same batch (one adapter unmerged, eight as PEFT's mixed batch)

A part that fails is reported with its error's last line, the others go on, and the exit code is 1.
`--out` holds what is known after every part, so that a run that is cut short is not lost. Memory is
that of tensors, in GiB; a CPU (`--device cpu --shape tiny`) reports none.
"""

import argparse
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import peft
import torch
import transformers

from ops.bench.gpu.engine import check_forwards, measure_engine
from ops.bench.gpu.learner import measure_learner
from ops.bench.gpu.models import SHAPES, release
from ops.bench.gpu.reference import check_answers, check_training

Part = Callable[[], dict[str, Any]]

PARTS: Final = ("reference", "joint", "learner", "engine")
SINGLE: Final = frozenset({"tiny", "0.6b"})
"""Shapes of which nine copies in float32 fit on a device."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document; return 1 where a part failed, else 0."""
    options = _parser().parse_args(arguments)
    device = torch.device(options.device)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    document: dict[str, Any] = {"benchmark": "gpu", **_describe(device), "parts": {}}
    for name, part in _list_parts(options, device):
        record = _measure(part)
        document["parts"][name] = record
        print(f"{name}: {record}", file=sys.stderr, flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(document, indent=2))
        release(device)
    print(json.dumps(document, indent=2))
    return int(any("error" in record for record in document["parts"].values()))


def _describe(device: torch.device) -> dict[str, Any]:
    """Return the device's name and memory, and the versions of what computes."""
    versions = {each.__name__: each.__version__ for each in (torch, transformers, peft)}
    if device.type != "cuda":
        return {"device": device.type, "versions": versions}
    properties = torch.cuda.get_device_properties(device)
    memory = round(properties.total_memory / 2**30, 2)
    return {"device": properties.name, "memory_gib": memory, "versions": versions}


def _list_parts(options: argparse.Namespace, device: torch.device) -> Iterator[tuple[str, Part]]:
    """Yield the parts of a command line by name, the largest last."""
    if "reference" in options.parts:
        yield "reference/answers", partial(check_answers, device)
        yield "reference/training", partial(check_training, device)
    dtype = getattr(torch, options.dtype)
    for name in options.shape:
        shape = SHAPES[name]
        parts: dict[str, Part] = {
            "learner": partial(measure_learner, shape, device, dtype, options.steps),
            "engine": partial(
                measure_engine, shape, device, dtype, options.adapters, options.rounds
            ),
        }
        if name in SINGLE:
            parts = {"joint": partial(check_forwards, shape, device, options.adapters), **parts}
        for part, measure in parts.items():
            if part in options.parts:
                yield f"{name}/{part}", measure


def _measure(part: Part) -> dict[str, Any]:
    """Return a part's seconds and result, or its error."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # Of PEFT: about what transformers will do.
            warnings.simplefilter("ignore")
            outcome: dict[str, Any] = {"result": part()}
    # Whatever fails is reported, and the other parts are measured all the same.
    except Exception as error:
        traceback.print_exc()
        line = traceback.format_exception_only(error)[-1].strip()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        outcome = {"error": line, "at": f"{frame.filename}:{frame.lineno}"}
    return {"seconds": round(time.perf_counter() - start, 1), **outcome}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["0.6b", "4b"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--steps", type=int, default=3, help="of each trainer, after a first one")
    parser.add_argument("--rounds", type=int, default=2, help="of the engine, after a first one")
    parser.add_argument("--adapters", type=int, default=8, help="at once in the engine")
    parser.add_argument("--out", type=Path, help="file that is written after every part")
    return parser


if __name__ == "__main__":
    sys.exit(main())
