"""Why a rollout failed, told by rules from its calls: no model, no clock, no I/O.

Guarantee: the same rollout gives the same diagnosis. All rules that hold are reported, and the
first of them in this order is the category:

    rule                  holds if                                                 without gold
    context_overflow      it ended because the context was full                    same
    tool_loop             a call 3 times in a row or 4 times in all (name and      same
                          canonical arguments), or 4 errors from one tool
    user_id_failure       no tool that reaches the user's record succeeded; comes    same
                          last where the agent tried something else all the same
    policy_violation      a successful write stands for no gold write; or the      success only
                          rollout succeeded with a shaped reward below `KAPPA`
    wrong_tool            a write stands for another on the same record; or gold   -
                          only transfers and the agent did not, or wrote
    wrong_entity          a write stands for the same tool's on another record     -
    wrong_item_selection  a write stands for gold's with other flights, items, ..  -
    incorrect_arguments   a write stands for gold's with other arguments, or gold  malformed calls,
                          was tried and only failed                                a tool that only
                                                                                   failed
    over_cautious         a gold write was not tried; the agent transferred        -
                          instead, or refused
    premature_termination a limit or an error ended it, or it broke off, or the    same
                          agent's last question stayed open
    missing_write_action  a gold write was neither made, replaced nor tried        -
    information_error     the state is right and a required output was not said    -
    other                 none of these

The agent tried something else if it called a write or handed the user over, or if the state is
right and an output is missing. Then the cause of the failure is that attempt, not the missing user
record.

If the grader finds the state right (part `DB` or `r_actions` is 1), no write was wrong: the rules
from policy_violation to over_cautious and missing_write_action do not hold.

If the user acts too (telecom), a missing gold step of the user is not the agent's fault. A failure
in which the agent made exactly its own gold writes is `other`, with the step as evidence, and forms
no pattern; it is over_cautious if the agent handed the user over instead. An agent that works alone
has the user's tools, and every gold step is its own.

Not covered: mistakes of the user's simulator in words (they count as the agent's), wrong gold
(policy_violation, as a rule), and whether the agent asked for a step that the user left out.
"""

from dataclasses import dataclass, field
from typing import Final

from consumers.diagnosis.facts import Facts, Finding
from consumers.diagnosis.rules import RULES, find_user_omissions
from envs.catalog import ToolCatalog
from events.canonical import canonical_json, sha256
from events.messages import executed_calls, trace
from events.rollouts import RolloutEnded

CATEGORIES: Final = (*RULES, "other")
"""Categories in the order in which the primary label is chosen."""

USER_ID: Final = "user_id_failure"
INFORMATION: Final = "information_error"

KAPPA: Final = 0.6
"""A success with a lower shaped reward counts as a failure (docs/patterns.md; our own choice). A
success without authentication earns at most 0.5, a success without faults at least 0.7."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a rollout failed. `category` is None if it did not fail or has no verdict."""

    category: str | None
    """The primary category: the first of `categories`."""
    categories: tuple[str, ...]
    pivot: str
    evidence: dict[str, list[Finding]] = field(default_factory=dict)
    """Category -> findings. They quote arguments of calls, so they are private like the rollout."""


def diagnose(rollout: RolloutEnded, catalog: ToolCatalog | None) -> Diagnosis:
    """Return the diagnosis of a failed rollout, or of a success that was shaped below `KAPPA`."""
    if rollout.success is None:
        return Diagnosis(None, (), "*")
    if rollout.success:
        if rollout.reward is None or rollout.reward >= KAPPA:
            return Diagnosis(None, (), "*")
        shaped = {"policy_violation": _collect_shaping(rollout)}
        return Diagnosis("policy_violation", tuple(shaped), Facts(rollout, catalog).pivot, shaped)
    facts = Facts(rollout, catalog)
    evidence: dict[str, list[Finding]] = {
        name: findings for name, rule in RULES.items() if (findings := rule(facts))
    }
    if not evidence:
        evidence = {"other": find_user_omissions(facts)}
    if USER_ID in evidence and (facts.tried_else or INFORMATION in evidence):
        evidence[USER_ID] = evidence.pop(USER_ID)
    categories = tuple(evidence)
    return Diagnosis(categories[0], categories, facts.pivot, evidence)


def dedup_key(rollout: RolloutEnded) -> str:
    """Return a hash that is equal for two rollouts on the same task with the same calls
    (docs/patterns.md). A rollout without a task uses its own id as the task's, so it equals no
    other rollout."""
    messages = rollout.content.messages if rollout.content else ()
    task = rollout.task.id if rollout.task else rollout.rollout
    return sha256(task + canonical_json(trace(executed_calls(messages))))


def _collect_shaping(rollout: RolloutEnded) -> list[Finding]:
    parts = {name: part for name, part in rollout.reward_parts.items() if part}
    return [{"reward": rollout.reward, "parts": parts}]
