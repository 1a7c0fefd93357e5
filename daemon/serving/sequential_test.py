"""Sequential test of a canary on live traffic: roll back, promote or wait.

A session goes to the canary with a known probability: the canary's share when it was drawn. If
canary and incumbent are equally good, a session's outcome tells nothing about its arm. Each arm is
then a coin with known odds, however long the session takes. Harder or bursty traffic changes the
outcomes, not these odds, so sessions need not be matched in pairs. Let `p` be the failure
probability of the canary and `i` that of the incumbent. The odds of the canary's arm are its
share's odds times `p / i` among failures, and times `(1 - p) / (1 - i)` among successes. Three
e-processes (mixtures of likelihood ratios over fixed alternatives; arXiv 2512.04366) test the arms:

    against     null: p <= i. Over all sessions, and over each kind of task by itself
    towards     null: p >= `risk_ratio` * i
    imbalance   null: a session of either arm is judged equally often

Guarantee: under its null, each e-process ever reaches 20 with a probability of at most 5 % (Ville),
however often it is evaluated. For `against`, a weighted mean, this holds over all sessions and
kinds together. Each value depends on counts alone: the order of verdicts changes nothing, and a
share may depend on all verdicts before the session was drawn.

A canary whose failures are judged late looks good at first. So a promotion needs the same evidence
among the sessions that began before some moment. There, verdicts that may still come count against
the canary (`measure_final_evidence`). A verdict may still come while a session is open or younger
than `longest_wait`, a quantile of earlier waits. If the canary's older sessions lack verdicts more
often, the evidence for the canary is divided by the evidence for this lack.

Pure. Assumes: whether a session is judged does not depend on its arm (`imbalance` tests it); for a
rollback, that sessions of both arms with the same outcome take the same time; for a promotion, that
verdicts of ended sessions come equally late for both arms (the wait and the lack catch most of a
difference; no bound is proved). Not covered: errors of the judge, and canaries without verdicts
(`on_silence`). Without failures no ratio can be shown, so nothing is promoted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp, fsum, log
from operator import itemgetter
from typing import Final, Literal, NamedTuple

Arm = Literal["canary", "incumbent"]

ENOUGH: Final = 20.0
"""Evidence that suffices for a decision: 1 / 0.05."""

UNEQUAL: Final = 100.0
"""Value of `imbalance` that blocks a promotion: 1 / 0.01. A smaller imbalance multiplies the
evidence that a promotion needs. The limit is high because failures may take longer than successes:
then the better arm has more verdicts at first, without a fault."""

_WAITED: Final = 0.99
"""Quantile of the ages at verdict, per arm and outcome; older sessions await no verdict."""


class Ratios(NamedTuple):
    """Ratios, canary over incumbent, of the probabilities to fail and to succeed."""

    failure: float
    success: float


class _Cell(NamedTuple):
    share: float
    success: bool
    canary: bool


class Mixture:
    """An e-process over counts: the mean of the alternatives' likelihood ratios to the null."""

    def __init__(self, null: Ratios, alternatives: tuple[Ratios, ...]) -> None:
        self._null = null
        self._alternatives = alternatives
        self._terms: dict[_Cell, tuple[float, ...]] = {}

    def value(self, cells: Mapping[_Cell, float]) -> float:
        """Return the evidence against the null from `cells`, each with its number of sessions."""
        logs = [0.0] * len(self._alternatives)
        # Summed in a fixed order: float sums depend on it, and every process must get the same
        # digits.
        for cell in sorted(cells):
            number = cells[cell]
            logs = [log + number * term for log, term in zip(logs, self._of(cell), strict=True)]
        # Capped far beyond any decision, at a number that an event can hold.
        return fsum(exp(min(log, 600.0)) for log in logs) / len(logs)

    def _of(self, cell: _Cell) -> tuple[float, ...]:
        """Return the log likelihood ratio of one session to the null, for each alternative."""
        terms = self._terms.get(cell)
        if terms is None:
            null = _log_chance(cell, self._null)
            terms = tuple(_log_chance(cell, other) - null for other in self._alternatives)
            self._terms[cell] = terms
        return terms


def _log_chance(cell: _Cell, ratios: Ratios) -> float:
    """Return the log probability that a session with this outcome and share has this arm."""
    ratio = ratios.success if cell.success else ratios.failure
    canary, incumbent = cell.share * ratio, 1 - cell.share
    return log((canary if cell.canary else incumbent) / (canary + incumbent))


def _ratios(incumbent: float, canary: float) -> Ratios:
    return Ratios(canary / incumbent, (1 - canary) / (1 - incumbent))


_EQUAL: Final = Ratios(1, 1)

