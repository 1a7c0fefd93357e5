"""Choose the failure patterns whose tasks are written by plans, with reasons (pure).

With `auto`, plans replace templates if the checks rejected at least `BAD` of a pattern's tries by
templates. Templates return if the checks reject as many tries by plans. Source: AReaL-SEA (arXiv
2601.22607, section 3.1), whose engine revises what it rejects; the threshold is ours.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from consumers.reads.cycle_account import WrittenTask
from consumers.reads.learning import BufferTask, RejectionRow
from daemon.controller.rejected_tries import BAD, REASONS
from events.learning import Mode, TaskProposed, TaskRejected

SynthesisSetting = Literal["off", "auto", "always"]
"""Value of the setting `improve.synthesis`."""

_TEMPLATES: Final[frozenset[Mode]] = frozenset({"inherit", "explore"})


@dataclass(slots=True)
class Tries:
    """Counts of the tries to write tasks for a pattern, by templates or by plans."""

    accepted: int = 0
    failed_checks: Counter[str] = field(default_factory=Counter)
    """Check -> number of tries that failed it."""

    @property
    def rejected(self) -> int:
        """Return the number of tries that failed a check."""
        return self.failed_checks.total()

    @property
    def total(self) -> int:
        """Return the number of all tries."""
        return self.accepted + self.rejected

    @property
    def are_bad(self) -> bool:
        """Return whether at least the share `BAD` of the tries failed; False without tries."""
        return self.total > 0 and self.rejected >= BAD * self.total

    def describe(self) -> str:
        """Return a text with the counts and the checks that failed most."""
        ranked = sorted(self.failed_checks, key=lambda check: (-self.failed_checks[check], check))
        checks = ", ".join(f"{check} {self.failed_checks[check]}" for check in ranked[:REASONS])
        return f"{self.rejected} of {self.total}" + (f" ({checks})" if checks else "")


@dataclass(slots=True)
class PatternTries:
    """The tries for a pattern in one cycle; lessons do not count."""

    templates: Tries = field(default_factory=Tries)
    plans: Tries = field(default_factory=Tries)

    def explain(self) -> str | None:
        """Return why plans write the next tasks; None if templates write them."""
        if self.plans.total and not self.plans.are_bad:
            return (
                "plans wrote for it in the cycle before, and the checks rejected only "
                f"{self.plans.describe()} of their tries"
            )
        if not self.plans.total and self.templates.are_bad:
            return (
                f"the checks rejected {self.templates.describe()} of the tries by templates of the "
                "cycle before"
            )
        return None

    def explain_templates(self) -> str:
        """Return why templates and not plans write the pattern's next tasks."""
        if self.plans.total:
            return (
                f"the checks rejected {self.plans.describe()} of the tries by plans of the cycle "
                "before"
            )
        if self.templates.total:
            return (
                f"the checks rejected {self.templates.describe()} of the tries by templates of the "
                "cycle before, less than half"
            )
        return "no task was tried for it in the cycle before"


def count_tries(
    written: Sequence[BufferTask | WrittenTask | TaskProposed],
    rejected: Sequence[RejectionRow | TaskRejected],
) -> dict[str, PatternTries]:
    """Return pattern -> its tries in one cycle. If no set of plans was written, that is no try."""
    counts: dict[str, PatternTries] = {}
    for row in written:
        if (tries := _find_tries(counts, row.pattern, row.mode)) is not None:
            tries.accepted += 1
    for failure in rejected:
        if failure.mode == "synthesize" and failure.plan is None:
            continue
        if (tries := _find_tries(counts, failure.pattern, failure.mode)) is not None:
            tries.failed_checks[failure.check] += 1
    return counts


def _find_tries(counts: dict[str, PatternTries], pattern: str, mode: Mode | None) -> Tries | None:
    """Return the tries that `mode` counts for; None for lessons and for tasks of the buffer."""
    if mode in _TEMPLATES:
        return counts.setdefault(pattern, PatternTries()).templates
    if mode == "synthesize":
        return counts.setdefault(pattern, PatternTries()).plans
    return None


def choose_patterns(
    setting: SynthesisSetting, patterns: Iterable[str], tries: Mapping[str, PatternTries]
) -> dict[str, str]:
    """Return pattern -> reason, for the patterns whose tasks plans write."""
    if setting == "off":
        return {}
    if setting == "always":
        return dict.fromkeys(patterns, 'improve.synthesis is "always"')
    reasons = {name: tries.get(name, PatternTries()).explain() for name in patterns}
    return {name: reason for name, reason in reasons.items() if reason is not None}
