"""The measurements that the gate decides by: pairs, conduct, and how often it may look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from daemon.evaluation.gate.pairs import Pair
from daemon.evaluation.targets import PlannedTarget


@dataclass(frozen=True, slots=True)
class TokenUse:
    """Tokens that a policy wrote in some rollouts."""

    rollouts: int
    tokens: int
    spread: float = 0.0
    """Standard deviation of a rollout's tokens; 0 where it is not known: then a mean is taken as
    it is."""

    @property
    def mean(self) -> float:
        """Tokens of a rollout."""
        return self.tokens / self.rollouts


@dataclass(frozen=True, slots=True)
class TokenParts:
    """Rollouts with and without a call that a tool refused, the task's prefix included."""

    clean: TokenUse
    refused: TokenUse


@dataclass(frozen=True, slots=True)
class TaskEvidence:
    """The evidence of a policy's answers on one task, over all trials that count."""

    slice: str
    rollouts: int
    passed: int
    without_lookup: int
    """Rollouts in which no tool looked anything up."""
    passed_without_lookup: int
    unseen_values: int
    """Numbers that it said and that nothing had shown, in all rollouts together."""
    answers: int
    """Messages that it wrote."""
    tokens: int


@dataclass(frozen=True, slots=True)
class Conduct:
    """Conduct of a policy beside passing and failing, over all its rollouts."""

    rollouts: int
    violations: int
    """Violations of the policy, unauthorised writes among them."""
    tool_calls: int
    malformed: int
    """Tool calls that could not be read or name no tool."""
    tokens: int
    token_spread: float = 0.0
    """Standard deviation of a rollout's tokens; 0 where it is not known: then a mean is taken as
    it is."""
    violating: Mapping[str, float] = field(default_factory=dict)
    """Task -> share of its rollouts that violate; empty where it is not known: then rollouts are
    taken to stand alone."""
    parts: TokenParts | None = None
    """None where rollouts with a refused call are not counted apart."""
    evidence: Mapping[str, TaskEvidence] = field(default_factory=dict)
    """By task; empty where it was not measured."""

    @property
    def token_use(self) -> TokenUse:
        """Return the tokens that the policy wrote in all its rollouts."""
        return TokenUse(self.rollouts, self.tokens, self.token_spread)


@dataclass(frozen=True, slots=True)
class Looks:
    """How often the gate may look at an evaluation that grows, this time included."""

    most: int = 1
    """At all tasks together."""
    of_slice: Mapping[str, int] = field(default_factory=dict)
    """Slice -> at its own tasks, of a new number each time; `most` for one that is not named."""

    def of(self, name: str) -> int:
        """At a slice."""
        return self.of_slice.get(name, self.most)


@dataclass(frozen=True, slots=True)
class Gap:
    """An estimated difference of pass^1, and the variance of the estimate."""

    value: float
    variance: float


@dataclass(frozen=True, slots=True)
class Reference:
    """The best policy that ever served a slice, where it is not the incumbent."""

    slice: str
    policy: str
    gap: Gap
    """The gap of the incumbent to the policy, by earlier reports."""
    pairs: Sequence[Pair] | None = None
    """Tasks of the slice, with its verdicts in the incumbent's place; None where it cannot play:
    then `gap` stands for it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The measurements of a candidate and its incumbent."""

    targets: Sequence[PlannedTarget]
    """What the candidate is to be better at, and how many tasks of it were planned before the first
    of them was run."""
    pairs: Sequence[Pair]
    """Tasks with the verdicts of both, in an order fixed beforehand."""
    incumbent: Conduct
    candidate: Conduct
    golden: Sequence[Pair] = ()
    """Tasks that the incumbent passed in nearly all of many trials."""
    looks: Looks = Looks()
    references: Sequence[Reference] = ()
    """At most one for each slice."""
    siblings: frozenset[str] = frozenset()
    """Slices whose tasks are reported, and rejected for by no check. What both did (`incumbent`,
    `candidate`) is of the others then; no target and no reference is of these."""

    @property
    def judged(self) -> list[Pair]:
        """The tasks on which the decision rests."""
        return [pair for pair in self.pairs if pair.slice not in self.siblings]
