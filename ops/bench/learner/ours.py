"""Our side of the bench: one process, told over its standard input what to do.

    python -m ops.bench.learner.ours FOLDER THREADS MICRO

One JSON document per line out: first that it is ready, then an answer to each line in. Lines in:
`agree` (optimizer steps with the log-probabilities of the beginning as the old ones), `step`, and
`save FILE` (the adapter as it is now). MICRO bounds the padded tokens of a micro-batch; 0: the
learner's own choice.
"""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM

from daemon.solver.lora import trainable_parameters
from daemon.solver.update import Learner
from events.algorithm import Algorithm, LossConfig
from events.jobs import OptimizerSettings
from ops.bench.learner.batch import read
from ops.bench.learner.protocol import (
    ADAPTER,
    AGREEING,
    BETAS,
    CLIP,
    EPS,
    LR,
    MODEL,
    NORM,
    serve,
)


class Ours:
    """The learner as a job uses it."""

    def __init__(self, folder: Path, micro: int) -> None:
        saved = read(folder)
        self.rollouts = saved.rollouts
        base: Any = Qwen3ForCausalLM.from_pretrained(folder / MODEL)
        adapted = PeftModel.from_pretrained(base, folder / ADAPTER, is_trainable=True)
        settings = OptimizerSettings(lr=LR, betas=BETAS, eps=EPS, max_gradient_norm=NORM)
        loss = LossConfig(lo=CLIP[0], hi=CLIP[1], aggregation="seq-mean-token-mean")
        self.once = Algorithm(loss=loss)
        self.learner = Learner(adapted, self.once, frozenset(saved.ends), settings)
        self.learner.micro_tokens = micro or self.learner.micro_tokens

    def agree(self) -> dict[str, Any]:
        """The mean loss and the largest gradient norm of the steps that are compared."""
        self.learner.algorithm = self.once.model_copy(update={"epochs": AGREEING})
        figures = self.learner.step(self.rollouts)
        self.learner.algorithm = self.once
        return {"loss": figures.loss, "norm": figures.gradient_norm, "tokens": figures.tokens}

    def step(self) -> dict[str, Any]:
        """One step: filter, advantages, padding, forward, backward, clipping, AdamW, figures."""
        start, cpu = time.perf_counter(), time.process_time()
        figures = self.learner.step(self.rollouts)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        return {"seconds": seconds, "cpu": cpu, "norm": figures.gradient_norm}

    def save(self, file: str) -> dict[str, Any]:
        """The adapter as it is now."""
        save_file(
            {k: p.detach() for k, p in trainable_parameters(self.learner.model).items()}, file
        )
        return {}


def main() -> None:
    """Answer until standard input ends."""
    folder, threads, micro = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    side = Ours(folder, micro)
    serve({"agree": side.agree, "step": side.step, "save": side.save})


if __name__ == "__main__":
    main()
