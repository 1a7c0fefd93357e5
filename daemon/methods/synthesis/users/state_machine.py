"""What an agent needs next for an adapter that plays its users: pure.

    next_user_step(view)    a step, or why there is none

    retire      adapters of another base that were not measured go out of service
    evaluate    what a job left plays dialogues whose exact user is known, and its gate decides
    stage       what passed is loaded on every replica
    train       the job runs (jobs/training_runs.py)
    request     the leader requests a job

Only `request` is the leader's (role `schedule`); the others are done by the role `work`. The same
view gives the same step, so a process that was killed, or is one of two, asks again.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

LEAST_DIALOGUES: Final = 32
"""Accepted dialogues without which no job is requested: a user that has seen fewer learns their
words and not how to follow a situation."""
_GROWTH: Final = 2
"""A failed attempt is followed by another one when there are so many times as many dialogues."""


class UserStep(StrEnum):
    """What is to be done for an adapter that plays users."""

    RETIRE = "retire"
    EVALUATE = "evaluate"
    STAGE = "stage"
    TRAIN = "train"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The last job that trained an adapter for users, and came to nothing."""

    number: int
    """Counted from 1, on this base."""
    dialogues: int
    """Accepted dialogues that there were when it was requested."""
    reason: str
    """Why nothing plays that it left."""


@dataclass(frozen=True, slots=True)
class UserView:
    """An agent on its present base, as far as its users go."""

    setting: Literal["script", "model", "trained"]
    """`improve.users`."""
    obstacle: str
    """Why no adapter can be trained to play its users; empty where one can."""
    outdated: tuple[str, ...] = ()
    """Adapters for users of other bases that were not measured and are not out of service."""
    plays: str | None = None
    """The adapter that passed its gate on this base."""
    lacks_manners: bool = False
    """Whether tasks are written in manners that its gate did not have."""
    is_staged: bool = False
    """Whether replicas hold it."""
    candidate: str | None = None
    """The adapter that a job left and that was not measured yet."""
    job: str | None = None
    """The open job that trains one."""
    last: LastAttempt | None = None
    """None where no attempt on this base failed."""
    dialogues: int = 0
    """Accepted dialogues: one for each task."""


@dataclass(frozen=True, slots=True)
class NoUserStep:
    """Nothing is to be done."""

    reason: str


def next_user_step(view: UserView) -> UserStep | NoUserStep:
    """Return what an agent needs next for an adapter that plays its users, or why nothing."""
    if view.outdated:
        return UserStep.RETIRE
    if view.setting != "trained":
        return NoUserStep(f'improve.users is "{view.setting}"')
    if view.candidate is not None and not view.obstacle:
        return UserStep.EVALUATE
    if view.plays is not None and not view.lacks_manners:
        return NoUserStep(f"{view.plays} plays them") if view.is_staged else UserStep.STAGE
    if view.job is not None:
        return UserStep.TRAIN
    if view.obstacle:
        return NoUserStep(view.obstacle)
    step = _decide_request(view)
    if view.plays is None or isinstance(step, UserStep):
        return step
    return NoUserStep(
        f"{view.plays} was measured in the words of the generator alone, and improve.synthesis "
        f"writes tasks in other manners; {step.reason}"
    )


def _decide_request(view: UserView) -> UserStep | NoUserStep:
    """Return whether a job is to be requested."""
    if view.dialogues < LEAST_DIALOGUES:
        return NoUserStep(
            f"{view.dialogues:,} simulated dialogues are recorded and accepted, and a job needs "
            f"{LEAST_DIALOGUES}"
        )
    last = view.last
    if last is not None and view.dialogues < _GROWTH * last.dialogues:
        return NoUserStep(
            f"attempt {last.number} failed ({last.reason}); the next one waits for "
            f"{_GROWTH * last.dialogues:,} accepted dialogues, of which {view.dialogues:,} are "
            "there, or for another base"
        )
    return UserStep.REQUEST
