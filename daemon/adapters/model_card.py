"""The model card of an exported adapter: prose around numbers that are in the bundle's files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from daemon.adapters.directory import Provenance
from events.gate import Check, GateReport
from events.jobs import TaskPool
from events.serving import AdapterMerge

_POINTS: Final = ("target", "overall", "slice")
"""Checks whose values are differences of pass^1, by the first word of their names."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Pass rates of a candidate adapter and of the incumbent on the same tasks."""

    incumbent: str | None
    """Name of the incumbent adapter; None if it is the base."""
    environment: str
    tasks: int
    trials: int
    incumbent_pass: float
    candidate_pass: float


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The facts on a card."""

    adapter: str
    alias: str
    base: str
    sha256: str
    """SHA-256 of its weights."""
    capability: str | None
    state: str
    rank: int
    """Largest LoRA rank of any layer."""
    provenance: Provenance | None
    gate: GateReport | None
    measured: Sequence[Measured]
    pools: Sequence[TaskPool]
    environments: Sequence[str]
    """Environments of the job's tasks; empty if the job is unknown."""
    parents: Sequence[str]
    """Adapters that its training began with or that were merged into it; the nearest first."""
    merge: AdapterMerge | None = None
    """Members of a merged adapter; None for any other."""


def build_card(facts: CardFacts) -> str:
    """Return the card as Markdown, with the header for model hubs."""
    parts = (
        _describe_header(facts), describe_numbers(facts.gate, facts.measured),
        _describe_loading(facts),
        _describe_training(facts), _describe_limits(facts),
    )  # fmt: skip
    return "\n".join(parts)


def _describe_header(facts: CardFacts) -> str:
    sha256 = facts.provenance.base.sha256 if facts.provenance else "not known"
    purpose = f"trained to be better at\n{facts.capability or 'any kind of task'}"
    if facts.merge is not None:
        purpose = f"{facts.merge.summary}.\nNothing was trained for it"
    return f"""---
base_model: {facts.base}
library_name: peft
tags: [lora, kintsugi]
---

# {facts.adapter}

A LoRA adapter of `{facts.base}` for the agent `{facts.alias}`, {purpose}.
When it was exported it was {facts.state.replace("_", " ")}.

| | |
|---|---|
| base weights (sha256) | `{sha256}` |
| adapter weights (sha256) | `{facts.sha256}` |
| rank | {facts.rank} |
"""


def describe_numbers(gate: GateReport | None, evaluations: Sequence[Measured]) -> str:
    """Return the section of a card about measurements and the gate's decision."""
    lines = ["## What was measured", ""]
    for measured in evaluations:
        lines.append(
            f"- {measured.tasks:,} tasks of `{measured.environment}`, {measured.trials} trials of "
            f"each: pass^1 {measured.candidate_pass:.3f}, of {measured.incumbent or 'its base'} "
            f"{measured.incumbent_pass:.3f}."
        )
    if gate is None:
        lines.append("- No gate has decided about it.")
        return "\n".join([*lines, ""])
    p_value = "" if gate.p_value is None else f", p = {gate.p_value:.2g}"
    lines += [
        f"- The gate said {gate.decision} (test `{gate.test}`, alpha {gate.alpha:g}{p_value}).",
        "",
        "| check | verdict | measured | at least | had to keep to | tasks |",
        "|---|---|---|---|---|---|",
        *map(_describe_check, gate.checks),
        "",
        "Differences are in points of pass^1 against the incumbent; `at least` is the one-sided",
        "lower confidence bound. Everything else is in `gate.json`.",
        "",
    ]
    return "\n".join(lines)


def _describe_check(check: Check) -> str:
    in_points = check.name.split(" ")[0] in _POINTS
    values = (check.value, check.low, check.limit)
    value, low, limit = (
        "" if number is None else f"{100 * number:+.1f}" if in_points else f"{number:.4g}"
        for number in values
    )
    name = escape_cell(check.name)
    return f"| {name} | {check.verdict} | {value} | {low} | {limit} | {check.tasks:,} |"


def escape_cell(text: str) -> str:
    """Return `text` for a cell of a table; names of patterns contain the cell separator."""
    return text.replace("|", "\\|")


def _describe_loading(facts: CardFacts) -> str:
    options = f"--enable-lora --max-lora-rank {_round_up_rank(facts.rank)}"
    return f"""## How to load it

With PEFT:

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("BASE")  # the folder or name of {facts.base}
model = PeftModel.from_pretrained(base, "{facts.adapter}/adapter")
```

With vLLM:

    vllm serve BASE {options} --lora-modules {facts.adapter}={facts.adapter}/adapter

Into another home of kintsugi, where it is proven on every engine before it answers:

    kintsugi adapters push {facts.adapter}/adapter --alias {facts.alias} --base {facts.base}

`probes.json` holds what base and adapter answer to fixed prompts, with log-probabilities: a load
that answers otherwise is another model. `python -m daemon.engine.fingerprint BASE ADAPTER` computes
the same anew.
"""


def _round_up_rank(rank: int) -> int:
    """Return the smallest power of two that is at least `rank` and 8; vLLM takes no others."""
    return max(8, 1 << (rank - 1).bit_length())


def _describe_training(facts: CardFacts) -> str:
    lines = ["## What it was trained on", ""]
    provenance = facts.provenance
    if facts.merge is not None:
        lines.append("What its parts were trained on: `lineage.json` has them.")
    elif provenance is None:
        lines.append("Not known: it was pushed from a directory that does not say so.")
    else:
        lines.append(
            f"{provenance.steps:,} optimizer steps on {len(provenance.rollouts):,} rollouts, seed "
            f"{provenance.seed}. Their ids and the whole spec are in `adapter/provenance.json`."
        )
    if facts.environments:
        places = ", ".join(f"`{place}`" for place in facts.environments)
        lines.append(f"The rollouts are episodes that the learner played in {places}.")
    if facts.pools:
        lines += ["", "| pool | tasks | reward |", "|---|---|---|"]
        lines += [
            f"| {escape_cell(pool.name)} | {len(pool.tasks):,} | {pool.reward} |"
            for pool in facts.pools
        ]
    if facts.parents and facts.merge is None:
        lines += ["", f"It goes on from {', then '.join(f'`{name}`' for name in facts.parents)}."]
    lines += ["", "Why it was trained, down to the failed rollouts, is in `lineage.json`.", ""]
    return "\n".join(lines)


def _describe_limits(facts: CardFacts) -> str:
    return f"""## Limits

- It belongs to the base weights named above and to no others.
- What was measured holds for tasks of the environment named above. Other tasks were not measured.
- It was made for the tools and the policy of `{facts.alias}`; with others nothing is known of it.
- No word of a rollout is in this bundle; the weights were made from rollouts and may repeat
  parts of them.
- `MANIFEST.json` has the sha256 of every file. It shows damage, and proves no origin.
"""
