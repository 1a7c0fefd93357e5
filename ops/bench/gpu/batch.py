"""The training batch: conversations of shop, joined to rows of a real length, their token ids
spread over the model's vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.batch import Row
from daemon.solver.trajectory import Trajectory, Turn
from envs.shop.environment import Shop
from ops.bench.learner.batch import choose_rows, draw_rollouts, spread


@dataclass(frozen=True, slots=True)
class Batch:
    """Rollouts as the learner takes them, and as the rows that it makes of them."""

    rollouts: tuple[Trajectory, ...]
    rows: tuple[Row, ...]
    ends: frozenset[int]
    """Tokens that end a turn."""

    @property
    def written(self) -> int:
        """Return the number of tokens that the model wrote."""
        return sum(row.sequence.tokens for row in self.rows)

    @property
    def read(self) -> int:
        """Return the number of all tokens."""
        return sum(row.length for row in self.rows)


def make_batch(rows: int, conversations: int, vocabulary: int) -> Batch:
    """Return rows of that many conversations each; verdicts are drawn, and every group has both."""
    chat = Chat(CHECKPOINT)
    stride = vocabulary // len(chat.tokenizer)
    short = draw_rollouts(Shop(), chat, rows * conversations)
    rollouts = tuple(
        spread(replace(short[number], turns=_join(short[number::rows])), stride)
        for number in range(rows)
    )
    ends = frozenset(end * stride for end in chat.ends)
    return Batch(rollouts, tuple(choose_rows(rollouts, ends)), ends)


def _join(rollouts: Sequence[Trajectory]) -> tuple[Turn, ...]:
    """Return the turns of several conversations as those of one: each goes on where the one before
    ended."""
    turns: list[Turn] = []
    for rollout in rollouts:
        before = turns[-1].prompt_ids + turns[-1].completion_ids if turns else ()
        turns += [replace(turn, prompt_ids=before + turn.prompt_ids) for turn in rollout.turns]
    return tuple(turns)
