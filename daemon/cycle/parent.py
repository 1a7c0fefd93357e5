"""Choose the adapter that a cycle's job trains on from: the incumbent, or a rejected candidate.

The gate may reject a candidate for too few tasks, or for a loss on one kind beside gains. The next
job trains on from it if it is the newest one, its targets gained on the whole, its incumbent still
answers, and it never answered a session. A candidate worse at a kind must also be shown not to be
worse over all tasks; the job replays its losses (siblings.py). After `MOST_TRIES` rejected
candidates in a row, the job starts from the incumbent, so that chains of chance gains end. Every
candidate meets the incumbent on fresh tasks, so this promotes no more adapters by chance.
"""

from typing import TYPE_CHECKING, Final

from consumers.reads import learning, succession
from consumers.reads.learning import CycleRow
from consumers.reads.serving import AdapterRow
from events.gate import AFTER_ERROR, SIBLING
from events.lifecycle import State
from events.rollouts import clip_reason

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from events.gate import GateReport

MOST_TRIES: Final = 2
"""Most rejected candidates in a row on which jobs build."""
_OF_KIND: Final = ("slice ", "best ")
"""Name prefixes of the checks that concern a single kind."""
_NOT_REPLAYED: Final = {f"slice {AFTER_ERROR}"}
"""Checks on tasks that no job replays: the gate makes them anew, and no log holds them."""
KEPT: Final = (State.REJECTED, State.UNLOADED)
"""States of a rejected candidate whose files still exist."""


def find_rejected_parent(
    connection: "Connection", cycle: CycleRow, incumbent: AdapterRow | None
) -> AdapterRow | None:
    """Return the rejected candidate that a cycle's job trains on from; None for the incumbent."""
    row = succession.find_last_candidate(connection, cycle.alias)
    if row is None or row.base != cycle.base or row.state not in KEPT:
        return None
    if row.gate is None or not is_worth_training(row.gate):
        return None
    if row.incumbent != (None if incumbent is None else incumbent.adapter):
        return None
    if succession.has_served(connection, row.adapter):
        # An operator let it answer nevertheless, and something else answers again.
        return None
    tries = count_tries(connection, row, None if incumbent is None else incumbent.path)
    return row if tries <= MOST_TRIES else None


def is_worth_training(report: "GateReport") -> bool:
    """Return whether a rejected candidate gained on its targets and was shown to be worse at most
    at some kinds, while all tasks together stay within the margin."""
    if report.decision != "REJECT":
        return False
    verdicts = {check.name: check.verdict for check in report.checks}
    failed = {
        name
        for name, verdict in verdicts.items()
        if verdict == "FAIL" and not name.startswith(SIBLING)
    } - {"target"}
    losses = {name for name in failed if name.startswith(_OF_KIND)} - _NOT_REPLAYED
    if failed - losses or (losses and verdicts.get("overall") != "PASS"):
        return False
    whole = sum(target.tasks for target in report.targets)
    return whole > 0 and sum(target.gain * target.tasks for target in report.targets) > 0


def describe_parent(row: AdapterRow) -> str:
    """Return a text that says why a job trains on from a rejected candidate."""
    assert row.gate is not None, "a gate rejected it"
    gains = ", ".join(
        f"{target.name} {100 * target.gain:+.1f} points over {target.tasks} tasks (p = "
        f"{1.0 if target.p_value is None else target.p_value:.2g})"
        for target in row.gate.targets
    )
    losses = ", ".join(
        f"{check.name} {100 * check.value:+.1f} points"
        for check in row.gate.checks
        if check.verdict == "FAIL" and check.name.startswith(_OF_KIND)
    )
    if losses:
        return clip_reason(f"rejected for {losses}, and it gained: {gains}")
    return clip_reason(f"rejected without harm: {gains}")


def count_tries(connection: "Connection", row: AdapterRow, incumbent: str | None) -> int:
    """Return how many candidates in a row built on one another since the incumbent, this one
    included. `incumbent` is the incumbent's folder; None for the base."""
    tries = 0
    candidate: AdapterRow | None = row
    while candidate is not None and tries <= MOST_TRIES:
        tries += 1
        job = None if candidate.job is None else learning.job(connection, candidate.job)
        path = None if job is None else job.spec.parent
        if path is None or path == incumbent:
            return tries
        candidate = succession.find_adapter_at(connection, path)
    return tries
