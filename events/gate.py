"""Settings and report of a promotion gate, frozen data. A `GateDecided` event holds the report.
daemon/evaluation/gate/ gives the fields their meaning."""

from typing import Annotated, Final, Literal

from pydantic import Field

from events.messages import StrictModel

Decision = Literal["PROMOTE", "REJECT", "EXTEND"]
"""`EXTEND`: neither shown better nor shown worse; run more tasks, then ask again."""

Verdict = Literal["PASS", "FAIL", "EXTEND"]

Test = Literal["sign_flip", "group_sequential", "e_process"]

Share = Annotated[float, Field(ge=0, le=1)]

AFTER_ERROR: Final = "after an error"
"""Slice of tasks that begin behind a refused call: no traffic, no weight overall."""

SIBLING: Final = "sibling "
"""Prefix of checks that decide nothing: kinds of task that a panel's member does not answer."""

RISES: Final = ("without look-up", "unseen values", "tokens per answer")
"""Checks that extend an evaluation and never reject: a rise may be a cheat, and may be none."""


class GateSettings(StrictModel):
    """Conditions of a promotion. Differences are of pass^1, so 0.02 is two points."""

    test: Test = "sign_flip"
    """`sign_flip`: once, at the planned number of tasks. The others may look earlier:
    `group_sequential` at each quarter of it, `e_process` after every task."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Chance of promoting a candidate that is no better, one-sided."""
    min_gain: Share = 0.02
    """Least estimated gain on the target."""
    overall_margin: Share = 0.01
    """Largest loss over all tasks: the difference is above minus this, with 95 % confidence."""
    slice_margin: Share = 0.05
    """Largest loss of each slice but the target, likewise."""
    format_margin: Share = 0.02
    """Largest growth of the share of malformed tool calls."""
    token_growth: Annotated[float, Field(ge=0)] = 0.2
    """Largest growth of a rollout's mean tokens, as a share of the incumbent's."""
    token_growth_after_error: Annotated[float, Field(ge=0)] = 1.0
    """The same for rollouts in which a tool refused a call, if they are counted apart: a policy
    that repairs the call goes on, and another policy stops early."""
    golden_floor: Share = 0.75
    """A golden task is lost when the candidate passes fewer of its trials than this share."""
    golden_losses: Annotated[int, Field(ge=0)] = 1
    """Golden tasks that may be lost; chance alone loses one."""


class Rate(StrictModel):
    """A share with its interval."""

    value: Share
    low: Share
    """Lower end of the two-sided 95 % interval."""
    high: Share


class Check(StrictModel):
    """A condition of the gate."""

    name: str
    """`target`, `overall`, `slice NAME`, `sibling NAME`, `best NAME`, `violations`, `format`,
    `tokens`, `tokens after an error`, `tokens overall`, `golden`, or one of `RISES`."""
    verdict: Verdict
    value: float
    """Measured difference of pass^1, count, share or growth."""
    limit: float
    """Limit of `value`, or of its bound `low`."""
    low: float | None = None
    """Lower confidence bound, one-sided; None where the value is compared as it is."""
    tasks: int
    level: float | None = None
    """Error rate of this look: 0.05, less with several looks; None: target and golden tasks."""
    p_value: float | None = None
    """p-value for a higher rate (`violations`, `format`, `RISES`): slices' least × their number."""
    incumbent: Rate | None = None
    """Violations per rollout, or malformed calls per tool call; None where there were none."""
    candidate: Rate | None = None
    against: str | None = None
    """Policy that a `best` check compares with; None for all other checks: the incumbent."""
    chained: bool = False
    """Whether that policy did not play: the difference is from earlier reports, variances added."""


class GatePlan(StrictModel):
    """Planned size of an evaluation, and its reasons."""

    gain: Annotated[float, Field(gt=0)]
    """The gain to find."""
    trials: Annotated[int, Field(ge=1)]
    """Trials of each task, by each policy."""
    between: Annotated[float, Field(ge=0)]
    """Variance of the true difference between tasks, as assumed."""
    within: Annotated[float, Field(ge=0)]
    """Variance of one trial's difference on one task, as the incumbent's pilot showed it."""
    planned: Annotated[int, Field(ge=1)]
    """Planned tasks of the target."""
    power: Share
    """Chance that so many tasks show that gain."""


class TargetReport(StrictModel):
    """The gate's result for one target: tasks that a cycle trained for."""

    name: str
    """Kind of task, or the shares of several kinds."""
    patterns: tuple[str, ...] = ()
    """Failure patterns whose tasks they are; empty where no cycle trained the candidate."""
    kinds: dict[str, Share]
    """Kind of task -> its share of the target's tasks."""
    tasks: int
    gain: float
    """Mean difference of pass^1."""
    low: float
    """One-sided lower 95 % bound of the gain."""
    p_value: float | None = None
    """None for an e-process."""
    level: float
    """Limit of `p_value`: `alpha`, adjusted for several targets by Holm's method."""
    verdict: Verdict
    """PASS: the target was lifted."""
    power: Share | None = None
    """Chance with which so many tasks show the gain of the plan; None without a plan."""
    detectable: float | None = None
    """Gain that these tasks show with a power of 80 %, at the smallest level of Holm's method."""


class AfterError(StrictModel):
    """Results of both policies where a tool refused a call."""

    tasks: int
    incumbent: Share
    """pass^1 of the incumbent."""
    candidate: Share
    token_growth: float | None
    """Growth of mean tokens over rollouts with a refused call; None without such rollouts."""
    clean_token_growth: float | None
    """The same over rollouts without a refused call."""


class AnswerEvidence(StrictModel):
    """Evidence for a policy's answers, over all its rollouts on the tasks that decide."""

    rollouts: Annotated[int, Field(ge=0)]
    passed: Annotated[int, Field(ge=0)]
    passed_without_lookup: Annotated[int, Field(ge=0)]
    """Passed rollouts without a look-up."""
    unseen_values: Annotated[float, Field(ge=0)]
    """Mean count of numbers per rollout that the policy said and nothing had shown."""
    tokens_per_answer: Annotated[float, Field(ge=0)] | None
    """Tokens per message of the policy; None without messages."""


class EvidenceReport(StrictModel):
    """Evidence for the answers of both policies."""

    incumbent: AnswerEvidence
    candidate: AnswerEvidence


class GateReport(StrictModel):
    """A decision and its reasons. With several targets, the test's figures are those of the lifted
    one with the smallest p-value, else of the one with the smallest p-value."""

    decision: Decision
    test: Test
    alpha: float
    """Error rate that this attempt may spend."""
    p_value: float | None = None
    """p-value of the target's test; None for an e-process."""
    e_value: float | None = None
    """Largest value of the e-process."""
    tasks: int
    detectable: float | None = None
    """Gain that this many tasks, as unlike each other as these are, show with a power of 80 %."""
    checks: tuple[Check, ...]
    plan: GatePlan | None = None
    """None where the number of tasks was a person's choice."""
    targets: tuple[TargetReport, ...] = ()
    """Targets in the order of the plan; empty in old reports, which had one target."""
    after_error: AfterError | None = Field(
        default=None, exclude_if=lambda measured: measured is None
    )
    """None without tasks behind a refused call."""
    evidence: EvidenceReport | None = Field(
        default=None, exclude_if=lambda measured: measured is None
    )
    rules: dict[str, str] = Field(default_factory=dict, exclude_if=lambda rules: not rules)
    """Kind of task -> version of its verdicts' rules, without kinds at the first version."""
