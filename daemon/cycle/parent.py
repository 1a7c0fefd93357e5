"""The adapter that a cycle's job trains on from: the incumbent, or a rejected candidate.

A candidate may be rejected for too few tasks, or for a loss on one kind beside gains. The next job
continues it if the newest job left it, its targets gained on the whole, its incumbent still
answers, and it never answered a session. A candidate worse at a kind must also be shown not to be
worse over all tasks; the job replays its losses (siblings.py). After `MOST_TRIES` rejected
candidates in a row, the job continues the incumbent, so chains of chance gains end. Every candidate
meets the incumbent on fresh tasks, so this promotes no more by chance.
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
"""Rejected candidates in a row that are continued."""
_OF_KIND: Final = ("slice ", "best ")
"""Name prefixes of checks of one kind."""
_NOT_REPLAYED: Final = {f"slice {AFTER_ERROR}"}
"""Checks of tasks that no job replays: the gate makes them anew, and no log holds them."""
KEPT: Final = (State.REJECTED, State.UNLOADED)
"""States of a rejected candidate with files."""


def find_rejected_parent(
    connection: "Connection", cycle: CycleRow, incumbent: AdapterRow | None
) -> AdapterRow | None:
    """Return the rejected candidate that a cycle's job continues; None: the incumbent."""
    row = succession.find_last_candidate(connection, cycle.alias)
    if row is None or row.base != cycle.base or row.state not in KEPT:
        return None
    if row.gate is None or not is_worth_training(row.gate):
        return None
    if row.incumbent != (None if incumbent is None else incumbent.adapter):
        return None
    if succession.has_served(connection, row.adapter):
        # An operator had it answer nevertheless, and something else answers again.
        return None
    tries = count_tries(connection, row, None if incumbent is None else incumbent.path)
    return row if tries <= MOST_TRIES else None


def is_worth_training(report: "GateReport") -> bool:
    """Return whether a report rejects a candidate that gained on its targets, and was shown to be
    worse at most at some kinds while within the margin over all tasks."""
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
    """Return why a job continues a rejected candidate, in words."""
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
    """Return the length of the chain of candidates since the incumbent, with this one. `incumbent`
    is its folder; None for the base."""
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
