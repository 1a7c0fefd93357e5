"""Wire the learner with the methods: the rewards of pools, and commands beside jobs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from daemon.methods.lessons.repair_reward import BOTH, REPAIR
from daemon.methods.lessons.rewards import print_rewards
from daemon.solver.reward import VERDICT, Reward
from events.jobs import RewardKind

REWARDS: Final[Mapping[RewardKind, Reward]] = {"verdict": VERDICT, "repair": REPAIR, "both": BOTH}
"""A pool's `reward` -> its computation; `check_pools` of spec.py refuses any other."""

COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {"reward": print_rewards}
"""First argument of `python -m daemon.solver` -> the command, which returns its exit code."""