_WORSE: Final = (
    *(_ratios(0.02, 0.02 * ratio) for ratio in (1.15, 1.3, 1.6, 2.2, 3, 8, 25)),
    *(_ratios(0.3, canary) for canary in (0.345, 0.39, 0.48, 0.66, 0.9)),
    *(_ratios(0.6, canary) for canary in (0.69, 0.78, 0.95)),
    _ratios(0.85, 0.95),
)
"""Alternatives of `against`: slightly to much worse canaries, for rare and frequent failures."""

_BETTER: Final = (
    *(Ratios(ratio, 1) for ratio in (1, 0.9, 0.75, 0.55, 0.35, 0.15)),
    _ratios(0.3, 0.1), _ratios(0.6, 0.3), _ratios(0.6, 0.1), _ratios(0.85, 0.75),
    _ratios(0.85, 0.5), _ratios(0.85, 0.15),
)  # fmt: skip
"""Alternatives of `towards`. A better canary succeeds more often, so its successes count too."""

_JUDGED: Final = tuple(Ratios(x, x) for x in (0.1, 0.4, 0.6, 0.75, 0.87, 1.15, 1.33, 1.67, 2.5, 10))
"""Alternatives of `imbalance`: how much more often the canary's sessions are judged."""

_OVERALL: Final = 0.5
"""Weight of all sessions together in `against`; the kinds share the rest."""


class LiveGuard:
    """Counts of one canary's and its incumbent's verdicts, and the evidence that they give."""

    def __init__(self, risk_ratio: float) -> None:
        """Test against `risk_ratio` (above 1). A promotion must show that the canary's failure
        probability is less than `risk_ratio` times the incumbent's."""
        self._worse = Mixture(_EQUAL, _WORSE)
        self._better = Mixture(Ratios(risk_ratio, 1), _BETTER)
        self._unequal = Mixture(_EQUAL, _JUDGED)
        self._cells: Counter[_Cell] = Counter()
        self._kinds: dict[str, Counter[_Cell]] = {}
        self._first: dict[str, tuple[str, str]] = {}

    def count(
        self, arm: Arm, kind: str, success: bool, share: float, at: tuple[str, str] = ("", "")
    ) -> None:
        """Count the verdict of a session on a kind of task.

        `share` is the probability that the session went to the canary. Raises ValueError unless it
        is between 0 and 1. `at` orders verdicts: a kind whose first verdict is early weighs more.
        """
        if not 0 < share < 1:
            raise ValueError(f"a share is above 0 and below 1, not {share}")
        cell = _Cell(share, success, arm == "canary")
        self._cells[cell] += 1
        self._kinds.setdefault(kind, Counter())[cell] += 1
        self._first[kind] = min(self._first.get(kind, at), at)

    @property
    def against(self) -> float:
        """Return the evidence that the canary is worse, over all sessions or at a kind of task."""
        overall = self._worse.value(self._cells)
        kinds = sorted(self._kinds, key=lambda kind: (self._first[kind], kind))
        each = [overall] if len(kinds) == 1 else [self.against_kind(kind) for kind in kinds]
        weighted = [_weight(n) * value for n, value in enumerate(each)]
        unseen = 1 - fsum(_weight(n) for n in range(len(kinds)))
        return _OVERALL * overall + (1 - _OVERALL) * (fsum(weighted) + unseen)

    def against_kind(self, kind: str) -> float:
        """Return the evidence that the canary is worse at this kind of task alone."""
        return self._worse.value(self._kinds[kind])

    @property
    def worst_kind(self) -> str | None:
        """Return the kind with the most evidence against the canary; None before any verdict."""
        return max(sorted(self._kinds), key=self.against_kind, default=None)

    @property
    def towards(self) -> float:
        """Return the evidence that the canary fails less than `risk_ratio` times as often."""
        return self._better.value(self._cells)

    @property
    def imbalance(self) -> float:
        """Return the evidence that one arm's sessions get a verdict more often than the other's."""
        return self._unequal.value(self._cells)

    def count_verdicts(self, arm: Arm) -> int:
        """Return the number of judged sessions of an arm."""
        return sum(number for cell, number in self._cells.items() if _is_of(cell, arm))

    def count_failures(self, arm: Arm) -> int:
        """Return the number of failed sessions of an arm."""
        return sum(
            number for cell, number in self._cells.items() if _is_of(cell, arm) and not cell.success
        )

    @property
    def share_sum(self) -> float:
        """Return the expected number of judged canary sessions: the sum of all sessions' shares."""
        return fsum(cell.share * self._cells[cell] for cell in sorted(self._cells))

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a judged canary session and a judged incumbent session of
        the same kind; each session is in one pair at most."""
        arms: tuple[Arm, Arm] = ("canary", "incumbent")
        return sum(
            min(sum(number for cell, number in cells.items() if _is_of(cell, arm)) for arm in arms)
            for cells in self._kinds.values()
        )


def _is_of(cell: _Cell, arm: Arm) -> bool:
    return cell.canary == (arm == "canary")


def _weight(number: int) -> float:
    """Return the weight of the kind that was first seen after `number` others; all sum to 1."""
    return 4 / ((number + 4) * (number + 5))


class ArmSession(NamedTuple):
    """A session that was drawn at random for one arm."""

    began: str
    arm: Arm
    share: float
    success: bool | None
    """Whether the session succeeded; None while it has no verdict."""
    ended: bool = False
    """Whether a session without a verdict has ended."""


def measure_final_evidence(
    sessions: Iterable[ArmSession], risk_ratio: float, awaited: str = ""
) -> float:
    """Return the evidence for a canary that no later verdict can take away.

    The evidence is that of all sessions that began before some moment. Sessions without a verdict
    count as failures of the canary or as successes of the incumbent. In order of their beginnings
    the sessions form one e-process, so the largest evidence over several moments is valid. A
    session that ended without a verdict and began before `awaited` never gets one. If the canary
    has more of these, the evidence for that divides the result.
    """
    better = Mixture(Ratios(risk_ratio, 1), _BETTER)
    known, given_up = list[ArmSession](), list[ArmSession]()
    for session in sessions:
        over = session.success is None and session.ended and session.began < awaited
        (given_up if over else known).append(session)
    lack = _lack([session for session in known if session.began < awaited], given_up)
    ordered = sorted(known, key=itemgetter(0))
    unfinished = [
        place
        for place, entry in enumerate(ordered)
        if entry.success is None and entry.arm == "canary"
    ]  # fmt: skip
    # The moments: before the 1st, 2nd, 3rd, 5th, 9th, ... unfinished session, and the end.
    moments = [place for n, place in enumerate(unfinished) if n.bit_count() <= 1]
    cells: Counter[_Cell] = Counter()
    largest, before = 0.0, 0
    for moment in (*moments, len(ordered)):
        for (arm, share, success), number in Counter(
            entry[1:4] for entry in ordered[before:moment]
        ).items():
            assumed = arm == "incumbent" if success is None else success
            cells[_Cell(share, assumed, arm == "canary")] += number
        largest, before = max(largest, better.value(cells)), moment
    return largest / max(1.0, lack)


def _lack(judged: Iterable[ArmSession], never: Iterable[ArmSession]) -> float:
    """Return the evidence that the canary's sessions lack a verdict more often. It is computed as
    `against` is, with a missing verdict as the failure."""
    cells = Counter(_Cell(session.share, False, session.arm == "canary") for session in never)
    cells.update(
        _Cell(session.share, True, session.arm == "canary")
        for session in judged
        if session.success is not None
    )
    return Mixture(_EQUAL, _WORSE).value(cells)


def longest_wait(waits: Iterable[Sequence[float]]) -> float:
    """Return the age, in the unit of `waits`, up to which a session may still get its verdict.

    `waits` has a sequence for each arm and outcome: the sessions' ages at their verdicts. The
    result is the largest of the sequences' 99th percentiles (nearest rank), or 0 without ages. So
    a slow arm's few failures count, and a single late verdict does not.
    """
    return max((sorted(ages)[ceil(_WAITED * len(ages)) - 1] for ages in waits if ages), default=0.0)


class ArmFaults(NamedTuple):
    """Counts of the agent's faults, such as loops, in ended sessions of one arm and one share."""

    arm: Arm
    share: float
    """The canary's share when the sessions were drawn."""
    sessions: int
    faults: tuple[int, ...]
    """Number of the sessions with a fault, for each kind of fault."""


