"""Revise plans by their failures, and decide whether the changes stay (pure).

    RuleReviser().revise(environment, history)     a changed plan that is to be tried, or None
    decide_trials(trials, evidence)                  whether each tried change stays

Failures are counted by (aspect, check). A check that failed often in a plan adds a rule to it. If
the plan has the rule already and its words may be the reason, the user gets the plain manner.
Failed checks and faults of the task count against the writing, faults of the user against the
rollout (and its manner), a model that disagrees with the rules against the judging. A check that
failed often in the whole set (`choose_checks`) adds its rule to every plan: most faults are common
to all plans, and a single plan has few tries.

A plan is revised after failures, so a comparison with its past tries makes any change look better.
Hence a round tries both versions side by side on fresh tries (`choose_arm`) and compares only
these. Changes are judged by all tries of the set against the same checks, in all rounds so far
(`Evidence`). A change stays if
    1. P(its checks fail less with it) is at least `LIKELY`, and
    2. P(acceptance is worse with it) is below `HOLDS`, for the changes against each of its checks
       together, and below `WORSE` for the plan's own tries.
Priors are uniform. The first condition is no proof, by intent: a change without an effect does no
harm. A change that is neither kept nor hopeless is tried again. Simulated over three rounds, with 4
and 64 plans (docs/synthesis.md). Source of reflection: AReaL-SEA, arXiv 2601.22607, section 3.1;
the rules that decide are ours.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import exp, lgamma
from typing import Final

from daemon.methods.synthesis.manners import AS_IS
from daemon.methods.synthesis.protocols import Failure, PlanHistory, RevisionDraft
from daemon.methods.synthesis.template_writer import PLAIN_WORDS
from envs.environment import Environment
from events.rollouts import clip_reason
from events.synthesis.plans import Aspect, Plan, PlanRule

LIKELY: Final = 0.9
"""Least chance that its checks fail less, for a change to stay."""
HOLDS: Final = 0.2
"""A change stays only if the chance of a worse acceptance in the set is below this."""
WORSE: Final = 0.8
"""A change is not tried again if the chance of a worse acceptance is at least this."""
LEAST_GAIN: Final = 0.02
LEAST_SHARE: Final = 0.1
"""Least gain for another round: `LEAST_GAIN`, or `LEAST_SHARE` of the failed tries if less."""
_OFTEN: Final = 0.1
"""Least share of a plan's tries that must fail a check for the check to add a rule."""
_COMMON: Final = 2
"""Fewest failures in a whole set for a check to add its rule to all plans."""
_CITED: Final = 100

_TEXTS: Final[Mapping[str, str]] = {
    "schema": "Give every field of a task, with a reason for the call.",
    "gold": "Take only calls that the tools accept in this state, and that change what they say.",
    "provenance": "Say every value that a write needs, or let a tool tell it.",
    "leak": "Name no tool and no internal id in what the user says.",
    "outputs": "Ask for no answer but what a tool gives, and without commas.",
    "policy": "Ask for nothing that a right agent may not do.",
    "solvable": "Leave nothing to the agent that it cannot find out.",
    "novelty": "Write about other records, in other words than the tasks before.",
    "contamination": "Begin in no state that gates or reports use.",
    "synthesis": "Stay with what the generator of this kind draws.",
    "trajectory": "Let the text ask for exactly what the gold calls do.",
    "informative": "Write a task that the policy passes now and then.",
}
"""Check -> text of the rule that it adds."""
_ASPECT_TEXTS: Final[Mapping[Aspect, str]] = {
    "writing": "Write so that {check} holds.",
    "rollout": "The user keeps to its situation: no fault of the kind {check}.",
    "judging": "Look again where rules and model disagree: {check}.",
}


Key = tuple[Aspect, str]
"""The part of a plan that a failure is evidence against, and the failed check."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Counts of tries, of accepted ones, and of failures by check."""

    tries: int = 0
    accepted: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Arm") -> "Arm":
        return Arm(
            self.tries + other.tries,
            self.accepted + other.accepted,
            self.failed + other.failed,
        )

    @property
    def rate(self) -> float:
        """Return the accepted share of the tries; 0 without a try."""
        return self.accepted / self.tries if self.tries else 0.0


@dataclass(slots=True)
class Trial:
    """Counts of new tries that one round made with a changed plan and with its original."""

    checks: tuple[str, ...]
    """The checks that the change is meant to mend."""
    before: Arm = field(default_factory=Arm)
    after: Arm = field(default_factory=Arm)


@dataclass(slots=True)
class Evidence:
    """Check -> counts of all trials of a set against it, before and after the change."""

    before: dict[str, Arm] = field(default_factory=dict)
    after: dict[str, Arm] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        """Add the counts of a trial to those of its checks."""
        for check in trial.checks:
            self.before[check] = self.before.get(check, Arm()) + trial.before
            self.after[check] = self.after.get(check, Arm()) + trial.after

    def compute_less(self, checks: Sequence[str]) -> float:
        """Return the chance that these checks fail less in plans that were changed against them."""
        before, after = (
            Arm(
                sum(arms.get(check, Arm()).tries for check in checks),
                sum(arms.get(check, Arm()).failed[check] for check in checks),
            )
            for arms in (self.before, self.after)
        )
        return compute_chance(after, before)

    def compute_worse(self, checks: Sequence[str]) -> float:
        """Return the chance of a worse acceptance with changes, the highest over the checks."""
        return max(
            compute_chance(self.after.get(check, Arm()), self.before.get(check, Arm()))
            for check in checks
        )


