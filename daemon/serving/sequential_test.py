"""Sequential test of a canary on live traffic: roll back, promote or wait.

Each session goes to the canary with a known probability, its share when it was drawn. If canary and
incumbent are equal, then given the outcomes the arms are coins with known odds, however long a
session takes. Harder or bursty traffic moves outcomes and not the coins, so sessions need no
partners. Let `p` be the failure probability of the canary and `i` that of the incumbent. The odds
of the canary's arm are then its share's odds times `p / i` among failures, and times
`(1 - p) / (1 - i)` among successes. Three e-processes read the arms (mixtures of likelihood ratios
over fixed alternatives; arXiv 2512.04366):

    against     null: p <= i. Over all sessions, and over each kind of task by itself
    towards     null: p >= `risk_ratio` * i
    imbalance   null: a session of either arm is judged equally often

Guarantee: under its null each reaches 20 at any time with a chance of at most 5 % (Ville), however
often it is evaluated. `against` holds that over all kinds together, as a weighted mean. Each is a
function of counts: the order of verdicts changes nothing, and a share may depend on all verdicts
before the session was drawn.

A canary that fails slowly looks good until its failures are known. So a promotion needs the same
evidence among the sessions that began before some moment, with verdicts that may still come counted
against the canary (`measure_final_evidence`). A verdict may still come while a session is open, and
until it is older than 99 % of the judged ones of some arm and outcome were (`longest_wait`).
Evidence that the canary's older sessions lack verdicts more often divides the evidence for it.

Pure. Assumes: whether a session is judged does not depend on its arm (`imbalance` tests it); for a
rollback, that sessions of both arms with the same outcome take the same time; for a promotion, that
verdicts of ended sessions come equally late for both arms (the wait and the lack catch most of a
difference; no bound is proved). Not covered: the judge, and silence (`on_silence`). Without
failures no ratio can be shown, and nothing is promoted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp, fsum, log
from operator import itemgetter
from typing import Final, Literal, NamedTuple

Arm = Literal["canary", "incumbent"]

ENOUGH: Final = 20.0
"""Evidence from which on a decision is made: 1 / 0.05."""

UNEQUAL: Final = 100.0
"""Imbalance that blocks a promotion: 1 / 0.01. Below it, the evidence for a canary must be larger
by the imbalance. It allows for longer failures: the better arm is then judged sooner at first."""


_WAITED: Final = 0.99
"""Quantile of the ages at verdict, per arm and outcome, after which no verdict is waited for."""


class Ratios(NamedTuple):
    """Ratios, canary over incumbent, of the probabilities to fail and to succeed."""

    failure: float
    success: float


class _Cell(NamedTuple):
    share: float
    success: bool
    canary: bool


class Mixture:
    """An e-process over counts: the mean over alternatives of the likelihood ratio to the null."""

    def __init__(self, null: Ratios, alternatives: tuple[Ratios, ...]) -> None:
        self._null = null
        self._alternatives = alternatives
        self._terms: dict[_Cell, tuple[float, ...]] = {}

    def value(self, cells: Mapping[_Cell, float]) -> float:
        """Return the evidence against the null in the given number of sessions of each cell."""
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
    """Return the log of the probability of a session's arm, given its outcome."""
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
"""Alternatives of `against`: from hardly to much worse, where failures are rare and where not."""

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
    """Evidence about one canary."""

    def __init__(self, risk_ratio: float) -> None:
        """Set `risk_ratio`, above 1: the largest failure ratio, canary to incumbent, to promote."""
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

        `share`, between 0 and 1, is the probability with which the session went to the canary. `at`
        orders verdicts; kinds are weighted in the order of their first ones. Raises ValueError.
        """
        if not 0 < share < 1:
            raise ValueError(f"a share is above 0 and below 1, not {share}")
        cell = _Cell(share, success, arm == "canary")
        self._cells[cell] += 1
        self._kinds.setdefault(kind, Counter())[cell] += 1
        self._first[kind] = min(self._first.get(kind, at), at)

    @property
    def against(self) -> float:
        """Return the evidence that the canary is worse, over all sessions or for a kind of task."""
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
        """Return the evidence that sessions of one arm are judged more often than the other's."""
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
        """Return the expected number of judged canary sessions, by the shares that drew them."""
        return fsum(cell.share * self._cells[cell] for cell in sorted(self._cells))

    @property
    def pairs(self) -> int:
        """Return the number of judged canary sessions, each paired with an incumbent's of its
        kind."""
        arms: tuple[Arm, Arm] = ("canary", "incumbent")
        return sum(
            min(sum(number for cell, number in cells.items() if _is_of(cell, arm)) for arm in arms)
            for cells in self._kinds.values()
        )


