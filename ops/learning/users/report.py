"""What a folder of results shows, in Markdown (pure): how often users err after so many dialogues.

Rates of all seeds together, with the two-sided 95 % interval of Clopper and Pearson, which takes
dialogues of one seed for independent; beside them those of each seed. A gate is of one seed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from daemon.evaluation.gate.levels import rate
from daemon.evaluation.user_trial import UserResult
from events.serving import UserFaultRate
from ops.learning.report import format_table
from ops.learning.results import check_settings, describe_provenance
from ops.learning.users.run import SizeRun, UserRun
from ops.learning.users.settings import Settings

_RATES: Final[Mapping[str, Callable[[UserResult], UserFaultRate]]] = {
    "violations": lambda gate: gate.violations,
    "early ends": lambda gate: gate.early_ends,
    "schema errors": lambda gate: gate.schema_errors,
}
_EXAMPLES: Final = 4


def write_report(results: Sequence[UserRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport."""
    groups = {m: [run for run in results if run.manners is m] for m in (False, True)}
    users: dict[str, list[SizeRun]] = {}
    for manners, runs in groups.items():
        if runs or not results:
            check_settings(runs, settings.compute_digest(manners=manners))
        for size in sorted({size for run in runs for size in run.sizes}):
            name = f"{size} in all manners" if manners else str(size)
            users[name] = [run.sizes[size] for run in runs if size in run.sizes]
    rows = [["dialogues", *_RATES, "solved", "gates passed", "steps", "nats per token"]]
    rows += [_describe(name, runs) for name, runs in users.items()]
    return (
        "\n\n".join([describe_provenance(results), format_table(rows), *_list_examples(users)])
        + "\n"
    )


def _describe(name: str, runs: Sequence[SizeRun]) -> list[str]:
    gates = [run.gate for run in runs]
    figures = [run.job.figures for run in runs if run.job is not None]
    solved = sum(gate.solved for gate in gates) / sum(gate.dialogues for gate in gates)
    passed = sum(gate.passed for gate in gates)
    return [
        name,
        *(_format_rates([find(gate) for gate in gates]) for find in _RATES.values()),
        f"{solved:.1%}",
        f"{passed} of {len(gates)}",
        ", ".join(str(item.steps) for item in figures) or "none",
        ", ".join(f"{item.held_out_loss:.3f}" for item in figures) or "unknown",
    ]


def _format_rates(rates: Sequence[UserFaultRate]) -> str:
    whole = rate(sum(item.count for item in rates), sum(item.of for item in rates))
    if whole is None:
        return "none"
    each = ", ".join(f"{item.count / item.of:.1%}" for item in rates)
    return f"{whole.value:.1%} [{whole.low:.1%}, {whole.high:.1%}] ({each})"


def _list_examples(users: Mapping[str, Sequence[SizeRun]]) -> list[str]:
    """Return a section for each with faults of the first seed."""
    sections = []
    for name, runs in users.items():
        lines = "\n".join(f"- {example}" for example in runs[0].gate.examples[:_EXAMPLES])
        sections.append(f"Dialogues: {name}:\n\n{lines or '- no fault'}")
    return sections
