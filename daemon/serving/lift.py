"""Cumulative lift: success of an agent less that of its held-out base, since the first promotion.

Compares the success of judged sessions of two arms: answered by the loop, and held out. Each arm's
mean success probability has a confidence sequence at half the error (confidence_sequence.py). So
the bounds of the difference hold with a probability of at least 95 %, at all times at once.

Drift: the claim is about the means so far, not about today. Chance gives both arms the same times
only at a constant held-out share, so only sessions of the share in force, else the last one, are
compared. Late verdicts: sessions count in order of beginning, up to the first whose verdict may
still come (`select_due`), so slow failures are not missing.

Pure but for `read_lifts`, which reads tables: every process gets the same digits. Assumes that
whether a session is judged does not depend on its arm; `judged_evidence` and `shares_evidence`
measure violations. Not covered: customers with several sessions, which are drawn one by one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.outcomes.canary import latest_call
from consumers.reads.outcomes.holdout import (
    DrawnSession,
    find_first_promotion,
    find_last_draw,
    read_drawn_sessions,
)
from daemon.serving.confidence_sequence import bound_mean
from daemon.serving.sequential_test import UNEQUAL, longest_wait, measure_share_mismatch
from events.envelope import parse_timestamp, timestamp

if TYPE_CHECKING:
    from sqlalchemy import Connection

ERROR: Final = 0.05
"""Probability that the interval is ever wrong; each arm has half of it."""

PATIENCE: Final = timedelta(hours=24)
"""Age at which an open session stops delaying the interval."""


@dataclass(frozen=True, slots=True)
class ArmOutcomes:
    """Counts of one arm's sessions."""

    sessions: int
    due: int
    """Sessions that began before the first session whose verdict may still come."""
    judged: int
    """Sessions among `due` that have a verdict."""
    success: float | None
    """Share of successes among `judged`; None if there are none."""


@dataclass(frozen=True, slots=True)
class Lift:
    """The cumulative lift of an alias on a base."""

    alias: str
    base: str
    since: str
    """Time of the first promotion."""
    share: float
    """Held-out share of the compared sessions."""
    holdout: ArmOutcomes
    loop: ArmOutcomes
    difference: float | None
    """Success rate of the loop minus that of the holdout; None if one arm has no verdict."""
    low: float
    high: float
    """Anytime-valid bounds of the difference of the mean success probabilities."""
    shares_ok: bool
    """Whether the number of held-out sessions agrees with their share."""
    shares_evidence: float
    """Evidence against `shares_ok`, which is False from 100 on."""
    judged_ok: bool
    """Whether both arms are judged equally often."""
    judged_evidence: float
    """Evidence against `judged_ok`, which is False from 100 on."""


def read_lifts(connection: "Connection") -> list[Lift]:
    """Return the lift of each alias on its present base, ordered by alias. Left out are aliases
    without a promoted adapter, or without a session drawn since its promotion."""
    lifts = (_read_lift(connection, route) for route in serving.route_table(connection).routes)
    return [lift for lift in lifts if lift is not None]


def _read_lift(connection: "Connection", route: serving.RouteRow) -> Lift | None:
    alias, standing = route.alias, route.standing
    share = standing.holdout or find_last_draw(connection, alias, standing.base)
    since = find_first_promotion(connection, alias, standing.base)
    latest = latest_call(connection, alias)
    if share is None or since is None or latest is None:
        return None
    sessions = read_drawn_sessions(connection, alias, standing.base, since)
    return measure_lift(alias, standing.base, since, share, sessions, latest)


def measure_lift(
    alias: str, base: str, since: str, share: float, sessions: Sequence[DrawnSession],
    latest: str,
) -> Lift:  # fmt: skip
    """Return the lift over drawn sessions; `latest` is the time of the latest call."""
    compared = [session for session in sessions if session.share == share]
    due = select_due(compared, latest)
    holdout, loop = (_count_arm(compared, due, held_out) for held_out in (True, False))
    low, high = _bound_difference(due)
    shares_evidence = _measure_mismatch(compared, lambda session: True)
    judged_evidence = _measure_mismatch(due, lambda session: session.success is not None)
    return Lift(
        alias=alias, base=base, since=since, share=share, holdout=holdout, loop=loop,
        difference=None if loop.success is None or holdout.success is None
        else loop.success - holdout.success,
        low=low, high=high,
        shares_ok=shares_evidence < UNEQUAL, shares_evidence=shares_evidence,
        judged_ok=judged_evidence < UNEQUAL, judged_evidence=judged_evidence,
    )  # fmt: skip


def select_due(sessions: Sequence[DrawnSession], latest: str) -> list[DrawnSession]:
    """Return the sessions that began before the first one whose verdict may still come.

    A verdict may come while a session is open and younger than `PATIENCE`, and after its end until
    it is older than 99 % of some arm's and outcome's sessions were at their verdicts. Ages count up
    to `latest`, the time of the latest call in the tables.
    """
    ages: dict[tuple[bool, bool], list[float]] = {}
    for session in sessions:
        if session.success is not None and session.age is not None:
            ages.setdefault((session.held_out, session.success), []).append(session.age)
    now = parse_timestamp(latest)
    ended_since = timestamp(now - timedelta(seconds=longest_wait(ages.values())))
    open_since = timestamp(now - PATIENCE)
    pending = (
        session.began
        for session in sessions
        if session.success is None
        and session.began >= (ended_since if session.ended else open_since)
    )
    first = min(pending, default=None)
    return [session for session in sessions if first is None or session.began < first]


def _count_arm(
    compared: Iterable[DrawnSession], due: Iterable[DrawnSession], held_out: bool
) -> ArmOutcomes:
    ours = [session for session in due if session.held_out == held_out]
    verdicts = [session.success for session in ours if session.success is not None]
    return ArmOutcomes(
        sessions=sum(session.held_out == held_out for session in compared),
        due=len(ours),
        judged=len(verdicts),
        success=sum(verdicts) / len(verdicts) if verdicts else None,
    )


def _bound_difference(due: Iterable[DrawnSession]) -> tuple[float, float]:
    counts = Counter(
        (session.held_out, session.success) for session in due if session.success is not None
    )
    (held_low, held_high), (loop_low, loop_high) = (
        bound_mean(counts[arm, True], counts[arm, True] + counts[arm, False], ERROR / 2)
        for arm in (True, False)
    )
    return loop_low - held_high, loop_high - held_low


def _measure_mismatch(
    sessions: Iterable[DrawnSession], counted: Callable[[DrawnSession], bool]
) -> float:
    return measure_share_mismatch(
        Counter((session.share, session.held_out) for session in sessions if counted(session))
    )
