"""An author that needs no model and no environment: two tasks of a pattern, one in vain, one job.

It follows from the cycle alone, so another leader, or the same one again, writes the same.
"""

from consumers.reads.learning import CycleRow
from daemon.cycle.proposal import Proposal, Study
from events.envelope import derive_id
from events.learning import (
    Decision,
    Directive,
    DirectiveWritten,
    JobRequested,
    Quota,
)
from tests.consumers.cycling import PATTERN, proposed, rejected, requested

TASKS = 2
REJECTED = 1


class Fixed:
    """Writes the same for the same cycle; with `lacking`, no job."""

    def __init__(self, lacking: str | None = None) -> None:
        self.lacking = lacking

    def study_round(self, cycle: CycleRow) -> Study | None:
        """None."""
        return None

    def write_directive(self, cycle: CycleRow) -> DirectiveWritten:
        """One pattern, two tasks."""
        assert cycle.round is not None, "a cycle is diagnosed first"
        quota = Quota(
            pattern=PATTERN, tasks=TASKS, priority=0.5, status="NEW", description="It forgets.",
            root_cause="It takes a yes for the end.",
        )  # fmt: skip
        return DirectiveWritten(
            cycle=cycle.cycle, round=cycle.round, directive=Directive(quotas=(quota,))
        )

    def request_chooser(self, cycle: CycleRow) -> JobRequested:
        """Never asked: its cycles have one job."""
        raise AssertionError(f"cycle {cycle.cycle} has no branches")

    def propose_tasks(self, cycle: CycleRow) -> Proposal:
        """Its tasks, what was written in vain, and the job."""
        assert cycle.directive is not None, "a cycle is directed first"
        number = cycle.number
        tasks = [proposed(f"shop/{number}-{one}", number) for one in range(TASKS)]
        said: list[Decision] = [*tasks, rejected("it says the answer", number)]
        if self.lacking is None:
            said.append(requested(number))
        return Proposal(
            {derive_id(cycle.cycle, "said", str(place)): one for place, one in enumerate(said)},
            self.lacking,
        )
