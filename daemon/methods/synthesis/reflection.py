"""Plans revised by their failures: what to change, and whether the change stays (pure).

    RuleReviser().revise(environment, history)     a changed plan that is to be tried, or None
    decide_trials(trials, evidence)                  which of the tried changes stay

What to change. The failures of a plan are counted by (aspect, check). Each check that failed often
enough adds a rule to the plan; where the plan has that rule already and its words may be the
reason, the user speaks plainly, for nothing else is left to change by rule. Failed checks and
faults of the task speak against the writing, faults of the user against the rollout (and its
manner), a model that disagrees with the rules against the judging.

A check that failed often enough in the whole set (`choose_checks`) adds its rule to every plan, for
most faults of a writer are common to all its plans, and a plan alone has too few tries to show one.

Whether it stays. A plan is revised because it failed, so the tries that were the reason show it
worse than it is: held against them, a change that does nothing looks better. Hence a round tries
both, the changed plan and the plan as it was, on fresh tries side by side (`choose_arm`), and only
these are compared. A plan has few tries, so changes are judged by all tries of the set in which
plans were changed against the same checks, in all rounds so far (`Evidence`). A change stays where

    1. P(the checks that it is made against fail less with it) is `LIKELY` or more, and
    2. P(acceptance is worse with it) is below `HOLDS`, for the changes against each of its checks
       together, and below `WORSE` for the plan's own tries.

Uniform priors. The first is no proof, by intent: a change without an effect does no harm, so only
harm is guarded against with some certainty. What is neither kept nor hopeless goes on being tried.

Simulated over three rounds of looks, with 4 and 64 plans (docs/synthesis.md). Source of
reflection over failures: AReaL-SEA, arXiv 2601.22607, section 3.1, which states no rule for what
stays; the rules here are ours.
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
"""Chance from which on checks are taken to fail less."""
HOLDS: Final = 0.2
"""Chance of a worse acceptance in the set below which a change may stay."""
WORSE: Final = 0.8
"""Chance of a worse acceptance from which on a change is not tried again."""
LEAST_GAIN: Final = 0.02
LEAST_SHARE: Final = 0.1
"""Acceptance that a round must gain for another to follow: so much, or this share of the tries that
failed, where that is less."""
_OFTEN: Final = 0.1
"""Share of a plan's tries from which on a check asks for a rule."""
_COMMON: Final = 2
"""Failures of a whole set from which on a check asks for a rule in all its plans."""
_CITED: Final = 100
"""Most failures that a revision cites."""

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
"""Check -> what to do otherwise."""
_ASPECT_TEXTS: Final[Mapping[Aspect, str]] = {
    "writing": "Write so that {check} holds.",
    "rollout": "The user keeps to its situation: no fault of the kind {check}.",
    "judging": "Look again where rules and model disagree: {check}.",
}


Key = tuple[Aspect, str]
"""What of a plan a failure speaks against, and the check that failed."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Tries, how many of them were accepted, and how many failed by which check."""

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
        """Return the share that was accepted; 0 without a try."""
        return self.accepted / self.tries if self.tries else 0.0


@dataclass(slots=True)
class Trial:
    """A change of a plan and its plan as it was, on fresh tries of one round."""

    checks: tuple[str, ...]
    """What the change is to mend."""
    before: Arm = field(default_factory=Arm)
    after: Arm = field(default_factory=Arm)


@dataclass(slots=True)
class Evidence:
    """What the trials of all rounds of a set have shown, by check."""

    before: dict[str, Arm] = field(default_factory=dict)
    after: dict[str, Arm] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        """Add a trial."""
        for check in trial.checks:
            self.before[check] = self.before.get(check, Arm()) + trial.before
            self.after[check] = self.after.get(check, Arm()) + trial.after

    def compute_less(self, checks: Sequence[str]) -> float:
        """Return the chance that checks fail less in plans that are changed against them."""
        before, after = (
            Arm(
                sum(arms.get(check, Arm()).tries for check in checks),
                sum(arms.get(check, Arm()).failed[check] for check in checks),
            )
            for arms in (self.before, self.after)
        )
        return compute_chance(after, before)

    def compute_worse(self, checks: Sequence[str]) -> float:
        """Return the chance that acceptance is worse in plans that are changed against a check, of
        that check for which it is highest."""
        return max(
            compute_chance(self.after.get(check, Arm()), self.before.get(check, Arm()))
            for check in checks
        )


class RuleReviser:
    """The reviser that needs no model (protocols.Reviser)."""

    trouble = ""

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return the plan with a rule for each check that failed often; None where none did."""
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
    """Return what asks for a change of a plan, the most frequent first: what failed often in its
    own tries, and, where it has no rule against that, what failed in its set."""
    often = [key for key, count in own.most_common() if count >= max(1.0, _OFTEN * tries)]
    shared = [key for key, count in common.most_common() if count >= _COMMON and key not in known]
    return list(dict.fromkeys((*often, *shared)))


def choose_arm(number: int) -> bool:
    """Whether the place with this number, among those of the plans that are changed, is tried by
    the changed plan: every second."""
    return number % 2 == 0


def decide_trials(trials: Sequence[Trial], evidence: Evidence) -> list[bool]:
    """Return for each trial of a round whether its change stays. `evidence` has them already."""
    return [
        trial.after.tries > 0
        and evidence.compute_less(trial.checks) >= LIKELY
        and evidence.compute_worse(trial.checks) < HOLDS
        and compute_chance(trial.after, trial.before) < WORSE
        for trial in trials
    ]


def is_hopeless(trial: Trial, evidence: Evidence) -> bool:
    """Whether a change that did not stay is not worth another trial."""
    return (
        compute_chance(trial.after, trial.before) >= WORSE
        or evidence.compute_worse(trial.checks) >= WORSE
        or evidence.compute_less(trial.checks) < 1 - LIKELY
    )


def measure_gain(trials: Sequence[Trial], plans: int) -> float:
    """Return how much of a round's changes, if all stayed, the acceptance of a set of plans would
    gain: the difference of the arms, weighted by the share of the plans that are changed."""
    before = sum((trial.before for trial in trials), Arm())
    after = sum((trial.after for trial in trials), Arm())
    if not before.tries or not after.tries:
        return 0.0
    return (after.rate - before.rate) * len(trials) / plans


def find_least_gain(trials: Sequence[Trial]) -> float:
    """Return the gain of a round's changes below which no further round is worth it."""
    before = sum((trial.before for trial in trials), Arm())
    return min(LEAST_GAIN, LEAST_SHARE * (1 - before.rate))


def compute_chance(before: Arm, after: Arm) -> float:
    """Return P(rate of `after` > rate of `before`) under independent uniform priors.

    Both posteriors are Beta with whole parameters, for which the sum is exact: with
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
    """Return P(Beta(a, b) > Beta(c, d)); plans of a set ask the same of their pooled tries."""
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
    """Return a plan with a rule; where it has the rule, in the plain manner."""
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
    """Return the events that a change answers, each once, the last ones where there are many."""
    events = dict.fromkeys(
        failure.event for failure in failures if (failure.aspect, failure.check) in changed
    )
    return tuple(events)[-_CITED:]
