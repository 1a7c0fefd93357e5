"""Connect the learner with the methods: their kinds of jobs, rewards and commands."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from daemon.methods.lessons.repair_reward import BOTH, REPAIR
from daemon.methods.lessons.rewards import print_rewards
from daemon.methods.skills.routing.kind import ROUTER
from daemon.methods.synthesis.users.kind import USER
from daemon.solver.kind import JobKind
from daemon.solver.reward import VERDICT, Reward
from events.jobs import RewardKind

METHOD_KINDS: Final[Mapping[str, JobKind]] = {"user": USER, "router": ROUTER}
"""Value of a spec's `teaches` -> the kind of job, except `agent`."""

REWARDS: Final[Mapping[RewardKind, Reward]] = {"verdict": VERDICT, "repair": REPAIR, "both": BOTH}
"""A pool's `reward` -> its computation; `check_pools` of spec.py refuses any other."""

COMMANDS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {"reward": print_rewards}
"""First argument of `python -m daemon.solver` -> its command, which returns an exit code."""