def on_silence(drawn: Iterable[ArmFaults]) -> Literal["roll_back", "inconclusive"]:
    """Decide about a canary with too few judged sessions, which is never promoted.

    Roll back if the canary's sessions show more faults. The evidence is the mean over kinds of
    fault, each computed as `against` is, with the fault as the failure. Equal policies reach the
    limit with a chance of at most 5 %, even if traffic drifts or the share rises.
    """
    kinds: dict[int, Counter[_Cell]] = {}
    for arm, share, sessions, faults in drawn:
        for kind, number in enumerate(faults):
            cells = kinds.setdefault(kind, Counter())
            cells[_Cell(share, False, arm == "canary")] += number
            cells[_Cell(share, True, arm == "canary")] += sessions - number
    worse = Mixture(_EQUAL, _WORSE)
    evidence = [worse.value(cells) for cells in kinds.values()]
    shown = bool(evidence) and fsum(evidence) / len(evidence) >= ENOUGH
    return "roll_back" if shown else "inconclusive"


def measure_share_mismatch(drawn: Mapping[tuple[float, bool], int]) -> float:
    """Return the evidence that sessions are not drawn by their shares. `drawn` counts sessions by
    the arm's share and by whether they belong to the arm. If they are drawn by their shares, the
    evidence ever reaches 100 with a probability of at most 1 %."""
    cells = {_Cell(share, True, member): number for (share, member), number in drawn.items()}
    return Mixture(_EQUAL, _JUDGED).value(cells)