class RuleReviser:
    """Revises plans by rule, without a model (protocols.Reviser)."""

    trouble = ""

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return the plan with a rule for each check that failed often; None if nothing changes."""
        own, common = map(_count_keys, (history.failures, history.common))
        plan = history.plan
        changed: list[Key] = []
        for key in choose_checks(own, history.tries, common, _list_keys(plan)):
            revised = _add_rule(plan, *key)
            if revised != plan and revised not in history.refused:
                plan = revised
                changed.append(key)
        if not changed:
            return None
        reasons = ", ".join(f"{key[1]} ({own[key]})" for key in changed if own[key])
        others = ", ".join(f"{key[1]} ({common[key]})" for key in changed if not own[key])
        reason = f"of {history.tries} tries {history.accepted} were accepted"
        reason += f"; failed: {reasons}" if reasons else ""
        reason += f"; in other plans failed: {others}" if others else ""
        return RevisionDraft(
            plan,
            clip_reason(reason),
            _list_events([*history.common, *history.failures], changed),
            tuple(dict.fromkeys(check for _, check in changed)),
        )


def choose_checks(
    own: Counter[Key], tries: int, common: Counter[Key], known: Collection[Key]
) -> list[Key]:
    """Return checks that failed often in the plan's tries, or in its set without a rule yet."""
    often = [key for key, count in own.most_common() if count >= max(1.0, _OFTEN * tries)]
    shared = [key for key, count in common.most_common() if count >= _COMMON and key not in known]
    return list(dict.fromkeys((*often, *shared)))


def choose_arm(number: int) -> bool:
    """Return whether the changed plan, and not the original, tries this place: every second one."""
    return number % 2 == 0


def decide_trials(trials: Sequence[Trial], evidence: Evidence) -> list[bool]:
    """Return for each trial of a round whether its change stays. `evidence` includes the trials."""
    return [
        trial.after.tries > 0
        and evidence.compute_less(trial.checks) >= LIKELY
        and evidence.compute_worse(trial.checks) < HOLDS
        and compute_chance(trial.after, trial.before) < WORSE
        for trial in trials
    ]


def is_hopeless(trial: Trial, evidence: Evidence) -> bool:
    """Return whether a change that did not stay is not worth another trial."""
    return (
        compute_chance(trial.after, trial.before) >= WORSE
        or evidence.compute_worse(trial.checks) >= WORSE
        or evidence.compute_less(trial.checks) < 1 - LIKELY
    )


def measure_gain(trials: Sequence[Trial], plans: int) -> float:
    """Return the gain in the set's acceptance if all changes stayed: the difference between changed
    and original plans, weighted by the share of changed plans."""
    before = sum((trial.before for trial in trials), Arm())
    after = sum((trial.after for trial in trials), Arm())
    if not before.tries or not after.tries:
        return 0.0
    return (after.rate - before.rate) * len(trials) / plans


def find_least_gain(trials: Sequence[Trial]) -> float:
    """Return the least gain of a round that justifies a further one."""
    before = sum((trial.before for trial in trials), Arm())
    return min(LEAST_GAIN, LEAST_SHARE * (1 - before.rate))


def compute_chance(before: Arm, after: Arm) -> float:
    """Return P(rate of `after` > rate of `before`) under independent uniform priors.

    Both posteriors are Beta distributions with whole parameters, for which the sum is exact: with
    Beta(a, b) after and Beta(c, d) before, P = sum over i < a of
    B(c + i, b + d) / ((b + i) B(1 + i, b) B(c, d)).
    """
    return _compare(
        after.accepted + 1,
        after.tries - after.accepted + 1,
        before.accepted + 1,
        before.tries - before.accepted + 1,
    )


@lru_cache(maxsize=4096)
def _compare(a: int, b: int, c: int, d: int) -> float:
    """Return P(Beta(a, b) > Beta(c, d)). Cached, since plans of a set share pooled tries."""
    return min(
        1.0,
        sum(
            exp(_log_beta(c + i, b + d) - _log_beta(1 + i, b) - _log_beta(c, d)) / (b + i)
            for i in range(a)
        ),
    )


def _log_beta(first: float, second: float) -> float:
    return lgamma(first) + lgamma(second) - lgamma(first + second)


def _add_rule(plan: Plan, aspect: Aspect, check: str) -> Plan:
    """Return the plan with a rule against the check, or, if it has that, with plain words."""
    if (aspect, check) in _list_keys(plan):
        blames_words = aspect == "rollout" or check in PLAIN_WORDS
        return plan.model_copy(update={"manner": AS_IS}) if blames_words else plan
    text = _TEXTS.get(check) if aspect == "writing" else None
    rule = PlanRule(
        aspect=aspect, check=check, text=text or _ASPECT_TEXTS[aspect].format(check=check)
    )
    return plan.model_copy(update={"rules": (*plan.rules, rule)})


def _count_keys(failures: Sequence[Failure]) -> Counter[Key]:
    return Counter((failure.aspect, failure.check) for failure in failures)


def _list_keys(plan: Plan) -> set[Key]:
    return {(rule.aspect, rule.check) for rule in plan.rules}


def _list_events(failures: Sequence[Failure], changed: Sequence[Key]) -> tuple[str, ...]:
    """Return the events that a change responds to, each once, at most the last `_CITED`."""
    events = dict.fromkeys(
        failure.event for failure in failures if (failure.aspect, failure.check) in changed
    )
    return tuple(events)[-_CITED:]
