"""TRL's side of the bench: a GRPOTrainer, fed what its own rollouts would have become.

    python -m ops.bench.learner.peer FOLDER THREADS MICRO

Runs in an environment of its own (ops/isolated.py) and speaks as ours.py does. The trainer's
`training_step` is its own, loss, metrics and accumulation included; only `_prepare_inputs`, which
would sample rollouts, hands over the micro-batch that it is given. Prompts are padded on the left
and completions on the right, as TRL pads them; tool results are masked by `tool_mask`. MICRO rows
are one micro-batch; 0: all of them.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]

from ops.bench.learner.protocol import (
    ADAPTER,
    AGREEING,
    BETAS,
    CLIP,
    EPS,
    LR,
    MODEL,
    NORM,
    ROWS,
    serve,
)

Inputs = dict[str, torch.Tensor]


class OfflineTrainer(GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """The trainer without its own rollouts."""

    def _prepare_inputs(self, generation_batch: Inputs) -> Inputs:
        return generation_batch


class Peer:
    """A trainer and its micro-batches."""

    def __init__(self, folder: Path, micro: int) -> None:
        rows = json.loads((folder / ROWS).read_text())
        self.tokens = sum(sum(row["written"]) for row in rows)
        micro = micro or len(rows)
        self.parts = [pad(rows[at : at + micro]) for at in range(0, len(rows), micro)]
        self.trainer = _trainer(folder, micro, len(self.parts))
        self.trainer.current_gradient_accumulation_steps = len(self.parts)
        self.trainer.create_optimizer()

    def agree(self) -> dict[str, Any]:
        """The mean loss and the largest gradient norm of the steps that are compared."""
        old = [self._old(part) for part in self.parts]
        fixed = [part | {"old_per_token_logps": o} for part, o in zip(self.parts, old, strict=True)]
        losses, norms = zip(*(self._step(fixed) for _ in range(AGREEING)), strict=True)
        return {"loss": sum(losses) / AGREEING, "norm": max(norms), "tokens": self.tokens}

    def step(self) -> dict[str, Any]:
        """One step: forward, backward, metrics, clipping, AdamW. The batch was padded before."""
        start, cpu = time.perf_counter(), time.process_time()
        _, norm = self._step(self.parts)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        return {"seconds": seconds, "cpu": cpu, "norm": norm}

    def save(self, file: str) -> dict[str, Any]:
        """The adapter as it is now."""
        trained = {k: p for k, p in self.trainer.model.named_parameters() if p.requires_grad}
        save_file({name: p.detach() for name, p in trained.items()}, file)
        return {}

    def _old(self, part: Inputs) -> torch.Tensor:
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
        there = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
        width = part["completion_ids"].shape[1]
        with torch.no_grad():
            logps = self.trainer._get_per_token_logps_and_entropies(
                self.trainer.model, ids, there, width
            )
        old: torch.Tensor = logps[0]
        return old

    def _step(self, parts: list[Inputs]) -> tuple[float, float]:
        trainer = self.trainer
        loss = sum(float(trainer.training_step(trainer.model, part, None)) for part in parts)
        norm = trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), NORM)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        return loss, float(norm)


def pad(rows: list[dict[str, Any]]) -> Inputs:
    """Rows as the trainer's tensors."""
    prompts = [row["ids"][: row["written"].index(True)] for row in rows]
    written = [row["written"][len(p) :] for row, p in zip(rows, prompts, strict=True)]
    completions = [row["ids"][len(p) :] for row, p in zip(rows, prompts, strict=True)]
    before, after = max(map(len, prompts)), max(map(len, completions))
    return {
        "prompt_ids": torch.tensor([[0] * (before - len(p)) + p for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (before - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": torch.tensor([c + [0] * (after - len(c)) for c in completions]),
        "completion_mask": torch.tensor(
            [[1] * len(c) + [0] * (after - len(c)) for c in completions]
        ),
        "tool_mask": torch.tensor([[*map(int, w)] + [1] * (after - len(w)) for w in written]),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
    }


def _trainer(folder: Path, micro: int, parts: int) -> Any:
    base = AutoModelForCausalLM.from_pretrained(folder / MODEL)
    return OfflineTrainer(
        model=PeftModel.from_pretrained(base, folder / ADAPTER, is_trainable=True),
        reward_funcs=_refuse_rewards,
        args=GRPOConfig(
            output_dir=str(folder / "peer"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=parts,
            num_generations=2,
            loss_type="grpo",
            beta=0.0,
            epsilon=CLIP[0],
            epsilon_high=CLIP[1],
            learning_rate=LR,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_epsilon=EPS,
            max_grad_norm=NORM,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "never sampled"}] * micro),
        processing_class=AutoTokenizer.from_pretrained(folder / MODEL),
    )


def _refuse_rewards(**_: Any) -> list[float]:
    raise AssertionError("the bench samples no rollouts, so nothing asks for their rewards")


def main() -> None:
    """Answer until standard input ends."""
    folder, threads, micro = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    side = Peer(folder, micro)
    serve({"agree": side.agree, "step": side.step, "save": side.save})


if __name__ == "__main__":
    main()
