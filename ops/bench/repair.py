"""Executed repair on the recorded failures of the benchmarks folder, against the rules.

    python -m ops.bench.repair --benchmarks DIR [--show N]

Read are the recorded simulations of tau2-bench (airline, retail) and tau-bench's gpt-4o on airline;
every failed rollout is replayed on the real database of its environment. One JSON document: per
file how many can be replayed and are repaired, by the number of edits; over all files (but the one
whose task ids are wrong) how often rule and repair agree on category and pivot, with the
confusions, also for the rules in their plain order, where `user_id_failure` hides what was tried.
`--show` prints that many disagreements in full instead, for a person to read.
"""

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from consumers.diagnosis.detectors import CATEGORIES, Diagnosis, diagnose
from consumers.diagnosis.facts import agent_calls
from daemon.repair.proof import prove
from envs.catalog import catalog
from envs.environment import Environment
from envs.registry import open_environment
from events.learning import RepairSearched
from events.rollouts import RolloutEnded
from producers.importers.importer import read_rollouts
from producers.importers.records import Rejection

ENVIRONMENTS: Final = ("airline", "retail")
BROKEN: Final = "BROKEN_TASK_IDS"
"""Part of the name of a file whose rollouts are filed under tasks of others."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the rules and the replay say of one failed rollout."""

    file: str
    data: RolloutEnded
    rules: Diagnosis
    repair: RepairSearched
    seconds: float

    @property
    def plain_rule(self) -> str:
        """The primary category by the order of the rules alone."""
        return min(self.rules.categories, key=CATEGORIES.index)

    @property
    def is_trusted(self) -> bool:
        """Whether the rollout is filed under its own task."""
        return BROKEN not in self.file


def compare(benchmarks: Path) -> Iterator[Comparison]:
    """Every recorded failure of the folder. Raises NoBenchmark; ends the program at a record that
    cannot be read."""
    environments = {name: open_environment(name, benchmarks=benchmarks) for name in ENVIRONMENTS}
    for file in _files(benchmarks):
        for item in read_rollouts([file]):
            if isinstance(item, Rejection):
                raise SystemExit(f"{item.file}: {item.reason}; the folder is damaged")
            if item.data.success is False:
                yield _compare_rollout(file.name, item.data, environments)


def _files(benchmarks: Path) -> list[Path]:
    simulations = benchmarks / "tau2_simulations"
    return [
        *(file for name in ENVIRONMENTS for file in sorted(simulations.glob(f"*{name}*.json"))),
        benchmarks / "tau_bench" / "gpt-4o-airline.trials_0_1.json",
    ]


def _compare_rollout(
    file: str, data: RolloutEnded, environments: dict[str, Environment]
) -> Comparison:
    assert data.task is not None, "every record of these files names its task"
    assert data.task.environment is not None, "and its environment"
    environment = environments[data.task.environment]
    known = environment.task(data.task.id)
    start = time.perf_counter()
    repair = prove(environment, known, data)
    seconds = time.perf_counter() - start
    return Comparison(file, data, diagnose(data, catalog(environment.name)), repair, seconds)


def summarize(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The document."""
    names = list(dict.fromkeys(item.file for item in comparisons))
    trusted = [item for item in comparisons if item.is_trusted]
    repaired = [item for item in trusted if item.repair.category is not None]
    return {
        "files": [
            {"file": name, **_count([item for item in comparisons if item.file == name])}
            for name in names
        ],
        "all": _count(trusted),
        "proven": len(repaired),
        "pivot_agrees": sum(item.rules.pivot == item.repair.pivot for item in repaired),
        "category_agrees": _interval(
            sum(item.rules.category == item.repair.category for item in repaired), len(repaired)
        ),
        "category_agrees_in_plain_order": _interval(
            sum(item.plain_rule == item.repair.category for item in repaired), len(repaired)
        ),
        "confusions": _confusions([item.rules.category for item in repaired], repaired),
        "confusions_in_plain_order": _confusions([item.plain_rule for item in repaired], repaired),
    }


def _count(items: Sequence[Comparison]) -> dict[str, Any]:
    replays = [item.repair.replays for item in items]
    seconds = sorted(item.seconds for item in items)
    edits = Counter(len(item.repair.edits) for item in items if item.repair.outcome == "repaired")
    return {
        "failures": len(items),
        "outcomes": dict(sorted(Counter(item.repair.outcome for item in items).items())),
        "edits": dict(sorted(edits.items())),
        "replays": {"mean": round(sum(replays) / len(replays), 1), "most": max(replays)},
        "seconds": {
            "median": round(seconds[len(seconds) // 2], 4), "most": round(seconds[-1], 3),
        },
    }  # fmt: skip


def _interval(hits: int, of: int) -> dict[str, Any]:
    """A share with its 95 % interval (Wilson)."""
    z, share = 1.96, hits / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return {"hits": hits, "of": of, "interval": [round(middle - half, 3), round(middle + half, 3)]}


def _confusions(rules: Sequence[str | None], items: Sequence[Comparison]) -> dict[str, int]:
    """`rule > repair` -> how often, where the two differ."""
    counts = Counter(
        f"{rule} > {item.repair.category}"
        for rule, item in zip(rules, items, strict=True)
        if rule != item.repair.category
    )
    return dict(counts.most_common())


def disagreements(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Where the rules, in their order or plainly, say otherwise than the replay, or where the
    replay proves nothing."""
    return [
        item
        for item in comparisons
        if item.is_trusted
        and (
            item.repair.category is None
            or not item.repair.category == item.rules.category == item.plain_rule
            or item.repair.pivot != item.rules.pivot
        )
    ]


def describe(item: Comparison) -> str:
    """One disagreement in full: task, gold, the agent's calls and words, and the edits."""
    declared = catalog((item.data.task and item.data.task.environment) or "")
    writes = declared.writes if declared is not None else frozenset()
    task = item.data.task
    messages = item.data.content.messages if item.data.content else ()
    where = f"{item.file} {task.id if task else ''} trial {item.data.trial}"
    lines = [
        f"=== {where} ended by {item.data.termination}",
        f"rules {item.rules.categories} at {item.rules.pivot}; plain {item.plain_rule}",
        f"repair {item.repair.outcome} {item.repair.category} at {item.repair.pivot}",
        f"{item.repair.replays} replays {item.repair.reason}",
        *(f"  edit {edit.model_dump(exclude_defaults=True)}" for edit in item.repair.edits),
        f"task {task.instruction if task else ''}",
        f"outputs {task.outputs if task else ()}",
    ]
    for action in (task.gold_actions if task else None) or ():
        if action.name in writes:
            lines.append(f"  gold {action.name} {json.dumps(action.arguments)}")
    for call in agent_calls(messages):
        mark = "!" if call.failed else " "
        lines.append(
            f"  {mark}[{call.item.turn}] {call.name} {json.dumps(call.item.call.arguments)}"
            + (f" -> {call.item.result.text[:120]}" if call.failed and call.item.result else "")
        )
    texts = [
        f"  [{turn}] {message.role}: {message.text[:300]}"
        for turn, message in enumerate(messages)
        if message.role in ("user", "assistant") and message.text
    ]
    return "\n".join([*lines, *texts[-8:]])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--benchmarks", type=Path, required=True)
    parser.add_argument("--show", type=int, default=0, metavar="N")
    options = parser.parse_args()
    comparisons = list(compare(options.benchmarks))
    if options.show:
        for item in disagreements(comparisons)[: options.show]:
            print(describe(item), end="\n\n")
    else:
        print(json.dumps(summarize(comparisons), indent=2))


if __name__ == "__main__":
    main()
