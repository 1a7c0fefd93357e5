"""Plans revised by their failures: what to change, and whether the change stays (pure).

    RuleReviser().revise(environment, history)     a changed plan that is to be tried, or None
    decide_trials(trials, evidence)                  which of the tried changes stay

What to change. The failures of a plan are counted by (aspect, check). Each check that failed often
enough adds a rule to the plan; where the plan has that rule already and its words may be the
reason, the user speaks plainly, for nothing else is left to change by rule. Failed checks and
faults of the task speak against the writing, faults of the user against the rollout (and its
manner), a model that disagrees with the rules against the judging.

Whether it stays. A plan is revised because it failed, so the tries that were the reason show it
worse than it is: held against them, a change that does nothing looks better. Hence a round tries
both, the changed plan and the plan as it was, on fresh tries side by side (`choose_arm`), and only
these are compared. A plan has few tries, so the changes against one check are judged together:

    1. P(acceptance of the changed > of the unchanged), uniform priors, over all plans changed
       against that check, in all rounds so far, must be `SURE` or more; or
       that of the plan alone must be `SURE_ALONE` or more;
    2. and its own acceptance must hold: the plan has been tried as changed, and the chance that it
       is worse than it was is below `WORSE`.

Simulated (ops/bench/synthesis/looks.py) over three rounds of looks, with 4 and 64 plans. Source of
reflection over failures: AReaL-SEA, arXiv 2601.22607, section 3.1, which states no rule for what
stays; the rules here are ours.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, lgamma
from typing import Final

from daemon.synthesis.manners import AS_IS
from daemon.synthesis.protocols import Failure, PlanHistory, RevisionDraft
from daemon.synthesis.template_writer import PLAIN_WORDS
from envs.environment import Environment
from events.rollouts import clip_reason
from events.synthesis.plans import Aspect, Plan, PlanRule

SURE: Final = 0.975
SURE_ALONE: Final = 0.99
WORSE: Final = 0.8
_EVEN: Final = 0.5
LEAST_GAIN: Final = 0.02
"""Acceptance that a round must gain for another to follow."""
_OFTEN: Final = 0.1
"""Share of a plan's tries from which on a check asks for a rule."""
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


@dataclass(frozen=True, slots=True)
class Arm:
    """Tries and how many of them were accepted."""

    tries: int = 0
    accepted: int = 0

    def __add__(self, other: "Arm") -> "Arm":
        return Arm(self.tries + other.tries, self.accepted + other.accepted)

    @property
    def rate(self) -> float:
        """Return the share that was accepted; 0 without a try."""
        return self.accepted / self.tries if self.tries else 0.0


@dataclass(slots=True)
class Trial:
    """A change of a plan and its plan as it was, on fresh tries of one round."""

    check: str
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
        self.before[trial.check] = self.before.get(trial.check, Arm()) + trial.before
        self.after[trial.check] = self.after.get(trial.check, Arm()) + trial.after

    def compute_chance(self, check: str) -> float:
        """Return the chance that changes against a check make plans better."""
        return compute_chance(self.before.get(check, Arm()), self.after.get(check, Arm()))


class RuleReviser:
    """The reviser that needs no model (protocols.Reviser)."""

    trouble = ""

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return the plan with a rule for each check that failed often; None where none did."""
        counts = Counter((failure.aspect, failure.check) for failure in history.failures)
        often = [
            (key, count)
            for key, count in counts.most_common()
            if count >= max(1.0, _OFTEN * history.tries)
        ]
        plan = history.plan
        changed: list[tuple[Aspect, str]] = []
        for (aspect, check), _ in often:
            revised = _add_rule(plan, aspect, check)
            if revised != plan and revised not in history.refused:
                plan = revised
                changed.append((aspect, check))
        if not changed:
            return None
        reasons = ", ".join(f"{check} ({counts[aspect, check]})" for aspect, check in changed)
        return RevisionDraft(
            plan,
            clip_reason(
                f"of {history.tries} tries {history.accepted} were accepted; failed: {reasons}"
            ),
            _list_events(history.failures, changed),
            changed[0][1],
        )


def choose_arm(number: int, is_proven: bool) -> bool:
    """Whether the place with this number, among those of the plans that are changed against one
    check, is tried by the changed plan: every second, or all where the change is proven."""
    return is_proven or number % 2 == 0


def decide_trials(trials: Sequence[Trial], evidence: Evidence) -> list[bool]:
    """Return for each trial of a round whether its change stays. `evidence` has them already."""
    kept = []
    for trial in trials:
        chance = compute_chance(trial.before, trial.after)
        better = evidence.compute_chance(trial.check) >= SURE or chance >= SURE_ALONE
        holds = trial.after.tries > 0 and 1 - chance < WORSE
        kept.append(better and holds)
    return kept


def is_hopeless(trial: Trial, evidence: Evidence) -> bool:
    """Whether a change that did not stay is not worth another trial."""
    worse = 1 - compute_chance(trial.before, trial.after)
    return evidence.compute_chance(trial.check) < _EVEN or worse >= WORSE


def measure_gain(trials: Sequence[Trial], plans: int) -> float:
    """Return how much of a round's changes, if all stayed, the acceptance of a set of plans would
    gain: the difference of the arms, weighted by the share of the plans that are changed."""
    before = sum((trial.before for trial in trials), Arm())
    after = sum((trial.after for trial in trials), Arm())
    if not before.tries or not after.tries:
        return 0.0
    return (after.rate - before.rate) * len(trials) / plans


def compute_chance(before: Arm, after: Arm) -> float:
    """Return P(rate of `after` > rate of `before`) under independent uniform priors.

    Both posteriors are Beta with whole parameters, for which the sum is exact: with
    Beta(a, b) after and Beta(c, d) before, P = sum over i < a of
    B(c + i, b + d) / ((b + i) B(1 + i, b) B(c, d)).
    """
    a, b = after.accepted + 1, after.tries - after.accepted + 1
    c, d = before.accepted + 1, before.tries - before.accepted + 1
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
    if any((rule.aspect, rule.check) == (aspect, check) for rule in plan.rules):
        blames_words = aspect == "rollout" or check in PLAIN_WORDS
        return plan.model_copy(update={"manner": AS_IS}) if blames_words else plan
    text = _TEXTS.get(check) if aspect == "writing" else None
    rule = PlanRule(
        aspect=aspect, check=check, text=text or _ASPECT_TEXTS[aspect].format(check=check)
    )
    return plan.model_copy(update={"rules": (*plan.rules, rule)})


def _list_events(
    failures: Sequence[Failure], changed: Sequence[tuple[Aspect, str]]
) -> tuple[str, ...]:
    """Return the events that a change answers, each once, the last ones where there are many."""
    events = dict.fromkeys(
        failure.event for failure in failures if (failure.aspect, failure.check) in changed
    )
    return tuple(events)[-_CITED:]
