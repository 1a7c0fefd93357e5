"""Verdicts of incumbent and candidate, paired by task and by trial (Outcomes -> Pairs)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

from daemon.evaluation.binomial import conditional_binomial
from envs import statistics
from events.errors import KintsugiError
from events.gate import AFTER_ERROR

_SURPLUS: Final = 0.1
"""Probability below which a surplus of unjudged trials is attributed to the candidate."""


class TooFewTrials(KintsugiError):
    """Too many trials failed for other reasons than the agent's; run them again."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Verdicts of incumbent and candidate on one task; equal indices have the same seed."""

    task: str
    slice: str
    incumbent: tuple[bool, ...]
    candidate: tuple[bool, ...]

    @property
    def difference(self) -> float:
        """Return D, the candidate's pass rate minus the incumbent's, in [-1, 1]."""
        return mean(self.candidate) - mean(self.incumbent)


def pair_outcomes(
    incumbent: statistics.Outcomes,
    candidate: statistics.Outcomes,
    slices: Mapping[str, str],
    trials: int,
) -> list[Pair]:
    """Return the pairs of two evaluations over the same tasks, in the order of `slices` (task ->
    slice). A trial without a verdict (None) of one policy counts for neither. Raises TooFewTrials
    if more than one of a task's `trials` is lost, or all are."""
    pairs = [_pair(task, name, incumbent[task], candidate[task]) for task, name in slices.items()]
    for pair in pairs:
        if len(pair.incumbent) < max(1, trials - 1):
            raise TooFewTrials(
                f"task {pair.task} has {len(pair.incumbent)} of {trials} trials that both "
                "finished; run the others again: to leave the task out would select"
            )
    return pairs


def list_traffic(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs on tasks like the agent's traffic: all but those after a refused call."""
    return [pair for pair in pairs if pair.slice != AFTER_ERROR]


def count_surplus(
    incumbent: statistics.Outcomes, candidate: statistics.Outcomes, tasks: Iterable[str]
) -> int:
    """Return how many more trials only the candidate left unjudged than only the incumbent did. 0
    if that has a chance of at least `_SURPLUS` for equal policies."""
    own = others = 0
    for first, second in _pair_trials(incumbent, candidate, tasks):
        own += second is None and first is not None
        others += first is None and second is not None
    if own <= others or conditional_binomial(own, others, 0.5) >= _SURPLUS:
        return 0
    return own - others


def fail_surplus(
    incumbent: statistics.Outcomes, candidate: statistics.Outcomes, tasks: Sequence[str]
) -> statistics.Outcomes:
    """Return the candidate's outcomes with its surplus of unjudged trials (`count_surplus`) as
    failures. They are spread evenly over the unjudged trials that have the incumbent's verdict.

    Whether a trial gets a verdict may depend on the policy. By simulation, an equal policy with one
    in five failures unjudged is promoted in 36 % of cases if such trials are left out (docs/LOG.md,
    agents that have their failures excused).
    """
    surplus = count_surplus(incumbent, candidate, tasks)
    own = [
        (task, place)
        for task in tasks
        for place, (first, second) in enumerate(_pair_trials(incumbent, candidate, [task]))
        if second is None and first is not None
    ]
    outcomes = {task: list(verdicts) for task, verdicts in candidate.items()}
    for number, (task, place) in enumerate(own):
        if (number + 1) * surplus // len(own) > number * surplus // len(own):
            outcomes[task][place] = False
    return outcomes


def _pair_trials(
    incumbent: statistics.Outcomes, candidate: statistics.Outcomes, tasks: Iterable[str]
) -> Iterator[tuple[bool | None, bool | None]]:
    for task in tasks:
        yield from zip(incumbent[task], candidate[task], strict=True)


def _pair(
    task: str, name: str, first: Sequence[bool | None], second: Sequence[bool | None]
) -> Pair:
    both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    return Pair(task, name, tuple(a for a, _ in both), tuple(b for _, b in both))
