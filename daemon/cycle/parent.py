"""Which adapter a cycle's job trains on from: the incumbent, or what a rejected candidate learnt.

    find_rejected_parent(connection, cycle, incumbent)

A candidate may be rejected because its tasks were too few to show what it gained, or because it
lost on one kind of task while it gained on others. The next job then goes on from it, if the newest
job left it, its targets gained on the whole, the incumbent that it was compared with still answers,
and it never answered a session. Where it was shown to be worse at a kind, it must besides have been
shown not to be worse over all tasks; its losses are what the next job replays (siblings.py). After
`MOST_TRIES` rejected candidates in a row, each trained on from the one before, the next job goes on
from the incumbent: a chain of chance gains ends. Each candidate is compared with the incumbent on
fresh tasks, whatever it was trained from, so this adds no chance to promote one that is no better.
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
"""Rejected candidates in a row that are trained on from."""
_OF_KIND: Final = ("slice ", "best ")
"""How the names of the checks of one kind of task begin."""
_NOT_REPLAYED: Final = {f"slice {AFTER_ERROR}"}
"""Checks of what no task replays: the gate makes these tasks anew, and no log holds them."""
KEPT: Final = (State.REJECTED, State.UNLOADED)
"""States of a rejected candidate whose files are there."""


def find_rejected_parent(
    connection: "Connection", cycle: CycleRow, incumbent: AdapterRow | None
) -> AdapterRow | None:
    """The rejected candidate from which a cycle's job trains on; None: from the incumbent."""
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
    """Whether a report rejects a candidate that gained on its targets, and that was shown to be
    worse at nothing, or at some kinds alone while it was within the margin over all tasks."""
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
    """Why a job trains on from a rejected candidate, in words."""
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
    """Return the number of candidates that were trained one from the other since the incumbent,
    with this one. `incumbent`: the folder of the incumbent; None for the base."""
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
