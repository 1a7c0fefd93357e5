"""Results of a home's cycles. After a cycle, the last promoted adapter answers, or else the base.

results = read_results(connection, cycles)      one per ended cycle
subject = choose_subject(results)               the cycle that the report is about
entries = build_entries(results, outcomes, mix) "cycles" of demo-report.json
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from consumers.reads import learning
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow, read_job_adapter
from ops.demo import heldout
from ops.demo.heldout import Outcomes
from ops.demo.watch import followed_cycles


@dataclass(frozen=True, slots=True)
class CycleResult:
    """A cycle that has ended."""

    cycle: CycleRow
    job: JobRow | None
    candidate: AdapterRow | None
    incumbent: AdapterRow | None
    """The adapter that answers after the cycle; None for the base."""


def read_results(connection: Connection, cycles: int) -> list[CycleResult]:
    """Return the results of the first `cycles` cycles of the home, in order."""
    results: list[CycleResult] = []
    incumbent: AdapterRow | None = None
    for row in followed_cycles(connection, cycles):
        job = None if row.job is None else learning.job(connection, row.job)
        candidate = None if row.job is None else read_job_adapter(connection, row.job)
        if row.outcome == "promoted":
            incumbent = candidate
        results.append(CycleResult(row, job, candidate, incumbent))
    return results


def choose_subject(results: Sequence[CycleResult]) -> CycleResult | None:
    """Return the last promoted cycle, else the last gated one, else the last with an adapter."""
    left = [result for result in results if result.candidate is not None]
    gated = [result for result in left if result.candidate and result.candidate.gate]
    promoted = [result for result in left if result.cycle.outcome == "promoted"]
    return next((group[-1] for group in (promoted, gated, left) if group), None)


def list_adapters(results: Sequence[CycleResult], subject: CycleResult | None) -> list[AdapterRow]:
    """Return the subject's adapter and all adapters that ever answered, each once."""
    rows = [None if subject is None else subject.candidate, *(item.incumbent for item in results)]
    return list({row.adapter: row for row in rows if row is not None}.values())


def sum_budgets(results: Sequence[CycleResult]) -> int:
    """Return the sum of the rollouts that all cycles' jobs were allowed."""
    return sum(item.job.spec.sampler.rollouts for item in results if item.job is not None)


def build_entries(
    results: Sequence[CycleResult],
    outcomes: Mapping[str | None, Outcomes],
    mix: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Return the document's `cycles`: entry 0 for the base, entry n for the policy after cycle n.
    `outcomes` maps each adapter that ever answered, and None for the base, to its outcomes."""
    entries = [
        dict.fromkeys(("outcome", "why", "adapter", "candidate", "capability"))
        | {"number": 0}
        | _build_figures(outcomes[None], mix)
    ]
    for number, result in enumerate(results, start=1):
        name = None if result.incumbent is None else result.incumbent.adapter
        candidate = result.candidate
        entries.append(
            {
                "number": number,
                "outcome": result.cycle.outcome,
                "why": result.cycle.ended_because,
                "adapter": name,
                "candidate": None if candidate is None else candidate.adapter,
                "capability": None if result.job is None else result.job.capability,
            }
            | _build_figures(outcomes[name], mix)
        )
    return entries


def _build_figures(outcomes: Outcomes, mix: Mapping[str, float]) -> dict[str, Any]:
    return {
        "traffic": heldout.overall(outcomes, mix),
        "kinds": {kind: heldout.pass_rate(outcomes, kind) for kind in mix},
    }
