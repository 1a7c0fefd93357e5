"""The commands that make lessons and evaluate a policy."""

import json
from pathlib import Path

from envs.reflection.official import detect_dialect
from envs.task import PERTURBATIONS
from ops.reproduce.commands import Folder, build_agent_options, build_eval_command
from ops.reproduce.homes import ALIAS
from ops.reproduce.reflection.settings import RATE, TEMPERATURE, TOP_P, Reproduction


def find_lessons(folder: Folder) -> Path:
    """Return the file of the lessons."""
    return folder.path / "lessons.jsonl"


def build_lessons(plan: Reproduction, folder: Folder) -> list[str]:
    """Return the command that makes lessons from tasks of the split `train`."""
    return [
        "kintsugi", "lessons", "make", "--env", plan.env, "--count", str(plan.counts.lessons),
        "--seed", str(plan.seed), "--alias", ALIAS, "--base", plan.model, "--split", "train",
        "--out", str(find_lessons(folder)), "--home", str(folder.training), "--json",
    ]  # fmt: skip


def build_evaluation(plan: Reproduction, folder: Folder, policy: str) -> list[str]:
    """Return the command that evaluates a policy with and without injected mistakes."""
    tasks = [] if plan.counts.tasks is None else ["--tasks", str(plan.counts.tasks)]
    injected = [part for name in PERTURBATIONS for part in ("--inject", f"{name}={RATE:g}")]
    return build_eval_command(
        plan, folder, plan.name_policy(policy), ["--split", plan.split, *tasks, *injected],
        plan.counts.trials, TEMPERATURE, "--extra", json.dumps({"top_p": TOP_P}),
    )  # fmt: skip


def build_items(plan: Reproduction, folder: Folder, policy: str) -> list[str]:
    """Return the command that scores a policy on the items of Tool-Reflection-Bench."""
    items = [] if plan.counts.items is None else ["--items", str(plan.counts.items)]
    extra = ["--extra", plan.extra] if plan.extra else []
    return [
        "kintsugi", "bench", "reflection", str(plan.file), *items,
        "--samples", str(plan.counts.samples), *_name(plan, policy),
        # An adapter's name does not tell its base's format of calls.
        "--dialect", detect_dialect(plan.model), *extra, *_run(plan, folder),
    ]  # fmt: skip


def build_bfcl(plan: Reproduction, folder: Folder, policy: str) -> list[str]:
    """Return the command that plays BFCL's multi-turn categories."""
    # A whole table uses BFCL's own limit of tokens in an answer, not that of the lessons.
    few = (
        []
        if plan.counts.cases is None
        else [
            "--cases",
            str(plan.counts.cases),
            "--max-tokens",
            str(plan.max_tokens),
        ]
    )
    return [
        "kintsugi", "bench", "bfcl", *few, *_name(plan, policy), "--base", plan.model,
        *_run(plan, folder),
    ]  # fmt: skip


def _name(plan: Reproduction, policy: str) -> list[str]:
    return [*build_agent_options(plan), "--model", plan.name_policy(policy)]


def _run(plan: Reproduction, folder: Folder) -> list[str]:
    return [
        "--seed", str(plan.seed), "--concurrency", str(plan.concurrency),
        "--home", str(folder.evaluation), "--json",
    ]  # fmt: skip
