"""Data that the gate decides on: paired verdicts, both policies' conduct, and numbers of looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.targets import PlannedTarget


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Tokens that a policy wrote in some of its rollouts."""

    rollouts: int
    tokens: int
    spread: float = 0.0
    """Standard deviation of the tokens per rollout; 0: unknown, and the mean counts as exact."""

    @property
    def mean(self) -> float:
        """Return the mean number of tokens per rollout."""
        return self.tokens / self.rollouts


@dataclass(frozen=True, slots=True)
class TokenParts:
    """Token use of the rollouts without and with a refused call; calls in a prefix count."""

    clean: TokenUse
    refused: TokenUse


@dataclass(frozen=True, slots=True)
class TaskEvidence:
    """Sums over the judged trials of one policy on one task, for the tests of rises.py."""

    slice: str
    rollouts: int
    passed: int
    without_lookup: int
    """Rollouts without a call of a look-up tool."""
    passed_without_lookup: int
    unseen_values: int
    """Numbers in its answers that no earlier text or result contained."""
    answers: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Conduct:
    """Violations, malformed calls and tokens of a policy over all its rollouts."""

    rollouts: int
    violations: int
    """Violations of the environment's policy, including unauthorised writes."""
    tool_calls: int
    malformed: int
    """Tool calls that are unreadable or name no tool."""
    tokens: int
    token_spread: float = 0.0
    """Standard deviation of the tokens per rollout; 0: unknown."""
    violating: Mapping[str, float] = field(default_factory=dict)
    """Task -> share of its rollouts with a violation; if empty, rollouts count as independent."""
    parts: TokenParts | None = None
    """Tokens with and without a refused call; None if the gate does not separate them."""
    evidence: Mapping[str, TaskEvidence] = field(default_factory=dict)
    """Task -> evidence of the answers; empty if not measured."""

    @property
    def token_use(self) -> TokenUse:
        """Return the token use over all rollouts."""
        return TokenUse(self.rollouts, self.tokens, self.token_spread)


@dataclass(frozen=True, slots=True)
class Looks:
    """Largest possible number of looks at an evaluation that may grow, this look included."""

    most: int = 1
    of_slice: Mapping[str, int] = field(default_factory=dict)
    """Slice -> largest number of looks, each with more of its tasks; `most` if absent."""

    def of(self, name: str) -> int:
        """Return the largest number of looks at a slice."""
        return self.of_slice.get(name, self.most)


@dataclass(frozen=True, slots=True)
class Gap:
    """Estimated difference of two policies' pass^1, and the estimate's variance."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True)
class Reference:
    """The policy that was best at a slice so far, if it is not the incumbent."""

    slice: str
    policy: str
    gap: Gap
    """Difference between incumbent and policy by earlier gate reports."""
    pairs: Sequence[Pair] | None = None
    """Verdicts of policy (as `incumbent`) and candidate; None: it cannot play, and `gap` counts."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements of a candidate and its incumbent."""

    targets: Sequence[PlannedTarget]
    """Targets, with their numbers of tasks planned beforehand."""
    pairs: Sequence[Pair]
    """Both policies' verdicts by task, in an order that was fixed before they played."""
    incumbent: Conduct
    candidate: Conduct
    golden: Sequence[Pair] = ()
    """Verdicts on tasks that the incumbent passed before in nearly all of many trials."""
    looks: Looks = Looks()
    references: Sequence[Reference] = ()
    """At most one per slice."""
    siblings: frozenset[str] = frozenset()
    """Slices that are reported and decide nothing. `incumbent` and `candidate` leave their rollouts
    out, and they have no target or reference."""

    @property
    def judged(self) -> list[Pair]:
        """Return the pairs that the decision counts: those outside of `siblings`."""
        return [pair for pair in self.pairs if pair.slice not in self.siblings]
