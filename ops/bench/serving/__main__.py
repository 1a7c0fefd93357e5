"""Adapters in a running engine: what a publish costs, how soon it answers, what really answers.

    python -m ops.bench.serving [--publishes 20] [--flips 10] [--checks 200 --swaps 4]
                                [--engine vllm|embedded] [--checkpoint FILE]

The full counts are --publishes 1000 --flips 100 --checks 10000 --swaps 100.

Method. One engine over the reference policy (vLLM's CPU build, float32, prefix cache on, four
slots), one gateway before it, both processes of their own, and a publisher here. All on one
machine, so what proves and publishes takes processor time from the engine: bare times say little,
ratios more.

    publishes      eight clients stream while adapters are published one by one (publishes.py)
    flips          from the passed gate to the first token of the new adapter (flips.py)
    fingerprints   what the gateway says answered, checked while routes turn (fingerprints.py)
    planted        faults that load without complaint (planted.py, detection.py)

`met` says of each whether its goal is: no failed, blocked, aborted or truncated call; below a
second; no wrong answer, and a control arm that is wrong; every fault found. Exit code 1 otherwise.
A run with a checkpoint goes on where it was stopped, on engines of its own.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch

from daemon.engine.reference.weights import CHECKPOINT
from ops.bench.pieces import Json, Pieces
from ops.bench.serving import detection, fingerprints, flips, publishes
from ops.bench.serving.place import Place, place
from ops.random_adapters import Maker

PIECES: Final = {"publishes": 50, "flips": 20, "fingerprints": 10}
"""Measurement -> how many make one piece."""


def measure(options: argparse.Namespace, folder: Path) -> Json:
    """The whole benchmark as one document."""
    pieces = Pieces(options.checkpoint)
    with place(folder, options.engine) as here, warnings.catch_warnings():
        # Of PEFT: about what transformers will do.
        warnings.simplefilter("ignore")
        maker = Maker(CHECKPOINT)
        results = {
            "publishes": publishes.document(
                pieces.of(
                    "publishes", options.publishes, PIECES["publishes"],
                    partial(publishes.piece, here, maker, folder),
                )
            ),
            "flips": flips.document(
                pieces.of(
                    "flips", options.flips, PIECES["flips"],
                    partial(flips.piece, here, maker, folder),
                )
            ),
            "fingerprints": _fingerprints(options, here, maker, folder, pieces),
            "planted": detection.detection(here, folder),
        }  # fmt: skip
    met = all(result["met"] for result in results.values())
    return {"benchmark": "serving", "engine": options.engine, **results, "passed": met}


def _fingerprints(
    options: argparse.Namespace, here: Place, maker: Maker, folder: Path, pieces: Pieces
) -> Json:
    per_swap = max(1, options.checks // options.swaps)
    work = partial(fingerprints.piece, here, maker, folder, per_swap)
    swapped = pieces.of("fingerprints", options.swaps, PIECES["fingerprints"], work)
    reused = fingerprints.control(here, maker, folder)
    return fingerprints.document(swapped, reused, bites=options.engine == "vllm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    options = _parser().parse_args(arguments)
    # The engine needs the cores.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="kintsugi-bench-", dir=options.folder) as folder:
        document = measure(options, Path(folder))
    print(json.dumps(document, indent=2))
    return 0 if document["passed"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--publishes", type=int, default=20)
    parser.add_argument("--flips", type=int, default=10, help="alone, and as many under load")
    parser.add_argument("--checks", type=int, default=200, help="at least, over all swaps")
    parser.add_argument("--swaps", type=int, default=4)
    parser.add_argument("--engine", choices=("vllm", "embedded"), default="vllm")
    parser.add_argument("--checkpoint", type=Path, help="goes on where this file ends")
    parser.add_argument("--folder", type=Path, help="where to work; default: TMPDIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
