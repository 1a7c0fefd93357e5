"""Learn from rejected tasks: the next directive names each mode that failed in at least half of a
pattern's tries, with reasons. The Proposer then begins with the other mode for one cycle. Pure.
Source: AReaL-SEA's reflection on rejected data."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from consumers.reads.learning import BufferTask, RejectionRow
from events.learning import BadTries, Mode, TaskProposed, TaskRejected

BAD: Final = 0.5
"""Least share of a mode's tries that must fail for the mode to be bad."""
REASONS: Final = 3
"""Most reasons named for each pattern and mode."""


def bad_tries(
    written: Sequence[BufferTask | TaskProposed], rejected: Sequence[RejectionRow | TaskRejected]
) -> tuple[BadTries, ...]:
    """Return, by pattern and mode, the modes that failed in at least the share `BAD` of their
    tries. `written` and `rejected` are the tasks of one cycle or one round of a job."""
    failed: Counter[tuple[str, Mode]] = Counter(
        (row.pattern, row.mode) for row in rejected if row.mode is not None
    )
    tries = failed + Counter((row.pattern, row.mode) for row in written if row.mode is not None)
    return tuple(
        BadTries(
            pattern=pattern,
            mode=mode,
            tries=tries[pattern, mode],
            rejected=count,
            reasons=_reasons(
                [row for row in rejected if (row.pattern, row.mode) == (pattern, mode)]
            ),
        )
        for (pattern, mode), count in sorted(failed.items())
        if count >= BAD * tries[pattern, mode]
    )


def _reasons(rejected: Sequence[RejectionRow | TaskRejected]) -> tuple[str, ...]:
    """Return the most frequent failed checks, each with one of its rejection texts."""
    checks = Counter(row.check for row in rejected)
    ranked = sorted(checks, key=lambda check: (-checks[check], check))
    texts = {check: min(o.reason for o in rejected if o.check == check) for check in ranked}
    return tuple(f"{check}: {texts[check]}"[:1000] for check in ranked[:REASONS])
