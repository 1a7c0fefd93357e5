"""Seeds of generated tasks that an experiment may use. Tasks for choosing settings, for training
and for reported figures never overlap.

A run owns a block of seeds; its parts are used for one thing each. Blocks of development lie in the
range that daemon/solver/reference/demonstrations.py sets apart for it; those of reported runs are
used nowhere else.
"""

from typing import Final, Self

from daemon.solver.reference.demonstrations import DEVELOPMENT
from events.messages import StrictModel

PART: Final = 10_000
"""Seeds of one use: more tasks than any budget here has groups, for each of eight targets."""
BLOCK: Final = 6 * PART
"""Seeds of one run."""

REPORTED: Final = range(50_000_000, 51_000_000)
COMPARED: Final = range(60_000_000, 62_000_000)
"""Of the reported runs of ops/learning/sentinel, each of which has a block per round."""
PRACTISED: Final = range(62_000_000, 63_000_000)
"""Of the reported runs of ops/learning/reflection."""
MERGED: Final = range(63_000_000, 64_000_000)
"""Of the reported runs of ops/learning/merging."""
SYNTHESIZED: Final = range(64_000_000, 65_000_000)
"""Of the reported runs of ops/learning/synthesis."""
PLAYED: Final = range(66_000_000, 67_000_000)
"""Of the reported runs of ops/learning/users."""
MISLED: Final = range(69_000_000, 70_000_000)
"""Of the reported runs of ops/learning/user_faults."""
MIXED: Final = range(70_000_000, 71_000_000)
"""Of the reported runs of ops/learning/environments."""
TUNED: Final = DEVELOPMENT[500_000:]
"""The first half chose the reference policy's recipe."""


class Seeds(StrictModel):
    """First task seed of each use within one run's block."""

    first: int

    @classmethod
    def of(cls, run: int, *, development: bool) -> Self:
        """The block of a run's seed. Raises ValueError for a seed without one."""
        return cls.among(TUNED if development else REPORTED, run)

    @classmethod
    def among(cls, blocks: range, number: int) -> Self:
        """A block of a range by its number. Raises ValueError for one that is not there."""
        count = len(blocks) // BLOCK
        if not 0 <= number < count:
            raise ValueError(f"seed {number} has no block of task seeds; use one below {count}")
        return cls(first=blocks[number * BLOCK])

    @property
    def traffic(self) -> int:
        """First seed of the tasks whose rollouts are diagnosed."""
        return self.first

    @property
    def training(self) -> int:
        """First seed of the tasks that reinforcement learning trains on."""
        return self.first + PART

    @property
    def replay(self) -> int:
        """First seed of the replay, which keeps the rest from being forgotten."""
        return self.first + 2 * PART

    @property
    def references(self) -> int:
        """First seed of the reference trajectories of targets."""
        return self.first + 3 * PART

    @property
    def siblings(self) -> int:
        """First seed of the reference trajectories of the targets' siblings."""
        return self.first + 4 * PART

    @property
    def holdout(self) -> int:
        """First seed of the held-out tasks that figures are reported from."""
        return self.first + 5 * PART
