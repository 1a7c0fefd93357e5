"""What a folder of results shows, in Markdown (pure): how often users err after so many dialogues.

Rates of all seeds together, with the two-sided 95 % interval of Clopper and Pearson, which takes
dialogues of one seed for independent; beside them those of each seed. A gate is of one seed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from daemon.evaluation.gate import rate
from daemon.evaluation.user_trial import UserResult
from events.serving import UserFaultRate
from ops.learning.report import format_table
from ops.learning.results import check_settings, describe_provenance
from ops.learning.users.run import UserRun
from ops.learning.users.settings import Settings

_RATES: Final[Mapping[str, Callable[[UserResult], UserFaultRate]]] = {
    "violations": lambda gate: gate.violations,
    "early ends": lambda gate: gate.early_ends,
    "schema errors": lambda gate: gate.schema_errors,
}
_EXAMPLES: Final = 4


def write_report(results: Sequence[UserRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport."""
    check_settings(results, settings.digest)
    sizes = sorted({size for result in results for size in result.sizes})
    rows = [["dialogues", *_RATES, "solved", "gates passed", "steps", "nats per token"]]
    rows += [_describe(size, [r for r in results if size in r.sizes]) for size in sizes]
    return (
        "\n\n".join(
            [describe_provenance(results), format_table(rows), *_list_examples(results, sizes)]
        )
        + "\n"
    )


def _describe(size: int, results: Sequence[UserRun]) -> list[str]:
    gates = [result.sizes[size].gate for result in results]
    figures = [run.job.figures for result in results if (run := result.sizes[size]).job is not None]
    solved = sum(gate.solved for gate in gates) / sum(gate.dialogues for gate in gates)
    passed = sum(gate.passed for gate in gates)
    return [
        str(size),
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


def _list_examples(results: Sequence[UserRun], sizes: Sequence[int]) -> list[str]:
    """Return a section per size with faults of the first seed that has it."""
    sections = []
    for size in sizes:
        gate = next(result.sizes[size].gate for result in results if size in result.sizes)
        lines = "\n".join(f"- {example}" for example in gate.examples[:_EXAMPLES])
        sections.append(f"After {size} dialogues:\n\n{lines or '- no fault'}")
    return sections
