"""Sampled tokens of a rollout, and whether they may be trained on.

A trajectory is a rollout's turns; a turn is one call of the model: the token ids that the sampler
read, and the ids and log-probabilities that it drew. Nothing is ever made from text: decoding and
encoding again gives other ids. `sequences` joins turns as long as each prompt begins with all
earlier ids. A chat template may break that by dropping earlier reasoning; then a new sequence
begins, and batch.py weighs the parts so that the rollout counts once.

Guarantees: every completion id is in exactly one sequence and marked as written, the end token
included; every other id is not. What cannot be trained on is refused with a reason, never repaired.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from events.messages import StrictModel
from events.rollouts import is_logprob

ORACLE: Final = "oracle"
"""Name of the policy in trajectories that the oracle played."""

_MOST_IDS: Final = 2**31


class Sampling(StrictModel):
    """Settings of the sampler."""

    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens to draw from; 0: all tokens."""
    repetition_penalty: float = Field(default=1.0, gt=0)

    @property
    def neutral(self) -> bool:
        """Whether tokens are drawn from the plain softmax at `temperature`, without cuts."""
        return self.top_p == 1.0 and self.top_k == 0 and self.repetition_penalty == 1.0


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the model."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """Token ids that the model wrote, including the end token if there is one."""
    logprobs: tuple[float, ...]
    """Log-probability of each completion id, in nats, under the distribution it was drawn from."""
    truncated: bool = False
    """Whether a limit ended the turn before its end token."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at a task, as tokens, with its verdict."""

    rollout: str
    group: str
    """Id of the group; its rollouts attempt the same task and are compared."""
    task: str
    policy: str
    turns: tuple[Turn, ...]
    success: bool | None
    """Unshaped verdict, or the repair's success if it alone counts; None if unjudged."""
    reward: float | None
    sampling: Sampling = field(default_factory=Sampling)
    malformed: int = 0
    # Fields that are None are not written, so that stored files of successes keep their sha256.
    repair: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    """Reward of the first message's repair, a part of `reward`; None if it does not count."""
    user_fault: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """How the user failed, so that the rollout has no verdict; else None."""
    sealed: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
    """Encrypted turns of a person's task; `turns` is then empty. Only in journals (seals.py)."""

    @property
    def is_incomplete(self) -> bool:
        """Whether a limit cut the last turn off."""
        return bool(self.turns) and self.turns[-1].truncated

    @property
    def finite(self) -> bool:
        """Whether every log-probability is a finite number."""
        return all(math.isfinite(logprob) for turn in self.turns for logprob in turn.logprobs)

    @property
    def tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return sum(len(turn.completion_ids) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Ids that the model read and wrote as one sequence; the three lists have one length."""

    ids: tuple[int, ...]
    written: tuple[bool, ...]
    """True for each id that the model wrote."""
    logprobs: tuple[float, ...]
    """Log-probabilities as the sampler reported them; 0 for ids that the model did not write."""

    @property
    def tokens(self) -> int:
        """Number of tokens that the model wrote."""
        return sum(self.written)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A trajectory that is not trained on."""

    rollout: str
    reason: str


def trainable(
    trajectories: Iterable[Trajectory], ends: frozenset[int], temperature: float = 1.0
) -> tuple[list[Trajectory], list[Refusal]]:
    """Return trainable trajectories, and refused ones with reasons. `ends`: end-of-turn tokens."""
    kept: list[Trajectory] = []
    refused: list[Refusal] = []
    for trajectory in trajectories:
        reason = untrainable(trajectory, ends, temperature)
        if reason is None:
            kept.append(trajectory)
        else:
            refused.append(Refusal(trajectory.rollout, reason))
    return kept, refused


def untrainable(
    trajectory: Trajectory, ends: frozenset[int], temperature: float = 1.0
) -> str | None:
    """Return why a trajectory cannot be trained on; None if it can."""
    if not trajectory.turns:
        return "it has no turns" if trajectory.user_fault is None else "its user erred"
    if trajectory.is_incomplete and trajectory.success:
        return "it was cut off and yet counts as a success"
    if not trajectory.sampling.neutral:
        return f"it was not sampled from the plain softmax: {trajectory.sampling}"
    if trajectory.sampling.temperature != temperature:
        return f"sampled at temperature {trajectory.sampling.temperature:g}, not {temperature:g}"
    for number, turn in enumerate(trajectory.turns):
        last = number == len(trajectory.turns) - 1
        if reason := _defect(turn, ends, last):
            return f"turn {number}: {reason}"
    # This check is last: a rollout without tokens may be unjudged for that reason alone.
    if trajectory.success is None or trajectory.reward is None:
        return "nobody judged it" if trajectory.user_fault is None else "its user erred"
    if not math.isfinite(trajectory.reward):
        return f"its reward is {trajectory.reward}"
    return None


def _defect(turn: Turn, ends: frozenset[int], last: bool) -> str | None:
    if not turn.prompt_ids and not turn.completion_ids:
        return "no exact tokens: its engine sent none, or counts others in `usage`"
    if not turn.prompt_ids:
        return "no prompt"
    if not turn.completion_ids:
        return "no token ids"
    if len(turn.logprobs) != len(turn.completion_ids):
        return f"{len(turn.completion_ids)} token ids and {len(turn.logprobs)} log-probabilities"
    if min(turn.prompt_ids) < 0 or min(turn.completion_ids) < 0:
        return "a negative token id"
    if max(turn.prompt_ids) >= _MOST_IDS or max(turn.completion_ids) >= _MOST_IDS:
        return "a token id of more than 31 bits"
    for logprob in turn.logprobs:
        # Structured decoding reports -inf for tokens that its grammar forbids.
        if not is_logprob(logprob):
            return f"a log-probability of {logprob:g}"
    if turn.truncated and not last:
        return "cut off, and yet the conversation went on"
    if not turn.truncated and turn.completion_ids[-1] not in ends:
        return f"its last token, {turn.completion_ids[-1]}, does not end a turn"
    return None


def sequences(
    trajectory: Trajectory, unit: Literal["rollout", "turn"] = "rollout"
) -> list[TokenSequence]:
    """Return the trajectory's turns as sequences: joined while each prompt begins with all earlier
    ids, or one sequence per turn."""
    return [_join_turns(turns) for turns in _runs(trajectory.turns, unit)]


def _runs(turns: Sequence[Turn], unit: Literal["rollout", "turn"]) -> Iterator[list[Turn]]:
    """Yield runs of turns in which each prompt begins with all earlier ids of the run."""
    run: list[Turn] = []
    ids: tuple[int, ...] = ()
    for turn in turns:
        if run and (unit == "turn" or turn.prompt_ids[: len(ids)] != ids):
            yield run
            run = []
        run.append(turn)
        ids = turn.prompt_ids + turn.completion_ids
    if run:
        yield run


def _join_turns(turns: Sequence[Turn]) -> TokenSequence:
    ids: list[int] = []
    written: list[bool] = []
    logprobs: list[float] = []
    for turn in turns:
        read = turn.prompt_ids[len(ids) :]
        ids += (*read, *turn.completion_ids)
        written += [False] * len(read) + [True] * len(turn.completion_ids)
        logprobs += (*[0.0] * len(read), *turn.logprobs)
    return TokenSequence(tuple(ids), tuple(written), tuple(logprobs))
