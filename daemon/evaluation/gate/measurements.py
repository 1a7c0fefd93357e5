"""The gate's measurements: pairs, conduct, and numbers of looks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.targets import PlannedTarget


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Tokens that a policy wrote."""

    rollouts: int
    tokens: int
    spread: float = 0.0
    """Standard deviation of a rollout's tokens; 0: unknown, and the mean is taken as it is."""

    @property
    def mean(self) -> float:
        """Return the mean tokens of a rollout."""
        return self.tokens / self.rollouts


@dataclass(frozen=True, slots=True)
class TokenParts:
    """Rollouts without and with a refused call, the task's prefix included."""

    clean: TokenUse
    refused: TokenUse


@dataclass(frozen=True, slots=True)
class TaskEvidence:
    """Evidence of a policy's answers on one task, over all counted trials."""

    slice: str
    rollouts: int
    passed: int
    without_lookup: int
    """Rollouts without a look-up."""
    passed_without_lookup: int
    unseen_values: int
    """Numbers that it said and nothing had shown."""
    answers: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Conduct:
    """A policy's conduct over all its rollouts."""

    rollouts: int
    violations: int
    """Violations of the policy, with unauthorised writes."""
    tool_calls: int
    malformed: int
    """Tool calls that are unreadable or name no tool."""
    tokens: int
    token_spread: float = 0.0
    """As in `TokenUse`."""
    violating: Mapping[str, float] = field(default_factory=dict)
    """Task -> share of violating rollouts; empty: unknown, and rollouts count as independent."""
    parts: TokenParts | None = None
    """None if rollouts with a refused call do not count apart."""
    evidence: Mapping[str, TaskEvidence] = field(default_factory=dict)
    """Evidence by task; empty if not measured."""

    @property
    def token_use(self) -> TokenUse:
        """Return the tokens of all rollouts."""
        return TokenUse(self.rollouts, self.tokens, self.token_spread)


@dataclass(frozen=True, slots=True)
class Looks:
    """Most looks at a growing evaluation, with this one."""

    most: int = 1
    of_slice: Mapping[str, int] = field(default_factory=dict)
    """Slice -> looks at new numbers of its tasks; default `most`."""

    def of(self, name: str) -> int:
        """Return the looks at a slice."""
        return self.of_slice.get(name, self.most)


@dataclass(frozen=True, slots=True)
class Gap:
    """Estimated difference of pass^1, and its variance."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True)
class Reference:
    """A slice's best policy ever, unless it is the incumbent."""

    slice: str
    policy: str
    gap: Gap
    """Gap of incumbent and policy by earlier reports."""
    pairs: Sequence[Pair] | None = None
    """Tasks with the policy in the incumbent's place; None: it cannot play, and `gap` counts."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Measurements of a candidate and its incumbent."""

    targets: Sequence[PlannedTarget]
    """Targets, with their numbers of tasks planned beforehand."""
    pairs: Sequence[Pair]
    """Tasks with both verdicts, in an order fixed beforehand."""
    incumbent: Conduct
    candidate: Conduct
    golden: Sequence[Pair] = ()
    """Tasks that the incumbent passed in nearly all of many trials."""
    looks: Looks = Looks()
    references: Sequence[Reference] = ()
    """At most one per slice."""
    siblings: frozenset[str] = frozenset()
    """Slices that are only reported. `incumbent` and `candidate` leave them out, and no target or
    reference is of them."""

    @property
    def judged(self) -> list[Pair]:
        """Return the tasks of the decision."""
        return [pair for pair in self.pairs if pair.slice not in self.siblings]
