"""Simulated sessions with a holdout, and the product's interval of the lift at any moment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from daemon.serving.confidence_sequence import bound_mean
from daemon.serving.lift import ERROR
from daemon.serving.sequential_test import UNEQUAL, longest_wait, measure_share_mismatch

Columns = NDArray[Any]

LOOKS: Final = 30
_FIRST_LOOK: Final = 20
RATE: Final = 10.0
"""Sessions per minute."""
_LATE_MINUTES: Final = 300.0


def constant(places: Columns) -> Columns:
    """Return the drift of constant traffic."""
    return np.zeros_like(places)


def decline(places: Columns) -> Columns:
    """Return the drift of traffic that gets steadily harder."""
    return -0.4 * places


def drop(places: Columns) -> Columns:
    """Return the drift of traffic that becomes harder in a single step."""
    return np.where(places < 0.3, 0.0, -0.35)


def wave(places: Columns) -> Columns:
    """Return the drift of traffic that gets harder and easier by turns."""
    return 0.15 * np.sin(12 * np.pi * places)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Properties of simulated sessions."""

    success: float = 0.8
    """Success probability of the holdout, before drift."""
    lift: float = 0.0
    share: float = 0.02
    drift: Callable[[Columns], Columns] = constant
    """Function: elapsed share of the traffic (0 to 1) -> change of the success probability."""
    minutes_pass: float = 10.0
    minutes_fail: float = 10.0
    judged: tuple[float, float] = (1.0, 1.0)
    """Shares of the holdout's and the loop's sessions that are judged."""
    late: float = 0.0
    """Share of the verdicts that come hours late."""
    drawn: float | None = None
    """Share of sessions that are really held out, if it wrongly differs from `share`."""
    sessions: int = 10_000


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of a run as arrays, ordered by their beginning; times in minutes."""

    held_out: Columns
    probability: Columns
    success: Columns
    began: Columns
    ended: Columns
    judged: Columns
    """Minute of the verdict; infinite if it never comes."""


def simulate(traffic: Traffic, seed: int) -> Sessions:
    """Return the sessions of a run."""
    chance = np.random.default_rng(seed)
    count = traffic.sessions
    began = np.cumsum(chance.exponential(1 / RATE, count))
    share = traffic.share if traffic.drawn is None else traffic.drawn
    held_out = chance.random(count) < share
    places = np.arange(count) / count
    base = np.clip(traffic.success + traffic.drift(places), 0.001, 0.999)
    loop = np.clip(base + traffic.lift, 0.001, 0.999)
    probability = np.where(held_out, base, loop)
    success = chance.random(count) < probability
    minutes = np.where(success, traffic.minutes_pass, traffic.minutes_fail)
    ended = began + chance.exponential(1.0, count) * minutes
    late = np.where(chance.random(count) < traffic.late, _LATE_MINUTES, 0.0)
    known = chance.random(count) < np.where(held_out, *traffic.judged)
    judged = np.where(known, ended + late, np.inf)
    return Sessions(held_out, probability, success, began, ended, judged)


@dataclass(frozen=True, slots=True)
class Look:
    """The lift's interval and its true value at one moment."""

    low: float
    high: float
    truth: float | None
    """True lift: difference of mean success probabilities; None if an arm lacks verdicts."""
    alarm: bool


def look_at(sessions: Sessions, number: int, share: float) -> Look:
    """Return the interval after `number` sessions. A test compares it with `measure_lift`."""
    now = sessions.began[number - 1]
    known = sessions.judged[:number] <= now
    held_out, success = sessions.held_out[:number], sessions.success[:number]
    ages = sessions.judged[:number] - sessions.began[:number]
    waits = [
        ages[known & (held_out == arm) & (success == outcome)].tolist()
        for arm in (True, False)
        for outcome in (True, False)
    ]
    over = (sessions.ended[:number] <= now) & (sessions.began[:number] < now - longest_wait(waits))
    pending = np.flatnonzero(~(known | over))
    due = int(pending[0]) if len(pending) else number
    counted = known[:due]
    arms = [counted & (held_out[:due] == arm) for arm in (True, False)]
    judged = [int(arm.sum()) for arm in arms]
    successes = [int(success[:due][arm].sum()) for arm in arms]
    holdout, loop = (
        bound_mean(passed, count, ERROR / 2)
        for passed, count in zip(successes, judged, strict=True)
    )
    truth = None
    if all(judged):
        held, others = (float(sessions.probability[:due][arm].mean()) for arm in arms)
        truth = others - held
    drawn = int(held_out.sum())
    mismatches = (
        measure_share_mismatch({(share, True): count, (share, False): others})
        for count, others in ((drawn, number - drawn), judged)
    )
    alarm = any(evidence >= UNEQUAL for evidence in mismatches)
    return Look(loop[0] - holdout[1], loop[1] - holdout[0], truth, alarm)


@dataclass(frozen=True, slots=True)
class Run:
    """Whether the intervals of a run were right, and the last of them."""

    miscovered: bool
    false_claim: bool
    alarm: bool
    last: Look


def look_repeatedly(traffic: Traffic, seed: int) -> Run:
    """Simulate a run and compare its interval with the true lift at `LOOKS` moments."""
    sessions = simulate(traffic, seed)
    ratio = traffic.sessions / _FIRST_LOOK
    numbers = sorted({round(_FIRST_LOOK * ratio ** (look / (LOOKS - 1))) for look in range(LOOKS)})
    looks = [look_at(sessions, number, traffic.share) for number in numbers]
    return Run(
        miscovered=any(
            look.truth is not None and not look.low <= look.truth <= look.high for look in looks
        ),
        false_claim=not traffic.lift and any(not look.low <= 0 <= look.high for look in looks),
        alarm=any(look.alarm for look in looks),
        last=looks[-1],
    )
