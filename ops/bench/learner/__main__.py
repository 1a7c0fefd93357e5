"""Trained tokens per second of our learner and of TRL's GRPOTrainer, on one saved batch.

    python -m ops.bench.learner [--shape tiny] [--threads 1 2] [--repeats 5] [--rows 16 64]

Method. Model, adapter (r 8, alpha 16, all linear layers of the body) and batch are made once and
saved (batch.py); each side is a process of its own, fp32, with the same number of threads. Both
first take three optimizer steps whose ratios are to the policy before them, which is where loss,
gradient norm and adapter are compared; then, in turn, `repeats` steps each, the other one idle.

A step is filter, advantages, padding, forward, backward, clipping, AdamW and figures for ours; for
TRL it begins with tensors that were padded before. TRL runs at its best: without gradient
checkpointing, without its own rollouts, with the fastest of `--rows` per micro-batch, which a run
before those that count chooses (`rows`, per number of threads). Ours runs as a job does.

`tokens_per_second` counts tokens that the model wrote, medians. `ratio` is the median of the ratios
of neighbouring steps; `cpu_ratio` the same of processor time, which other programs on the machine
disturb less. Memory is the most that was resident: `peak_mb` of the whole process,
`step_mb` of it beyond what was resident when model and optimizer had been loaded. Linux only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from safetensors.torch import load_file

from ops import isolated
from ops.bench.learner.batch import SHAPES, make

TRL: Final = "trl==1.16.0"
SHARED: Final = ("torch", "transformers", "peft", "safetensors", "tokenizers", "numpy")
"""Packages of the same versions on both sides, so that trainers are compared and not libraries."""
ROOT: Final = Path(__file__).parents[3]


class Side:
    """A process that answers."""

    def __init__(self, process: subprocess.Popen[str], name: str) -> None:
        self.process = process
        self.name = name
        self.answer()

    def ask(self, line: str) -> dict[str, Any]:
        """One line in, one document out."""
        assert self.process.stdin is not None, "opened as a pipe"
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next document. Raises RuntimeError where the process ended."""
        assert self.process.stdout is not None, "opened as a pipe"
        if not (line := self.process.stdout.readline()):
            raise RuntimeError(f"{self.name} ended: {self.process.wait()}; see what it wrote above")
        document: dict[str, Any] = json.loads(line)
        return document


def main() -> None:
    """Print one JSON document."""
    options = _parser().parse_args()
    peer = isolated.interpreter(TRL, *isolated.ours(*SHARED))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(options.shape, folder)
        runs = [_measure(folder, peer, threads, options) for threads in options.threads]
    print(json.dumps({"shape": options.shape, "peer": TRL, "runs": runs}, indent=2))


def _measure(folder: Path, peer: Path, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    rows = _fastest(folder, peer, threads, options.rows)
    with (
        _side(folder, Path(sys.executable), "ours", threads, 0) as ours,
        _side(folder, peer, "peer", threads, rows) as trl,
    ):
        agreement = _agreement(folder, ours, trl)
        for side in (ours, trl):
            side.ask("step")
        pairs = [(ours.ask("step"), trl.ask("step")) for _ in range(options.repeats)]
    tokens = agreement.pop("tokens")
    return {
        "threads": threads,
        "tokens": tokens,
        "rows": rows,
        "ours": _figures([pair[0] for pair in pairs], tokens),
        "trl": _figures([pair[1] for pair in pairs], tokens),
        "ratio": _ratio(pairs, "seconds"),
        "cpu_ratio": _ratio(pairs, "cpu"),
        "agreement": agreement,
    }


def _ratio(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], what: str) -> float:
    ratios: list[float] = [trl[what] / own[what] for own, trl in pairs]
    return round(statistics.median(ratios), 2)


def _fastest(folder: Path, peer: Path, threads: int, candidates: Sequence[int]) -> int:
    """Rows per micro-batch with which TRL is fastest here."""
    seconds = {}
    for rows in candidates if len(candidates) > 1 else ():
        with _side(folder, peer, "peer", threads, rows) as trl:
            trl.ask("step")
            seconds[rows] = min(trl.ask("step")["cpu"] for _ in range(2))
        print(
            f"trl, {rows} rows, {threads} threads: {seconds[rows]:.3f} s of processor",
            file=sys.stderr,
        )
    return min(seconds, key=seconds.__getitem__) if seconds else candidates[0]


def _agreement(folder: Path, ours: Side, trl: Side) -> dict[str, Any]:
    """How far apart the two are after the same steps."""
    own, other = ours.ask("agree"), trl.ask("agree")
    if own["tokens"] != other["tokens"]:
        raise RuntimeError(f"ours trained {own['tokens']} tokens and TRL {other['tokens']}")
    weights = []
    for side in (ours, trl):
        file = folder / f"{side.name}.safetensors"
        side.ask(f"save {file}")
        weights.append(load_file(file))
    apart = max(float((weights[0][k] - weights[1][k]).abs().max()) for k in weights[0])
    return {
        "tokens": own["tokens"],
        "loss": [own["loss"], other["loss"]],
        "loss_difference": abs(own["loss"] - other["loss"]),
        "gradient_norm": [own["norm"], other["norm"]],
        "adapter_difference": apart,
    }


def _figures(steps: Sequence[dict[str, Any]], tokens: int) -> dict[str, float]:
    seconds = statistics.median(step["seconds"] for step in steps)
    last = steps[-1]
    return {
        "tokens_per_second": round(tokens / seconds),
        "step_seconds": round(seconds, 4),
        "cpu_seconds": round(statistics.median(step["cpu"] for step in steps), 4),
        "peak_mb": round(last["peak"] / 1e6),
        "step_mb": round((last["peak"] - last["before"]) / 1e6),
    }


@contextmanager
def _side(folder: Path, interpreter: Path, name: str, threads: int, micro: int) -> Iterator[Side]:
    command = [str(interpreter), "-m", f"ops.bench.learner.{name}", str(folder)]
    process = subprocess.Popen(
        [*command, str(threads), str(micro)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        text=True,
    )
    try:
        yield Side(process, name)
    finally:
        process.kill()
        process.communicate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 64], help="tried with TRL")
    return parser


if __name__ == "__main__":
    main()