def _is_of(cell: _Cell, arm: Arm) -> bool:
    return cell.canary == (arm == "canary")


def _weight(number: int) -> float:
    """Return the weight of the kind that came `number` kinds after the first; all sum to 1."""
    return 4 / ((number + 4) * (number + 5))


class ArmSession(NamedTuple):
    """A session that chance gave to one arm."""

    began: str
    arm: Arm
    share: float
    success: bool | None
    """Verdict of the session; None without one."""
    ended: bool = False
    """Whether a session without a verdict has ended."""


def measure_final_evidence(
    sessions: Iterable[ArmSession], risk_ratio: float, awaited: str = ""
) -> float:
    """Return the evidence for a canary that no later verdict can take away.

    It reads the sessions that began before some moment, and counts open ones of the canary as
    failures and of the incumbent as successes. In the order of beginnings the path is one
    e-process, so the largest evidence over several moments may be taken. Sessions that ended
    without a verdict and began before `awaited` never get one; evidence that the canary has more of
    them divides the result.
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
    # Before the first of them, the 2nd, 3rd, 5th, 9th, ..., and at the end.
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
    """Return the evidence that the canary lacks verdicts more often: `against`, with lacks as
    failures."""
    cells = Counter(_Cell(session.share, False, session.arm == "canary") for session in never)
    cells.update(
        _Cell(session.share, True, session.arm == "canary")
        for session in judged
        if session.success is not None
    )
    return Mixture(_EQUAL, _WORSE).value(cells)


def longest_wait(waits: Iterable[Sequence[float]]) -> float:
    """Return the age, in the unit of `waits`, up to which a session may still get its verdict.

    `waits` holds ages at verdict, by arm and outcome. The result is the largest of their 99th
    percentiles (nearest rank), so a slow arm's few failures count, and a stray verdict does not. 0
    without any.
    """
    return max((sorted(ages)[ceil(_WAITED * len(ages)) - 1] for ages in waits if ages), default=0.0)


class ArmFaults(NamedTuple):
    """Fault counts of the ended sessions of an arm that one share drew, judged or not."""

    arm: Arm
    share: float
    """The canary's share when the sessions were drawn."""
    sessions: int
    faults: tuple[int, ...]
    """Number of the sessions with a fault, for each kind of fault."""


def on_silence(drawn: Iterable[ArmFaults]) -> Literal["roll_back", "inconclusive"]:
    """Decide about a canary with too few judged sessions. Silence never promotes.

    Roll back if more of its sessions had a fault than equal policies would have in 95 % of the
    cases: `against`, with the fault as the failure, as a mean over the kinds of fault. Neither
    drift nor a risen share moves it, since each session counts with its own share.
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
    """Return the evidence that sessions are not drawn by their shares: that of `imbalance`, over
    all or the judged sessions. `drawn` counts sessions by the arm's share and by whether they are
    of it. Under the null it ever reaches 100 with a probability of at most 1 %."""
    cells = {_Cell(share, True, member): number for (share, member), number in drawn.items()}
    return Mixture(_EQUAL, _JUDGED).value(cells)
