"""What each cycle of a home came to, and who answered after it.

    results = read_results(connection, cycles)      one for each cycle that ended
    subject = choose_subject(results)               the one that the report is about
    adapters = list_adapters(results, subject)      those that are measured
    entries = build_entries(results, outcomes, mix) "cycles" of demo-report.json

Whoever answers after a cycle is the adapter that was promoted last, else the base. A policy that
goes on answering is measured once.
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
    """The adapter that its job left; None where it left none."""
    incumbent: AdapterRow | None
    """Who answers after the cycle; None for the base."""


def read_results(connection: Connection, cycles: int) -> list[CycleResult]:
    """The first `cycles` cycles of the home, in order."""
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
    """The cycle whose adapter the report is about: the last that was promoted, else the last that
    the gate decided about, else the last that left an adapter; None where none left one."""
    left = [result for result in results if result.candidate is not None]
    gated = [result for result in left if result.candidate and result.candidate.gate]
    promoted = [result for result in left if result.cycle.outcome == "promoted"]
    return next((group[-1] for group in (promoted, gated, left) if group), None)


def list_adapters(results: Sequence[CycleResult], subject: CycleResult | None) -> list[AdapterRow]:
    """The subject's adapter, and the others that ever answered, each once."""
    rows = [None if subject is None else subject.candidate, *(item.incumbent for item in results)]
    return list({row.adapter: row for row in rows if row is not None}.values())


def sum_budgets(results: Sequence[CycleResult]) -> int:
    """Most rollouts that the jobs of all cycles could spend."""
    return sum(item.job.spec.sampler.rollouts for item in results if item.job is not None)


def build_entries(
    results: Sequence[CycleResult],
    outcomes: Mapping[str | None, Outcomes],
    mix: Mapping[str, float],
) -> list[dict[str, Any]]:
    """The document's `cycles`: entry 0 is of the base, entry n of who answers after cycle n.

    `outcomes` maps the name of each adapter that ever answered, and None for the base, to what it
    earned.
    """
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
