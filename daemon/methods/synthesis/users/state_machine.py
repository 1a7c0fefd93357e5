"""The next step for an adapter that plays an agent's users (pure).

    retire      adapters of another base that were not measured go out of service
    evaluate    a job's adapter plays dialogues whose exact user is known, and its gate decides
    stage       the adapter that passed is loaded on every replica
    train       the job runs (jobs/training_runs.py)
    request     the leader requests a job

The leader (role `schedule`) does `request`, the role `work` the others. The same view gives the
same step, so a process that was killed, or is one of two, decides the same.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

LEAST_DIALOGUES: Final = 32
"""Fewest accepted dialogues of a job: fewer teach words, but not how to follow a situation."""
_GROWTH: Final = 2
"""After a failed attempt, the next one needs so many times as many dialogues."""


class UserStep(StrEnum):
    """A step for an adapter that plays users."""

    RETIRE = "retire"
    EVALUATE = "evaluate"
    STAGE = "stage"
    TRAIN = "train"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The last failed attempt to train an adapter that plays users."""

    number: int
    """Number of the attempt on this base, counted from 1."""
    dialogues: int
    """Number of accepted dialogues when its job was requested."""
    reason: str
    """Why its adapter does not play."""


@dataclass(frozen=True, slots=True)
class UserView:
    """The facts about an agent's users, on its present base, from which the next step follows."""

    setting: Literal["script", "model", "trained"]
    """Value of the setting `improve.users`."""
    obstacle: str
    """Why no adapter can be trained to play the users; "" if one can."""
    outdated: tuple[str, ...] = ()
    """Adapters for users of other bases that were not measured and are still in service."""
    plays: str | None = None
    """The adapter that passed its gate on this base."""
    lacks_manners: bool = False
    """Whether tasks have manners that this adapter's gate did not have."""
    is_staged: bool = False
    """Whether replicas hold this adapter."""
    candidate: str | None = None
    """A job's adapter that was not measured yet."""
    job: str | None = None
    """The open job that trains an adapter."""
    last: LastAttempt | None = None
    """None if the newest attempt on this base did not fail."""
    dialogues: int = 0
    """Number of accepted dialogues, one for each task."""


@dataclass(frozen=True, slots=True)
class NoUserStep:
    """Nothing is to be done, with the reason."""

    reason: str


def next_user_step(view: UserView) -> UserStep | NoUserStep:
    """Return the next step for an adapter that plays an agent's users, or why there is none."""
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
